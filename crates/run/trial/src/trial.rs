//! A trial, from its options to its report.

use crate::live::{Live, Part};
use crate::metric::{Metric, MetricOptions};
use crate::processor::Processor;
use crate::reader::{Reader, Service};
use crate::report::{ProcessReport, Report};
use megapage_act::promote::{PromoteOutcome, identify, lacking_ability};
use megapage_act::{Bounds, Movable, RemoteError, Reversible, lacking_right, movable};
use megapage_decide::judge::{Cost, Progress, Stop, Terms, conduct};
use megapage_kernel::cgroup::GroupAccounts;
use megapage_kernel::process::{own_thread_time, read_exe, read_status};
use megapage_kernel::spawn::{self, Signals, signal};
use megapage_kernel::thp::{ThpEnabled, settings};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_launch::promoter::LEAST_PRESENT;
use megapage_launch::verdict::{Build, Verdict, store, unit_of};
use megapage_snapshot::ProcessId;
use megapage_units::{Bytes, HUGE_2M, HugePage, Pid};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// The chance that the interval does not hold the true gain.
const ERROR: f64 = 0.05;
/// Budget for switching, as a share of the service's processor time.
const BUDGET: f64 = 0.01;
/// Largest number of regions that are made huge and base once before the trial, to measure a
/// switch.
const PILOT: usize = 16;
/// Bounds of the default settling time, which is a tenth of the period.
const SETTLE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// Time limit of one switch: a fixed part, and a part for each region. The latter is twice a
/// region's time in the pilot if that is more.
const SWITCH: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(2));
/// Upper bound of that limit.
const LONGEST_SWITCH: Duration = Duration::from_secs(60);
/// Divisor of the trial's time that gives another upper bound, which is at least the fixed part. A
/// switch can take three attempts.
const SWITCHES: u32 = 6;
/// Time limit of one reading of a metric.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest number of processes of one service: each has a guard.
const MOST_PROCESSES: usize = 256;

/// The service on trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The unit, if the user named one: its control group's accounts count.
    pub unit: Option<String>,
    /// Its processes.
    pub pids: Vec<Pid>,
}

/// Options of a trial.
#[derive(Clone, Debug)]
pub struct Options {
    /// The metric.
    pub metric: Metric,
    /// Options for reading it, if megapage does not know how.
    pub metric_options: MetricOptions,
    /// The least gain that is worth it: 0.01 for 1 %.
    pub least_gain: f64,
    /// The longest time of the trial.
    pub most: Duration,
    /// The shortest length of a window.
    pub period: Duration,
    /// The settling time; `None`: a tenth of the period, within bounds.
    pub settle: Option<Duration>,
    /// True if memory stays huge when that gains.
    pub keep: bool,
    /// Seed that draws the order.
    pub seed: u64,
}

impl Options {
    /// Returns the time that the service gets to settle after a switch.
    pub fn settling(&self) -> Duration {
        self.settle.unwrap_or((self.period / 10).clamp(SETTLE.0, SETTLE.1))
    }
}

/// Reasons why no trial is made.
#[derive(Debug, Error)]
pub enum TrialError {
    /// Memory of the process can be neither promoted nor looked at.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A kernel file could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// There is nothing to try, a system call failed, or the metric cannot be read.
    #[error("{0}")]
    Refused(String),
}

fn nothing_to_try(service: &str, why: &str) -> TrialError {
    TrialError::Refused(format!("{service}: nothing can be made huge and base again: {why}"))
}

/// A process that takes part.
struct Process {
    id: ProcessId,
    name: String,
    memory: Movable,
}

/// A prepared trial.
pub struct Trial {
    root: KernelRoot,
    options: Options,
    service: String,
    unit: String,
    program: Option<PathBuf>,
    processes: Vec<Process>,
    group: Option<GroupAccounts>,
    reader: Reader,
}

impl Trial {
    /// Looks at the processes and the metric. Changes nothing; with the metric `requests` it takes
    /// a second.
    pub fn prepare(root: &KernelRoot, target: &Target, options: Options) -> Result<Trial, TrialError> {
        if let Some(ability) = lacking_ability(root) {
            return Err(RemoteError::Unsupported(ability).into());
        }
        let mut processes = Vec::new();
        for pid in &target.pids {
            // One of several processes that ends meanwhile takes no part.
            match look(root, *pid) {
                Ok(process) => processes.push(process),
                Err(RemoteError::Gone(_)) if target.pids.len() > 1 => {}
                Err(error) => return Err(error.into()),
            }
        }
        // The process with the most memory gives the name.
        let main = processes.iter().max_by_key(|it| (it.memory.present, std::cmp::Reverse(it.id.pid)));
        let Some(main) = main else { return Err(RemoteError::Gone(Pid(0)).into()) };
        let pid = main.id.pid;
        let unit = target.unit.clone().unwrap_or_else(|| unit_of(root, pid));
        let service = match &target.unit {
            Some(unit) => unit.clone(),
            None => format!("{} ({pid})", main.name),
        };
        if processes.len() > MOST_PROCESSES {
            let count = processes.len();
            return Err(TrialError::Refused(format!(
                "{service}: {count} processes; at most {MOST_PROCESSES} can be switched together"
            )));
        }
        if let Some(why) = nothing(&processes) {
            return Err(nothing_to_try(&service, &why));
        }
        let program = read_exe(root, pid).ok();
        let group = match target.unit {
            Some(_) => GroupAccounts::of(root, pid)?,
            None => None,
        };
        let pids: Vec<Pid> = processes.iter().map(|it| it.id.pid).collect();
        let of = Service { root, pids: &pids, group: group.as_ref() };
        let mut wait = std::thread::sleep;
        let reader = Reader::open(&options.metric, &options.metric_options, &of, PATIENCE, &mut wait)
            .map_err(|why| TrialError::Refused(format!("--metric {why}")))?;
        Ok(Trial { root: root.clone(), options, service, unit, program, processes, group, reader })
    }

    /// Returns the actions of the trial, as comments and shell lines.
    pub fn dry_run(&self) -> Vec<String> {
        let mut lines = vec![
            format!("# {}: {}", self.service, self.reader.words),
            format!(
                "# windows of at least {:.1} s after {:.1} s of settling, {:.0} s at most in all",
                self.options.period.as_secs_f64(),
                self.options.settling().as_secs_f64(),
                self.options.most.as_secs_f64()
            ),
        ];
        for process in self.taking_part() {
            let (pid, memory) = (process.id.pid, &process.memory);
            lines.push(format!(
                "# process {pid} ({}): {} of {} of private memory, in turns huge and base",
                process.name,
                memory.bytes(),
                memory.present
            ));
            lines.push(format!("megapage run --attach {pid} --once --ignore-trial"));
        }
        lines.push(
            "# base again: MADV_COLD on a page of each region, for which there is no shell command".into(),
        );
        lines
    }

    /// Runs the trial, and calls `progress` after each block. A signal (SIGINT, SIGTERM, SIGHUP)
    /// ends it, and memory is base again.
    pub fn run(mut self, progress: &mut dyn FnMut(&Progress)) -> Result<Report, TrialError> {
        let system = |what: &str, error: std::io::Error| TrialError::Refused(format!("{what}: {error}"));
        let signals = Signals::take(&[signal::SIGINT, signal::SIGTERM, signal::SIGHUP])
            .map_err(|error| system("signals", error))?;
        let pilot = self.pilot()?;
        let mut parts = Vec::new();
        for process in self.taking_part() {
            let pid = process.id.pid;
            // A process that has ended meanwhile takes no part.
            let Ok(pidfd) = spawn::open_pidfd(pid) else { continue };
            let regions = process.memory.regions.clone();
            let bounds = bounds(regions.len(), pilot.of_region, self.options.most);
            match Reversible::guarded(&self.root, process.id, regions, bounds) {
                Ok(memory) => parts.push(Part { memory, pidfd }),
                Err(_) if identify(&self.root, pid).is_err() => {}
                Err(why) => return Err(TrialError::Refused(why)),
            }
        }
        let pids: Vec<Pid> = self.processes.iter().map(|it| it.id.pid).collect();
        let processor = Processor::of(&self.root, self.group.as_ref(), &pids);
        let regions: u64 = parts.iter().map(|part| part.memory.count()).sum();
        let terms = self.terms(pilot.cost, regions as f64 / pilot.regions as f64);
        let metric = std::mem::take(&mut self.reader.words);
        let Trial { root, options, service, unit, program, processes, reader, .. } = self;
        let mut live = Live::new(parts, reader, processor, &signals);
        let outcome = conduct(&mut live, &terms, progress);
        let mut notes = notes(&root, &live, &processes);
        let promoted: u64 = live.parts.iter().map(|part| part.memory.promoted()).sum();
        for part in std::mem::take(&mut live.parts) {
            if outcome.is_huge && outcome.stopped.is_none() {
                part.memory.keep();
            }
        }
        let share = share(&processes);
        let mut verdict_file = None;
        if outcome.decision.is_known() {
            let kept = program.ok_or_else(|| "its program cannot be read".to_string()).and_then(|program| {
                let verdict = Verdict {
                    least_gain: options.least_gain,
                    error: ERROR,
                    metric: metric.clone(),
                    blocks: outcome.blocks.len() as u64 - u64::from(outcome.empty_blocks),
                    share,
                    decided: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs()),
                    ..Verdict::new(&root, Build::of(&unit, &program)?, outcome.decision, outcome.gain)
                };
                verdict.keep(&store()?)
            });
            match kept {
                Ok(file) => verdict_file = Some(file),
                Err(why) => notes.push(format!("the next start does not know of it: {why}")),
            }
        }
        match &outcome.stopped {
            Some(Stop::Asked) => notes.push("a signal has ended it".into()),
            Some(Stop::Ended) => notes.push("the service has ended".into()),
            Some(Stop::Failed(why)) => notes.push(format!("it ended early: {why}")),
            None if outcome.decision.is_known() => {}
            None => notes.push("the time was up (--most)".into()),
        }
        Ok(Report {
            service,
            unit,
            metric,
            better: terms.better,
            least_gain: terms.least_gain,
            error: terms.error,
            most_seconds: terms.most.as_secs_f64(),
            period_seconds: terms.period.as_secs_f64(),
            settle_seconds: terms.settle.as_secs_f64(),
            seed: terms.seed,
            processes: processes.iter().map(Process::report).collect(),
            share,
            promoted_regions: promoted,
            freed_bytes: live.freed.0,
            outcome,
            verdict_file: verdict_file.map(|file| file.display().to_string()),
            notes,
        })
    }

    fn taking_part(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| !process.memory.regions.is_empty())
    }

    /// Makes a few regions huge and base once, and returns the cost and the number of regions that
    /// became huge. Calls may be slow, for example on memory that the host has to find first. The
    /// pilot then learns from the regions that there was time for.
    fn pilot(&self) -> Result<Pilot, TrialError> {
        let Some(process) = self.taking_part().max_by_key(|it| it.memory.regions.len()) else {
            return Ok(Pilot { cost: Cost::default(), regions: 1, of_region: Duration::ZERO });
        };
        let all = &process.memory.regions;
        let few: Vec<HugePage> = all.iter().step_by(all.len().div_ceil(PILOT)).copied().collect();
        let bounds = bounds(few.len(), Duration::ZERO, self.options.most);
        let mut memory =
            Reversible::guarded(&self.root, process.id, few, bounds).map_err(TrialError::Refused)?;
        let (start, before) = (Instant::now(), own_thread_time());
        let outcome = memory.promote()?.unwrap_or_default();
        let took = start.elapsed();
        let undone = memory.undo();
        let service = &self.service;
        let obtained = outcome.obtained_bytes / HUGE_2M as u64;
        if !is_enough(&outcome) {
            let (asked, obtained) = (Bytes(outcome.asked_bytes), Bytes(outcome.obtained_bytes));
            let PromoteOutcome { busy, not_collapsible, no_memory, shared, not_tried, .. } = outcome;
            let why = format!(
                "of {asked} only {obtained} could be made huge ({busy} regions busy, {not_collapsible} not collapsible, \
                 {no_memory} for want of memory, {shared} shared, {not_tried} not tried for want of time)"
            );
            return Err(nothing_to_try(service, &why));
        }
        if undone.left > 0 {
            let why = format!("{} could not be split again", Bytes(undone.left * HUGE_2M as u64));
            return Err(nothing_to_try(service, &why));
        }
        let processor = own_thread_time().saturating_sub(before);
        Ok(Pilot {
            cost: Cost { processor, held: Duration::from_nanos(outcome.busy_ns) + undone.busy },
            regions: obtained,
            of_region: took.div_f64(obtained as f64),
        })
    }

    /// Returns the terms of the trial. `pilot` is the cost to switch a part of the memory on and
    /// off; all of the memory costs `times` as much.
    fn terms(&self, pilot: Cost, times: f64) -> Terms {
        let half = |time: Duration| time.mul_f64(times / 2.0);
        Terms {
            least_gain: self.options.least_gain,
            error: ERROR,
            most: self.options.most,
            period: self.options.period,
            settle: self.options.settling(),
            budget: BUDGET,
            expected: Cost { processor: half(pilot.processor), held: half(pilot.held) },
            spent: pilot,
            better: self.reader.better,
            keep: self.options.keep,
            seed: self.options.seed,
        }
    }
}

impl Process {
    fn report(&self) -> ProcessReport {
        ProcessReport {
            pid: self.id.pid.0,
            name: self.name.clone(),
            private_bytes: self.memory.present.0,
            huge_before_bytes: self.memory.huge.0,
            moved_bytes: self.memory.bytes().0,
        }
    }
}

/// Results of a first switch of a few regions.
struct Pilot {
    /// Cost of the switch on and of the switch off.
    cost: Cost,
    /// Regions that became huge: at least 1.
    regions: u64,
    /// Wall-clock time for one of them, with the pauses between calls.
    of_region: Duration,
}

/// Returns true if a pilot shows the cost of a switch: at least half of the tried regions became
/// huge, and at least one.
fn is_enough(outcome: &PromoteOutcome) -> bool {
    let tried = outcome.asked_bytes.saturating_sub(outcome.not_tried * HUGE_2M as u64);
    outcome.obtained_bytes > 0 && 2 * outcome.obtained_bytes >= tried
}

/// Returns the bounds of one switch of `regions` regions in a trial of `most`. One region took
/// `of_region` in the pilot.
fn bounds(regions: usize, of_region: Duration, most: Duration) -> Bounds {
    let regions = u32::try_from(regions).unwrap_or(u32::MAX);
    let time = SWITCH.1.max(of_region * 2).saturating_mul(regions).saturating_add(SWITCH.0);
    Bounds { time: time.min(LONGEST_SWITCH).min((most / SWITCHES).max(SWITCH.0)), ..Bounds::default() }
}

fn look(root: &KernelRoot, pid: Pid) -> Result<Process, RemoteError> {
    let id = identify(root, pid)?;
    let gone = |error: KernelError| match error.is_gone() {
        true => RemoteError::Gone(pid),
        false => RemoteError::Kernel(error),
    };
    if let Some(lacking) = lacking_right(root, Some(pid)).map_err(gone)? {
        return Err(RemoteError::NotAllowed { pid, lacking });
    }
    let name = read_status(root, pid).map_err(gone)?.name;
    Ok(Process { id, name, memory: movable(root, pid, LEAST_PRESENT)? })
}

/// Returns the share of the private memory that is made huge and base, at most 1.
fn share(processes: &[Process]) -> f64 {
    let sum = |of: fn(&Movable) -> Bytes| processes.iter().map(|it| of(&it.memory).0).sum::<u64>() as f64;
    (sum(Movable::bytes) / sum(|it| it.present).max(1.0)).min(1.0)
}

/// Returns the reason why there is nothing to try; `None` if there is something.
fn nothing(processes: &[Process]) -> Option<String> {
    if processes.iter().any(|it| !it.memory.regions.is_empty()) {
        return None;
    }
    let sum = |of: fn(&Movable) -> Bytes| -> Bytes { processes.iter().map(|it| of(&it.memory)).sum() };
    let count = |of: fn(&Movable) -> u64| -> u64 { processes.iter().map(|it| of(&it.memory)).sum() };
    let (present, huge, excluded) = (sum(|it| it.present), sum(|it| it.huge), sum(|it| it.excluded));
    let mut why = vec![format!("it has {present} of private memory")];
    if huge > Bytes::ZERO {
        why.push(format!("{huge} are huge already, and what was huge before is not split"));
    }
    if excluded > Bytes::ZERO {
        why.push(format!("{excluded} are excluded by the program, or locked"));
    }
    let (forked, larger) = (count(|it| it.forked), count(|it| it.on_larger_folios));
    if forked > 0 {
        why.push(format!("a forked process shares {}", Bytes::mib(2 * forked)));
    }
    if larger > 0 {
        why.push(format!(
            "{} lie on folios of 16 KiB to 1 MiB, which a split would not restore",
            Bytes::mib(2 * larger)
        ));
    }
    Some(why.join("; "))
}

/// Returns the notes that help to read the result.
fn notes(root: &KernelRoot, live: &Live<'_>, processes: &[Process]) -> Vec<String> {
    let mut notes = Vec::new();
    let huge: Bytes = processes.iter().map(|it| it.memory.huge).sum();
    if huge > Bytes::ZERO {
        notes.push(format!("{huge} were huge before, and have stayed so: the trial says nothing of them"));
    }
    if live.least_obtained < 0.9 {
        let percent = 100.0 * live.least_obtained;
        notes.push(format!("at times only {percent:.0} % of what was asked for could be made huge"));
    }
    if live.freed > Bytes::mib(16) {
        notes.push(format!(
            "splitting has freed {} of zeros (Linux 6.12): the first writes to them fault again",
            live.freed
        ));
    }
    let always = matches!(settings(root), Ok(Some(settings)) if settings.enabled == ThpEnabled::Always);
    if always {
        notes.push(
            "transparent_hugepage/enabled is always: khugepaged may make memory huge in windows on base pages, and the gain \
             is then greater than measured"
                .into(),
        );
    }
    notes
}

#[cfg(test)]
mod tests;
