//! Synthetic hosts for tests. Their gains come from a separate model, unknown to the planning: an
//! exact TLB with least-recently-used replacement, driven by random draws. It is recorded coarsely,
//! with noise.

use crate::random::Random;
use crate::recording::{Cost, HEAT_STEP, Header, Heat, Moment, Recording, Service, VERSION};
use megapage_tlb::{Geometry, GeometrySource};
use std::collections::BTreeMap;

pub(crate) fn header(host: &str, start: u64) -> Header {
    Header {
        version: VERSION,
        host: host.into(),
        start,
        every: 60.0,
        budget: 0.005,
        named: true,
        kernel: "6.18".into(),
        processor: "a model".into(),
        processors: 8,
        memory: 16 << 30,
        tlb: Geometry {
            first_base: 64,
            first_2m: 32,
            first_1g: 4,
            second: 1536,
            second_1g: 16,
            source: GeometrySource::Model,
        },
        thp: Some("madvise".into()),
        tracker: Some("bpf".into()),
        costs: Some("estimated".into()),
        lacks: Vec::new(),
    }
}

/// Returns a moment with two small services, `a` and `b`.
pub(crate) fn moment(at: f64, span: f64) -> Moment {
    let service = |id: &str, cost| Service { cost, ..service(id, 32, span * 0.25) };
    let cost = Some(Cost { low: 0.1, likely: 0.2, high: 0.3, measured: false });
    Moment {
        at,
        span,
        available: 8 << 30,
        own: at * 0.001,
        services: vec![service("a", cost), service("b", None)],
        ..Moment::default()
    }
}

/// Returns a service of `regions` full regions.
fn service(id: &str, regions: u32, cpu: f64) -> Service {
    let bytes = u64::from(regions) << 21;
    Service {
        id: id.into(),
        processes: 1,
        cpu,
        resident: bytes,
        anonymous: bytes,
        could: bytes,
        need: regions,
        ..Service::default()
    }
}

/// A host with one service, `plain`.
#[derive(Clone, Debug)]
pub(crate) struct HostModel {
    pub name: &'static str,
    pub regions: u32,
    /// Estimated cost of translation.
    pub cost: f64,
}

impl HostModel {
    pub(crate) fn plain(name: &'static str, cost: f64) -> HostModel {
        HostModel { name, regions: 512, cost }
    }
}

/// Returns the recordings of these hosts: two hours, once a minute.
pub(crate) fn fleet(hosts: &[HostModel]) -> Vec<Recording> {
    let of = |host: &HostModel| {
        let cost = Cost { low: host.cost * 0.8, likely: host.cost, high: host.cost * 1.2, measured: false };
        let moments = (0..=120u32).map(|minute| {
            let span = if minute == 0 { 0.0 } else { 60.0 };
            let heat = vec![Heat { pages: 512, regions: host.regions, visits: 1e6 }];
            let service = Service {
                cost: Some(cost),
                heat,
                class: Some("random".into()),
                ..service("plain", host.regions, span * 0.5)
            };
            Moment {
                at: f64::from(minute) * 60.0,
                span,
                available: 8 << 30,
                services: vec![service],
                ..Moment::default()
            }
        });
        let mut header = header(host.name, 1000);
        header.memory = header.memory.max(u64::from(host.regions) << 22);
        Recording { header, moments: moments.collect(), end: None }
    };
    hosts.iter().map(of).collect()
}

/// A kind of service, by its accesses to memory.
#[derive(Clone, Copy, Debug)]
struct Kind {
    name: &'static str,
    regions: u32,
    /// Base pages of a region in use.
    pages: u32,
    /// Share of the regions that take most accesses.
    hot: f64,
    /// Time of accesses to other memory, or of computations, for each visit of a page, in
    /// nanoseconds.
    between_ns: f64,
    class: &'static str,
}

/// Returns the cost of one page walk in this model, in nanoseconds, by class.
fn walk_ns(class: &str) -> f64 {
    match class {
        "streaming" => 1.0,
        "random" => 9.0,
        _ => 26.0,
    }
}

/// Returns the share of visits that miss in an exact, fully associative TLB with
/// least-recently-used replacement.
fn missed(kind: &Kind, entries: usize, huge: bool, random: &mut Random) -> f64 {
    let hot = ((f64::from(kind.regions) * kind.hot) as u32).max(1);
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    let mut by_time: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut misses, mut counted) = (0u32, 0u32);
    let visits = 12_000u64;
    for time in 0..visits {
        let region = match kind.class {
            "streaming" => (time / u64::from(kind.pages)) as u32 % kind.regions,
            _ if random.unit() < 0.9 => random.below(hot),
            _ => random.below(kind.regions),
        };
        let page = if kind.class == "streaming" {
            (time % u64::from(kind.pages)) as u32
        } else {
            random.below(kind.pages)
        };
        let entry = if huge { u64::from(region) } else { u64::from(region) << 16 | u64::from(page) };
        let before = used.insert(entry, time);
        if let Some(before) = before {
            by_time.remove(&before);
        }
        by_time.insert(time, entry);
        if used.len() > entries
            && let Some((_, oldest)) = by_time.pop_first()
        {
            used.remove(&oldest);
        }
        if time >= visits / 3 {
            counted += 1;
            misses += u32::from(before.is_none());
        }
    }
    f64::from(misses) / f64::from(counted)
}

/// Returns mixed hosts, each with some of sixteen services, recorded for a day with noise and once
/// in ten minutes. Also returns the speed-up factor of each service with huge pages.
pub(crate) fn mixed_fleet(hosts: u32, seed: u64) -> (Vec<Recording>, BTreeMap<String, f64>) {
    const NAMES: [&str; 16] = [
        "s00", "s01", "s02", "s03", "s04", "s05", "s06", "s07", "s08", "s09", "s10", "s11", "s12", "s13",
        "s14", "s15",
    ];
    let mut random = Random::new(seed);
    let kinds: Vec<(Kind, f64)> = NAMES
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let kind = Kind {
                name,
                regions: [8, 64, 400, 1200][at % 4],
                pages: [512, 300][at / 8],
                hot: [1.0, 0.1][at / 4 % 2],
                between_ns: [20.0, 45.0, 110.0, 400.0, 70.0][at % 5],
                class: ["dependent", "random", "streaming"][at % 3],
            };
            let cost = |huge: bool, random: &mut Random| {
                missed(&kind, 1536, huge, random) * walk_ns(kind.class) * if huge { 0.5 } else { 1.0 }
            };
            let (base, huge) = (cost(false, &mut random), cost(true, &mut random));
            (kind, (kind.between_ns + base) / (kind.between_ns + huge))
        })
        .collect();
    let recordings = (0..hosts).map(|host| {
        // Each host has a constant error of estimates, besides the noise of each moment.
        let here: Vec<(&Kind, f64, f64)> = kinds
            .iter()
            .filter_map(|(kind, gain)| {
                let (is_here, bias) = (random.unit() < 0.4, 0.75 + 0.5 * random.unit());
                is_here.then_some((kind, *gain, bias))
            })
            .collect();
        let moments = (0..=144u32)
            .map(|at| {
                let span = if at == 0 { 0.0 } else { 600.0 };
                let services = here
                    .iter()
                    .map(|(kind, gain, bias)| noisy(kind, (*gain, *bias), span, &mut random))
                    .collect();
                Moment { at: f64::from(at) * 600.0, span, available: 8 << 30, services, ..Moment::default() }
            })
            .collect();
        Recording { header: header(&format!("host{host:02}"), 5000), moments, end: None }
    });
    let recordings: Vec<Recording> = recordings.collect();
    let known = kinds.iter().map(|(kind, gain)| (kind.name.to_string(), *gain)).collect();
    (recordings, known)
}

/// Returns the service at a moment, as a recorder sees it. The cost is known at one moment in five,
/// 30 % off and with an interval.
fn noisy(kind: &Kind, (gain, bias): (f64, f64), span: f64, random: &mut Random) -> Service {
    let regions = (f64::from(kind.regions) * (0.9 + 0.2 * random.unit())) as u32;
    let mut service = service(kind.name, regions, span * (0.2 + 0.4 * random.unit()));
    service.could = u64::from(regions) * u64::from(kind.pages) * 4096;
    service.fill = (u64::from(regions) << 21) - service.could;
    if random.unit() < 0.2 {
        let likely = ((1.0 - 1.0 / gain) * bias * (0.7 + 0.6 * random.unit())).clamp(0.0, 0.8);
        service.cost =
            Some(Cost { low: likely * 0.6, likely, high: (likely * 1.5).min(0.9), measured: false });
        let hot = ((f64::from(regions) * kind.hot) as u32).clamp(1, regions);
        let pages = (kind.pages as u16).div_ceil(HEAT_STEP) * HEAT_STEP;
        service.heat = vec![Heat { pages, regions: hot, visits: 9e5 }];
        if hot < regions {
            service.heat.insert(0, Heat { pages: pages / 2, regions: regions - hot, visits: 1e5 });
        }
        service.class = Some(kind.class.into());
    }
    service
}

/// A host with a need that is known at each second.
pub(crate) struct KnownNeed {
    pub recordings: Vec<Recording>,
    pub exact: Vec<f64>,
}

/// Returns six services over a day, with a daily course, batches that begin at random, and a slow
/// leak. They are recorded once a minute, each count 1 % off.
pub(crate) fn known_need(seed: u64) -> KnownNeed {
    let mut random = Random::new(seed);
    let mut services = Vec::new();
    for number in 0..6u32 {
        let size = 200.0 + 3000.0 * random.unit();
        let (swing, phase, leak) = (0.4 * random.unit(), random.unit(), 0.2 * random.unit());
        let batches: Vec<(f64, f64)> = (0..24 * u32::from(number % 2 == 1))
            .map(|_| (86_400.0 * random.unit(), 120.0 + 1500.0 * random.unit()))
            .collect();
        services.push((size, swing, phase, leak, batches));
    }
    let need = |second: f64| -> Vec<f64> {
        services
            .iter()
            .map(|(size, swing, phase, leak, batches)| {
                let day = second / 86_400.0;
                let course = 1.0 + swing * (std::f64::consts::TAU * (day + phase)).sin() + leak * day;
                let busy = batches.iter().any(|(start, length)| (*start..start + length).contains(&second));
                size * course * if busy { 1.5 } else { 1.0 }
            })
            .collect()
    };
    let exact = (0..86_400).map(|second| need(f64::from(second)).iter().sum()).collect();
    let moments = (0..=1440u32)
        .map(|minute| {
            let at = f64::from(minute) * 60.0;
            let services = need(at).into_iter().enumerate().map(|(number, regions)| {
                let noisy = regions * (0.99 + 0.02 * random.unit());
                service(&format!("s{number}"), noisy as u32, 1.0)
            });
            let span = if minute == 0 { 0.0 } else { 60.0 };
            Moment { at, span, available: 8 << 30, services: services.collect(), ..Moment::default() }
        })
        .collect();
    let recording = Recording { header: header("known", 0), moments, end: None };
    KnownNeed { recordings: vec![recording], exact }
}
