//! Replay of one host, step by step.

use super::{Frame, LEAST_STEP, Model, Modelled};
use crate::translation::{Translation, WalkCosts, translation};
use megapage_decide::{Action, Known, Limits, Obtained, Outcome, Pace, State, step};
use megapage_snapshot::{
    AccessProfile, Accessed, CostSource, Leaf, Machine, Mapping, Memory, Node, PAGES, Pressure, Process,
    ProcessId, ProcessSampling, Region, Sampling, Snapshot, TrackerKind, TranslationCost,
};
use megapage_units::{BASE_PAGE, Bytes, HugePage, PageSize, Pid, VirtRange};
use std::collections::BTreeMap;
use std::time::Duration;

/// Short steps within one frame in which the policy may make room for memory that grows.
const MOST_ROUNDS: u32 = 8;
/// Least cost, as a share of the work, by which a policy can be judged.
const LEAST_COST: f64 = 1e-3;
/// Share of free memory below which the kernel's reclaim makes programs wait. This is an
/// assumption: without swap nothing can be reclaimed, and kswapd runs without success (mm/vmscan.c,
/// watermark_scale_factor).
const SHORT: f64 = 0.05;
/// Identifier of the first service's process.
const FIRST_PID: i32 = 1000;
/// Address of the first region of each process: 4 GiB.
const ORIGIN: u64 = 4 << 30;

/// State of a replay.
pub(super) struct Run<'a> {
    model: &'a Model,
    state: State,
    now: f64,
    pub(super) steps: u64,
    /// Services that exist now.
    live: BTreeMap<usize, Live>,
    pub(super) accounts: Vec<Account>,
    pub(super) out_of_memory: bool,
}

/// Memory of one service.
#[derive(Default)]
struct Live {
    regions: Vec<Held>,
    /// Present cost of translation; `None` if regions have changed since it was computed.
    cost: Option<Costs>,
    /// Processor seconds so far.
    cpu: f64,
}

/// Memory of one region.
#[derive(Clone, Copy)]
struct Held {
    huge: bool,
    present: u16,
    /// Zero-filled pages, if they were counted.
    zeros: Option<u16>,
}

/// Cost of translation now, and on base pages.
#[derive(Clone, Copy)]
struct Costs {
    now: Translation,
    on_base: Translation,
}

/// Account of a service over the replay.
#[derive(Clone, Default)]
pub(super) struct Account {
    pub(super) seconds: f64,
    pub(super) totals: Totals,
    /// Bytes of bloat, and their duration.
    pub(super) bloat: Vec<(f64, f64)>,
}

/// Sums over a replay.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    work: f64,
    /// Seconds of translation on base pages, and under the policy.
    before: f64,
    after: f64,
    /// Huge pages times seconds.
    huge: f64,
}

impl Totals {
    /// Returns the part of the recorded cost that disappears under the policy.
    pub(super) fn relief(&self, service: &Modelled, seconds: f64) -> f64 {
        let each = |sum: f64| sum / self.work.max(1e-9);
        let (before, after) = (each(self.before), each(self.after));
        let could = if service.measured { before } else { before - service.when_huge };
        if could > LEAST_COST {
            return ((before - after) / could).clamp(0.0, 1.0);
        }
        // If the cost is next to nothing, uses the share of regions that became huge.
        (self.huge / (seconds * f64::from(service.shape.most))).clamp(0.0, 1.0)
    }
}

/// Returns the policy within the daemon's limits; a published one at the pace of the papers.
pub fn state(policy: &Known) -> State {
    let policy = if policy.is_published() { policy.make_at(Pace::PAPERS) } else { policy.make() };
    State::new(policy, Limits::default())
}

impl<'a> Run<'a> {
    pub(super) fn new(model: &'a Model, policy: &Known) -> Run<'a> {
        Run {
            model,
            state: state(policy),
            now: 0.0,
            steps: 0,
            live: BTreeMap::new(),
            accounts: vec![Account::default(); model.services.len()],
            out_of_memory: false,
        }
    }

    /// Runs a frame in steps. In each, memory grows, the policy acts, and time passes.
    pub(super) fn frame(&mut self, frame: &Frame) {
        let mut former = std::mem::take(&mut self.live);
        for (&at, &(regions, _)) in &frame.services {
            let mut live = former.remove(&at).unwrap_or_default();
            if live.regions.len() > regions as usize {
                live.regions.truncate(regions as usize);
                live.cost = None;
            }
            self.live.insert(at, live);
        }
        let (mut left, mut rounds) = (frame.seconds, 0);
        while left > 0.0 {
            let mut length = self.model.step;
            if !self.grow(frame) && rounds < MOST_ROUNDS {
                rounds += 1;
                length = LEAST_STEP;
            }
            // A rounding error does not count as a step.
            let length = if left - length < LEAST_STEP / 2.0 { left } else { length };
            self.decide();
            self.pass(frame, length);
            left -= length;
        }
        self.out_of_memory |= !self.grow(frame);
    }

    fn free(&self) -> u64 {
        let held = self.live.values().flat_map(|live| &live.regions).map(|held| u64::from(held.present));
        self.model.memory.saturating_sub(held.sum())
    }

    /// Grows the memory of each service to that of the frame, as far as memory is free. Returns
    /// true if it sufficed.
    fn grow(&mut self, frame: &Frame) -> bool {
        let mut free = self.free();
        let mut suffices = true;
        for (at, live) in &mut self.live {
            let density = self.model.services[*at].shape.density;
            let wanted = frame.services.get(at).map_or(0, |(regions, _)| *regions as usize);
            let missing = wanted.saturating_sub(live.regions.len());
            let fitting = missing.min((free / u64::from(density)) as usize);
            suffices &= fitting == missing;
            if fitting > 0 {
                free -= fitting as u64 * u64::from(density);
                let new = Held { huge: false, present: density, zeros: None };
                live.regions.resize(live.regions.len() + fitting, new);
                live.cost = None;
            }
        }
        suffices
    }

    /// Runs the policy on a snapshot, and carries out its actions.
    fn decide(&mut self) {
        for (at, live) in &mut self.live {
            live.cost.get_or_insert_with(|| self.model.services[*at].costs(&live.regions, &self.model.walks));
        }
        let now = Duration::from_secs_f64(self.now);
        let snapshot = self.snapshot(now);
        for action in step(now, &snapshot, &mut self.state) {
            let obtained = self.act(&action);
            self.state.note(now, &Outcome { action, obtained });
        }
        self.steps += 1;
    }

    fn act(&mut self, action: &Action) -> Obtained {
        let free = self.free();
        let at = (action.process().pid.0 - FIRST_PID) as usize;
        let Some(live) = self.live.get_mut(&at) else { return Obtained::Gone };
        let content = self.model.services[at].shape.density;
        let place = |page: HugePage| (page.number() - HugePage::containing(ORIGIN).number()) as usize;
        if let Action::ZeroScan { regions, .. } = action {
            for address in regions {
                if let Some(held) = live.regions.get_mut(place(*address)) {
                    held.zeros = Some(held.present - content);
                }
            }
            return Obtained::Done;
        }
        let Some(held) = action.region().and_then(|address| live.regions.get_mut(place(address))) else {
            return Obtained::Impossible;
        };
        match action {
            // The kernel collapses memory to 2 MiB only.
            Action::Promote { size, .. } if *size != PageSize::HUGE_2M => return Obtained::Unsupported,
            // If enough base pages are free, compaction makes a block of them.
            Action::Promote { .. } if free < u64::from(PAGES) => return Obtained::NoMemory,
            Action::Promote { .. } => *held = Held { huge: true, present: PAGES, zeros: None },
            Action::Recover { .. } => *held = Held { huge: false, present: content, zeros: None },
            _ => *held = Held { huge: false, zeros: None, ..*held },
        }
        live.cost = None;
        Obtained::Done
    }

    /// Accounts for `seconds` of a frame.
    fn pass(&mut self, frame: &Frame, seconds: f64) {
        for (at, live) in &mut self.live {
            let (service, account) = (&self.model.services[*at], &mut self.accounts[*at]);
            let costs = *live.cost.get_or_insert_with(|| service.costs(&live.regions, &self.model.walks));
            let cpu = frame.services.get(at).map_or(0.0, |(_, cpu)| *cpu) * seconds / frame.seconds;
            let work = cpu / service.on_base;
            live.cpu += work * costs.now.seconds();
            let totals = &mut account.totals;
            totals.work += work;
            totals.before += work * (costs.on_base.seconds() - 1.0);
            totals.after += work * (costs.now.seconds() - 1.0);
            totals.huge += live.regions.iter().filter(|held| held.huge).count() as f64 * seconds;
            account.seconds += seconds;
            let bloat = live.regions.iter().map(|held| u64::from(held.present - service.shape.density));
            account.bloat.push(((bloat.sum::<u64>() * BASE_PAGE as u64) as f64, seconds));
        }
        self.now += seconds;
    }

    fn snapshot(&self, now: Duration) -> Snapshot {
        let pages = self.free();
        let (total, free) = (Bytes(self.model.memory << 12), Bytes(pages << 12));
        let usable = pages as f64 * (1.0 - self.model.fragmentation);
        let stalled = (1.0 - pages as f64 / (self.model.memory as f64 * SHORT)).max(0.0) * 100.0;
        Snapshot {
            taken: now,
            machine: Machine {
                memory: Memory { total, free, available: free, ..Memory::default() },
                nodes: vec![Node {
                    node: 0,
                    free,
                    huge_available: (usable / f64::from(PAGES)) as u64,
                    fragmentation: Some(self.model.fragmentation),
                }],
                pools: Vec::new(),
                thp: None,
                counters: Default::default(),
                pressure: Some(Pressure { some_10s: stalled, some_60s: stalled, ..Pressure::default() }),
            },
            sampling: Some(Sampling {
                tracker: TrackerKind::Bpf,
                lacks: Vec::new(),
                skipped: Vec::new(),
                first_access_ns: 0.0,
                budget: 0.01,
            }),
            processes: self.live.iter().map(|(at, live)| self.process(*at, live, now)).collect(),
            missed: Vec::new(),
        }
    }

    fn process(&self, at: usize, live: &Live, now: Duration) -> Process {
        let service = &self.model.services[at];
        let costs = live.cost.map(|costs| costs.now).unwrap_or_default();
        let mut regions: Vec<Region> = Vec::with_capacity(live.regions.len());
        for (place, held) in live.regions.iter().enumerate() {
            let page = HugePage::containing(ORIGIN).offset(place as u64);
            regions.push(Region {
                leaf: if held.huge { Leaf::Huge2m } else { Leaf::Base },
                zeros: held.zeros,
                accessed: Some(Accessed { coverage: 0, average: 0.0, last: None, sampled: now }),
                ..Region::of_base_pages(page, held.present)
            });
        }
        for (places, (pages, count, share)) in service.shape.places() {
            let visits = service.rate * share / f64::from(count) / costs.seconds();
            let end = places.end.min(regions.len());
            for region in regions.get_mut(places.start..end).into_iter().flatten() {
                // One bit stands for all pages of a huge page.
                let coverage = if region.leaf.is_huge() { PAGES } else { pages.min(region.present) };
                let average = f32::from(coverage);
                region.accessed = Some(Accessed { coverage, average, last: Some(now), sampled: now });
                region.profile = Some(AccessProfile { visits, class: service.shape.class });
            }
        }
        let resident = regions.iter().map(Region::present_bytes).sum();
        let end = ORIGIN + regions.len() as u64 * HugePage::SIZE;
        let mapping = VirtRange::new(ORIGIN, end);
        let share = costs.share();
        let source = if service.measured { CostSource::Measured } else { CostSource::Estimated };
        let id = ProcessId { pid: Pid(FIRST_PID + at as i32), start_ticks: 0, start_stack: 0 };
        Process {
            cpu: Duration::from_secs_f64(live.cpu),
            rss: resident,
            rss_anonymous: resident,
            mappings: mapping.into_iter().map(Mapping::anonymous).collect(),
            regions,
            sharing_children: Some(0),
            translation: Some(TranslationCost { share, low: share, high: share, source }),
            sampling: Some(ProcessSampling {
                window: Duration::from_secs(1),
                period: Some(Duration::from_secs(1)),
                sampled: now,
                ranges: 1,
                bytes: resident,
                shared: Bytes::ZERO,
                cost: Duration::ZERO,
                slowdown: 0.0,
                samples: self.steps + 1,
            }),
            ..Process::without_memory(id, &service.id)
        }
    }
}

impl Modelled {
    fn costs(&self, regions: &[Held], walks: &WalkCosts) -> Costs {
        let load = |counts_huge: bool| {
            self.shape.load(self.rate, |places| {
                let there = regions.get(places.start..places.end.min(regions.len())).unwrap_or_default();
                let huge = there.iter().filter(|held| held.huge && counts_huge).count();
                (there.len() - huge, huge)
            })
        };
        let cost = |counts_huge| translation(walks, &load(counts_huge), None);
        let on_base = cost(false);
        let now = if regions.iter().any(|held| held.huge) { cost(true) } else { on_base };
        Costs { now, on_base }
    }
}
