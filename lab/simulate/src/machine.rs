//! The simulated machine: physical memory, processes, and their changes in each second.

mod act;
mod fault;
mod observe;

use crate::hardware::Hardware;
use crate::memory::{Filler, Memory};
use crate::process::{Account, Fate, Process};
use crate::trace::{Invalid, Operation, Span, Trace};
use fault::{Writes, Written};
use megapage_decide::{Asked, Limits, Outcome, Policy, State, step_on_model};
use megapage_plan::random::Random;
use megapage_plan::translation::HostPages;
use megapage_snapshot::{PAGES, ProcessId};
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use std::time::Duration;

/// Machine on which a trace is simulated.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its costs.
    pub hardware: Hardware,
    /// The machine's memory, rounded down to 2 MiB.
    pub memory: Bytes,
    /// The free memory fragmentation index at the start, 0 to 1.
    pub fragmentation: f64,
    /// True if the pages that fragment memory can be moved away (page cache); false if not (the
    /// kernel's own).
    pub movable: bool,
    /// Background compaction: 2 MiB blocks emptied in a second while free memory is more fragmented
    /// than [`COMPACT_ABOVE`].
    pub compaction: f64,
    /// True if all free memory is known to hold zeros at the start.
    pub zeroed: bool,
    /// The pages by which the host backs the memory, if the programs run in a virtual machine.
    pub host_pages: Option<HostPages>,
    /// The most regions that are huge at once; `None`: as many as memory allows. Beyond it no huge
    /// page is available.
    pub budget: Option<u64>,
    /// True if policies see translation cost as counted by a performance monitoring unit.
    pub pmu: bool,
    /// Limits of each step of the policy.
    pub limits: Limits,
    /// Time from one step to the next, in seconds.
    pub step: f64,
    /// Latest end, in simulated seconds.
    pub longest: f64,
    /// Source of all chance.
    pub seed: u64,
}

impl Setup {
    /// Returns a machine of this much memory like the HawkEye paper's.
    pub fn new(memory: Bytes) -> Setup {
        Setup {
            hardware: Hardware::haswell(),
            memory,
            fragmentation: 0.0,
            movable: true,
            compaction: 0.0,
            zeroed: false,
            host_pages: None,
            budget: None,
            pmu: true,
            limits: Limits::default(),
            step: 1.0,
            longest: 100_000.0,
            seed: 1,
        }
    }
}

/// One moment of one process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Seconds.
    pub time: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// The part of it that holds data other than zeros.
    pub useful_bytes: u64,
    /// Huge pages.
    pub huge_pages: u64,
    /// Translation cost, as the share of its cycles.
    pub cost: f64,
}

/// Result of one process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessResult {
    /// Its name in the trace.
    pub name: String,
    /// Time of its start, in seconds.
    pub start: f64,
    /// Its fate.
    pub fate: Fate,
    /// Its counters.
    pub account: Account,
    /// Its memory and cost over time, in equal steps.
    pub points: Vec<Point>,
    /// The phases of the trace, with their start times.
    pub phases: Vec<(String, f64)>,
}

impl ProcessResult {
    /// Returns the seconds from its start to its end, or to the end of the simulation.
    pub fn seconds(&self, end: f64) -> f64 {
        match self.fate {
            Fate::Finished { at } | Fate::OutOfMemory { at } => at - self.start,
            Fate::Running => end - self.start,
        }
    }

    /// Returns its last moment.
    pub fn last(&self) -> Option<Point> {
        self.points.last().copied()
    }
}

/// Result of a simulation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// The policy.
    pub policy: String,
    /// Simulated seconds.
    pub seconds: f64,
    /// Steps taken.
    pub steps: u64,
    /// Existing regions, summed over the steps.
    pub region_steps: u64,
    /// The processes, in the order of the trace.
    pub processes: Vec<ProcessResult>,
    /// The most memory resident at once, of all processes.
    pub peak_bytes: u64,
    /// Processor seconds of the policy's own work: copies, scans, zeroing, and compaction for a
    /// promotion.
    pub daemon_seconds: f64,
    /// Processor seconds of the kernel's background compaction, which is the same under every
    /// policy.
    pub compaction_seconds: f64,
    /// Its largest share of one core over a minute.
    pub daemon_peak_share: f64,
    /// Promotions that were done.
    pub promotions: u64,
    /// Demotions and recoveries that were done.
    pub demotions: u64,
    /// Seconds that translation would have taken in addition if all memory had been on base pages.
    pub saved_seconds: f64,
    /// Regions that became huge: promotions, and huge pages at faults.
    pub made_huge: u64,
    /// Nanoseconds of translation saved until the end of the run, for each region that became huge
    /// by a promotion or at a fault; `None` if none did. Policies can be compared if faults find no
    /// huge page, as in the HawkEye paper.
    pub saved_ns_per_promotion: Option<f64>,
    /// Actions that were not obtained.
    pub failures: u64,
    /// Huge pages in the order in which they were made: process (from 0) and address; the
    /// first 4096.
    pub promoted: Vec<(usize, u64)>,
}

impl Run {
    /// Returns true if every process did all of its program.
    pub fn is_complete(&self) -> bool {
        self.processes.iter().all(|process| matches!(process.fate, Fate::Finished { .. }))
    }

    /// Returns the translation time that huge pages saved, in per cent of the processes' time
    /// without them.
    pub fn gain_percent(&self) -> f64 {
        let saved = self.saved_seconds;
        let without = self.total_seconds() + saved;
        if without > 0.0 { saved / without * 100.0 } else { 0.0 }
    }

    /// Returns the time of all processes together, in seconds: from start to end each.
    pub fn total_seconds(&self) -> f64 {
        self.processes.iter().map(|process| process.seconds(self.seconds)).sum()
    }
}

/// The fragmentation index above which background compaction works: above it Ingens calls memory
/// fragmented.
pub const COMPACT_ABOVE: f64 = 0.5;
/// Most points stored of one process: above it every other one is dropped.
const MOST_POINTS: usize = 1024;
/// Most promotions listed.
const MOST_LISTED: usize = 4096;
/// Seconds below which a time counts as none: rounding leaves them of a step.
const INSTANT: f64 = 1e-9;
/// Seconds over which the daemon's load is averaged.
const DAEMON_WINDOW: f64 = 60.0;

/// A machine in the middle of a simulation.
#[derive(Debug)]
pub struct Machine {
    setup: Setup,
    memory: Memory,
    random: Random,
    processes: Vec<Process>,
    starts: Vec<f64>,
    /// Its result so far.
    run: Run,
    state: State,
    now: f64,
    /// Number of steps from one stored point to the next.
    stride: u64,
    /// The daemon's seconds at the ends of the windows.
    daemon_window: (f64, f64),
    /// Seconds, decaying, in which programs waited for memory: what PSI reports.
    stalled: f64,
    stalled_total: f64,
    stalled_now: f64,
    /// The share of the memory bandwidth that zeroing ahead takes in this step.
    zeroing: f64,
}

impl Machine {
    /// Makes a machine on which nothing has run yet.
    pub fn new(setup: Setup, trace: &Trace, policy: Box<dyn Policy>) -> Result<Machine, Invalid> {
        trace.check()?;
        let mut random = Random::new(setup.seed);
        let mut memory = Memory::new(setup.memory.0, random.bits());
        if setup.zeroed {
            memory.prezero(u64::MAX);
        }
        let kind = if setup.movable { Filler::Cache } else { Filler::Unmovable };
        memory.fragment(setup.fragmentation, kind);
        let mut processes = Vec::new();
        let mut results = Vec::new();
        for (at, program) in trace.processes.iter().enumerate() {
            let id = ProcessId {
                pid: Pid(1000 + at as i32),
                start_ticks: (program.start * 100.0) as u64,
                start_stack: 0,
            };
            results.push(ProcessResult {
                name: program.name.clone(),
                start: program.start,
                fate: Fate::Running,
                account: Account::default(),
                points: Vec::new(),
                phases: Vec::new(),
            });
            processes.push(Process::new(id, program.clone()));
        }
        let state = State::new(policy, setup.limits);
        Ok(Machine {
            starts: trace.processes.iter().map(|program| program.start).collect(),
            memory,
            random,
            processes,
            run: Run { policy: state.policy().name().to_string(), processes: results, ..Run::default() },
            state,
            now: 0.0,
            stride: 1,
            daemon_window: (0.0, 0.0),
            stalled: 0.0,
            stalled_total: 0.0,
            stalled_now: 0.0,
            zeroing: 0.0,
            setup,
        })
    }

    /// Returns the seconds simulated so far.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Simulates up to the end: until every process has ended, or the longest time is over.
    pub fn run(mut self, mut progress: impl FnMut(&Machine)) -> Run {
        while self.step() {
            progress(&self);
        }
        self.finish()
    }

    /// Simulates one step. Returns `false` if there is nothing left to do.
    pub fn step(&mut self) -> bool {
        let running = self.processes.iter().any(Process::is_running);
        if !running || self.now >= self.setup.longest {
            return false;
        }
        let length = self.setup.step;
        self.stalled_now = 0.0;
        for at in 0..self.processes.len() {
            let begins = self.starts[at].max(self.now);
            let budget = self.now + length - begins;
            if self.processes[at].is_running() && budget > 0.0 {
                self.advance(at, begins, budget);
            }
        }
        self.now += length;
        self.run.steps += 1;
        self.read_samples();
        self.compact_ahead(length);
        self.settle_pressure(length);
        self.zeroing = 0.0;

        let snapshot = self.snapshot();
        self.run.region_steps +=
            snapshot.processes.iter().map(|process| process.regions.len() as u64).sum::<u64>();
        let now = Duration::from_secs_f64(self.now);
        for asked in step_on_model(now, &snapshot, &mut self.state) {
            match asked {
                Asked::Action(action) => {
                    let obtained = self.act(&action);
                    self.state.note(now, &Outcome { action, obtained });
                }
                Asked::Model(action) => {
                    let obtained = self.act_as_model(&action);
                    self.state.note_model(now, &action, obtained);
                }
            }
        }
        self.record();
        debug_assert!(!self.run.steps.is_multiple_of(64) || self.memory.is_conserved());
        true
    }

    /// Returns true if every page of memory is in exactly one state, and memory's records agree
    /// with the processes.
    pub fn is_conserved(&self) -> bool {
        self.memory.is_conserved()
            && self.processes.iter().all(|process| {
                process.regions.iter().all(|region| match region.owner {
                    Some(owner) => {
                        self.memory.held(owner) == u64::from(region.present)
                            && (!region.huge || self.memory.is_contiguous(owner))
                    }
                    None => region.present == 0 && !region.huge,
                })
            })
    }

    /// Raises the peak to the resident memory, if that is more. Also called before memory is
    /// released within a step. Otherwise a program that ends just after a step would seem to need
    /// more than one that ends just before.
    fn note_peak(&mut self) {
        self.run.peak_bytes = self.run.peak_bytes.max(self.resident());
    }

    /// Returns true if one more region may become huge.
    fn has_budget(&self) -> bool {
        let huge = || self.processes.iter().map(|process| process.huge_regions).sum::<u64>();
        self.setup.budget.is_none_or(|budget| huge() < budget)
    }

    /// Returns the resident memory of all processes, in bytes.
    pub fn resident(&self) -> u64 {
        self.processes.iter().map(|process| process.resident().0).sum()
    }

    /// Runs a program for `budget` seconds from `begins` on.
    fn advance(&mut self, at: usize, begins: f64, budget: f64) {
        let end = begins + budget;
        let mut left = budget - self.processes[at].loan;
        self.processes[at].loan = 0.0;
        while left > INSTANT && self.processes[at].is_running() {
            let process = &mut self.processes[at];
            let Some(operation) = process.program.operations.get(process.next) else {
                self.end(at, Fate::Finished { at: end - left });
                return;
            };
            match *operation {
                Operation::Phase(ref name) => {
                    process.phase = Some(name.clone());
                    self.run.processes[at].phases.push((name.clone(), end - left));
                    process.advance();
                }
                Operation::Map { .. } => process.advance(),
                Operation::Mark => {
                    process.set_mark();
                    process.advance();
                }
                Operation::Repeat { times } => process.repeat(times),
                Operation::Access { span, pages, visits, class } => {
                    process.access(span, pages, visits, class);
                    process.advance();
                }
                Operation::Unmap { span } => {
                    self.note_peak();
                    let process = &mut self.processes[at];
                    for region in span.regions() {
                        if let Some(owner) = process.change(region, |region| {
                            region.present = 0;
                            region.content = 0;
                            region.zero_page = 0;
                            region.huge = false;
                            region.owner.take()
                        }) {
                            self.memory.leave(owner);
                        }
                    }
                    process.advance();
                }
                Operation::Idle { seconds } => {
                    let part = left.min(seconds - process.done_seconds);
                    process.done_seconds += part;
                    left -= part;
                    if seconds - process.done_seconds <= INSTANT {
                        process.advance();
                    }
                }
                Operation::Work { seconds } => left = self.work(at, seconds, left),
                Operation::Touch { span, pages, content, own_ns } => {
                    let writes = Writes { pages, content, own_ns, written: Written::Line };
                    left -= self.next_touch(at, span, writes, end - left);
                }
                Operation::Populate { span, pages } => {
                    let writes = Writes { pages, content: 0, own_ns: 0.0, written: Written::Nothing };
                    left -= self.next_touch(at, span, writes, end - left);
                }
                Operation::Fill { span, writer, own_ns } => {
                    let writes =
                        Writes { pages: PAGES, content: PAGES, own_ns, written: Written::Page(writer) };
                    left -= self.next_touch(at, span, writes, end - left);
                }
                Operation::Free { span, keep, own_ns } => {
                    let from = span.first + process.done_regions;
                    if process.done_regions >= span.count {
                        process.advance();
                        continue;
                    }
                    process.done_regions += 1;
                    left -= self.give_back(at, from, keep, own_ns, end - left);
                }
            }
        }
        self.processes[at].loan = (-left).max(0.0);
    }

    /// Writes the next region of a `Touch`, `Populate` or `Fill`. Returns the seconds that it took.
    fn next_touch(&mut self, at: usize, span: Span, writes: Writes, time: f64) -> f64 {
        let process = &mut self.processes[at];
        if process.done_regions >= span.count {
            process.advance();
            return 0.0;
        }
        let number = span.first + process.done_regions;
        match self.touch(at, number, writes, time) {
            Ok(seconds) => {
                self.processes[at].done_regions += 1;
                seconds
            }
            Err(fault::OutOfMemory) => {
                // If the kernel killed another process, the fault is tried again.
                self.kill(time);
                0.0
            }
        }
    }

    /// Works at most `left` seconds at a piece of work. Returns the seconds that remain of `left`.
    fn work(&mut self, at: usize, seconds: f64, left: f64) -> f64 {
        let zeroing = self.zeroing;
        let host = self.setup.host_pages;
        let process = &mut self.processes[at];
        process.translate(&self.setup.hardware.walks, host);
        // The cost of a second of work: the work, the walks, and the bandwidth that zeroing takes
        // away.
        let each = process.translation.seconds() + zeroing;
        let part = (left / each).min(seconds - process.done_seconds);
        process.done_seconds += part;
        process.account.work_seconds += part;
        process.account.translation_seconds += part * (process.translation.seconds() - 1.0);
        // A smaller page is not always more expensive: eight first-level entries hold huge pages.
        let saved = process.translation_on_base.seconds() - process.translation.seconds();
        process.account.saved_seconds += part * saved;
        process.account.disturbed_seconds += part * zeroing;
        if seconds - process.done_seconds <= INSTANT {
            process.advance();
        }
        left - part * each
    }

    /// Ends a process: all its memory is free.
    fn end(&mut self, at: usize, fate: Fate) {
        self.note_peak();
        let process = &mut self.processes[at];
        process.fate = fate;
        self.run.processes[at].fate = fate;
        self.run.processes[at].account = process.account;
        // The last moment before it is gone.
        let point = self.point(at);
        self.run.processes[at].points.push(point);
        for owner in self.processes[at].clear() {
            self.memory.leave(owner);
        }
    }

    /// Kills the process with the most resident memory, as the kernel's `oom_badness` ranks them:
    /// memory has run out and there is no swap.
    fn kill(&mut self, time: f64) {
        let largest = (0..self.processes.len())
            .filter(|&at| self.processes[at].is_running())
            .max_by_key(|&at| (self.processes[at].present_pages, std::cmp::Reverse(at)));
        if let Some(largest) = largest {
            self.end(largest, Fate::OutOfMemory { at: time });
        }
    }

    fn point(&self, at: usize) -> Point {
        let process = &self.processes[at];
        Point {
            time: match process.fate {
                Fate::Running => self.now,
                Fate::Finished { at } | Fate::OutOfMemory { at } => at,
            },
            resident_bytes: process.resident().0,
            useful_bytes: process.content_pages << 12,
            huge_pages: process.huge_regions,
            cost: process.translation.share(),
        }
    }

    fn record(&mut self) {
        self.note_peak();
        if self.now - self.daemon_window.0 >= DAEMON_WINDOW {
            let share = (self.run.daemon_seconds - self.daemon_window.1) / (self.now - self.daemon_window.0);
            self.run.daemon_peak_share = self.run.daemon_peak_share.max(share);
            self.daemon_window = (self.now, self.run.daemon_seconds);
        }
        if !self.run.steps.is_multiple_of(self.stride) {
            return;
        }
        for at in 0..self.processes.len() {
            if self.processes[at].is_running() && self.starts[at] < self.now {
                let point = self.point(at);
                self.run.processes[at].points.push(point);
            }
        }
        if self.run.processes.iter().any(|result| result.points.len() > MOST_POINTS) {
            self.stride *= 2;
            for result in &mut self.run.processes {
                let mut nth = 0;
                result.points.retain(|_| {
                    nth += 1;
                    nth % 2 == 0
                });
            }
        }
    }

    /// Returns the result so far.
    pub fn finish(mut self) -> Run {
        for (result, process) in self.run.processes.iter_mut().zip(&self.processes) {
            result.account = process.account;
        }
        let run = &mut self.run;
        run.seconds = self.now;
        run.saved_seconds = self.processes.iter().map(|process| process.account.saved_seconds).sum();
        run.made_huge += run.promotions;
        run.made_huge += self.processes.iter().map(|process| process.account.huge_faults).sum::<u64>();
        let each = run.saved_seconds * 1e9 / run.made_huge as f64;
        run.saved_ns_per_promotion = (run.made_huge > 0).then_some(each);
        self.run
    }
}

#[cfg(test)]
mod tests;
