//! Speed of the recovery of bloat, and its effects on a program. A probe times its touches while
//! its memory is promoted and recovered, beside an equal probe that no process acts on.

use super::ksm::{self, Merging, RecoverySample, Seen};
use super::worker::Worker;
use super::{Failure, Stage};
use crate::bench::{Gate, Spread};
use crate::child::{check, sleep};
use crate::experiment::Order;
use crate::workload::probe::{Stalls, Touches};
use anyhow::{Context, Result, ensure};
use megapage_act::execute::{Actuator, Done, Executor};
use megapage_act::promote::candidates;
use megapage_decide::{Action, Budgets, Limits, Obtained, Promotions, Reason};
use megapage_kernel::lru::LruDrain;
use megapage_kernel::process::read_stat;
use megapage_kernel::spawn::{Signals, set_nice};
use megapage_kernel::{KernelRoot, boot_time, process_cpu_time};
use megapage_observe::{Thoroughness, count_zeros};
use megapage_snapshot::ProcessId;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugePage, PageSize, Pid};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The probe's memory at scale 1, and the share of its pages that hold more than zeros.
const SIZE: u64 = 1 << 30;
const FILLED: f64 = 1.0 / 16.0;
/// The demands: memory that is scanned and recovered in a second, and the last thousandth of
/// touches beyond the twin's.
const RATE: f64 = 2.0;
const STALL_NS: u64 = 5_000_000;
/// Budget that is no limit: as fast as the kernel goes.
const UNBOUND: Bytes = Bytes::gib(64);
/// Longest time for a list of actions.
const LONGEST: Duration = Duration::from_secs(60);
/// Times in a round that the probe is promoted and recovered as the daemon does it. With these, a
/// thousandth of the touches is more than a few.
const TURNS: u32 = 3;
/// The daemon's default priority.
const NICE: i32 = -10;
/// Wait for calm probes before anything is measured: the p99.9 of touches below which a window is
/// calm, the length of a window, and the most windows at scale 1.
const CALM_NS: u64 = 500_000;
const CALM_WINDOW: Duration = Duration::from_secs(1);
const MOST_WINDOWS: u32 = 20;

/// Returns promotions that back off for lack of memory for the least time: their user notes no
/// outcome that would end it.
fn without_back_off() -> Promotions {
    let zero = Duration::ZERO;
    Promotions::new(Limits { back_off: zero, back_off_most: zero, ..Limits::default() })
}

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct StallReport {
    /// Bytes of the probe, promoted and recovered in each round.
    pub bytes: u64,
    /// The share of them that holds more than zeros.
    pub filled_share: f64,
    /// GiB for each second that are scanned for zeros, as by the daemon while memory is short: an
    /// eighth of the base pages is read. The split reads all of them.
    pub scan_gib_per_second: Spread,
    /// GiB of huge memory for each second that are split, with their zeros released.
    pub split_gib_per_second: Spread,
    /// Both one after the other: huge memory that is scanned and recovered.
    pub recover_gib_per_second: Spread,
    /// GiB for each second that are promoted.
    pub promote_gib_per_second: Spread,
    /// The part of the zeros that was released, the least of the rounds.
    pub freed_share: f64,
    /// True if both probes were calm when the rounds began.
    pub calm: bool,
    /// The greatest p99.9 of a single turn, in nanoseconds, beyond the twin's of the same turn:
    /// while promoting, and while recovering. A turn has some thousand touches: that is the third
    /// or the fifth longest of them.
    pub worst_turn_beyond_ns: [u64; 2],
    /// Touches with no other process at work, before all rounds: the probe's and its idle twin's.
    pub alone: [Stalls; 2],
    /// Touches during promotion: the probe's and its idle twin's, of all rounds together.
    pub promoting: [Stalls; 2],
    /// Touches during recovery.
    pub recovering: [Stalls; 2],
    /// The memory that KSM recovers of the same, and its processor time.
    pub merging: Merging,
}

/// Runs the rounds. KSM's runs that failed are added to `failures`.
pub(super) fn run(stage: &mut Stage<'_>, failures: &mut Vec<Failure>) -> Result<StallReport> {
    let size = stage.scaled(SIZE);
    let mut probes = [0, 1].map(|_| Worker::probe(size, FILLED, stage.place, stage.signals));
    for probe in &mut probes {
        let probe = probe.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
        probe.ready(stage.signals)?;
        probe.go()?;
    }
    let [probe, twin] = probes;
    let (mut probe, mut twin) = (probe?, twin?);
    let alone = calm(&mut probe, &mut twin, stage)?;
    let mut merging = Merging::begin(&mut probe, stage)?;
    let root = KernelRoot::live();
    // As the daemon acts by default; and without its budgets, as fast as the kernel goes.
    let mut usual = Acting { executor: Executor::start(&root)?, promotions: without_back_off() };
    let mut fast = Acting { executor: Executor::start(&root)?, promotions: without_back_off() };
    fast.promotions.configure(Budgets {
        moved: UNBOUND,
        moved_per_process: UNBOUND,
        scanned: UNBOUND,
        scanned_per_process: UNBOUND,
        ..Budgets::default()
    });
    let mut rates: [Vec<f64>; 4] = Default::default();
    let mut freed_share = f64::MAX;
    let (mut promoting, mut recovering) = (<[Touches; 2]>::default(), <[Touches; 2]>::default());
    let mut worst = [0; 2];
    for round in 0..stage.runs {
        for _ in 0..TURNS {
            // Each time: the host backs a page while the collapse holds the mmap lock, and that is
            // no stall of ours.
            stage.warm_now(size)?;
            report(&mut probe, &mut twin, stage)?;
            promote(&mut usual, &probe, &mut Took::default(), stage)?;
            add(&mut promoting, &mut worst[0], report(&mut probe, &mut twin, stage)?);
            let regions = settled(&probe)?;
            report(&mut probe, &mut twin, stage)?;
            recover(&mut usual, &probe, &regions, &mut Took::default(), stage)?;
            add(&mut recovering, &mut worst[1], report(&mut probe, &mut twin, stage)?);
        }

        for at in Order::ToAndFro.turns(round, merging.rows.len()) {
            let Some(setting) = at.checked_sub(1).map(|at| &ksm::SETTINGS[at]) else {
                stage.warm_now(size)?;
                let fast = fastest(&mut fast, &probe, round + 1, stage)?;
                freed_share = freed_share.min(fast.freed_share);
                for (rates, took) in rates.iter_mut().zip(fast.took) {
                    rates.push(took.rate());
                }
                merging.note(at, fast.sample, stage);
                continue;
            };
            // Configurations that no gate compares run once.
            if round > 0 && !setting.is_compared() {
                continue;
            }
            promote(&mut fast, &probe, &mut Took::default(), stage)?;
            let zeros = scan(probe.pid(), &settled(&probe)?, Thoroughness::All, &mut Took::default())?;
            match ksm::turn(setting, &mut probe, round + 1, zeros, stage) {
                Ok(sample) => merging.note(at, sample, stage),
                Err(error) => failures.push(stage.failed(setting.name, error)?),
            }
        }
    }
    let [scan, split, recover, promote] = rates.map(|rates| Spread::of(rates).context("no round"));
    Ok(StallReport {
        bytes: size,
        filled_share: FILLED,
        scan_gib_per_second: scan?,
        split_gib_per_second: split?,
        recover_gib_per_second: recover?,
        promote_gib_per_second: promote?,
        freed_share,
        calm: alone.iter().all(is_calm),
        worst_turn_beyond_ns: worst,
        alone: alone.map(|touches| touches.stalls()),
        promoting: promoting.map(|touches| touches.stalls()),
        recovering: recovering.map(|touches| touches.stalls()),
        merging,
    })
}

/// Executor with the promotions that it borrows.
struct Acting {
    executor: Executor,
    promotions: Promotions,
}

/// Findings without budgets.
struct Fastest {
    freed_share: f64,
    /// Scan, split, both one after the other, promotion.
    took: [Took; 4],
    sample: RecoverySample,
}

/// Promotes, scans and recovers the probe as fast as the kernel goes.
fn fastest(fast: &mut Acting, probe: &Worker, round: u32, stage: &mut Stage<'_>) -> Result<Fastest> {
    let (mut promoted, mut split, mut scanned) = (Took::default(), Took::default(), Took::default());
    promote(fast, probe, &mut promoted, stage)?;
    let regions = settled(probe)?;
    let zeros = scan(probe.pid(), &regions, Thoroughness::All, &mut Took::default())?;
    ensure!(zeros > 0, "the probe holds no page of zeros");
    let start = Instant::now();
    let look = || -> Result<Seen> {
        let cpu = process_cpu_time().as_secs_f64();
        Ok(Seen { seconds: start.elapsed().as_secs_f64(), resident: probe.rss()?, cpu })
    };
    let before = look()?;
    scan(probe.pid(), &regions, Thoroughness::Part, &mut scanned)?;
    let freed = recover(fast, probe, &regions, &mut split, stage)?;
    let sample = RecoverySample::between(round, zeros, before, look()?);
    let both = Took { bytes: split.bytes, seconds: split.seconds + scanned.seconds };
    stage.say(&format!(
        "{round}/{} recovery: {:.2} GiB/s, promotion {:.2} GiB/s",
        stage.runs,
        both.rate(),
        promoted.rate()
    ));
    Ok(Fastest { freed_share: freed as f64 / zeros as f64, took: [scanned, split, both, promoted], sample })
}

/// Bytes moved, and the time that they took.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    bytes: u64,
    seconds: f64,
}

impl Took {
    fn note(&mut self, bytes: u64, start: Instant) {
        self.bytes += bytes;
        self.seconds += start.elapsed().as_secs_f64();
    }

    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / (1u64 << 30) as f64 / self.seconds } else { 0.0 }
    }
}

/// Returns both probes' touches since the last report.
fn report(probe: &mut Worker, twin: &mut Worker, stage: &Stage<'_>) -> Result<[Touches; 2]> {
    Ok([probe.touches(stage.signals)?, twin.touches(stage.signals)?])
}

/// Adds both probes' touches of a turn to those before, and keeps the worst turn.
fn add(all: &mut [Touches; 2], worst: &mut u64, more: [Touches; 2]) {
    let [probe, twin] = [0, 1].map(|who: usize| more[who].quantile(0.999));
    *worst = (*worst).max(probe.saturating_sub(twin));
    all.iter_mut().zip(more).for_each(|(all, more)| all.add(more));
}

/// Lets both probes touch their memory, with no other process at work, until both are calm. The
/// cost of first touches, and of a virtual machine's host until it has settled, does not count as a
/// stall. Returns their touches in the last window.
fn calm(probe: &mut Worker, twin: &mut Worker, stage: &Stage<'_>) -> Result<[Touches; 2]> {
    let mut last = <[Touches; 2]>::default();
    let windows = (f64::from(MOST_WINDOWS) * stage.scale).ceil() as u32;
    for _ in 0..windows {
        report(probe, twin, stage)?;
        sleep(stage.signals, CALM_WINDOW)?;
        last = report(probe, twin, stage)?;
        if last.iter().all(is_calm) {
            break;
        }
    }
    Ok(last)
}

fn is_calm(touches: &Touches) -> bool {
    touches.count() > 0 && touches.quantile(0.999) < CALM_NS
}

/// Lets a thread with the daemon's priority carry out the actions; returns the results.
fn carry_out(acting: &mut Acting, actions: Vec<Action>, stage: &Stage<'_>) -> Result<Vec<Done>> {
    let signals = stage.signals;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            set_nice(NICE).context("the priority of the daemon")?;
            try_all(acting, actions, signals)
        });
        thread.join().map_err(|_| anyhow::anyhow!("the thread that acts panicked"))?
    })
}

/// Tries all actions, repeatedly until the budgets have allowed it.
fn try_all(acting: &mut Acting, mut actions: Vec<Action>, signals: &Signals) -> Result<Vec<Done>> {
    let start = Instant::now();
    let mut done: Vec<Done> = Vec::new();
    while !actions.is_empty() {
        check(signals)?;
        ensure!(start.elapsed() < LONGEST, "{} actions are still to be tried", actions.len());
        let tried = acting.executor.carry_out(boot_time(), &actions, &mut acting.promotions);
        if tried.is_empty() {
            // The budgets fill by time.
            sleep(signals, Duration::from_millis(5))?;
        }
        // Busy or backed-off actions are tried again.
        let over = |done: &&Done| !matches!(done.outcome.obtained, Obtained::Busy);
        let settled: Vec<Done> = tried.into_iter().filter(|done| over(&done)).collect();
        actions.retain(|action| settled.iter().all(|done| done.outcome.action != *action));
        done.extend(settled);
    }
    Ok(done)
}

/// Promotes all of the probe.
fn promote(acting: &mut Acting, probe: &Worker, took: &mut Took, stage: &Stage<'_>) -> Result<()> {
    let root = KernelRoot::live();
    let process = process_id(probe)?;
    let regions = candidates(&root, probe.pid(), 1, usize::MAX)?.regions;
    let action = |region: &HugePage| Action::Promote {
        process,
        region: *region,
        size: PageSize::HUGE_2M,
        reason: Reason::Gain,
    };
    let actions: Vec<Action> = regions.iter().map(action).collect();
    let asked = actions.len() as u64 * HUGE_2M as u64;
    let start = Instant::now();
    let done = carry_out(acting, actions, stage)?;
    let promoted: u64 = done.iter().map(|done| done.promoted.0).sum();
    took.note(promoted, start);
    ensure!(
        promoted as f64 >= 0.9 * asked as f64,
        "only {} of {} could be made huge",
        Bytes(promoted),
        Bytes(asked)
    );
    Ok(())
}

/// Returns the regions that are huge, once their pages have left the queues of their processors for
/// the lists from which they can be split.
fn settled(probe: &Worker) -> Result<Vec<HugePage>> {
    LruDrain::new().and_then(|drain| drain.drain()).context("the LRU queues")?;
    probe.huge_regions()
}

fn process_id(probe: &Worker) -> Result<ProcessId> {
    let stat = read_stat(&KernelRoot::live(), probe.pid())?;
    Ok(ProcessId { pid: probe.pid(), start_ticks: stat.start_ticks, start_stack: stat.start_stack })
}

/// Scans the regions for pages of zeros, as the daemon does; returns the bytes of those.
fn scan(pid: Pid, regions: &[HugePage], thoroughness: Thoroughness, took: &mut Took) -> Result<u64> {
    let start = Instant::now();
    let found = count_zeros(&KernelRoot::live(), pid, regions, thoroughness);
    took.note(found.len() as u64 * HUGE_2M as u64, start);
    ensure!(found.len() == regions.len(), "the probe's memory could not be read");
    Ok(found.iter().map(|(_, zeros)| u64::from(*zeros) * BASE_PAGE as u64).sum())
}

/// Recovers the regions; returns the bytes that the machine got back.
fn recover(
    acting: &mut Acting,
    probe: &Worker,
    regions: &[HugePage],
    took: &mut Took,
    stage: &Stage<'_>,
) -> Result<u64> {
    let process = process_id(probe)?;
    let action = |region: &HugePage| Action::Recover { process, region: *region, reason: Reason::Bloat };
    let start = Instant::now();
    let done = carry_out(acting, regions.iter().map(action).collect(), stage)?;
    let split = done.iter().filter(|done| done.outcome.obtained == Obtained::Done);
    took.note(split.count() as u64 * HUGE_2M as u64, start);
    Ok(done.iter().map(|done| done.freed.0).sum())
}

impl StallReport {
    pub(super) fn gates(&self) -> Vec<Gate> {
        let rate = self.recover_gib_per_second.median;
        let mut gates = vec![Gate {
            case: "recovery",
            demand: format!("huge memory scanned and recovered: at least {RATE:.0} GiB/s"),
            found: format!("{rate:.2} GiB/s"),
            holds: rate >= RATE,
        }];
        let phases = [("promotion", &self.promoting), ("recovery", &self.recovering)];
        for ((what, [probe, twin]), worst) in phases.into_iter().zip(self.worst_turn_beyond_ns) {
            let beyond = probe.p999_ns.saturating_sub(twin.p999_ns);
            gates.push(Gate {
                case: "stalls",
                demand: format!("p99.9 of all touches during {what} under 5 ms beyond an idle twin's"),
                found: format!(
                    "{:.2} ms against {:.2} ms; in the worst turn {:.2} ms beyond{}",
                    probe.p999_ns as f64 / 1e6,
                    twin.p999_ns as f64 / 1e6,
                    worst as f64 / 1e6,
                    if self.calm { "" } else { "; neither was calm before" }
                ),
                holds: beyond < STALL_NS && probe.touches > 0,
            });
        }
        gates.extend(self.merging.gates());
        gates
    }
}
