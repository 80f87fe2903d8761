//! Common parts of HawkEye-G and HawkEye-PMU: sampling, the access maps, bloat recovery and zeroing
//! ahead.
//!
//! Sources: Panwar, Bansal, Gopinath, "HawkEye: Efficient Fine-grained OS Support for Huge Pages"
//! (ASPLOS 2019), and its released kernel: mm/ohp.c, mm/huge_memory.c, hawkeye_modules/.

use super::access_map::AccessMap;
pub use super::access_map::{Buckets, Placement, Rules};
use super::{hawkeye_g, hawkeye_pmu};
use crate::pace::Rounds;
use crate::scans::Scans;
use crate::{Action, Answer, Fault, FaultSize, Obtained, Outcome, Pace, Policy, Reason, Tick};
use megapage_snapshot::{Leaf, PAGES, Process, ProcessId, Region};
use megapage_units::PageSize;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Constants of HawkEye.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Name in reports.
    pub name: &'static str,
    /// Rules by which the access maps are stored.
    pub rules: Rules,
    /// Time from one sample to the next.
    pub sample_every: Duration,
    /// Time from clearing the bits to reading them.
    pub window: Duration,
    /// Regions promoted in a round.
    pub promote: Pace,
    /// Lowest bucket from which regions are promoted.
    pub lowest_bucket: usize,
    /// HawkEye-PMU: least translation cost of a promoted process (a share, 0 to 1).
    pub least_cost: f64,
    /// HawkEye-PMU: largest difference of costs between processes that take turns.
    pub equal_cost: f64,
    /// HawkEye-PMU: least number of regions of a candidate process, and the lowest bucket that they
    /// count from.
    pub least_candidates: (usize, usize),
    /// True if a region whose promotion failed goes to the end of the lowest bucket.
    pub failures_last: bool,
    /// Share of memory in use at which recovery starts...
    pub recover_from: f64,
    /// ...and the share at which it ends.
    pub recover_to: f64,
    /// Time from one run of recovery to the next, while it is active.
    pub recover_every: Duration,
    /// Least number of zero-filled base pages in a huge page that is recovered.
    pub least_zeros: u16,
    /// Time for which the result of a zero scan of a process's huge pages holds.
    pub rescan: Duration,
    /// Blocks of 2 MiB zeroed ahead in a round.
    pub pre_zero: Pace,
    /// True if a first touch gets a huge page.
    pub huge_faults: bool,
}

impl Parameters {
    /// Returns the constants of the paper. It gives no number for some (the zero pages that are too
    /// many; the pace): these are ours, see docs/policies.md.
    pub const fn paper() -> Parameters {
        Parameters {
            name: "hawkeye-g",
            rules: Rules {
                buckets: Buckets::Linear,
                placement: Placement::RisersFirst,
                memory: 6,
                from_zero: false,
            },
            sample_every: Duration::from_secs(30),
            window: Duration::from_secs(1),
            promote: Pace::PAPERS,
            lowest_bucket: 0,
            least_cost: 0.02,
            equal_cost: 0.01,
            least_candidates: (1, 0),
            failures_last: false,
            recover_from: 0.85,
            recover_to: 0.70,
            recover_every: Duration::ZERO,
            least_zeros: PAGES / 2,
            rescan: Duration::from_secs(60),
            pre_zero: Pace { work: 20, every: Duration::from_secs(1) },
            huge_faults: true,
        }
    }

    /// Returns the constants of the released kernel. It has twelve logarithmic buckets, placement
    /// always at the head, and averages from zero. It takes a sample every 6 s at most (1 s window,
    /// 5 s sleep). It never promotes from the lowest bucket. Recovery runs every 120 s, on each
    /// huge page that holds a zero page. It zeroes 10 blocks of order 10 a second.
    pub const fn code() -> Parameters {
        Parameters {
            name: "hawkeye-code",
            rules: Rules {
                buckets: Buckets::Logarithmic,
                placement: Placement::AlwaysFirst,
                memory: 6,
                from_zero: true,
            },
            sample_every: Duration::from_secs(6),
            promote: Pace::KHUGEPAGED,
            lowest_bucket: 1,
            equal_cost: 0.0,
            least_candidates: (8, 2),
            failures_last: true,
            recover_every: Duration::from_secs(120),
            least_zeros: 1,
            least_cost: 0.0,
            ..Parameters::paper()
        }
    }

    /// Returns these constants, promoting at most the regions of `pace` in a round.
    pub const fn at(self, pace: Pace) -> Parameters {
        Parameters { promote: pace, ..self }
    }

    /// Returns these constants under another name.
    pub const fn named(self, name: &'static str) -> Parameters {
        Parameters { name, ..self }
    }

    /// Returns these constants with base pages at faults.
    pub const fn base_faults(self) -> Parameters {
        Parameters { huge_faults: false, ..self }
    }
}

/// State that both variants share.
#[derive(Clone, Debug)]
pub(crate) struct HawkEye {
    pub parameters: Parameters,
    /// True if counters choose, false if access coverage does.
    by_cost: bool,
    maps: BTreeMap<ProcessId, Tracked>,
    /// Order among equals: a process that was served goes to the end.
    turn: VecDeque<ProcessId>,
    samples: Rounds,
    promotions: Rounds,
    recoveries: Rounds,
    zeroings: Rounds,
    recovering: bool,
    scans: Scans,
}

/// Map of one process.
#[derive(Clone, Debug)]
struct Tracked {
    map: AccessMap,
    /// Value of the samples it has taken in: see [`crate::samples`].
    samples: u64,
}

impl Tracked {
    /// Takes in the samples of a process, and forgets regions that are gone or huge.
    fn update(&mut self, process: &Process, is_allowed: impl Fn(&Region) -> bool) {
        let mut regions = process.regions.iter().peekable();
        self.map.retain(|start| {
            while regions.next_if(|region| region.page < start).is_some() {}
            regions.peek().is_some_and(|region| region.page == start && region.leaf == Leaf::Base)
        });
        for region in &process.regions {
            if let (Leaf::Base, Some(accessed)) = (region.leaf, region.accessed)
                && is_allowed(region)
            {
                self.map.update(region.page, accessed.coverage, accessed.sampled);
            }
        }
    }
}

impl HawkEye {
    /// Returns HawkEye-G with these constants.
    pub fn by_coverage(parameters: Parameters) -> HawkEye {
        HawkEye::new(parameters, false)
    }

    /// Returns HawkEye-PMU with these constants.
    pub fn by_cost(parameters: Parameters) -> HawkEye {
        HawkEye::new(parameters, true)
    }

    fn new(parameters: Parameters, by_cost: bool) -> HawkEye {
        HawkEye {
            parameters,
            by_cost,
            maps: BTreeMap::new(),
            turn: VecDeque::new(),
            samples: Rounds::default(),
            promotions: Rounds::default(),
            recoveries: Rounds::default(),
            zeroings: Rounds::default(),
            recovering: false,
            scans: Scans::default(),
        }
    }

    /// Resumes untried promotions: the regions become the first of their buckets, and their
    /// processes the first of their equals.
    fn resume(&mut self, tick: &Tick<'_>) {
        let untried = tick.untried_promotions();
        for (process, region) in untried.iter().rev() {
            if let Some(tracked) = self.maps.get_mut(process) {
                tracked.map.put_back(*region);
            }
            if let Some(at) = self.turn.iter().position(|other| other == process) {
                self.turn.remove(at);
                self.turn.push_front(*process);
            }
        }
        self.promotions.give_back(untried.len() as u64);
        // One unit makes a whole run of recovery due.
        let lacks = tick.untried().iter().any(|action| matches!(action, Action::Recover { .. }));
        self.recoveries.give_back(u64::from(lacks));
    }

    /// Takes new samples into the access maps, and requests the next ones.
    pub fn track(&mut self, tick: &mut Tick<'_>) {
        let processes = tick.processes();
        self.maps.retain(|id, _| tick.knows(*id));
        self.scans.retain(|id| tick.knows(*id));
        self.turn.retain(|id| tick.knows(*id));
        let due = self.samples.due(tick.now(), Pace { work: 1, every: self.parameters.sample_every }) > 0;
        for process in processes {
            if !self.maps.contains_key(&process.id) {
                self.turn.push_back(process.id);
            }
            let tracked = self
                .maps
                .entry(process.id)
                .or_insert_with(|| Tracked { map: AccessMap::new(self.parameters.rules), samples: 0 });
            // Regions that became huge since then are refused when they are taken.
            let samples = crate::samples(process);
            if tracked.samples != samples || tracked.map.len() > process.regions.len() {
                tracked.samples = samples;
                tracked.update(process, |region| tick.is_promotable(process, region));
            }
            if due {
                let _ = tick.sample(process, self.parameters.window, Reason::Period, |region| {
                    region.leaf == Leaf::Base && region.present > 0
                });
            }
        }
    }

    /// Promotes the regions that are due: each time the first region of the highest bucket of the
    /// process that `choose` returns.
    pub fn promote(
        &mut self,
        tick: &mut Tick<'_>,
        reason: Reason,
        choose: impl Fn(&HawkEye) -> Option<ProcessId>,
    ) {
        let mut work = self.promotions.due(tick.now(), self.parameters.promote);
        let processes: BTreeMap<ProcessId, &Process> =
            tick.processes().into_iter().map(|process| (process.id, process)).collect();
        while work > 0 {
            let Some(id) = choose(self) else { return };
            let Some((start, process)) = self
                .maps
                .get_mut(&id)
                .and_then(|tracked| tracked.map.take())
                .zip(processes.get(&id).copied())
            else {
                return;
            };
            let Some(region) = crate::region_at(process, start) else { continue };
            match tick.promote(process, region, PageSize::HUGE_2M, reason) {
                Answer::Accepted => {
                    work -= 1;
                    self.served(id);
                }
                Answer::Refused => {}
                Answer::Spent => return,
            }
        }
    }

    /// Splits huge pages that hold many zeros while memory is short. The process with the least
    /// `cost` is first.
    pub fn recover(&mut self, tick: &mut Tick<'_>, cost: impl Fn(&Process) -> f64) {
        let in_use = tick.in_use();
        if in_use >= self.parameters.recover_from {
            self.recovering = true;
        } else if in_use <= self.parameters.recover_to {
            self.recovering = false;
        }
        if !self.recovering
            || self.recoveries.due(tick.now(), Pace { work: 1, every: self.parameters.recover_every }) == 0
        {
            return;
        }
        let mut goal =
            ((in_use - self.parameters.recover_to) * tick.snapshot().machine.memory.total.0 as f64) as u64;
        let mut processes: Vec<(f64, &Process)> =
            tick.processes().into_iter().map(|process| (cost(process), process)).collect();
        processes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.id.cmp(&b.1.id)));
        for (_, process) in processes {
            for region in &process.regions {
                if goal == 0 {
                    return;
                }
                if region.zeros.is_some_and(|zeros| zeros >= self.parameters.least_zeros) {
                    match tick.recover(process, region, Reason::Bloat) {
                        Answer::Accepted => goal = goal.saturating_sub(region.bloat().0),
                        Answer::Refused => {}
                        Answer::Spent => return,
                    }
                }
            }
            if !self.scans.advance(tick, process, self.parameters.rescan) {
                return;
            }
        }
    }

    /// Requests free blocks zeroed ahead of faults.
    pub fn pre_zero(&mut self, tick: &mut Tick<'_>) {
        let blocks = self.zeroings.due(tick.now(), self.parameters.pre_zero);
        let _ = tick.pre_zero(blocks, Reason::FaultLatency);
    }

    /// Returns the processes, least recently served first.
    pub fn turns(&self) -> impl Iterator<Item = (ProcessId, &AccessMap)> {
        self.turn.iter().filter_map(|id| Some((*id, &self.maps.get(id)?.map)))
    }

    fn served(&mut self, id: ProcessId) {
        if let Some(at) = self.turn.iter().position(|other| *other == id) {
            self.turn.remove(at);
            self.turn.push_back(id);
        }
    }
}

impl Policy for HawkEye {
    fn name(&self) -> &'static str {
        self.parameters.name
    }

    fn tick(&mut self, tick: &mut Tick<'_>) {
        self.resume(tick);
        self.track(tick);
        match self.by_cost {
            true => hawkeye_pmu::act(self, tick),
            false => hawkeye_g::act(self, tick),
        }
        self.pre_zero(tick);
    }

    fn on_fault(&mut self, fault: &Fault) -> FaultSize {
        if self.parameters.huge_faults && fault.eligible && fault.present == 0 {
            FaultSize::Huge
        } else {
            FaultSize::Base
        }
    }

    fn note(&mut self, _now: Duration, outcome: &Outcome) {
        let failed = matches!(outcome.obtained, Obtained::Busy | Obtained::Impossible | Obtained::NoMemory);
        if let (true, true, Action::Promote { process, region, .. }) =
            (self.parameters.failures_last, failed, &outcome.action)
            && let Some(tracked) = self.maps.get_mut(process)
        {
            tracked.map.put_last(*region);
        }
    }

    fn tracked(&self) -> usize {
        self.maps.values().map(|tracked| 1 + tracked.map.len()).sum::<usize>()
            + self.scans.len()
            + self.turn.len()
    }

    fn needs_costs(&self) -> bool {
        self.by_cost
    }

    fn prefers_zeroed(&self) -> bool {
        true
    }
}
