//! Fairness: three programs that gain from huge pages compete with three that do not, for the work
//! of making pages huge and for two processors. All begin on base pages, as after a start on a
//! fragmented machine. The insensitive ones were there first and hold two thirds of the memory.

use super::configuration::{OURS, Running, Who};
use super::promote::{LEAST_GAIN, work_for};
use super::trial::Trial;
use super::worker::{Steady, Worker};
use super::{AT_REST, Configuration, Failure, Measured, Stage};
use crate::bench::{Gate, Spread};
use crate::child::sleep;
use crate::experiment::{Order, Section};
use crate::peers::{HARD, NEVER};
use crate::workload::steady::{Beat, Way};
use anyhow::{Context, Result, bail, ensure};
use megapage_units::Bytes;
use serde::Serialize;
use std::time::{Duration, Instant};

/// The programs in the order of their start, with their way of working and their bytes at scale 1.
/// Those that gain work in the way that gains most in a trial.
const PROGRAMS: [(&str, Option<Way>, u64); 6] = [
    ("sequential", Some(Way::Sequential), 1 << 30),
    ("compute", Some(Way::Compute), 1 << 30),
    ("sequential 2", Some(Way::Sequential), 1 << 30),
    ("gaining", None, 512 << 20),
    ("gaining 2", None, 512 << 20),
    ("gaining 3", None, 512 << 20),
];
/// The ways that are tried for those that gain.
const GAINING: [Way; 2] = [Way::Chase, Way::Sparse];
/// The bytes of all of them.
pub(super) const MEMORY: u64 = (4 << 30) + (512 << 20);
/// Work of each program at scale 1: it takes this processor time on base pages with no other
/// process there. Making their memory huge takes, once, half a second of it in any case: its weight
/// should be that in programs that run longer.
const WORK: Duration = Duration::from_secs(10);
/// Time of a measurement of the programs' rate, and the number of measurements, of which the median
/// counts. Other processes may take a part of the caches meanwhile.
const REFERENCE: Duration = Duration::from_millis(600);
const REFERENCES: usize = 3;
/// The same for the gain of huge pages.
const TRIAL: Duration = Duration::from_millis(600);
const TRIALS: usize = 3;
/// Attempts at a measurement: on a machine that others use, too, a program may make no progress for
/// a while.
const TRIES: usize = 20;
const INTERVAL: Duration = Duration::from_millis(20);
/// Longest time of a run.
const LONGEST: Duration = Duration::from_secs(180);
/// Configuration in which the programs that gain are huge before the clock starts, and no tool acts
/// any more. It shows the effect of their greater speed on the others; no configuration can do
/// better.
const BEFOREHAND: Configuration = Configuration { name: "huge-before", who: Who::Kernel(AT_REST) };
/// Largest loss of the insensitive programs.
const LOSS: f64 = 0.02;

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Fair {
    /// The gains of the ways of working by huge pages, tried at the start while a program that
    /// reads in order has the other processor. The programs that gain work in the best way that
    /// reads at random.
    pub trials: Vec<Trial>,
    /// The programs.
    pub programs: Vec<Person>,
    /// One for each configuration.
    pub rows: Vec<FairRow>,
    /// Runs that failed.
    pub failures: Vec<Failure>,
}

/// One of the programs.
#[derive(Clone, Debug, Serialize)]
pub struct Person {
    /// Its name.
    pub program: &'static str,
    /// Its way of working.
    pub way: &'static str,
    /// True if huge pages make it faster.
    pub sensitive: bool,
    /// Its memory.
    pub bytes: u64,
    /// Its work.
    pub units: u64,
}

/// One configuration.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FairRow {
    /// Its name.
    pub configuration: &'static str,
    /// True if the kernel is alone, with the pages to be made huge.
    pub kernel_alone: bool,
    /// True if free memory was touched before each run.
    pub warmed: bool,
    /// Every run.
    pub samples: Vec<FairSample>,
    /// Seconds until the sensitive programs had finished, the mean of the three: the median of the
    /// runs.
    pub sensitive_seconds: Option<Spread>,
    /// The same of the others.
    pub insensitive_seconds: Option<Spread>,
    /// The former over its value on base pages in the same round: the median of the rounds.
    pub sensitive_ratio: Option<Spread>,
    /// The same of the others.
    pub insensitive_ratio: Option<Spread>,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct FairSample {
    /// The round that it was in, from 0.
    pub round: u32,
    /// Free memory that was touched before it, in bytes.
    pub warmed_bytes: u64,
    /// Seconds until each program had done its work, in the order of the programs.
    pub finish_seconds: Vec<f64>,
    /// The processor time that each took for it, in seconds.
    pub cpu_seconds: Vec<f64>,
    /// The huge bytes of each at the end.
    pub huge_bytes: Vec<u64>,
    /// Processor seconds of the daemon and the kernel's own threads.
    pub helper_seconds: f64,
}

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Fair> {
    let mut workers = Vec::new();
    let mut programs = Vec::new();
    for (program, way, bytes) in PROGRAMS {
        let bytes = stage.scaled_power(bytes);
        let sensitive = way.is_none();
        let way = way.unwrap_or(GAINING[0]);
        let steady = Steady { way, size: bytes, hot: bytes, units: None, interval: INTERVAL };
        let mut worker = Worker::steady(&steady, stage.place, stage.signals)?;
        worker.ready(stage.signals)?;
        programs.push(Person { program, way: way.name(), sensitive, bytes, units: 0 });
        workers.push(worker);
    }
    let (trials, mut failures) = trials(&mut workers, &programs, stage)?;
    let tried = trials.iter().filter_map(|trial| {
        let way = GAINING.into_iter().find(|way| way.name() == trial.way)?;
        Some((way, trial.gain))
    });
    let best = tried.max_by(|one, other| one.1.total_cmp(&other.1));
    let way = best.map_or(GAINING[0], |(way, _)| way);
    for (worker, program) in workers.iter_mut().zip(&mut programs).filter(|(_, program)| program.sensitive) {
        worker.work(way, program.bytes)?;
        program.way = way.name();
    }
    calibrate(&mut workers, &mut programs, stage)?;
    let mut configurations = stage.configurations.clone();
    if configurations.iter().any(|one| one.name == NEVER) {
        configurations.push(BEFOREHAND);
    }
    let mut rows: Vec<FairRow> = configurations.iter().map(|one| FairRow::of(one, true)).collect();
    // The configurations that take most huge pages, on a host that has to be waited for.
    let cold: Vec<Configuration> =
        configurations.iter().filter(|one| [HARD, OURS].contains(&one.name)).copied().collect();
    rows.extend(cold.iter().map(|one| FairRow::of(one, false)));
    for round in 0..stage.runs {
        for at in Order::Rotating.turns(round, configurations.len()) {
            // Configurations that no gate compares run once, except one that explains another.
            let always = [OURS, BEFOREHAND.name].contains(&rows[at].configuration);
            if round > 0 && !rows[at].kernel_alone && !always {
                continue;
            }
            let failed = run_once(&configurations[at], round, &mut rows[at], &mut workers, &programs, stage)?;
            failures.extend(failed);
        }
        if round == 0 {
            for (configuration, row) in cold.iter().zip(&mut rows[configurations.len()..]) {
                failures.extend(run_once(configuration, round, row, &mut workers, &programs, stage)?);
            }
        }
    }
    summarise(&mut rows, &programs);
    Ok(Fair { trials, programs, rows, failures })
}

/// Runs once, from base pages. Returns the failure of the run, if any.
fn run_once(
    configuration: &Configuration,
    round: u32,
    row: &mut FairRow,
    workers: &mut [Worker],
    programs: &[Person],
    stage: &mut Stage<'_>,
) -> Result<Option<Failure>> {
    for worker in workers.iter() {
        worker.split()?;
    }
    let mut warmed_bytes = 0;
    if row.warmed {
        warmed_bytes = stage.warm(programs.iter().map(|program| program.bytes).sum())?.0;
    }
    if *configuration == BEFOREHAND {
        for (worker, _) in workers.iter().zip(programs).filter(|(_, program)| program.sensitive) {
            if let Err(error) = worker.promote(None) {
                let why = format!("{error:#}");
                return Ok(Some(Failure { configuration: configuration.name, why }));
            }
        }
    }
    let mut failed = None;
    match one(configuration, workers, programs, stage) {
        Ok(sample) => {
            let sample = FairSample { round, warmed_bytes, ..sample };
            let [sensitive, insensitive] = means(&sample, programs);
            stage.say(&format!(
                "{}/{} {}{}: sensitive {sensitive:.2} s, insensitive {insensitive:.2} s, processor time of helpers \
                 {:.2} s",
                round + 1,
                stage.runs,
                configuration.name,
                if row.warmed { "" } else { " in memory as it is" },
                sample.helper_seconds
            ));
            row.samples.push(sample);
        }
        Err(error) => failed = Some(stage.failed(configuration.name, error)?),
    }
    for worker in workers {
        worker.settle(stage.signals)?;
    }
    Ok(failed)
}

/// Measures the gain of each way of working by huge pages. The last of the programs that do not
/// gain works beside it. Also returns the trials that failed. The programs are left on base pages.
fn trials(
    workers: &mut [Worker],
    programs: &[Person],
    stage: &mut Stage<'_>,
) -> Result<(Vec<Trial>, Vec<Failure>)> {
    let gaining = (0..programs.len()).find(|&at| programs[at].sensitive).context("no program gains")?;
    let (mut trials, mut failures) = (Vec::new(), Vec::new());
    for (at, way) in [(0, Way::Sequential), (gaining, GAINING[0]), (gaining, GAINING[1])] {
        let bytes = programs[at].bytes;
        workers[at].work(way, bytes)?;
        workers[gaining - 1].go()?;
        let gain = gain(&mut workers[at], stage);
        workers[gaining - 1].pause()?;
        workers[gaining - 1].settle(stage.signals)?;
        match gain {
            Ok(gain) => {
                let trial = Trial { way: way.name(), hot_bytes: bytes, gain };
                stage.say(&format!(
                    "trial: {} of {}: huge pages make it {gain:.2} times as fast",
                    trial.way,
                    Bytes(bytes)
                ));
                trials.push(trial);
            }
            Err(error) if Stage::is_final(&error) => return Err(error),
            // There may be too few huge pages for that memory.
            Err(error) => {
                let why = format!("{}: {error:#}", way.name());
                failures.push(Failure { configuration: "trial", why });
                workers[at].pause()?;
                workers[at].settle(stage.signals)?;
            }
        }
    }
    Ok((trials, failures))
}

/// Returns the program's rate on huge pages over that on base pages.
fn gain(worker: &mut Worker, stage: &mut Stage<'_>) -> Result<f64> {
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..TRIALS {
        worker.split()?;
        rates[0].push(rate_over(worker, TRIAL, stage)?);
        worker.promote(None)?;
        rates[1].push(rate_over(worker, TRIAL, stage)?);
    }
    worker.split()?;
    let [base, huge] = rates.map(|rates| Spread::median_of(&rates).unwrap_or_default());
    Ok(huge / base)
}

/// Returns the program's rate over `time`.
fn rate_over(worker: &mut Worker, time: Duration, stage: &mut Stage<'_>) -> Result<f64> {
    let time = time.mul_f64(stage.scale.max(0.1));
    for _ in 1..TRIES {
        match work_for(worker, time, stage) {
            Err(error) if !Stage::is_final(&error) => {}
            found => return found,
        }
    }
    work_for(worker, time, stage)
}

/// Measures the work that each program does on base pages in the time that it is to work.
fn calibrate(workers: &mut [Worker], programs: &mut [Person], stage: &mut Stage<'_>) -> Result<()> {
    for worker in workers.iter() {
        // Also undoes the remains of a failed trial.
        worker.split()?;
    }
    let mut rates = vec![Vec::new(); programs.len()];
    for _ in 0..REFERENCES {
        for (worker, rates) in workers.iter_mut().zip(&mut rates) {
            rates.push(rate_over(worker, REFERENCE, stage)?);
        }
    }
    for worker in workers {
        worker.settle(stage.signals)?;
    }
    let work = WORK.as_secs_f64() * stage.scale;
    for (program, rates) in programs.iter_mut().zip(rates) {
        let rate = Spread::median_of(&rates).context("no program was timed")?;
        program.units = ((rate * work) as u64).max(1);
    }
    Ok(())
}

/// Runs once.
fn one(
    configuration: &Configuration,
    workers: &mut [Worker],
    programs: &[Person],
    stage: &mut Stage<'_>,
) -> Result<FairSample> {
    let pids: Vec<_> = workers.iter().map(Worker::pid).collect();
    let marks: Vec<usize> = workers.iter().map(|worker| worker.beats.len()).collect();
    let start = Instant::now();
    let mut running = configuration.start(&mut stage.change, &pids, stage.place, stage.signals)?;
    let watched = watch(configuration, workers, programs, &marks, &mut running, start, stage);
    for worker in workers.iter_mut() {
        worker.pause()?;
    }
    let huge = workers.iter().map(Worker::huge).collect::<Result<Vec<u64>>>();
    let stopped = running.stop(&mut stage.change);
    let sample = watched?;
    stopped?;
    Ok(FairSample { huge_bytes: huge?, ..sample })
}

fn watch(
    configuration: &Configuration,
    workers: &mut [Worker],
    programs: &[Person],
    marks: &[usize],
    running: &mut Running,
    start: Instant,
    stage: &mut Stage<'_>,
) -> Result<FairSample> {
    for worker in workers.iter_mut() {
        if configuration.is_always() {
            worker.fault()?;
        }
        worker.go()?;
    }
    let begun = start.elapsed().as_secs_f64();
    let mut finish: Vec<Option<(f64, f64)>> = vec![None; workers.len()];
    while finish.iter().any(Option::is_none) {
        sleep(stage.signals, INTERVAL)?;
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
    let helper_seconds = running.spent()?.as_secs_f64();
    let ended = || finish.iter().flatten();
    Ok(FairSample {
        round: 0,
        warmed_bytes: 0,
        finish_seconds: ended().map(|(seconds, _)| begun + seconds).collect(),
        cpu_seconds: ended().map(|(_, cpu)| *cpu).collect(),
        huge_bytes: Vec::new(),
        helper_seconds,
    })
}

/// Returns the time at which `units` units had been done, and the processor time that they took.
/// Both are in seconds from the first line of progress; between two lines, in proportion.
fn reached(beats: &[Beat], units: u64) -> Option<(f64, f64)> {
    let first = beats.first()?;
    let wanted = first.units + units;
    let after = beats.iter().position(|beat| beat.units >= wanted)?;
    let (before, after) = (&beats[after.saturating_sub(1)], &beats[after]);
    let done = (after.units - before.units).max(1) as f64;
    let share = (wanted.saturating_sub(before.units) as f64 / done).min(1.0);
    let seconds = |of: fn(&Beat) -> u64| {
        let since = |beat: &Beat| of(beat).saturating_sub(of(first)) as f64 / 1e9;
        since(before) + share * (since(after) - since(before))
    };
    Some((seconds(|beat| beat.wall_ns), seconds(|beat| beat.cpu_ns)))
}

/// Returns the means of the sensitive and of the insensitive programs, in seconds.
fn means(sample: &FairSample, programs: &[Person]) -> [f64; 2] {
    [true, false].map(|wanted| {
        let of = sample.finish_seconds.iter().zip(programs);
        let of: Vec<f64> = of.filter(|(_, it)| it.sensitive == wanted).map(|(seconds, _)| *seconds).collect();
        of.iter().sum::<f64>() / of.len().max(1) as f64
    })
}

/// Fills in the medians, of the seconds and of their ratios to those of base pages in the same
/// round.
fn summarise(rows: &mut [FairRow], programs: &[Person]) {
    let never: Vec<(u32, [f64; 2])> = rows
        .iter()
        .filter(|row| row.warmed && row.configuration == NEVER)
        .flat_map(|row| row.samples.iter().map(|sample| (sample.round, means(sample, programs))))
        .collect();
    for row in rows {
        let of: Vec<(u32, [f64; 2])> =
            row.samples.iter().map(|sample| (sample.round, means(sample, programs))).collect();
        let seconds = |index: usize| Spread::of(of.iter().map(|(_, means)| means[index]));
        let ratio = |index: usize| {
            Spread::of(of.iter().filter_map(|(round, means)| {
                let (_, base) = never.iter().find(|(other, _)| other == round)?;
                Some(means[index] / base[index])
            }))
        };
        (row.sensitive_seconds, row.insensitive_seconds) = (seconds(0), seconds(1));
        (row.sensitive_ratio, row.insensitive_ratio) = (ratio(0), ratio(1));
    }
}

impl FairRow {
    fn of(configuration: &Configuration, warmed: bool) -> FairRow {
        FairRow {
            configuration: configuration.name,
            kernel_alone: matches!(configuration.who, Who::Kernel(_)) && *configuration != BEFOREHAND,
            warmed,
            ..FairRow::default()
        }
    }
}

impl Measured for Fair {
    const KEY: &'static str = "fair";

    fn failures(&self) -> &[Failure] {
        &self.failures
    }

    fn sections(&self) -> Vec<Section> {
        super::table::fair(self)
    }

    /// Judges first that the programs that gain do so: without that fairness has no meaning. Then
    /// judges the two demands, on the medians of the ratios to base pages in the same round.
    fn gates(&self) -> Vec<Gate> {
        let row = |name: &str| self.rows.iter().find(|row| row.warmed && row.configuration == name);
        let (Some(ours), Some(_)) = (row(OURS), row(NEVER)) else { return Vec::new() };
        let way = self.programs.iter().find(|program| program.sensitive).map_or("", |program| program.way);
        let gain = self.trials.iter().find(|trial| trial.way == way).map(|trial| trial.gain);
        let mut gates = vec![Gate {
            case: "fair",
            demand: format!("huge pages make those that gain {LEAST_GAIN:.2} times as fast"),
            found: gain.map_or("not known".into(), |gain| format!("{gain:.2} ({way})")),
            holds: gain.is_some_and(|gain| gain >= LEAST_GAIN),
        }];
        let kernel = || self.rows.iter().filter(|row| row.warmed && row.kernel_alone);
        let all_ran = kernel().all(|row| row.sensitive_ratio.is_some());
        let best = kernel()
            .filter_map(|row| Some((row.sensitive_ratio?.median, row.configuration)))
            .min_by(|one, other| one.0.total_cmp(&other.0));
        if let Some((best, name)) = best {
            let found = ours.sensitive_ratio.map(|spread| spread.median);
            gates.push(Gate {
                case: "fair",
                demand: "the sensitive finish sooner than under every setting of the kernel".into(),
                found: format!(
                    "{} of base pages' time against {best:.3} ({name}){}",
                    share(found),
                    if all_ran { "" } else { "; not every setting ran" }
                ),
                holds: all_ran && found.is_some_and(|found| found < best),
            });
        }
        let found = ours.insensitive_ratio.map(|spread| spread.median);
        gates.push(Gate {
            case: "fair",
            demand: format!("the insensitive lose less than {:.0} % against base pages", 100.0 * LOSS),
            found: format!("{} of base pages' time", share(found)),
            holds: found.is_some_and(|found| found < 1.0 + LOSS),
        });
        gates
    }
}

fn share(found: Option<f64>) -> String {
    found.map_or("no run ended:".into(), |found| format!("{found:.3}"))
}

impl Worker {
    /// Waits until it reports nothing any more, after it was paused.
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
mod tests;
