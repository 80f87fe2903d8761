//! What a policy comes to on a recorded host.
//!
//! The recorded moments become snapshots, and the policy that the daemon runs sees them one after the other. Its promotions
//! and demotions change a small state: which regions are huge, and how much memory is left. How often pages are visited is
//! solved for, so that the recorded cost of address translation is met on base pages; the replay finds what is left of it.

use crate::fleet::{Fleet, Host};
use crate::recording::{Heat, Service, class};
use crate::statistics::quantile;
use crate::translation::{Part, Translation, WalkCosts, translation};
use megapage_decide::{Action, Known, Limits, Obtained, Outcome, Pace, State, step};
use megapage_snapshot::{
    AccessClass, AccessProfile, Accessed, CostSource, Leaf, Machine, Mapping, Memory, Node, PAGES, Pressure,
    Process, ProcessId, ProcessSampling, Region, Sampling, Snapshot, TrackerKind, TranslationCost,
};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, PageSize, Pid, VirtRange};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Regions of one host's replay: beyond these, each stands for several.
const MOST_REGIONS: u64 = 1024;
/// Steps of one host's replay: a day, minute by minute. Longer recordings have longer steps; those that moments cut short come
/// on top, at most as many again.
const MOST_STEPS: f64 = 1440.0;
/// The shortest step, in seconds.
const LEAST_STEP: f64 = 1.0;
/// Short steps within one of these in which the policy may make room for memory that grows.
const MOST_ROUNDS: u32 = 8;
/// A shorter recording is stretched to so long, in seconds: else it would show how a policy begins, and not what it comes to.
const LEAST_REPLAY: f64 = 3600.0;
/// Hosts that are replayed; services of the others take the mean of these.
pub const MOST_HOSTS: usize = 64;
/// Costs below this share of the work are none that a policy could be judged by.
const LEAST_COST: f64 = 1e-3;
/// Below this share of free memory the kernel's reclaim makes programs wait. An assumption: without swap nothing can be
/// reclaimed, and kswapd runs in vain (mm/vmscan.c, watermark_scale_factor).
const SHORT: f64 = 0.05;
/// The identifier of the first service's process.
const FIRST_PID: i32 = 1000;
/// The address of the first region of each process: 4 GiB.
const ORIGIN: u64 = 4 << 30;

/// What the policy comes to for one service of one host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replay {
    /// The part of the recorded cost that goes, 0 to 1.
    pub relief: f64,
    /// Memory that huge pages fill with zeros, in bytes, at the quantile that was asked for.
    pub bloat: f64,
}

/// The replays of a fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replays {
    by_host: BTreeMap<String, BTreeMap<String, Replay>>,
    mean: BTreeMap<String, Replay>,
    /// Hosts that were replayed.
    pub simulated: usize,
    /// Hosts on which memory did not suffice under the policy, though it did without.
    pub out_of_memory: Vec<String>,
}

impl Replays {
    /// What the policy comes to for a service of a host: that of other hosts where this one was not replayed. `None` where
    /// it was replayed nowhere.
    pub fn of(&self, host: &str, service: &str) -> Option<Replay> {
        let own = self.by_host.get(host).and_then(|services| services.get(service));
        own.or_else(|| self.mean.get(service)).copied()
    }
}

/// How hosts are replayed.
#[derive(Clone, Debug)]
pub struct How<'a> {
    /// The policy, as the daemon runs it by default.
    pub policy: &'a Known,
    /// The memory of each host, where it is not to be the recorded one.
    pub memory: Option<Bytes>,
    /// The quantile of bloat, 0 to 1.
    pub quantile: f64,
    /// Hosts that are replayed at once; at least 1.
    pub threads: usize,
}

/// Replays the hosts of a fleet. `progress` is told the share of hosts that are done.
pub fn replay(fleet: &Fleet, how: &How<'_>, progress: &(dyn Fn(f64) + Sync)) -> Replays {
    let stride = fleet.hosts.len().div_ceil(MOST_HOSTS).max(1);
    let hosts: Vec<(&String, &Host)> = fleet.hosts.iter().step_by(stride).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<Option<OfHost>>> = Mutex::new((0..hosts.len()).map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..how.threads.clamp(1, hosts.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((_, host)) = hosts.get(at) else { return };
                    let found = of_host(host, how);
                    results.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[at] = Some(found);
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    progress(done as f64 / hosts.len() as f64);
                }
            });
        }
    });
    let mut replays = Replays { simulated: hosts.len(), ..Replays::default() };
    let results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    for ((name, _), found) in hosts.iter().zip(results) {
        let Some(found) = found else { continue };
        if found.out_of_memory {
            replays.out_of_memory.push(name.to_string());
        }
        replays.by_host.insert(name.to_string(), found.services);
    }
    let mut sums: BTreeMap<String, (Replay, f64)> = BTreeMap::new();
    for (service, replay) in replays.by_host.values().flatten() {
        let sum = sums.entry(service.clone()).or_insert((Replay { relief: 0.0, bloat: 0.0 }, 0.0));
        sum.0.relief += replay.relief;
        sum.0.bloat += replay.bloat;
        sum.1 += 1.0;
    }
    let mean = |(sum, count): (Replay, f64)| Replay { relief: sum.relief / count, bloat: sum.bloat / count };
    replays.mean = sums.into_iter().map(|(service, sum)| (service, mean(sum))).collect();
    replays
}

#[derive(Default)]
struct OfHost {
    services: BTreeMap<String, Replay>,
    out_of_memory: bool,
    steps: u64,
}

fn of_host(host: &Host, how: &How<'_>) -> OfHost {
    let Some(model) = Model::of(host, how.memory) else { return OfHost::default() };
    let mut run = Run::new(&model, how.policy);
    model.frames.iter().for_each(|frame| run.frame(frame));
    let services = model.services.iter().zip(run.accounts).map(|(service, account)| {
        let mut bloat = account.bloat;
        // It has none while it is not there.
        bloat.push((0.0, model.seconds - account.seconds));
        let bloat = quantile(&bloat, how.quantile) * model.scale;
        (service.id.clone(), Replay { relief: account.totals.relief(service, model.seconds), bloat })
    });
    OfHost {
        services: services.collect(),
        out_of_memory: run.out_of_memory && model.base_pages_suffice(),
        steps: run.steps,
    }
}

/// A host as it is replayed.
struct Model {
    walks: WalkCosts,
    frames: Vec<Frame>,
    /// All frames together, in seconds.
    seconds: f64,
    /// From one step to the next, in seconds.
    step: f64,
    /// The memory that the services have among them, in base pages.
    memory: u64,
    /// The share of free memory that is unusable for huge pages.
    fragmentation: f64,
    /// Regions that one region of the replay stands for.
    scale: f64,
    services: Vec<Modelled>,
}

/// Moments that follow each other, at least a step together.
#[derive(Default)]
struct Frame {
    seconds: f64,
    /// The regions and the processor time of the services that were there, by their places in the model.
    services: BTreeMap<usize, (u32, f64)>,
}

/// A service of a host.
struct Modelled {
    id: String,
    shape: Shape,
    /// Visits per second of work.
    rate: f64,
    /// What a second of work takes on base pages, in seconds.
    on_base: f64,
    /// What translation costs on huge pages alone, in seconds for each second of work.
    when_huge: f64,
    /// Whether the recorded cost is all that walks cost, and not what huge pages would save.
    measured: bool,
}

impl Model {
    /// Returns `None` where no service has memory that huge pages could hold.
    fn of(host: &Host, asked: Option<Bytes>) -> Option<Model> {
        let all: Vec<(&str, Series<'_>)> =
            Series::all(host).into_iter().filter(|(_, series)| series.most > 0).collect();
        let regions: u64 = all.iter().map(|(_, series)| u64::from(series.most)).sum();
        if regions == 0 {
            return None;
        }
        let scale = regions.div_ceil(MOST_REGIONS);
        let walks = scaled(host, scale as f64);
        let services: Vec<Modelled> = all
            .iter()
            .map(|(name, series)| {
                let shape = Shape::of(series, scale as u32);
                let rate = shape.calibrate(&walks, series);
                let seconds = |huge| translation(&walks, &shape.whole(rate, huge), None).seconds();
                Modelled {
                    id: name.to_string(),
                    when_huge: seconds(true) - 1.0,
                    on_base: seconds(false),
                    measured: series.measured,
                    shape,
                    rate,
                }
            })
            .collect();
        let stretch = (LEAST_REPLAY / host.seconds()).clamp(1.0, 1e6);
        let seconds = host.seconds() * stretch;
        let step = (seconds / MOST_STEPS).max(LEAST_STEP);
        let places: BTreeMap<&str, usize> =
            all.iter().enumerate().map(|(at, (name, _))| (*name, at)).collect();
        let mut frames = vec![Frame::default()];
        for (_, moment) in &host.moments {
            if let Some(last) = frames.last().filter(|last| last.seconds >= step)
                && last.seconds > 0.0
            {
                frames.push(Frame::default());
            }
            let Some(frame) = frames.last_mut() else { break };
            frame.seconds += moment.span * stretch;
            for service in &moment.services {
                let Some(&at) = places.get(service.id.as_str()) else { continue };
                let (regions, cpu) = frame.services.entry(at).or_default();
                let most = services[at].shape.most;
                *regions = service.need.div_ceil(scale as u32).min(most).max(*regions);
                *cpu += service.cpu.min(moment.span) * stretch;
            }
        }
        let fragmentation = host.moments.iter().find_map(|(_, moment)| moment.fragmentation).unwrap_or(0.0);
        let memory = memory(host, asked, scale).0 / BASE_PAGE as u64;
        Some(Model { walks, frames, seconds, step, memory, fragmentation, scale: scale as f64, services })
    }

    /// Returns true if memory holds every frame on base pages.
    fn base_pages_suffice(&self) -> bool {
        let needed = |frame: &Frame| {
            let pages = frame
                .services
                .iter()
                .map(|(at, (regions, _))| u64::from(*regions) * u64::from(self.services[*at].shape.density));
            pages.sum::<u64>()
        };
        self.frames.iter().all(|frame| needed(frame) <= self.memory)
    }
}

/// A replay under way.
struct Run<'a> {
    model: &'a Model,
    state: State,
    now: f64,
    steps: u64,
    /// The services that are there.
    live: BTreeMap<usize, Live>,
    accounts: Vec<Account>,
    out_of_memory: bool,
}

/// The memory of one service.
#[derive(Default)]
struct Live {
    regions: Vec<Held>,
    /// What translation costs as it is; `None` where regions have changed since.
    cost: Option<Costs>,
    /// Processor seconds so far.
    cpu: f64,
}

/// The memory of one region.
#[derive(Clone, Copy)]
struct Held {
    huge: bool,
    present: u16,
    /// Pages that hold zeros, as far as they were counted.
    zeros: Option<u16>,
}

/// What translation costs now, and would cost on base pages.
#[derive(Clone, Copy)]
struct Costs {
    now: Translation,
    on_base: Translation,
}

/// What a service went through.
#[derive(Clone, Default)]
struct Account {
    seconds: f64,
    totals: Totals,
    /// Bytes of bloat, and for how long.
    bloat: Vec<(f64, f64)>,
}

/// Sums over a replay.
#[derive(Clone, Copy, Default)]
struct Totals {
    work: f64,
    /// Seconds of translation on base pages, and under the policy.
    before: f64,
    after: f64,
    /// Huge pages times seconds.
    huge: f64,
}

impl Totals {
    /// Returns the part of the recorded cost that goes with the policy.
    fn relief(&self, service: &Modelled, seconds: f64) -> f64 {
        let each = |sum: f64| sum / self.work.max(1e-9);
        let (before, after) = (each(self.before), each(self.after));
        let could = if service.measured { before } else { before - service.when_huge };
        if could > LEAST_COST {
            return ((before - after) / could).clamp(0.0, 1.0);
        }
        // Of what costs next to nothing, the share that became huge.
        (self.huge / (seconds * f64::from(service.shape.most))).clamp(0.0, 1.0)
    }
}

impl<'a> Run<'a> {
    fn new(model: &'a Model, policy: &Known) -> Run<'a> {
        let policy = if policy.is_published() { policy.make_at(Pace::PAPERS) } else { policy.make() };
        Run {
            model,
            state: State::new(policy, Limits::default()),
            now: 0.0,
            steps: 0,
            live: BTreeMap::new(),
            accounts: vec![Account::default(); model.services.len()],
            out_of_memory: false,
        }
    }

    /// Goes through a frame in steps. In each, memory grows, the policy acts, and time passes.
    fn frame(&mut self, frame: &Frame) {
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
            // What rounding leaves is no step.
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

    /// Grows the memory of each service to what the frame has, as far as there is some. Returns true if it sufficed.
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

    /// Lets the policy see what there is, and does what it asks for.
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
        let place = |address: u64| (address.saturating_sub(ORIGIN) / HUGE_2M as u64) as usize;
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
            // Where as much is free, compaction makes a block of it.
            Action::Promote { .. } if free < u64::from(PAGES) => return Obtained::NoMemory,
            Action::Promote { .. } => *held = Held { huge: true, present: PAGES, zeros: None },
            Action::Recover { .. } => *held = Held { huge: false, present: content, zeros: None },
            _ => *held = Held { huge: false, zeros: None, ..*held },
        }
        live.cost = None;
        Obtained::Done
    }

    /// Accounts for so many seconds of a frame.
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
            let start = ORIGIN + (place * HUGE_2M) as u64;
            regions.push(Region {
                leaf: if held.huge { Leaf::Huge2m } else { Leaf::Base },
                zeros: held.zeros,
                accessed: Some(Accessed { coverage: 0, average: 0.0, last: None, sampled: now }),
                ..Region::of_base_pages(start, held.present)
            });
        }
        for (places, (pages, count, share)) in service.shape.places() {
            let visits = service.rate * share / f64::from(count) / costs.seconds();
            let end = places.end.min(regions.len());
            for region in regions.get_mut(places.start..end).into_iter().flatten() {
                // One bit stands for all pages of a huge one.
                let coverage = if region.leaf.is_huge() { PAGES } else { pages.min(region.present) };
                let average = f32::from(coverage);
                region.accessed = Some(Accessed { coverage, average, last: Some(now), sampled: now });
                region.profile = Some(AccessProfile { visits, class: service.shape.class });
            }
        }
        let resident = regions.iter().map(Region::present_bytes).sum();
        let end = ORIGIN + (regions.len() * HUGE_2M) as u64;
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

/// Returns the costs of walks with the host's TLBs. Where one region stands for several, TLBs and caches hold that much less: so
/// that a footprint is as large to them as it is.
fn scaled(host: &Host, scale: f64) -> WalkCosts {
    let mut walks = WalkCosts::haswell();
    let entries =
        |count: u32| if count == 0 { 0 } else { ((f64::from(count) / scale).round() as u32).max(1) };
    let tlb = &host.header.tlb;
    walks.tlb.first_base = entries(tlb.first_base);
    walks.tlb.first_2m = entries(tlb.first_2m);
    walks.tlb.first_1g = entries(tlb.first_1g);
    walks.tlb.second = entries(tlb.second);
    walks.tlb.second_1g = entries(tlb.second_1g);
    walks.near_lines = (walks.near_lines / scale).max(1.0);
    walks.far_lines = (walks.far_lines / scale).max(1.0);
    walks.directories = (walks.directories / scale).max(1.0);
    walks
}

/// The memory that the services have among them: what was available and what they had, at the least moment; with another
/// size of memory, so much more or less.
fn memory(host: &Host, asked: Option<Bytes>, scale: u64) -> Bytes {
    let theirs = |services: &[Service]| services.iter().map(present).sum::<u64>();
    let together = host.moments.iter().map(|(_, moment)| moment.available + theirs(&moment.services)).min();
    let peak = host.moments.iter().map(|(_, moment)| theirs(&moment.services)).max().unwrap_or(0);
    let recorded = host.header.memory;
    let asked = asked.map_or(recorded, |bytes| bytes.0);
    let memory = (together.unwrap_or(recorded).min(recorded.max(peak)) + asked).saturating_sub(recorded);
    // It has to hold what it did hold, and the regions that are cut short.
    let least = if asked == recorded { peak + peak / 50 } else { 0 };
    Bytes((memory.max(least) / scale).max(64 << 20))
}

/// Memory that huge pages hold or could hold, in bytes.
fn present(service: &Service) -> u64 {
    service.huge + service.could
}

/// One service at the moments at which it was there.
#[derive(Default)]
struct Series<'a> {
    there: Vec<&'a Service>,
    /// The most regions that it ever needed.
    most: u32,
    measured: bool,
}

impl<'a> Series<'a> {
    /// Returns the services of a host, by name.
    fn all(host: &'a Host) -> BTreeMap<&'a str, Series<'a>> {
        let mut all: BTreeMap<&str, Series<'_>> = BTreeMap::new();
        for service in host.moments.iter().flat_map(|(_, moment)| &moment.services) {
            let series = all.entry(&service.id).or_default();
            series.there.push(service);
            series.most = series.most.max(service.need);
            series.measured |= service.cost.is_some_and(|cost| cost.measured);
        }
        all
    }

    /// The likely cost, by the processor time of the moments at which it was known; `None` where it never was.
    fn cost(&self) -> Option<f64> {
        let known: Vec<(f64, f64)> =
            self.there.iter().filter_map(|it| it.cost.map(|cost| (cost.likely, it.cpu.max(1e-9)))).collect();
        let weight: f64 = known.iter().map(|(_, cpu)| cpu).sum();
        (weight > 0.0).then(|| known.iter().map(|(share, cpu)| share * cpu).sum::<f64>() / weight)
    }
}

/// How the memory of a service is filled and accessed.
struct Shape {
    /// Regions, at the most.
    most: u32,
    /// Base pages present of each, 1 to 512.
    density: u16,
    class: AccessClass,
    /// Accessed pages, regions, and the share of all visits that go there, the least accessed first.
    heat: Vec<(u16, u32, f64)>,
}

impl Shape {
    fn of(series: &Series<'_>, scale: u32) -> Shape {
        let (mut bytes, mut regions) = (0.0, 0.0);
        let mut steps: BTreeMap<u16, (f64, f64)> = BTreeMap::new();
        let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
        for service in &series.there {
            bytes += present(service) as f64;
            regions += f64::from(service.need);
            for Heat { pages, regions, visits } in &service.heat {
                let step = steps.entry(*pages).or_default();
                step.0 += f64::from(*regions);
                step.1 += visits;
            }
            if let Some(class) = &service.class {
                *classes.entry(class).or_default() += 1;
            }
        }
        let density = (bytes / (regions.max(1.0) * HUGE_2M as f64) * f64::from(PAGES)).round();
        let density = (density as u16).clamp(1, PAGES);
        let most = series.most.div_ceil(scale);
        let name = classes.iter().max_by_key(|(name, count)| (**count, std::cmp::Reverse(**name)));
        let sampled: f64 = steps.values().map(|(regions, _)| regions).sum();
        let mut heat = Vec::new();
        let mut left = most;
        // Without estimates of visits, the accessed pages stand for them.
        let visits: f64 = steps.values().map(|(_, visits)| visits).sum();
        let weight = |pages: u16, (regions, of): (f64, f64)| match visits > 0.0 {
            true => of,
            false => regions * f64::from(pages),
        };
        let all: f64 = steps.iter().map(|(pages, step)| weight(*pages, *step)).sum();
        for (pages, step) in &steps {
            let count = ((step.0 / sampled.max(1.0) * f64::from(most)).round() as u32).min(left);
            left -= count;
            if count > 0 && *pages > 0 && all > 0.0 {
                heat.push((*pages, count, weight(*pages, *step) / all));
            }
        }
        if heat.is_empty() {
            heat.push((density, most, 1.0));
        }
        let class = name.and_then(|(name, _)| class(name)).unwrap_or(AccessClass::Random);
        Shape { most, density, class, heat }
    }

    /// Returns the places of the regions that are accessed alike, with their heat. The least accessed lie first.
    fn places(&self) -> impl Iterator<Item = (Range<usize>, (u16, u32, f64))> {
        let accessed: u32 = self.heat.iter().map(|(_, count, _)| count).sum();
        let mut next = self.most.saturating_sub(accessed) as usize;
        self.heat.iter().map(move |heat| {
            let start = next;
            next += heat.1 as usize;
            (start..next, *heat)
        })
    }

    /// Returns the load on the TLB with `rate` visits a second; `counts` says how many regions of some places are on base
    /// pages, and how many huge.
    fn load(&self, rate: f64, counts: impl Fn(Range<usize>) -> (usize, usize)) -> Vec<Part> {
        let mut load = Vec::new();
        for (places, (pages, count, share)) in self.places() {
            let (base, huge) = counts(places);
            let part = |regions: usize, pages: u16, huge: bool| Part {
                regions: regions as f64,
                pages: regions as f64 * f64::from(pages),
                visits: rate * share * regions as f64 / f64::from(count),
                class: self.class,
                huge,
            };
            load.push(part(base, pages.min(self.density), false));
            load.push(part(huge, pages, true));
        }
        load
    }

    /// Returns the load where all regions are there, on base pages or huge.
    fn whole(&self, rate: f64, huge: bool) -> Vec<Part> {
        self.load(rate, |places| if huge { (0, places.len()) } else { (places.len(), 0) })
    }

    /// The visits per second of work at which the recorded cost is met on base pages; 0 where nothing was recorded.
    fn calibrate(&self, walks: &WalkCosts, series: &Series<'_>) -> f64 {
        let Some(share) = series.cost().filter(|share| *share > 0.0) else { return 0.0 };
        let seconds = |rate: f64, huge: bool| translation(walks, &self.whole(rate, huge), None).seconds();
        let found = |rate: f64| {
            let on_base = seconds(rate, false);
            let kept = if series.measured { 1.0 } else { seconds(rate, true).min(on_base) };
            (on_base - kept) / on_base
        };
        // The cost rises with the visits, up to a bound: bisection on a logarithmic scale.
        let (mut low, mut high) = (1.0f64, 1e10f64);
        for _ in 0..60 {
            let middle = (low * high).sqrt();
            if found(middle) < share { low = middle } else { high = middle }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{HostModel, fleet};
    use megapage_decide::known;

    fn how(policy: &str) -> How<'_> {
        How { policy: known(policy).unwrap(), memory: None, quantile: 0.99, threads: 2 }
    }

    #[test]
    fn the_policy_takes_away_what_translation_costs_and_without_it_nothing_goes() {
        let fleet = Fleet::merge(fleet(&[HostModel::plain("h", 0.3)]));
        let with = replay(&fleet, &how("megapage"), &|_| ());
        let found = with.of("h", "plain").unwrap();
        assert!(found.relief > 0.8, "{found:?}");
        let without = replay(&fleet, &how("linux-4k"), &|_| ());
        assert_eq!(without.of("h", "plain").unwrap(), Replay { relief: 0.0, bloat: 0.0 });
        // A host that was not simulated takes the mean.
        assert_eq!(with.of("another", "plain").unwrap(), found);
        assert!(with.of("another", "unknown").is_none());
    }

    #[test]
    fn the_recorded_cost_is_met() {
        let fleet = Fleet::merge(fleet(&[HostModel::plain("h", 0.25)]));
        let host = &fleet.hosts["h"];
        let series = &Series::all(host)["plain"];
        let walks = scaled(host, 1.0);
        let shape = Shape::of(series, 1);
        let rate = shape.calibrate(&walks, series);
        let seconds = |huge| translation(&walks, &shape.whole(rate, huge), None).seconds();
        let share = (seconds(false) - seconds(true)) / seconds(false);
        assert!((share - series.cost().unwrap()).abs() < 0.005, "{share}");
    }

    #[test]
    fn a_large_host_is_simulated_by_a_part_of_its_regions() {
        let small = Fleet::merge(fleet(&[HostModel::plain("h", 0.3)]));
        let large = Fleet::merge(fleet(&[HostModel { regions: 40_000, ..HostModel::plain("h", 0.3) }]));
        let found = |fleet: &Fleet| replay(fleet, &how("megapage"), &|_| ()).of("h", "plain").unwrap();
        let (small, large) = (found(&small), found(&large));
        assert!((small.relief - large.relief).abs() < 0.2, "{small:?} {large:?}");
    }

    #[test]
    fn ten_years_are_replayed_in_no_more_steps_than_are_allowed() {
        let mut recordings = fleet(&[HostModel::plain("h", 0.3)]);
        let moments = &mut recordings[0].moments;
        moments.truncate(3);
        for (at, moment) in moments.iter_mut().enumerate() {
            moment.at = at as f64 * 1.5e8;
            moment.span = if at == 0 { 0.0 } else { 1.5e8 };
        }
        let fleet = Fleet::merge(recordings);
        let found = of_host(&fleet.hosts["h"], &how("megapage"));
        assert!((1000..=2 * MOST_STEPS as u64).contains(&found.steps), "{}", found.steps);
        assert!(found.services["plain"].relief > 0.8, "{:?}", found.services);
    }

    #[test]
    fn who_recovers_bloat_has_memory_for_what_grows_and_who_does_not_runs_out() {
        // Half-full regions, of which twice as many come later: huge, they alone would fill the machine.
        let mut recordings = fleet(&[HostModel::plain("h", 0.3)]);
        recordings[0].header.memory = 1 << 30;
        for (minute, moment) in recordings[0].moments.iter_mut().enumerate() {
            let need = if minute < 60 { 400 } else { 800 };
            moment.available = (1 << 30) - (u64::from(need) << 20);
            let service = &mut moment.services[0];
            (service.need, service.could) = (need, u64::from(need) << 20);
        }
        let fleet = Fleet::merge(recordings);
        let starved = |policy| !replay(&fleet, &how(policy), &|_| ()).out_of_memory.is_empty();
        assert!(starved("linux") && !starved("linux-4k") && !starved("megapage"));
    }
}
