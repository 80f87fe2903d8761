//! Traces from snapshots: the changes from one to the next, as operations.
//!
//! Traces are coarse on purpose. If no estimator has reported, the visits of a page are estimated
//! from coverage. A region of which every page was seen within the window may be visited any number
//! of times more often. Classes that no estimator has reported are taken for random.

use crate::trace::{Operation, Program, Span, Trace};
use megapage_snapshot::{AccessClass, Leaf, PAGES, Process, ProcessId, Region, Snapshot};
use megapage_units::HUGE_2M;
use std::collections::BTreeMap;
use std::time::Duration;

/// Factor to which visits are rounded, so that regions with about the same visits share a line.
const STEP: f64 = 1.5;
/// Step of coverage, in pages.
const COVERAGE_STEP: u16 = 32;
/// Visits of each page within the window, for a region whose every page was seen.
const SATURATED: f64 = 3.0;

/// The state of a region.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    number: u32,
    present: u16,
    content: u16,
    access: Option<Access>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Access {
    pages: u16,
    visits: f64,
    class: AccessClass,
}

#[derive(Clone, Debug)]
struct Track {
    program: Program,
    regions: BTreeMap<u64, Known>,
    next: u32,
    taken: Duration,
    cpu: Duration,
}

/// Turns snapshots into a trace.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    tracks: BTreeMap<ProcessId, Track>,
    first: Option<Duration>,
    memory: u64,
    fragmentation: Option<f64>,
}

impl Recorder {
    /// Takes a snapshot in. Snapshots come in the order in which they were taken.
    pub fn add(&mut self, snapshot: &Snapshot) {
        let first = *self.first.get_or_insert(snapshot.taken);
        self.memory = snapshot.machine.memory.total.0;
        if self.fragmentation.is_none() {
            self.fragmentation = snapshot.machine.nodes.iter().find_map(|node| node.fragmentation);
        }
        for process in &snapshot.processes {
            let track = self.tracks.entry(process.id).or_insert_with(|| Track {
                program: Program {
                    name: name(process),
                    start: snapshot.taken.saturating_sub(first).as_secs_f64(),
                    operations: vec![Operation::Phase("recorded".to_string())],
                },
                regions: BTreeMap::new(),
                next: 0,
                taken: snapshot.taken,
                cpu: process.cpu,
            });
            track.add(process, snapshot.taken);
        }
    }

    /// Returns the trace so far; `None` if no process was observed.
    pub fn finish(self, origin: &str) -> Option<Trace> {
        if self.tracks.is_empty() {
            return None;
        }
        Some(Trace {
            memory: Some(megapage_units::Bytes(self.memory)),
            fragmentation: self.fragmentation.map(|index| (index.clamp(0.0, 1.0) * 1000.0).round() / 1000.0),
            origin: origin.to_string(),
            processes: self.tracks.into_values().map(|track| track.program).collect(),
        })
    }
}

/// Returns the command's name as one word.
fn name(process: &Process) -> String {
    let word: String =
        process.name.chars().map(|c| if c.is_whitespace() || c == '#' { '_' } else { c }).collect();
    if word.is_empty() { format!("pid-{}", process.id.pid) } else { word }
}

impl Track {
    fn add(&mut self, process: &Process, taken: Duration) {
        let elapsed = taken.saturating_sub(self.taken).as_secs_f64();
        let cpu = process.cpu.saturating_sub(self.cpu).as_secs_f64();
        self.taken = taken;
        self.cpu = process.cpu;
        // The work in between comes before its results.
        let work = cpu.min(elapsed) * (1.0 - process.translation.map_or(0.0, |cost| cost.share));
        let round = |seconds: f64| (seconds * 1000.0).round() / 1000.0;
        if round(work) > 0.0 {
            self.program.operations.push(Operation::Work { seconds: round(work) });
        }
        if round(elapsed - cpu) > 0.0 {
            self.program.operations.push(Operation::Idle { seconds: round(elapsed - cpu) });
        }
        let busy = if elapsed > 0.0 { (cpu / elapsed).clamp(0.01, 1.0) } else { 1.0 };
        let window = process.sampling.as_ref().map_or(1.0, |sampling| sampling.window.as_secs_f64());

        let mut now = BTreeMap::new();
        let (mut maps, mut changes, mut accesses) = (Vec::new(), Vec::new(), Vec::new());
        for region in process.regions.iter().filter(|region| region.present > 0) {
            let before = self.regions.get(&region.start()).copied();
            let number = before.map_or_else(
                || {
                    maps.push((self.next, region.start()));
                    self.next += 1;
                    self.next - 1
                },
                |known| known.number,
            );
            let present = region.present.min(PAGES);
            let content = present - region.zeros.unwrap_or(0).min(present);
            let access = access(region, window, busy).or(before.and_then(|known| known.access));
            let (had, held) = before.map_or((0, 0), |known| (known.present, known.content));
            if present < had && content < held {
                changes.push((number, Change::Free { keep: keep(content, held) }));
            } else if present > had || content > held {
                changes.push((number, Change::Touch { pages: present, content }));
            }
            if access != before.and_then(|known| known.access)
                && let Some(access) = access
            {
                accesses.push((number, access));
            }
            now.insert(region.start(), Known { number, present, content, access });
        }
        let gone = self.regions.iter().filter(|(start, _)| !now.contains_key(*start));
        changes.extend(gone.map(|(_, known)| (known.number, Change::Unmap)));
        self.regions = now;

        let operations = &mut self.program.operations;
        operations.extend(map_runs(&maps));
        changes.sort_by_key(|(number, _)| *number);
        for (span, change) in runs(&changes) {
            operations.push(match change {
                Change::Touch { pages, content } => Operation::Touch { span, pages, content, own_ns: 0.0 },
                Change::Free { keep } => Operation::Free { span, keep, own_ns: 0.0 },
                Change::Unmap => Operation::Unmap { span },
            });
        }
        accesses.sort_by_key(|(number, _)| *number);
        for (span, Access { pages, visits, class }) in runs(&accesses) {
            operations.push(Operation::Access { span, pages, visits, class });
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Touch { pages: u16, content: u16 },
    Free { keep: f64 },
    Unmap,
}

/// Returns the share that is left, in per cent.
fn keep(content: u16, before: u16) -> f64 {
    (f64::from(content) / f64::from(before.max(1)) * 100.0).round() / 100.0
}

/// Returns the accesses to a region, as far as it was sampled.
fn access(region: &Region, window: f64, busy: f64) -> Option<Access> {
    let accessed = region.accessed?;
    // One bit for a whole huge page shows no coverage.
    let pages = if region.leaf == Leaf::Base {
        accessed.coverage.min(PAGES).div_ceil(COVERAGE_STEP) * COVERAGE_STEP
    } else if accessed.coverage > 0 {
        PAGES
    } else {
        0
    };
    let (visits, class) = match region.profile {
        Some(profile) => (profile.visits, profile.class),
        None => {
            let share = f64::from(accessed.coverage) / f64::from(region.present.max(1));
            let each = if share >= 0.99 { SATURATED } else { -(1.0 - share).ln() };
            (each * f64::from(pages) / window.max(1e-3) / busy, AccessClass::Random)
        }
    };
    let visits = if visits > 0.0 { STEP.powf(visits.log(STEP).round()) } else { 0.0 };
    // Only two or three digits are known.
    let visits = format!("{visits:.2e}").parse().unwrap_or(visits);
    Some(Access { pages, visits, class })
}

/// Joins neighbours that are alike.
fn runs<T: Copy + PartialEq>(items: &[(u32, T)]) -> Vec<(Span, T)> {
    let mut runs: Vec<(Span, T)> = Vec::new();
    for &(number, what) in items {
        match runs.last_mut() {
            Some((span, last)) if *last == what && span.first + span.count == number => span.count += 1,
            _ => runs.push((Span::new(number, 1), what)),
        }
    }
    runs
}

fn map_runs(maps: &[(u32, u64)]) -> Vec<Operation> {
    let mut runs: Vec<(Span, u64)> = Vec::new();
    for &(number, address) in maps {
        match runs.last_mut() {
            Some((span, start))
                if span.first + span.count == number
                    && *start + u64::from(span.count) * HUGE_2M as u64 == address =>
            {
                span.count += 1;
            }
            _ => runs.push((Span::new(number, 1), address)),
        }
    }
    runs.into_iter().map(|(span, address)| Operation::Map { span, address }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Machine, Setup};
    use crate::workload::by_name;
    use megapage_decide::by_name as policy;
    use megapage_units::Bytes;

    /// Checks that the simulator's own snapshots, recorded, reproduce the simulated run.
    #[test]
    fn a_recorded_run_replays_to_the_same_memory() {
        let hardware = crate::hardware::Hardware::haswell();
        let mut trace = by_name("cg.D").unwrap().trace(&hardware);
        trace.processes[0].operations = vec![
            Operation::Touch { span: Span::new(0, 100), pages: 512, content: 512, own_ns: 0.0 },
            Operation::Access {
                span: Span::new(50, 50),
                pages: 512,
                visits: 1e5,
                class: AccessClass::Random,
            },
            Operation::Work { seconds: 5.0 },
            Operation::Free { span: Span::new(0, 50), keep: 0.25, own_ns: 0.0 },
            Operation::Unmap { span: Span::new(90, 10) },
            Operation::Work { seconds: 5.0 },
        ];
        let setup = Setup::new(Bytes::gib(1));
        let mut machine = Machine::new(setup.clone(), &trace, policy("linux-4k").unwrap()).unwrap();
        let mut recorder = Recorder::default();
        while machine.step() {
            recorder.add(&machine.snapshot());
        }
        let recorded = recorder.finish("test").unwrap();
        recorded.check().unwrap();
        assert_eq!(crate::trace::read(&crate::trace::write(&recorded)).unwrap(), recorded);
        let spans = |operation: &Operation| matches!(operation, Operation::Touch { .. });
        assert_eq!(recorded.processes[0].operations.iter().filter(|o| spans(o)).count(), 1);

        let mut again = Machine::new(setup, &recorded, policy("linux-4k").unwrap()).unwrap();
        let mut least = u64::MAX;
        while again.step() {
            if again.now() > 6.5 && again.resident() > 0 {
                least = least.min(again.resident());
            }
        }
        let expected = (40.0 + 50.0 * 0.25) * f64::from(1 << 21);
        assert!((least as f64 / expected - 1.0).abs() < 0.05, "{least}, expected {expected}");
    }

    #[test]
    fn nothing_observed_is_no_trace() {
        assert!(Recorder::default().finish("test").is_none());
    }
}
