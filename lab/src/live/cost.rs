//! Cost of the daemon itself while there is nothing to do. Much memory is in many processes. Most
//! of them sleep; one reads in order on base pages, and one at random on memory that is huge
//! already.

use super::configuration::{OURS, OURS_ALWAYS, Running};
use super::worker::{Steady, Worker, rate};
use super::{Failure, Measured, Stage};
use crate::bench::{Gate, Spread};
use crate::child::sleep;
use crate::experiment::Section;
use crate::workload::steady::Way;
use anyhow::{Context, Result, ensure};
use megapage_act::pool::floor;
use megapage_kernel::spawn::signal;
use megapage_kernel::{KernelRoot, meminfo};
use megapage_units::Bytes;
use serde::Serialize;
use std::time::{Duration, Instant};

/// All memory at scale 1 if that much is available, and the least.
const RESIDENT: u64 = 20 << 30;
pub(super) const LEAST_RESIDENT: u64 = 14 << 30;
/// Divisor for the part that the programs themselves, and their page tables, take in addition.
const ADDITION: u64 = 32;
/// The processes that it is in.
const PROCESSES: usize = 50;
/// Time that the daemon gets after its start at scale 1; policies without a gate get less.
const SETTLE: Duration = Duration::from_secs(40);
const SETTLE_BRIEFLY: Duration = Duration::from_secs(8);
/// Time over which its processor time is counted then, without a break, and on until a pass has
/// ended. A daemon that was stopped has a pass to make at once, and would be charged for its
/// omitted work.
const COUNTED: Duration = Duration::from_secs(30);
const COUNTED_BRIEFLY: Duration = Duration::from_secs(15);
/// A pass shows by its processor time: more than [`STEP`] between two looks, [`LOOK`] apart.
const STEP: Duration = Duration::from_millis(8);
const LOOK: Duration = Duration::from_millis(250);
/// Longest wait for the end of a pass: the daemon makes one in each minute.
const PASS_WITHIN: Duration = Duration::from_secs(65);
const PASS_WITHIN_BRIEFLY: Duration = Duration::from_secs(8);
/// Length of a slice. After that the daemon runs for a slice and is stopped for a slice, [`SLICES`]
/// times at scale 1, to measure the programs' loss. The loss is a hundredth of their speed, while a
/// shared host changes their rates by a tenth within some seconds.
const SLICE: Duration = Duration::from_secs(1);
const SLICES: usize = 30;
/// Interval of the programs' progress reports, and the longest wait for one after a slice.
const INTERVAL: Duration = Duration::from_millis(100);
const PROGRESS_WITHIN: Duration = Duration::from_secs(10);
/// The demands: of one processor, and of the programs' speed.
const OWN: f64 = 0.01;
const SLOWDOWN: f64 = 0.01;

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Resident bytes.
    pub resident_bytes: u64,
    /// The number of processes that hold them.
    pub processes: usize,
    /// True if that is all that is demanded at this scale. Otherwise more did not fit.
    pub is_whole: bool,
    /// One for each policy.
    pub rows: Vec<CostRow>,
    /// Runs that failed.
    pub failures: Vec<Failure>,
}

/// One policy.
#[derive(Clone, Debug, Serialize)]
pub struct CostRow {
    /// Its name.
    pub configuration: &'static str,
    /// The number of its starts.
    pub starts: usize,
    /// Seconds after each start that do not count.
    pub start_seconds: f64,
    /// The daemon's processor seconds in that time.
    pub start_cpu_seconds: Spread,
    /// The daemon's share of one processor after that: one value for each start.
    pub own_share: Spread,
    /// True if each value covers a whole number of passes.
    pub whole_passes: bool,
    /// The programs' losses; empty for policies without a gate.
    pub slowdowns: Vec<Slowdown>,
    /// Memory that became huge though there was nothing to gain, in bytes: after the last start.
    pub became_huge_bytes: u64,
}

/// One of the programs that work.
#[derive(Clone, Debug, Serialize)]
pub struct Slowdown {
    /// Its work.
    pub program: &'static str,
    /// Its loss of speed while the daemon runs against while it is stopped, 0.01 for 1 %, by
    /// processor time.
    pub slowdown: Spread,
}

struct Crowd {
    sleepers: Vec<Worker>,
    workers: Vec<(&'static str, Worker)>,
}

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Cost> {
    let memory = meminfo(&KernelRoot::live())?;
    let available =
        memory.available.unwrap_or_default().saturating_sub(floor(memory.total.unwrap_or_default()));
    let fitting = available.0 / (ADDITION + 1) * ADDITION;
    let size = stage.scaled(RESIDENT / PROCESSES as u64).min(((fitting / PROCESSES as u64) >> 21) << 21);
    ensure!(size >= 2 << 20, "{available} of memory are available: too little for {PROCESSES} processes");
    let hot = 1u64 << size.ilog2();
    let start = |way, stage: &Stage<'_>| {
        let steady = Steady { way, size, hot, units: None, interval: INTERVAL };
        Worker::steady(&steady, stage.place, stage.signals)
    };
    let mut crowd = Crowd { sleepers: Vec::new(), workers: Vec::new() };
    for index in 0..PROCESSES {
        let way = match index {
            0 => Way::Sequential,
            1 => Way::Random,
            _ => Way::Sleep,
        };
        let mut worker = start(way, stage)?;
        worker.ready(stage.signals)?;
        match index {
            0 => crowd.workers.push(("sequential, on base pages", worker)),
            1 => crowd.workers.push(("random, on huge pages", worker)),
            _ => crowd.sleepers.push(worker),
        }
    }
    crowd.workers[1].1.promote(None)?;
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); stage.configurations.len()];
    let mut failures = Vec::new();
    for round in 0..stage.runs as usize {
        for (index, configuration) in stage.configurations.clone().into_iter().enumerate() {
            if !is_turn(configuration, index, round, stage.runs as usize) {
                continue;
            }
            match one(configuration, round, &mut crowd, stage) {
                Ok(sample) => samples[index].push(sample),
                Err(error) => failures.push(stage.failed(configuration.name, error)?),
            }
            if let Err(error) = crowd.as_before() {
                let why = format!("afterwards memory is not as it was before: {error:#}");
                failures.push(Failure { configuration: configuration.name, why });
            }
        }
    }
    let rows = stage.configurations.iter().zip(&samples);
    let rows = rows.filter_map(|(configuration, samples)| CostRow::of(configuration.name, samples)).collect();
    let is_whole = size >= stage.scaled(RESIDENT / PROCESSES as u64);
    Ok(Cost { resident_bytes: size * PROCESSES as u64, processes: PROCESSES, is_whole, rows, failures })
}

/// Returns true if it is the turn of a configuration. Judged ones have a turn in each round; the
/// others have one each, spread over the rounds.
fn is_turn(configuration: super::Configuration, index: usize, round: usize, rounds: usize) -> bool {
    is_ours(configuration.name) || index % rounds == round
}

/// Returns true for a configuration of megapage, whose own cost is judged.
fn is_ours(name: &str) -> bool {
    [OURS, OURS_ALWAYS].contains(&name)
}

/// Findings of one start of the daemon.
#[derive(Clone, Debug)]
struct Sample {
    settled: Duration,
    start_cpu: Duration,
    share: f64,
    whole_passes: bool,
    /// The losses by program; empty if they were not measured.
    slowdowns: Vec<(&'static str, f64)>,
    became_huge: u64,
}

impl CostRow {
    fn of(configuration: &'static str, samples: &[Sample]) -> Option<CostRow> {
        let last = samples.last()?;
        let slowdown = |index: usize| Spread::of(samples.iter().map(|sample| sample.slowdowns[index].1));
        let slowdowns = last.slowdowns.iter().enumerate();
        Some(CostRow {
            configuration,
            starts: samples.len(),
            start_seconds: last.settled.as_secs_f64(),
            start_cpu_seconds: Spread::of(samples.iter().map(|sample| sample.start_cpu.as_secs_f64()))?,
            own_share: Spread::of(samples.iter().map(|sample| sample.share))?,
            whole_passes: samples.iter().all(|sample| sample.whole_passes),
            slowdowns: slowdowns
                .filter_map(|(index, (program, _))| Some(Slowdown { program, slowdown: slowdown(index)? }))
                .collect(),
            became_huge_bytes: last.became_huge,
        })
    }
}

fn one(
    configuration: super::Configuration,
    round: usize,
    crowd: &mut Crowd,
    stage: &mut Stage<'_>,
) -> Result<Sample> {
    let huge_before = crowd.huge()?;
    let workers = crowd.workers.iter().map(|(_, worker)| worker);
    let pids: Vec<_> = workers.chain(&crowd.sleepers).map(Worker::pid).collect();
    for (_, worker) in &mut crowd.workers {
        worker.go()?;
    }
    let mut running = configuration.start(&mut stage.change, &pids, stage.place, stage.signals)?;
    let watched = watch(configuration.name, round, &mut running, crowd, stage);
    let stopped = running.stop(&mut stage.change);
    let mut sample = watched?;
    stopped?;
    sample.became_huge = crowd.huge()?.saturating_sub(huge_before);
    Ok(sample)
}

fn watch(
    configuration: &'static str,
    round: usize,
    running: &mut Running,
    crowd: &mut Crowd,
    stage: &mut Stage<'_>,
) -> Result<Sample> {
    let scaled = |time: Duration| time.mul_f64(stage.scale.max(0.02));
    let is_judged = is_ours(configuration);
    let (settle, counted, within) = match is_judged {
        true => (scaled(SETTLE), scaled(COUNTED), scaled(PASS_WITHIN)),
        false => (scaled(SETTLE_BRIEFLY), scaled(COUNTED_BRIEFLY), scaled(PASS_WITHIN_BRIEFLY)),
    };
    let slices = 2 * ((SLICES as f64 * stage.scale / 2.0) as usize).max(1);
    let begun = Instant::now();
    sleep(stage.signals, settle)?;
    running.check()?;
    let daemon = running.daemon.as_ref().context("no daemon")?;
    let (settled, start_cpu) = (begun.elapsed(), daemon.cpu()?);
    let (share, whole_passes) =
        share_of_passes(counted, within, &mut || daemon.cpu(), &mut |time| sleep(stage.signals, time))?;
    let mut slowdowns = Vec::new();
    if is_judged {
        // The rates of all slices, added up by program.
        let mut sums = vec![[0.0; 2]; crowd.workers.len()];
        for slice in 0..2 * slices {
            let on = runs_in(slice, round);
            daemon.send(if on { signal::SIGCONT } else { signal::SIGSTOP })?;
            let found = crowd.rates(SLICE, stage);
            // Also after an error: a stopped process cannot be asked to end.
            daemon.send(signal::SIGCONT)?;
            for (sums, rate) in sums.iter_mut().zip(found?) {
                sums[usize::from(on)] += rate;
            }
        }
        let programs = crowd.workers.iter().zip(&sums);
        slowdowns = programs.map(|((program, _), [off, on])| (*program, off / on - 1.0)).collect();
    }
    stage.say(&format!(
        "{}/{} {configuration}: {:.2} % of a processor",
        round + 1,
        stage.runs,
        100.0 * share
    ));
    Ok(Sample { settled, start_cpu, share, whole_passes, slowdowns, became_huge: 0 })
}

/// Returns true if the daemon runs in this slice: on, off, off, on and so forth, and in each other
/// round the opposite. A drift then affects both equally.
fn runs_in(slice: usize, round: usize) -> bool {
    matches!(slice % 4, 0 | 3) == round.is_multiple_of(2)
}

/// Returns the daemon's share of a processor from the end of one pass to the end of another, over
/// at least `time`. Waits up to `within` for each end. Also returns true if both ends were seen;
/// otherwise the share is of the time that passed.
fn share_of_passes(
    time: Duration,
    within: Duration,
    cpu: &mut dyn FnMut() -> Result<Duration>,
    sleep: &mut dyn FnMut(Duration) -> Result<()>,
) -> Result<(f64, bool)> {
    let start = end_of_pass(within, cpu, sleep)?;
    sleep(time)?;
    let end = end_of_pass(within, cpu, sleep)?;
    let (taken, passed) = (end.cpu.saturating_sub(start.cpu), end.at.duration_since(start.at));
    Ok((taken.as_secs_f64() / passed.as_secs_f64(), start.is_seen && end.is_seen))
}

/// The end of a pass.
struct PassEnd {
    /// The daemon's processor time by then.
    cpu: Duration,
    at: Instant,
    /// True if a pass ended; otherwise the wait was over.
    is_seen: bool,
}

/// Waits for the end of a pass, up to `most`.
fn end_of_pass(
    most: Duration,
    cpu: &mut dyn FnMut() -> Result<Duration>,
    sleep: &mut dyn FnMut(Duration) -> Result<()>,
) -> Result<PassEnd> {
    let begun = Instant::now();
    let mut former = cpu()?;
    let mut within = false;
    loop {
        sleep(LOOK)?;
        let (cpu, at) = (cpu()?, Instant::now());
        let is_step = cpu.saturating_sub(former) >= STEP;
        let is_seen = within && !is_step;
        if is_seen || begun.elapsed() >= most {
            return Ok(PassEnd { cpu, at, is_seen });
        }
        (within, former) = (is_step, cpu);
    }
}

impl Crowd {
    /// Returns the rates of the workers, over `time`.
    fn rates(&mut self, time: Duration, stage: &mut Stage<'_>) -> Result<Vec<f64>> {
        for (_, worker) in &mut self.workers {
            worker.drain()?;
            worker.beats.clear();
        }
        let begun = Instant::now();
        sleep(stage.signals, time)?;
        let mut rates = Vec::new();
        for (_, worker) in &mut self.workers {
            loop {
                worker.drain()?;
                let ends = worker.beats.first().zip(worker.beats.last());
                if let Some((first, last)) = ends.filter(|(first, last)| last.units > first.units) {
                    rates.push(rate(first, last));
                    break;
                }
                // The host may have stopped it for that time.
                ensure!(begun.elapsed() < time + PROGRESS_WITHIN, "the workload makes no progress");
                sleep(stage.signals, INTERVAL)?;
            }
        }
        Ok(rates)
    }

    /// Pauses the workers, and splits memory that became huge but should not.
    fn as_before(&mut self) -> Result<()> {
        for (_, worker) in &mut self.workers {
            worker.pause()?;
        }
        for worker in self.sleepers.iter().chain([&self.workers[0].1]) {
            if worker.huge()? > 0 {
                worker.split()?;
            }
        }
        self.workers[1].1.promote(None)
    }

    fn huge(&self) -> Result<u64> {
        let workers = self.workers.iter().map(|(_, worker)| worker);
        workers.chain(&self.sleepers).map(Worker::huge).sum()
    }
}

impl Measured for Cost {
    const KEY: &'static str = "cost";

    fn failures(&self) -> &[Failure] {
        &self.failures
    }

    fn sections(&self) -> Vec<Section> {
        super::table::cost(self)
    }

    /// Judges both configurations of megapage. The start, which the share does not include, is
    /// shown beside it.
    fn gates(&self) -> Vec<Gate> {
        let ours = self.rows.iter().filter(|row| is_ours(row.configuration));
        ours.flat_map(|row| {
            let share = row.own_share.median;
            let prefix = match row.configuration {
                OURS => String::new(),
                other => format!("{other}: "),
            };
            let own = Gate {
                case: "cost",
                demand: format!(
                    "{prefix}at most {:.0} % of one processor with {} in {} processes and nothing to do",
                    100.0 * OWN,
                    Bytes(self.resident_bytes),
                    self.processes
                ),
                found: format!(
                    "{:.2} % ({:.2} to {:.2}), after {:.0} s at the start that took {:.2} s of a processor{}",
                    100.0 * share,
                    100.0 * row.own_share.min,
                    100.0 * row.own_share.max,
                    row.start_seconds,
                    row.start_cpu_seconds.median,
                    match (self.is_whole, row.whole_passes) {
                        (false, _) => ", with less memory than is demanded",
                        (true, false) => ", and no pass was seen to end",
                        (true, true) => "",
                    }
                ),
                holds: share <= OWN && self.is_whole && row.whole_passes,
            };
            let slow = row.slowdowns.iter().map(|found| Gate {
                case: "cost",
                demand: format!("{prefix}{}: slower by at most {:.0} %", found.program, 100.0 * SLOWDOWN),
                found: format!(
                    "{:+.2} % ({:+.2} to {:+.2})",
                    100.0 * found.slowdown.median,
                    100.0 * found.slowdown.min,
                    100.0 * found.slowdown.max
                ),
                holds: found.slowdown.median <= SLOWDOWN,
            });
            std::iter::once(own).chain(slow).collect::<Vec<_>>()
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost_of(
        configuration: &'static str,
        share: f64,
        slower: f64,
        is_whole: bool,
        whole_passes: bool,
    ) -> Cost {
        let one = |median| Spread { median, min: median, max: median };
        let row = CostRow {
            configuration,
            starts: 3,
            start_seconds: 20.0,
            start_cpu_seconds: one(1.0),
            own_share: one(share),
            whole_passes,
            slowdowns: vec![Slowdown { program: "random", slowdown: one(slower) }],
            became_huge_bytes: 0,
        };
        Cost { resident_bytes: 1, processes: 2, is_whole, rows: vec![row], failures: Vec::new() }
    }

    #[test]
    fn a_costly_daemon_and_a_slower_program_fail() {
        let judge_passes = |share: f64, slower: f64, is_whole: bool, whole_passes: bool| -> Vec<bool> {
            let cost = cost_of(OURS, share, slower, is_whole, whole_passes);
            cost.gates().iter().map(|gate| gate.holds).collect()
        };
        let judge = |share, slower, is_whole| judge_passes(share, slower, is_whole, true);
        assert_eq!(
            judge_passes(0.0, 0.001, true, false),
            [false, true],
            "no pass was among what was counted"
        );
        assert_eq!(judge(0.009, 0.001, true), [true, true]);
        assert_eq!(judge(0.011, 0.001, true), [false, true]);
        assert_eq!(judge(0.009, 0.02, true), [true, false]);
        assert_eq!(judge(0.009, 0.001, false), [false, true], "of less memory nothing is proved");
        // The same holds for the configuration beside a kernel that makes every fault huge, and the
        // start is shown.
        let gates = cost_of(OURS_ALWAYS, 0.04, 0.001, true, true).gates();
        assert_eq!(gates.iter().map(|gate| gate.holds).collect::<Vec<_>>(), [false, true]);
        assert!(gates[0].demand.starts_with("megapage-always: at most 1 %"), "{:?}", gates[0]);
        assert!(gates[0].found.contains("20 s at the start that took 1.00 s"), "{:?}", gates[0]);
        assert!(cost_of("linux", 0.04, 0.001, true, true).gates().is_empty());
    }

    #[test]
    fn what_is_judged_has_a_turn_in_each_round_and_the_others_one_each() {
        use super::super::configuration::{CONFIGURATIONS, Who};
        for rounds in [1, 2, 3, 5, 9] {
            let daemons = CONFIGURATIONS.into_iter().filter(|one| matches!(one.who, Who::Daemon(..)));
            for (index, configuration) in daemons.enumerate() {
                let turns = (0..rounds).filter(|round| is_turn(configuration, index, *round, rounds)).count();
                assert_eq!(turns, if is_ours(configuration.name) { rounds } else { 1 });
            }
        }
    }

    #[test]
    fn the_daemon_runs_in_half_of_the_slices() {
        for round in 0..2 {
            let on: Vec<usize> = (0..2 * SLICES).filter(|&slice| runs_in(slice, round)).collect();
            assert_eq!(on.len(), SLICES);
            // Equally early and late on average.
            assert_eq!(2 * on.iter().sum::<usize>(), (0..2 * SLICES).sum::<usize>());
        }
        assert_ne!(runs_in(0, 0), runs_in(0, 1));
    }

    #[test]
    fn whole_passes_are_counted() {
        use std::cell::Cell;
        // A pass takes 50 ms once in 12 looks; between passes each look takes 0.1 ms. Counted by
        // looks, not by a clock.
        let looks = Cell::new(5u32);
        let taken =
            || Duration::from_micros(u64::from(looks.get() / 12) * 50_000 + u64::from(looks.get()) * 100);
        let mut ends = Vec::new();
        for _ in 0..3 {
            let mut cpu = || Ok(taken());
            let mut sleep = |_: Duration| {
                looks.set(looks.get() + 1);
                Ok(())
            };
            assert!(end_of_pass(Duration::from_secs(3600), &mut cpu, &mut sleep).unwrap().is_seen);
            ends.push(looks.get());
        }
        assert_eq!(ends, [13, 25, 37], "one look after each pass");
        // If no pass shows, the wait ends after the limit.
        let none = end_of_pass(Duration::ZERO, &mut || Ok(Duration::from_secs(1)), &mut |_| Ok(())).unwrap();
        assert_eq!((none.cpu, none.is_seen), (Duration::from_secs(1), false));
    }

    #[test]
    fn samples_become_a_row() {
        let sample = |share: f64, slower: f64| Sample {
            settled: Duration::from_secs(30),
            start_cpu: Duration::from_secs_f64(share * 100.0),
            share,
            whole_passes: share < 0.03,
            slowdowns: vec![("one", slower), ("other", 2.0 * slower)],
            became_huge: 7,
        };
        let row = CostRow::of("x", &[sample(0.01, 0.1), sample(0.03, 0.3), sample(0.02, 0.2)]).unwrap();
        assert_eq!((row.starts, row.own_share.median, row.own_share.max), (3, 0.02, 0.03));
        assert_eq!((row.slowdowns[1].program, row.slowdowns[1].slowdown.median), ("other", 0.4));
        assert!(!row.whole_passes, "one of them is not");
        assert_eq!((row.start_cpu_seconds.median, row.became_huge_bytes), (2.0, 7));
        let none = Sample { slowdowns: Vec::new(), ..sample(0.01, 0.1) };
        assert!(CostRow::of("x", &[none]).is_some_and(|row| row.slowdowns.is_empty()));
        assert!(CostRow::of("x", &[]).is_none());
    }
}
