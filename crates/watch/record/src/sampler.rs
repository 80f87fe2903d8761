//! Makes moments of a recording from snapshots: adds up processes to services.

use crate::name::{Namer, app_of, service_of};
use megapage_kernel::process::ticks;
use megapage_launch::promoter::LEAST_PRESENT;
use megapage_observe::cost::probe::is_promotable;
use megapage_plan::recording::{Cost, HEAT_STEP, Heat, MOST_SERVICES, Moment, Service};
use megapage_snapshot::{
    AccessClass, CostSource, Leaf, MappedObject, MappingKind, PAGES, Process, ProcessId, Region, Snapshot,
};
use megapage_units::{BASE_PAGE, HUGE_1G, PageSize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Largest share of time that translation is assumed to cost.
const MOST_COST: f64 = 0.95;
/// Number of 2 MiB regions in a 1 GiB range that must be huge, or could be, for the range to count.
const GIANT: usize = 461;
/// Weight of a processor second, in bytes, in the choice of services.
const CPU_WEIGHT: f64 = (1u64 << 30) as f64;

/// Makes moments from snapshots, and remembers the values from which changes are counted.
#[derive(Debug)]
pub struct Sampler {
    namer: Namer,
    before: BTreeMap<ProcessId, Known>,
    taken: Option<Duration>,
    began: Option<Duration>,
}

/// Process as last seen.
#[derive(Clone, Copy, Debug)]
struct Known {
    cpu: Duration,
    resident: u64,
}

/// Sum over the processes of a service.
#[derive(Default)]
struct Sum {
    service: Service,
    heat: BTreeMap<u16, (u32, f64)>,
    classes: [f64; 3],
    cost: [f64; 3],
    weight: f64,
    measured: bool,
}

impl Sampler {
    /// Creates a sampler whose recording begins with the first moment.
    pub fn new(namer: Namer) -> Sampler {
        Sampler { namer, before: BTreeMap::new(), taken: None, began: None }
    }

    /// Returns the next moment. `own` is the processor time of recording so far, in seconds.
    pub fn moment(&mut self, snapshot: &Snapshot, own: f64) -> Moment {
        let began = *self.began.get_or_insert(snapshot.taken);
        let at = snapshot.taken.saturating_sub(began).as_secs_f64();
        let span = self.taken.map_or(0.0, |taken| snapshot.taken.saturating_sub(taken).as_secs_f64());
        let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
        // Shared memory is counted with the first process that maps it.
        let mut shared: BTreeSet<MappedObject> = BTreeSet::new();
        let mut now = BTreeMap::new();
        for process in &snapshot.processes {
            let name = service_of(&process.cgroup, &process.name);
            let sum = sums.entry(self.namer.name(&name)).or_default();
            sum.service.app = sum.service.app.take().or(app_of(&name, &process.name).map(Into::into));
            let known = Known { cpu: process.cpu, resident: (process.rss + process.backing.hugetlb()).0 };
            sum.add(process, self.cpu_since(process), &mut shared);
            match self.before.get(&process.id) {
                Some(before) => {
                    sum.service.grown += known.resident.saturating_sub(before.resident);
                    sum.service.shrunk += before.resident.saturating_sub(known.resident);
                }
                None if span > 0.0 => sum.service.grown += known.resident,
                None => {}
            }
            now.insert(process.id, known);
        }
        self.before = now;
        self.taken = Some(snapshot.taken);
        let mut services: Vec<Service> = sums.into_iter().map(|(id, sum)| sum.finish(id)).collect();
        let weight = |service: &Service| {
            let resident = service.resident + service.hugetlb;
            resident as f64 + service.cpu / span.max(1.0) * CPU_WEIGHT
        };
        services.sort_by(|one, other| weight(other).total_cmp(&weight(one)).then(one.id.cmp(&other.id)));
        let beyond: u32 = services.iter().skip(MOST_SERVICES).map(|service| service.processes).sum();
        services.truncate(MOST_SERVICES);
        services.sort_by(|one, other| one.id.cmp(&other.id));
        let machine = &snapshot.machine;
        let pool = |size: PageSize| {
            let pool = machine.pools.iter().find(|pool| pool.page_size == size);
            pool.map_or([0, 0], |pool| [pool.total, pool.free.min(pool.total)])
        };
        let missed = snapshot.missed.iter().filter(|it| snapshot.process(it.pid).is_none()).count();
        Moment {
            at,
            span,
            available: machine.memory.available.0,
            fragmentation: fragmentation(snapshot),
            pool_2m: pool(PageSize::HUGE_2M),
            pool_1g: pool(PageSize::HUGE_1G),
            own,
            left_out: beyond + missed as u32,
            services,
        }
    }

    /// Returns the processor seconds since the last moment. A process that has started since counts
    /// in full; an older one that was not looked at before counts as zero.
    fn cpu_since(&self, process: &Process) -> f64 {
        let Some(taken) = self.taken else { return 0.0 };
        match self.before.get(&process.id) {
            Some(before) => process.cpu.saturating_sub(before.cpu).as_secs_f64(),
            None if ticks(process.id.start_ticks) >= taken => process.cpu.as_secs_f64(),
            None => 0.0,
        }
    }
}

/// Returns the share of free memory that is unusable for 2 MiB pages, over all nodes.
fn fragmentation(snapshot: &Snapshot) -> Option<f64> {
    let known =
        snapshot.machine.nodes.iter().filter_map(|node| Some((node.free.0 as f64, node.fragmentation?)));
    let (free, unusable) =
        known.fold((0.0, 0.0), |(free, unusable), (of, share)| (free + of, unusable + of * share));
    (free > 0.0).then(|| rounded(unusable / free, 1e3))
}

impl Sum {
    fn add(&mut self, process: &Process, cpu: f64, shared: &mut BTreeSet<MappedObject>) {
        let Sum { service, heat, classes, .. } = self;
        service.processes += 1;
        service.cpu += cpu;
        service.resident += process.rss.0;
        service.anonymous += process.rss_anonymous.0;
        service.hugetlb += process.backing.hugetlb().0;
        service.forks |= process.sharing_children.is_some_and(|children| children > 0);
        service.off |= process.thp_disabled;
        // Number of the current 1 GiB range, and its needed regions.
        let mut range = (0u64, 0usize);
        for region in &process.regions {
            let Some(mapping) = process.mappings.get(region.mapping as usize) else { continue };
            let present = region.present_bytes().0;
            match mapping.kind {
                MappingKind::Shared => service.shared += present,
                MappingKind::File => service.file += present,
                _ => {}
            }
            if !could_be_huge(process, region) {
                continue;
            }
            if let Some(block) = process.shared_block(region)
                && !shared.insert(block)
            {
                continue;
            }
            service.need += 1;
            match region.leaf {
                Leaf::Base => {
                    service.could += present;
                    service.fill += u64::from(PAGES - region.present.min(PAGES)) * BASE_PAGE as u64;
                }
                _ => service.huge += present,
            }
            let number = region.start() / HUGE_1G as u64;
            range = if range.0 == number { (number, range.1 + 1) } else { (number, 1) };
            if range.1 == GIANT {
                service.giant += 1;
            }
            add_heat(region, heat, classes);
        }
        if let Some(cost) = process.translation {
            let weight = cpu.max(1e-6);
            let ends = [cost.low, cost.share, cost.high].map(|share| share.clamp(0.0, MOST_COST));
            self.cost.iter_mut().zip(ends).for_each(|(sum, share)| *sum += weight * share);
            self.weight += weight;
            self.measured |= cost.source == CostSource::Measured;
        }
    }

    fn finish(self, id: String) -> Service {
        let Sum { mut service, heat, classes, cost, weight, measured } = self;
        service.id = id;
        service.cpu = rounded(service.cpu, 1e4);
        let heat = heat.into_iter();
        service.heat = heat
            .map(|(pages, (regions, visits))| Heat { pages, regions, visits: rounded(visits.min(1e15), 1.0) })
            .collect();
        let names = [AccessClass::Streaming, AccessClass::Random, AccessClass::Dependent];
        let most = (0..3).max_by(|one, other| classes[*one].total_cmp(&classes[*other])).unwrap_or(0);
        service.class = (classes[most] > 0.0).then(|| names[most].name().to_string());
        if weight > 0.0 {
            let [low, likely, high] = cost.map(|sum| rounded(sum / weight, 1e5));
            service.cost = Some(Cost { low: low.min(likely), likely, high: high.max(likely), measured });
        }
        service
    }
}

/// Adds the access pattern of a region on base pages. A huge page has one accessed bit for the
/// whole, which shows no coverage.
fn add_heat(region: &Region, heat: &mut BTreeMap<u16, (u32, f64)>, classes: &mut [f64; 3]) {
    if let (Leaf::Base, Some(accessed)) = (region.leaf, region.accessed) {
        let pages = accessed.coverage.min(PAGES).div_ceil(HEAT_STEP) * HEAT_STEP;
        let step = heat.entry(pages).or_default();
        step.0 += 1;
        if let Some(profile) = region.profile {
            step.1 += profile.visits;
            let class = match profile.class {
                AccessClass::Streaming => 0,
                AccessClass::Random => 1,
                AccessClass::Dependent => 2,
            };
            classes[class] += profile.visits;
        }
    }
}

/// Returns true if one huge page holds the region, or could. Hugetlb pages are counted elsewhere.
fn could_be_huge(process: &Process, region: &Region) -> bool {
    let kind = process.mappings.get(region.mapping as usize).map(|mapping| mapping.kind);
    let is_shared = kind == Some(MappingKind::Shared);
    match region.leaf {
        Leaf::Huge2m => is_shared || matches!(kind, Some(MappingKind::Heap | MappingKind::Anonymous)),
        Leaf::Base => {
            region.present >= LEAST_PRESENT
                && if is_shared { region.whole } else { is_promotable(process, region) }
        }
        Leaf::Hugetlb2m | Leaf::Hugetlb1g => false,
    }
}

/// Rounds `value` to steps of one `digits`-th.
fn rounded(value: f64, digits: f64) -> f64 {
    (value * digits).round() / digits
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_snapshot::{AccessProfile, Accessed, Mapping, TranslationCost};
    use megapage_units::{Bytes, HugePage, Pid, VirtRange};

    fn process(pid: i32, name: &str, regions: u64, cpu: f64) -> Process {
        let id = ProcessId { pid: Pid(pid), start_ticks: 1, start_stack: 1 };
        let range = VirtRange::new(1 << 30, (1 << 30) + (regions << 21)).unwrap();
        Process {
            cpu: Duration::from_secs_f64(cpu),
            rss: Bytes(regions << 21),
            rss_anonymous: Bytes(regions << 21),
            mappings: vec![Mapping::anonymous(range)],
            regions: (0..regions)
                .map(|at| Region::of_base_pages(HugePage::containing(1 << 30).offset(at), PAGES))
                .collect(),
            ..Process::without_memory(id, name)
        }
    }

    fn snapshot(seconds: u64, processes: Vec<Process>) -> Snapshot {
        let root = megapage_kernel::KernelRoot::live();
        Snapshot {
            taken: Duration::from_secs(seconds),
            machine: megapage_observe::machine(&root).unwrap(),
            sampling: None,
            processes,
            missed: Vec::new(),
        }
    }

    fn sampler() -> Sampler {
        Sampler::new(Namer::new(None, true).unwrap())
    }

    #[test]
    fn processes_are_added_up_to_services() {
        let mut sampler = sampler();
        let first = vec![process(1, "a", 10, 5.0), process(2, "a", 20, 7.0), process(3, "b", 5, 1.0)];
        let moment = sampler.moment(&snapshot(100, first), 0.1);
        assert_eq!((moment.at, moment.span, moment.services.len()), (0.0, 0.0, 2));
        let a = &moment.services[0];
        assert_eq!((a.id.as_str(), a.processes, a.need, a.could, a.cpu), ("a", 2, 30, 60 << 20, 0.0));
        // One process has grown, one is gone, one had run before and is first seen now, one is new.
        let mut late = process(9, "b", 4, 50.0);
        late.id.start_ticks = 5_000;
        let mut new = process(10, "b", 1, 0.5);
        new.id.start_ticks = 13_000;
        let second = vec![process(1, "a", 12, 8.0), process(3, "b", 5, 1.5), late, new];
        let moment = sampler.moment(&snapshot(130, second), 0.2);
        assert_eq!((moment.at, moment.span), (30.0, 30.0));
        let [a, b] = &moment.services[..] else { panic!("two services") };
        assert_eq!((a.cpu, a.need, a.grown, a.shrunk), (3.0, 12, 4 << 20, 0));
        assert_eq!((b.cpu, b.processes), (1.0, 3), "of what ran before it was seen nothing is counted");
    }

    #[test]
    fn what_huge_pages_could_hold_is_told_from_what_they_could_not() {
        let mut one = process(1, "a", 600, 0.0);
        one.regions[0].leaf = Leaf::Huge2m;
        one.regions[1].present = LEAST_PRESENT - 1;
        one.regions[2].present = 300;
        one.regions[3].whole = false;
        one.regions[4].leaf = Leaf::Hugetlb2m;
        let moment = sampler().moment(&snapshot(100, vec![one.clone()]), 0.0);
        let a = &moment.services[0];
        assert_eq!((a.need, a.huge, a.fill), (597, 2 << 20, 212 * 4096));
        assert_eq!(a.giant, 1, "of the first GiB nearly all, of the second a part");
        // Shared memory counts once for all processes that map it.
        one.mappings[0].kind = MappingKind::Shared;
        one.mappings[0].object = Some(MappedObject { device: (0, 1), inode: 7, offset: 0 });
        let mut two = one.clone();
        two.id.pid = Pid(2);
        let moment = sampler().moment(&snapshot(100, vec![one, two]), 0.0);
        assert_eq!((moment.services[0].need, moment.services[0].processes), (597, 2));
    }

    #[test]
    fn heat_and_costs_are_kept_as_far_as_they_are_known() {
        let mut one = process(1, "a", 4, 0.0);
        let accessed = |coverage| Accessed {
            coverage,
            average: f32::from(coverage),
            last: None,
            sampled: Duration::ZERO,
        };
        one.regions[0].accessed = Some(accessed(0));
        one.regions[1].accessed = Some(accessed(1));
        one.regions[2].accessed = Some(accessed(512));
        one.regions[2].profile = Some(AccessProfile { visits: 1e6, class: AccessClass::Dependent });
        let cost =
            |share| TranslationCost { share, low: share / 2.0, high: 0.99, source: CostSource::Estimated };
        one.translation = Some(cost(0.2));
        let mut sampler = sampler();
        let a = sampler.moment(&snapshot(100, vec![one.clone()]), 0.0).services.remove(0);
        let heat: Vec<(u16, u32, f64)> = a.heat.iter().map(|it| (it.pages, it.regions, it.visits)).collect();
        assert_eq!(heat, [(0, 1, 0.0), (64, 1, 0.0), (512, 1, 1e6)]);
        assert_eq!(a.class.as_deref(), Some("dependent"));
        assert_eq!(a.cost, Some(Cost { low: 0.1, likely: 0.2, high: 0.95, measured: false }));
        // A busier process of the same service weighs more.
        let mut two = process(2, "a", 4, 9.0);
        two.translation = Some(cost(0.4));
        two.id.start_ticks = 20_000;
        one.cpu = Duration::from_secs(1);
        let a = sampler.moment(&snapshot(160, vec![one, two]), 0.0).services.remove(0);
        assert!((a.cost.unwrap().likely - 0.38).abs() < 1e-9, "{:?}", a.cost);
    }

    #[test]
    fn a_moment_is_bounded_to_the_largest_services() {
        let many = (1..=100).map(|n| process(n, &format!("p{n:03}"), n as u64, 0.0)).collect();
        let moment = sampler().moment(&snapshot(100, many), 0.0);
        assert_eq!((moment.services.len(), moment.left_out), (MOST_SERVICES, 36));
        assert_eq!(moment.services[0].id, "p037");
    }
}
