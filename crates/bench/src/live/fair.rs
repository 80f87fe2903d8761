//! Fairness: three programs that gain from huge pages compete with three that do not, for the time of whoever makes
//! pages huge and for two processors. All begin on base pages, as after a start on a fragmented machine; the insensitive
//! ones were there first and hold two thirds of the memory.

use super::configuration::{NEVER, OURS, Running, Who};
use super::worker::{Steady, Worker};
use super::{Configuration, Failure, Stage};
use crate::child::sleep;
use crate::run::{Gate, Spread};
use crate::workload::steady::{Beat, Way};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The programs in the order in which they start, whether they gain, and their bytes at scale 1.
const PROGRAMS: [(&str, Way, bool, u64); 6] = [
    ("sequential", Way::Sequential, false, 1 << 30),
    ("compute", Way::Compute, false, 1 << 30),
    ("sequential 2", Way::Sequential, false, 1 << 30),
    ("chase", Way::Chase, true, 512 << 20),
    ("chase 2", Way::Chase, true, 512 << 20),
    ("chase 3", Way::Chase, true, 512 << 20),
];
/// The bytes of all of them.
pub(super) const MEMORY: u64 = (4 << 30) + (512 << 20);
/// Each does at scale 1 what takes so long of a processor on base pages with nobody else there.
const WORK: Duration = Duration::from_secs(7);
/// What is worked to learn how much that is.
const REFERENCE: Duration = Duration::from_millis(1000);
const INTERVAL: Duration = Duration::from_millis(20);
/// No run takes longer at scale 1.
const LONGEST: Duration = Duration::from_secs(180);
/// What the insensitive may lose.
const LOSS: f64 = 0.02;

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Fair {
    /// The programs.
    pub programs: Vec<Person>,
    /// One for each configuration.
    pub rows: Vec<FairRow>,
    /// What went wrong.
    pub failures: Vec<Failure>,
}

/// One of the programs.
#[derive(Clone, Debug, Serialize)]
pub struct Person {
    /// Its name.
    pub program: &'static str,
    /// Whether huge pages make it faster.
    pub sensitive: bool,
    /// Its memory.
    pub bytes: u64,
    /// What it has to do.
    pub units: u64,
}

/// One configuration.
#[derive(Clone, Debug, Serialize)]
pub struct FairRow {
    /// Its name.
    pub configuration: &'static str,
    /// Whether the kernel is alone.
    pub kernel_alone: bool,
    /// Seconds until each program had done its work, in the order of the programs, for every run.
    pub finish_seconds: Vec<Vec<f64>>,
    /// Processor seconds of the daemon and the kernel's own threads, for every run.
    pub helper_seconds: Vec<f64>,
    /// Seconds until the sensitive programs had finished, the mean of the three: the median of the runs.
    pub sensitive_seconds: Option<Spread>,
    /// The same of the others.
    pub insensitive_seconds: Option<Spread>,
}

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Fair> {
    let mut workers = Vec::new();
    let mut programs = Vec::new();
    for (program, way, sensitive, bytes) in PROGRAMS {
        let bytes = stage.scaled_power(bytes);
        let steady = Steady { way, size: bytes, hot: bytes, units: None, interval: INTERVAL };
        let mut worker = Worker::steady(&steady, stage.place, &stage.signals)?;
        worker.ready(&stage.signals)?;
        programs.push(Person { program, sensitive, bytes, units: 0 });
        workers.push(worker);
    }
    let work = WORK.as_secs_f64() * stage.options.scale;
    for (worker, program) in workers.iter_mut().zip(&mut programs) {
        let rate = super::promote::work_for(worker, REFERENCE, stage)?;
        program.units = ((rate * work) as u64).max(1);
    }
    let configurations = stage.configurations.clone();
    let mut rows: Vec<FairRow> = configurations.iter().map(FairRow::of).collect();
    let mut failures = Vec::new();
    for round in 0..stage.options.runs {
        for (configuration, row) in configurations.iter().zip(&mut rows) {
            // What no gate compares runs once.
            if round > 0 && !row.kernel_alone && row.configuration != OURS {
                continue;
            }
            for worker in &workers {
                worker.split()?;
            }
            match one(configuration, &mut workers, &programs, stage) {
                Ok((finish, helper)) => {
                    row.finish_seconds.push(finish);
                    row.helper_seconds.push(helper);
                    row.summarise(&programs);
                    let [sensitive, insensitive] = means(row.finish_seconds.last(), &programs);
                    stage.say(&format!(
                        "{}/{} {}: sensitive {sensitive:.2} s, insensitive {insensitive:.2} s",
                        round + 1,
                        stage.options.runs,
                        configuration.name
                    ));
                }
                Err(error) if Stage::is_final(&error) => return Err(error),
                Err(error) => {
                    failures.push(Failure { configuration: configuration.name, why: format!("{error:#}") });
                    stage.change.set(&super::AT_REST).context("the settings of transparent huge pages")?;
                }
            }
            for worker in &mut workers {
                worker.settle(&stage.signals)?;
            }
        }
    }
    Ok(Fair { programs, rows, failures })
}

/// One run: when each program had done its work, and the processor time of those who made pages huge.
fn one(
    configuration: &Configuration,
    workers: &mut [Worker],
    programs: &[Person],
    stage: &mut Stage<'_>,
) -> Result<(Vec<f64>, f64)> {
    let pids: Vec<_> = workers.iter().map(Worker::pid).collect();
    let marks: Vec<usize> = workers.iter().map(|worker| worker.beats.len()).collect();
    let start = Instant::now();
    let mut running = configuration.start(&mut stage.change, &pids, stage.place, &stage.signals)?;
    let watched = watch(configuration, workers, programs, &marks, &mut running, start, stage);
    for worker in workers.iter_mut() {
        worker.pause()?;
    }
    let stopped = running.stop(&mut stage.change);
    let found = watched?;
    stopped.map(|()| found)
}

fn watch(
    configuration: &Configuration,
    workers: &mut [Worker],
    programs: &[Person],
    marks: &[usize],
    running: &mut Running,
    start: Instant,
    stage: &mut Stage<'_>,
) -> Result<(Vec<f64>, f64)> {
    for worker in workers.iter_mut() {
        if configuration.is_always() {
            worker.fault()?;
        }
        worker.go()?;
    }
    let begun = start.elapsed().as_secs_f64();
    let mut finish: Vec<Option<f64>> = vec![None; workers.len()];
    while finish.iter().any(Option::is_none) {
        sleep(&stage.signals, INTERVAL)?;
        running.check()?;
        if start.elapsed() > LONGEST {
            bail!("the programs took longer than {} s", LONGEST.as_secs());
        }
        for (index, worker) in workers.iter_mut().enumerate() {
            if finish[index].is_none() {
                worker.drain()?;
                finish[index] = reached(&worker.beats[marks[index]..], programs[index].units);
                if finish[index].is_some() {
                    worker.pause()?;
                }
            }
        }
    }
    let spent = running.spent()?.as_secs_f64();
    Ok((finish.into_iter().flatten().map(|seconds| begun + seconds).collect(), spent))
}

/// When so many units had been done, in seconds from the first line of progress; between two lines, in proportion.
fn reached(beats: &[Beat], units: u64) -> Option<f64> {
    let first = beats.first()?;
    let wanted = first.units + units;
    let after = beats.iter().position(|beat| beat.units >= wanted)?;
    let (before, after) = (&beats[after.saturating_sub(1)], &beats[after]);
    let done = (after.units - before.units).max(1) as f64;
    let share = wanted.saturating_sub(before.units) as f64 / done;
    let seconds = |beat: &Beat| beat.wall_ns.saturating_sub(first.wall_ns) as f64 / 1e9;
    Some(seconds(before) + share.min(1.0) * (seconds(after) - seconds(before)))
}

/// The means of the sensitive and of the insensitive programs.
fn means(finish: Option<&Vec<f64>>, programs: &[Person]) -> [f64; 2] {
    [true, false].map(|wanted| {
        let of: Vec<f64> = finish
            .into_iter()
            .flatten()
            .zip(programs)
            .filter(|(_, program)| program.sensitive == wanted)
            .map(|(seconds, _)| *seconds)
            .collect();
        of.iter().sum::<f64>() / of.len().max(1) as f64
    })
}

impl FairRow {
    fn of(configuration: &Configuration) -> FairRow {
        FairRow {
            configuration: configuration.name,
            kernel_alone: matches!(configuration.who, Who::Kernel(_)),
            finish_seconds: Vec::new(),
            helper_seconds: Vec::new(),
            sensitive_seconds: None,
            insensitive_seconds: None,
        }
    }

    fn summarise(&mut self, programs: &[Person]) {
        let of = |index: usize| {
            Spread::of(self.finish_seconds.iter().map(|run| means(Some(run), programs)[index]))
        };
        (self.sensitive_seconds, self.insensitive_seconds) = (of(0), of(1));
    }
}

impl Fair {
    pub(super) fn gates(&self) -> Vec<Gate> {
        let row = |name: &str| self.rows.iter().find(|row| row.configuration == name);
        let Some(ours) = row(OURS) else { return Vec::new() };
        let mut gates = Vec::new();
        let kernel = self.rows.iter().filter(|row| row.kernel_alone);
        let best = kernel
            .filter_map(|row| Some((row.sensitive_seconds?.median, row.configuration)))
            .min_by(|one, other| one.0.total_cmp(&other.0));
        if let Some((best, name)) = best {
            let found = ours.sensitive_seconds.map(|spread| spread.median);
            gates.push(Gate {
                case: "fair",
                demand: "the sensitive finish sooner than under every setting of the kernel".into(),
                found: format!("{} against {best:.2} s ({name})", seconds(found)),
                holds: found.is_some_and(|found| found < best),
            });
        }
        if let Some(never) = row(NEVER).and_then(|row| row.insensitive_seconds) {
            let found = ours.insensitive_seconds.map(|spread| spread.median);
            gates.push(Gate {
                case: "fair",
                demand: format!("the insensitive lose less than {:.0} % against base pages", 100.0 * LOSS),
                found: format!("{} against {:.2} s", seconds(found), never.median),
                holds: found.is_some_and(|found| found < (1.0 + LOSS) * never.median),
            });
        }
        gates
    }
}

fn seconds(found: Option<f64>) -> String {
    found.map_or("no run ended".into(), |found| format!("{found:.2} s"))
}

impl Worker {
    /// Waits until it says nothing any more, after it was paused.
    fn settle(&mut self, signals: &megapage_kernel::spawn::Signals) -> Result<()> {
        for _ in 0..100 {
            let before = self.beats.len();
            sleep(signals, 4 * INTERVAL)?;
            self.drain()?;
            if self.beats.len() == before {
                self.beats.clear();
                return Ok(());
            }
        }
        ensure!(false, "the workload does not pause");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_work_lies_between_two_lines() {
        let beat = |seconds: u64, units| Beat {
            wall_ns: seconds * 1_000_000_000,
            cpu_ns: 0,
            units,
            finished: false,
        };
        let beats = [beat(5, 100), beat(6, 200), beat(7, 400)];
        assert_eq!(reached(&beats, 100), Some(1.0));
        assert_eq!(reached(&beats, 200), Some(1.5));
        assert_eq!(reached(&beats, 301), None);
        assert_eq!(reached(&[], 1), None);
    }

    fn found(ours: [f64; 6], never: [f64; 6]) -> Fair {
        let programs: Vec<Person> = PROGRAMS
            .iter()
            .map(|(program, _, sensitive, bytes)| Person {
                program,
                sensitive: *sensitive,
                bytes: *bytes,
                units: 1,
            })
            .collect();
        let rows = [(OURS, ours), (NEVER, never)].map(|(name, finish)| {
            let configuration = Configuration::select(&[name.to_string()]).unwrap()[0];
            let mut row = FairRow::of(&configuration);
            row.finish_seconds.push(finish.to_vec());
            row.summarise(&programs);
            row
        });
        Fair { programs, rows: rows.to_vec(), failures: Vec::new() }
    }

    #[test]
    fn late_sensitive_or_losing_insensitive_programs_fail() {
        let holds = |ours: [f64; 6], never: [f64; 6]| -> Vec<bool> {
            found(ours, never).gates().iter().map(|gate| gate.holds).collect()
        };
        let never = [20.0, 21.0, 22.0, 20.0, 21.0, 22.0];
        assert_eq!(holds([20.0, 21.0, 22.0, 18.0, 18.0, 19.0], never), [true, true]);
        assert_eq!(holds([20.0, 21.0, 22.0, 22.0, 21.0, 22.0], never), [false, true]);
        assert_eq!(holds([22.0, 21.0, 22.0, 18.0, 18.0, 19.0], never), [true, false]);
    }
}
