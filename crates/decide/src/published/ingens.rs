//! Ingens: base pages at faults. A thread promotes regions with most base pages in use; while
//! memory is hardly fragmented, it promotes at once. It first serves the process with the least
//! huge memory for its share.
//!
//! Sources: Kwon, Yu, Peter, Rossbach, Witchel, "Coordinated and Efficient Huge Page Management
//! with Ingens" (OSDI 2016); the released kernel's osa/hugepage_scan.c.

use crate::pace::Rounds;
use crate::{Answer, Fault, FaultSize, Pace, Policy, Reason, Tick, samples};
use megapage_snapshot::{Leaf, PAGES, Process, ProcessId, Region};
use megapage_units::{HugePage, PageSize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Rule by which processes compete for huge pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fairness {
    /// The paper's M = S / (H (f + tau (1 - f))). These are share, huge pages, their hot part, and
    /// a penalty for the idle part. S is 1 for every process.
    IdlePenalty {
        /// Weight of an idle huge page; a hot one has 1.
        tau: f64,
    },
    /// The code's rule: huge pages wanted (anonymous memory) for each existing one.
    Need,
}

/// Smoothing of the access frequency of a region. One sample is one bit of an 8-bit history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frequency {
    /// Weight of the history's latest count, 0 to 1.
    pub weight: f64,
    /// Average number of samples with an access, of eight, from which a region is hot.
    pub hot: f64,
}

/// Constants of Ingens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Name in reports.
    pub name: &'static str,
    /// Fragmentation (FMFI, 0 to 1) below which one touched page is enough; `None`: never.
    pub eager_below: Option<f64>,
    /// Base pages, of 512, that must be present otherwise.
    pub utilised: u16,
    /// Base pages looked at in a round, 512 for each promotion.
    pub promote: Pace,
    /// Time from one sample of access bits to the next; also from clearing to reading.
    pub sample_every: Duration,
    /// Rounds for each sample of a hot region: the cost of its accesses outweighs their
    /// information.
    pub hot_rounds: u64,
    /// Judgement of accesses.
    pub frequency: Frequency,
    /// Order in which processes are served.
    pub fairness: Fairness,
}

impl Parameters {
    /// Returns the constants of the paper. For values that are unknown to us (tau, the pace),
    /// docs/policies.md states the choice.
    pub const fn paper() -> Parameters {
        Parameters {
            name: "ingens",
            eager_below: Some(0.5),
            // 90 % of 512.
            utilised: 461,
            promote: Pace::PAPERS.in_pages(PAGES),
            sample_every: Duration::from_secs(2),
            hot_rounds: 5,
            frequency: Frequency { weight: 0.4, hot: 6.0 },
            fairness: Fairness::IdlePenalty { tau: 4.0 },
        }
    }

    /// Returns these constants, promoting at most the regions of `pace` in a round.
    pub fn at(self, pace: Pace) -> Parameters {
        Parameters { promote: pace.in_pages(PAGES), ..self }
    }

    /// Returns the constants of the released kernel: 90 % always, a sample every 4 s, 0.7 and 0.3
    /// as weights.
    pub const fn code() -> Parameters {
        Parameters {
            name: "ingens-code",
            eager_below: None,
            promote: Pace::KHUGEPAGED.in_pages(PAGES),
            sample_every: Duration::from_secs(4),
            frequency: Frequency { weight: 0.3, hot: 6.0 },
            fairness: Fairness::Need,
            ..Parameters::paper()
        }
    }
}

/// State of a region.
#[derive(Clone, Copy, Debug)]
struct Heat {
    sampled: Duration,
    history: u8,
    /// Average number of accesses in eight samples.
    frequency: f64,
}

/// Regions of one process.
#[derive(Clone, Debug, Default)]
struct Tracked {
    /// State of the regions by their first addresses, ascending.
    heat: Vec<(HugePage, Heat)>,
    /// Value of the samples it has taken in: see [`samples`].
    samples: u64,
}

impl Tracked {
    /// Takes in the samples of a process, and forgets regions that are gone.
    fn update(&mut self, process: &Process, smoothing: Frequency) {
        let mut old = std::mem::take(&mut self.heat).into_iter().peekable();
        for region in &process.regions {
            while old.next_if(|(start, _)| *start < region.page).is_some() {}
            let known = old.next_if(|(start, _)| *start == region.page);
            let Some(accessed) = region.accessed else { continue };
            let fresh = Heat { sampled: Duration::ZERO, history: 0, frequency: 0.0 };
            let mut heat = known.map_or(fresh, |(_, heat)| heat);
            if accessed.sampled > heat.sampled {
                heat.sampled = accessed.sampled;
                heat.history = heat.history >> 1 | if accessed.coverage > 0 { 0x80 } else { 0 };
                heat.frequency = (1.0 - smoothing.weight) * heat.frequency
                    + smoothing.weight * f64::from(heat.history.count_ones());
            }
            self.heat.push((region.page, heat));
        }
    }

    fn get(&self, start: HugePage) -> Option<&Heat> {
        let at = self.heat.binary_search_by_key(&start, |(start, _)| *start).ok()?;
        Some(&self.heat[at].1)
    }
}

/// The policy.
#[derive(Clone, Debug)]
pub struct Ingens {
    parameters: Parameters,
    samples: Rounds,
    promotions: Rounds,
    heat: BTreeMap<ProcessId, Tracked>,
    /// Samples so far.
    round: u64,
}

impl Ingens {
    /// Returns Ingens with these constants.
    pub fn new(parameters: Parameters) -> Ingens {
        Ingens {
            parameters,
            samples: Rounds::default(),
            promotions: Rounds::default(),
            heat: BTreeMap::new(),
            round: 0,
        }
    }

    /// Takes in new samples, and requests the next ones.
    fn track(&mut self, tick: &mut Tick<'_>) {
        let processes = tick.processes();
        self.heat.retain(|id, _| tick.knows(*id));
        let every = self.parameters.sample_every;
        let due = self.samples.due(tick.now(), Pace { work: 1, every }) > 0;
        self.round += u64::from(due);
        for process in processes {
            let tracked = self.heat.entry(process.id).or_default();
            let samples = samples(process);
            if tracked.samples != samples || tracked.heat.len() > process.regions.len() {
                tracked.samples = samples;
                tracked.update(process, self.parameters.frequency);
            }
            if due {
                let is_hot = |start: &HugePage| {
                    let heat = tracked.get(*start);
                    heat.is_some_and(|heat| heat.frequency >= self.parameters.frequency.hot)
                };
                let rounds = self.parameters.hot_rounds.max(1);
                let is_its_round =
                    |start: &HugePage| start.number().wrapping_add(self.round).is_multiple_of(rounds);
                let _ = tick.sample(process, every, Reason::Period, |region| {
                    region.present > 0 && (is_its_round(&region.page) || !is_hot(&region.page))
                });
            }
        }
    }

    /// Returns the hot part of a process's huge pages, 0 to 1. Without any sample, all count as
    /// hot.
    fn hot(&self, process: &Process) -> f64 {
        let Some(tracked) = self.heat.get(&process.id) else { return 1.0 };
        let huge = process.regions.iter().filter(|region| region.leaf == Leaf::Huge2m);
        let known: Vec<&Heat> = huge.filter_map(|region| tracked.get(region.page)).collect();
        let hot = known.iter().filter(|heat| heat.frequency >= self.parameters.frequency.hot).count();
        if known.is_empty() { 1.0 } else { hot as f64 / known.len() as f64 }
    }

    /// Returns the claim of a process to the next huge page. The highest is next.
    fn claim(&self, competitor: &Competitor) -> f64 {
        // Without huge pages, the claim of every process would be infinite.
        let huge = competitor.huge.max(1) as f64;
        match self.parameters.fairness {
            Fairness::Need => competitor.process.rss_anonymous.0 as f64 / HugePage::SIZE as f64 / huge,
            Fairness::IdlePenalty { tau } => 1.0 / (huge * (competitor.hot + tau * (1.0 - competitor.hot))),
        }
    }
}

/// A process that competes for promotions.
struct Competitor<'a> {
    process: &'a Process,
    huge: usize,
    /// Hot part of its huge pages.
    hot: f64,
    /// Regions to promote, from low to high addresses.
    regions: std::vec::IntoIter<&'a Region>,
}

impl Policy for Ingens {
    fn name(&self) -> &'static str {
        self.parameters.name
    }

    fn tick(&mut self, tick: &mut Tick<'_>) {
        self.track(tick);
        self.promotions.give_back(tick.untried_promotions().len() as u64 * u64::from(PAGES));
        let mut pages = self.promotions.due(tick.now(), self.parameters.promote);
        if pages < u64::from(PAGES) {
            return;
        }
        let eager = self.parameters.eager_below.is_some_and(|below| tick.fragmentation() < below);
        let (least, reason) =
            if eager { (1, Reason::Unfragmented) } else { (self.parameters.utilised, Reason::Utilised) };

        let mut competitors: Vec<Competitor> = Vec::new();
        for process in tick.processes() {
            let regions: Vec<&Region> = tick
                .promotable(process)
                .map(|(_, region)| region)
                .filter(|region| region.present >= least)
                .collect();
            competitors.push(Competitor {
                process,
                huge: process.huge_regions(),
                hot: self.hot(process),
                regions: regions.into_iter(),
            });
        }
        while pages >= u64::from(PAGES) {
            competitors.retain(|competitor| !competitor.regions.as_slice().is_empty());
            let claim = |competitor: &Competitor| self.claim(competitor);
            // Chooses the first of equals: pids ascend.
            let Some(next) = competitors.iter_mut().rev().max_by(|a, b| claim(a).total_cmp(&claim(b))) else {
                return;
            };
            let Some(region) = next.regions.next() else { return };
            match tick.promote(next.process, region, PageSize::HUGE_2M, reason) {
                Answer::Accepted => {
                    next.huge += 1;
                    pages -= u64::from(PAGES);
                }
                Answer::Refused => {}
                Answer::Spent => return,
            }
        }
    }

    fn on_fault(&mut self, _fault: &Fault) -> FaultSize {
        FaultSize::Base
    }

    fn tracked(&self) -> usize {
        self.heat.values().map(|tracked| 1 + tracked.heat.len()).sum()
    }
}
