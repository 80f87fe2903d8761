//! A host's recording as a trace for the simulator, and what the policy comes to there.
//!
//! A service becomes one process whose regions are its memory that huge pages could hold, or a part of it, with its
//! accesses as they were sampled. How often the pages are visited is solved for, so that the recorded cost of address
//! translation is met on base pages; what the policy then leaves of that cost comes out.

use crate::fleet::{Fleet, Host};
use crate::recording::{Heat, Service, class};
use crate::statistics::plain_quantile;
use megapage_simulate::hardware::Hardware;
use megapage_simulate::trace::{Operation, Program, Span, Trace};
use megapage_simulate::translation::{Part, translation};
use megapage_simulate::{CompareError, Comparison, ProcessResult, Run, Setup, compare};
use megapage_snapshot::{AccessClass, PAGES};
use megapage_units::{Bytes, HUGE_2M};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The policy that gives no huge pages.
const WITHOUT: &str = "linux-4k";
/// Regions that are simulated of one host: beyond these, each stands for several.
const MOST_REGIONS: u64 = 1024;
/// Regions times steps that are simulated of one host.
const MOST_REGION_STEPS: f64 = 1.5e6;
/// Simulated steps, in seconds.
const STEP: std::ops::RangeInclusive<f64> = 1.0..=60.0;
/// A shorter recording is stretched to so long, in seconds: else it would show how a policy begins, and not what it comes to.
const LEAST_REPLAY: f64 = 3600.0;
/// Hosts that are simulated; services of the others take the mean of these.
pub const MOST_HOSTS: usize = 64;
/// Costs below this share of the work are none that a policy could be judged by.
const LEAST_COST: f64 = 1e-3;

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
    /// Hosts that were simulated.
    pub simulated: usize,
    /// Hosts on which memory did not suffice under the policy, though it did without.
    pub out_of_memory: Vec<String>,
}

impl Replays {
    /// What the policy comes to for a service of a host: that of other hosts where this one was not simulated. `None` where
    /// it was simulated nowhere.
    pub fn of(&self, host: &str, service: &str) -> Option<Replay> {
        let own = self.by_host.get(host).and_then(|services| services.get(service));
        own.or_else(|| self.mean.get(service)).copied()
    }
}

/// How hosts are replayed.
#[derive(Clone, Debug)]
pub struct How<'a> {
    /// The policy.
    pub policy: &'a str,
    /// The memory of each host, where it is not to be the recorded one.
    pub memory: Option<Bytes>,
    /// The quantile of bloat, 0 to 1.
    pub quantile: f64,
    /// What all chance comes from.
    pub seed: u64,
    /// Hosts that are simulated at once; at least 1.
    pub threads: usize,
}

/// Replays the hosts of a fleet, with and without the policy. `progress` is told the share of hosts that are done.
pub fn replay(
    fleet: &Fleet,
    how: &How<'_>,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Replays, CompareError> {
    let stride = fleet.hosts.len().div_ceil(MOST_HOSTS).max(1);
    let hosts: Vec<(&String, &Host)> = fleet.hosts.iter().step_by(stride).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<Option<Result<OfHost, CompareError>>>> =
        Mutex::new((0..hosts.len()).map(|_| None).collect());
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
        let found = found?;
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
    Ok(replays)
}

struct OfHost {
    services: BTreeMap<String, Replay>,
    out_of_memory: bool,
}

fn of_host(host: &Host, how: &How<'_>) -> Result<OfHost, CompareError> {
    let Some(model) = Model::of(host, how) else {
        return Ok(OfHost { services: BTreeMap::new(), out_of_memory: false });
    };
    let policies = [WITHOUT.to_string(), how.policy.to_string()];
    let Comparison { runs, .. } = compare(&model.trace, &model.setup, &policies, None, 1, |_| ())?;
    let [without, with] = &runs[..] else {
        return Ok(OfHost { services: BTreeMap::new(), out_of_memory: false });
    };
    let services = model
        .services
        .iter()
        .zip(without.processes.iter().zip(&with.processes))
        .map(|(service, (without, with))| {
            let bloat: Vec<f64> = with
                .points
                .iter()
                .map(|point| point.resident_bytes.saturating_sub(point.useful_bytes) as f64)
                .collect();
            let bloat = plain_quantile(&bloat, how.quantile) * model.scale;
            (service.id.clone(), Replay { relief: service.relief(without, with), bloat })
        })
        .collect();
    let died = |run: &Run| {
        run.processes.iter().any(|it| matches!(it.fate, megapage_simulate::Fate::OutOfMemory { .. }))
    };
    Ok(OfHost { services, out_of_memory: died(with) && !died(without) })
}

/// A host as the simulator takes it.
struct Model {
    trace: Trace,
    setup: Setup,
    /// Regions that one simulated region stands for.
    scale: f64,
    services: Vec<Modelled>,
}

/// A service in it.
struct Modelled {
    id: String,
    /// What translation costs on huge pages alone, in seconds for each second of work.
    when_huge: f64,
    /// Whether the recorded cost is all that walks cost, and not what huge pages would save.
    measured: bool,
    regions: f64,
}

impl Modelled {
    /// The part of the recorded cost that goes with the policy.
    fn relief(&self, without: &ProcessResult, with: &ProcessResult) -> f64 {
        let cost = |result: &ProcessResult| {
            let account = &result.account;
            account.translation_seconds / account.work_seconds.max(1e-9)
        };
        let (before, after) = (cost(without), cost(with));
        let could = if self.measured { before } else { before - self.when_huge };
        if could > LEAST_COST {
            return ((before - after) / could).clamp(0.0, 1.0);
        }
        // Of what costs next to nothing, the share that became huge.
        let huge: f64 = with.points.iter().map(|point| point.huge_pages as f64).sum();
        (huge / (with.points.len().max(1) as f64 * self.regions)).clamp(0.0, 1.0)
    }
}

impl Model {
    /// `None` where no service has memory that huge pages could hold.
    fn of(host: &Host, how: &How<'_>) -> Option<Model> {
        let names = host.services();
        let all: Vec<(&str, Series<'_>)> = names
            .into_iter()
            .map(|name| (name, Series::of(host, name)))
            .filter(|(_, it)| it.most > 0)
            .collect();
        let regions: u64 = all.iter().map(|(_, series)| u64::from(series.most)).sum();
        if regions == 0 {
            return None;
        }
        let scale = regions.div_ceil(MOST_REGIONS).max(1);
        let hardware = scaled(host, scale as f64);
        let seconds = host.seconds();
        let stretch = (LEAST_REPLAY / seconds).clamp(1.0, 1e6);
        let mut services = Vec::new();
        let mut processes = Vec::new();
        for (name, series) in &all {
            let shape = Shape::of(series, scale as u32);
            let rate = shape.calibrate(&hardware, series);
            let load = |huge| shape.load(rate, huge);
            let when_huge = translation(&hardware.walks, &load(true), None).seconds() - 1.0;
            let on_base = translation(&hardware.walks, &load(false), None).seconds();
            services.push(Modelled {
                id: name.to_string(),
                when_huge,
                measured: series.measured,
                regions: f64::from(shape.most),
            });
            processes.push(shape.program(name, series, scale as u32, rate, on_base, stretch));
        }
        let memory = memory(host, how.memory, scale);
        let trace = Trace { memory: Some(memory), fragmentation: None, origin: "recorded".into(), processes };
        let simulated = seconds * stretch;
        let step = (simulated * (regions / scale).max(1) as f64 / MOST_REGION_STEPS)
            .clamp(*STEP.start(), *STEP.end());
        let fragmentation = host.moments.iter().find_map(|(_, moment)| moment.fragmentation).unwrap_or(0.0);
        let setup = Setup {
            hardware,
            fragmentation,
            step,
            longest: simulated * 2.0 + LEAST_REPLAY,
            seed: how.seed,
            ..Setup::new(memory)
        };
        Some(Model { trace, setup, scale: scale as f64, services })
    }
}

/// The modelled machine with the host's TLBs. Where one region stands for several, TLBs and caches hold that much less: so
/// that a footprint is as large to them as it is.
fn scaled(host: &Host, scale: f64) -> Hardware {
    let mut hardware = Hardware::haswell();
    let entries =
        |count: u32| if count == 0 { 0 } else { ((f64::from(count) / scale).round() as u32).max(1) };
    let tlb = &host.header.tlb;
    let walks = &mut hardware.walks;
    walks.tlb.first_base = entries(tlb.first_base);
    walks.tlb.first_2m = entries(tlb.first_2m);
    walks.tlb.first_1g = entries(tlb.first_1g);
    walks.tlb.second = entries(tlb.second);
    walks.tlb.second_1g = entries(tlb.second_1g);
    walks.near_lines = (walks.near_lines / scale).max(1.0);
    walks.far_lines = (walks.far_lines / scale).max(1.0);
    walks.directories = (walks.directories / scale).max(1.0);
    hardware
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

/// One service at each moment of its host.
struct Series<'a> {
    /// The seconds of the moment, and the service where it was there.
    moments: Vec<(f64, Option<&'a Service>)>,
    /// The most regions that it ever needed.
    most: u32,
    measured: bool,
}

impl<'a> Series<'a> {
    fn of(host: &'a Host, name: &str) -> Series<'a> {
        let find = |services: &'a [Service]| services.iter().find(|service| service.id == name);
        let moments: Vec<(f64, Option<&Service>)> =
            host.moments.iter().map(|(_, moment)| (moment.span, find(&moment.services))).collect();
        let there = || moments.iter().filter_map(|(_, service)| *service);
        let most = there().map(|service| service.need).max().unwrap_or(0);
        let measured = there().filter_map(|service| service.cost).any(|cost| cost.measured);
        Series { most, measured, moments }
    }

    fn there(&self) -> impl Iterator<Item = &'a Service> {
        self.moments.iter().filter_map(|(_, service)| *service)
    }

    /// The likely cost, by the processor time of the moments at which it was known; `None` where it never was.
    fn cost(&self) -> Option<f64> {
        let known: Vec<(f64, f64)> =
            self.there().filter_map(|it| it.cost.map(|cost| (cost.likely, it.cpu.max(1e-9)))).collect();
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
        for service in series.there() {
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

    /// The load on the TLB with `rate` visits a second.
    fn load(&self, rate: f64, huge: bool) -> Vec<Part> {
        let part = |(pages, regions, share): &(u16, u32, f64)| Part {
            regions: f64::from(*regions),
            pages: f64::from(*regions) * f64::from((*pages).min(if huge { PAGES } else { self.density })),
            visits: rate * share,
            class: self.class,
            huge,
        };
        self.heat.iter().map(part).collect()
    }

    /// The visits per second of work at which the recorded cost is met on base pages; 0 where nothing was recorded.
    fn calibrate(&self, hardware: &Hardware, series: &Series<'_>) -> f64 {
        let Some(share) = series.cost().filter(|share| *share > 0.0) else { return 0.0 };
        let seconds =
            |rate: f64, huge: bool| translation(&hardware.walks, &self.load(rate, huge), None).seconds();
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

    /// What the service does, moment by moment, each `stretch` times as long.
    fn program(
        &self,
        name: &str,
        series: &Series<'_>,
        scale: u32,
        rate: f64,
        on_base: f64,
        stretch: f64,
    ) -> Program {
        let regions =
            |service: Option<&Service>| service.map_or(0, |it| it.need.div_ceil(scale)).min(self.most);
        let mut operations = Vec::new();
        // The least accessed lie first, as far as anything is known.
        let accessed: u32 = self.heat.iter().map(|(_, count, _)| count).sum();
        let mut next = self.most.saturating_sub(accessed);
        for (pages, count, share) in &self.heat {
            let visits = rate * share / f64::from(*count);
            let span = Span::new(next, *count);
            operations.push(Operation::Access { span, pages: *pages, visits, class: self.class });
            next += count;
        }
        let mut had = 0;
        for (span, service) in &series.moments {
            let now = regions(*service);
            self.change(&mut operations, had, now);
            had = now;
            if *span > 0.0 {
                let cpu = service.map_or(0.0, |service| service.cpu).min(*span);
                operations.push(Operation::Work { seconds: cpu * stretch / on_base });
                operations.push(Operation::Idle { seconds: (span - cpu) * stretch });
            }
        }
        Program { name: name.to_string(), start: 0.0, operations }
    }

    fn change(&self, operations: &mut Vec<Operation>, had: u32, now: u32) {
        if now > had {
            let span = Span::new(had, now - had);
            operations.push(Operation::Touch {
                span,
                pages: self.density,
                content: self.density,
                own_ns: 0.0,
            });
        } else if now < had {
            operations.push(Operation::Unmap { span: Span::new(now, had - now) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{HostModel, fleet};

    fn how(policy: &str) -> How<'_> {
        How { policy, memory: None, quantile: 0.99, seed: 1, threads: 2 }
    }

    #[test]
    fn the_policy_takes_away_what_translation_costs_and_without_it_nothing_goes() {
        let fleet = Fleet::merge(fleet(&[HostModel::plain("h", 0.3)]));
        let with = replay(&fleet, &how("megapage"), &|_| ()).unwrap();
        let found = with.of("h", "plain").unwrap();
        assert!(found.relief > 0.8, "{found:?}");
        let without = replay(&fleet, &how(WITHOUT), &|_| ()).unwrap();
        assert_eq!(without.of("h", "plain").unwrap(), Replay { relief: 0.0, bloat: 0.0 });
        // A host that was not simulated takes the mean.
        assert_eq!(with.of("another", "plain").unwrap(), found);
        assert!(with.of("another", "unknown").is_none());
    }

    #[test]
    fn the_recorded_cost_is_met() {
        let fleet = Fleet::merge(fleet(&[HostModel::plain("h", 0.25)]));
        let host = &fleet.hosts["h"];
        let series = Series::of(host, "plain");
        let hardware = scaled(host, 1.0);
        let shape = Shape::of(&series, 1);
        let rate = shape.calibrate(&hardware, &series);
        let seconds = |huge| translation(&hardware.walks, &shape.load(rate, huge), None).seconds();
        let share = (seconds(false) - seconds(true)) / seconds(false);
        assert!((share - series.cost().unwrap()).abs() < 0.005, "{share}");
    }

    #[test]
    fn a_large_host_is_simulated_by_a_part_of_its_regions() {
        let small = Fleet::merge(fleet(&[HostModel::plain("h", 0.3)]));
        let large = Fleet::merge(fleet(&[HostModel { regions: 40_000, ..HostModel::plain("h", 0.3) }]));
        let found =
            |fleet: &Fleet| replay(fleet, &how("megapage"), &|_| ()).unwrap().of("h", "plain").unwrap();
        let (small, large) = (found(&small), found(&large));
        assert!((small.relief - large.relief).abs() < 0.2, "{small:?} {large:?}");
    }
}
