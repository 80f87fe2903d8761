//! Gain of each service with an interval, by resampling of hosts and of blocks of time.

use crate::fleet::{Fleet, Host};
use crate::random::Random;
use crate::replay::Replays;
use serde::Serialize;
use std::collections::BTreeMap;

/// Gain as a speed-up factor: lower end, likely, upper end of an interval of about 90 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// Lower end.
    pub low: f64,
    /// Best guess.
    pub likely: f64,
    /// Upper end.
    pub high: f64,
}

/// Number of blocks of time in a host's recording.
const BLOCKS: usize = 24;
/// Number of resamples.
const RESAMPLES: usize = 200;
/// Standard deviations beyond which a normal distribution has 5 %: costs have intervals of 90 %.
const NINETY: f64 = 1.645;
/// Maximum share that may disappear.
const MOST_SHARE: f64 = 0.95;
/// Seconds in a day.
pub(crate) const DAY: f64 = 86_400.0;

/// Processor time of a service in a block, and the part that translation costs.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    cpu: f64,
    /// Processor time of the moments with a known cost, and its products with the ends of the cost.
    known: f64,
    low: f64,
    likely: f64,
    high: f64,
}

impl Cell {
    fn add(&mut self, other: &Cell) {
        self.cpu += other.cpu;
        self.known += other.known;
        self.low += other.low;
        self.likely += other.likely;
        self.high += other.high;
    }
}

/// One service of one host.
#[derive(Debug)]
struct OfHost {
    blocks: Vec<Cell>,
    /// Part of the cost that disappears.
    relief: f64,
    seconds: f64,
}

/// Processor time and gain of a service. Rates are over all recorded hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Processor seconds a day.
    pub cpu: f64,
    /// Share that disappears, 0 to 1: lower end, likely, upper end. `None` if no cost is known.
    pub share: Option<[f64; 3]>,
    /// Processor seconds a day that disappear, of each resample.
    pub resampled: Vec<f64>,
}

/// Returns the gains of a fleet's services, with intervals of 90 %.
pub(crate) fn gains(fleet: &Fleet, replays: &Replays, seed: u64) -> BTreeMap<String, Found> {
    let hosts: Vec<BTreeMap<&str, OfHost>> =
        fleet.hosts.iter().map(|(name, host)| of_host(name, host, replays)).collect();
    let mut found: BTreeMap<String, Found> = BTreeMap::new();
    let all: Vec<(usize, Option<Vec<usize>>)> = (0..hosts.len()).map(|host| (host, None)).collect();
    for (service, (cpu, saved, known)) in sum(&hosts, &all, 0.0) {
        let share = known.then_some([saved / cpu.max(1e-12); 3]);
        found.insert(service.to_string(), Found { cpu, share, resampled: Vec::new() });
    }
    let mut random = Random::new(seed);
    let mut shares: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..RESAMPLES {
        let drawn: Vec<(usize, Option<Vec<usize>>)> = (0..hosts.len())
            .map(|_| {
                let host = random.below(hosts.len() as u32) as usize;
                let count = hosts[host].values().map(|it| it.blocks.len()).max().unwrap_or(0);
                (host, Some((0..count).map(|_| random.below(count as u32) as usize).collect()))
            })
            .collect();
        // Estimates rest on the timing of accesses. In the worst case its error is the same for all
        // of them.
        let deviations = normal(&mut random) / NINETY;
        let resample = sum(&hosts, &drawn, deviations);
        for (service, found) in &mut found {
            let (cpu, saved, known) = resample.get(service.as_str()).copied().unwrap_or_default();
            found.resampled.push(saved);
            if known && cpu > 0.0 {
                shares.entry(service.clone()).or_default().push(saved / cpu);
            }
        }
    }
    for (service, values) in &shares {
        let at = |quantile| crate::plain_quantile(values, quantile);
        if let Some(Found { share: Some([low, likely, high]), .. }) = found.get_mut(service) {
            (*low, *high) = (at(0.05).min(*likely), at(0.95).max(*likely));
        }
    }
    found
}

/// Returns the processor seconds a day, the part that disappears, and true if any cost is known.
/// These are of the given hosts and blocks. Costs deviate from their likely values by `deviations`
/// half-intervals.
fn sum<'a>(
    hosts: &'a [BTreeMap<&'a str, OfHost>],
    drawn: &[(usize, Option<Vec<usize>>)],
    deviations: f64,
) -> BTreeMap<&'a str, (f64, f64, bool)> {
    // The known costs of a service on some hosts also apply to hosts without any.
    let mut all: BTreeMap<&str, Vec<(f64, f64, Cell)>> = BTreeMap::new();
    for (host, blocks) in drawn {
        for (service, of) in &hosts[*host] {
            let mut cell = Cell::default();
            match blocks {
                Some(blocks) => blocks.iter().filter_map(|at| of.blocks.get(*at)).for_each(|it| cell.add(it)),
                None => of.blocks.iter().for_each(|it| cell.add(it)),
            }
            all.entry(service).or_default().push((of.relief, DAY / of.seconds, cell));
        }
    }
    all.into_iter()
        .map(|(service, cells)| {
            let mut fleet = Cell::default();
            cells.iter().for_each(|(_, _, cell)| fleet.add(cell));
            let (mut cpu, mut saved) = (0.0, 0.0);
            for (relief, a_day, cell) in &cells {
                let share =
                    if cell.known > 0.0 { share(cell, deviations) } else { share(&fleet, deviations) };
                cpu += cell.cpu * a_day;
                saved += cell.cpu * a_day * (share * relief).clamp(0.0, MOST_SHARE);
            }
            (service, (cpu, saved, fleet.known > 0.0))
        })
        .collect()
}

/// Returns the share that translation costs, `deviations` half-intervals from the likely one.
fn share(cell: &Cell, deviations: f64) -> f64 {
    if cell.known <= 0.0 {
        return 0.0;
    }
    let end = if deviations < 0.0 { cell.low } else { cell.high };
    ((cell.likely + (end - cell.likely) * deviations.abs()) / cell.known).clamp(0.0, MOST_SHARE)
}

/// Returns a value of the standard normal distribution (Box and Muller 1958).
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.unit()).cos()
}

fn of_host<'a>(name: &str, host: &'a Host, replays: &Replays) -> BTreeMap<&'a str, OfHost> {
    let seconds = host.seconds();
    let count = host.moments.len().clamp(1, BLOCKS);
    let mut services: BTreeMap<&str, OfHost> = BTreeMap::new();
    let mut before = 0.0;
    for (_, moment) in &host.moments {
        let block = ((before / seconds * count as f64) as usize).min(count - 1);
        before += moment.span;
        for service in &moment.services {
            let of = services.entry(&service.id).or_insert_with(|| {
                // A service that was not replayed has no memory that could be huge.
                let relief = replays.of(name, &service.id).map_or(0.0, |replay| replay.relief);
                OfHost { blocks: vec![Cell::default(); count], relief, seconds }
            });
            // A moment without a span has no processor time, but may have a known cost.
            let cell = &mut of.blocks[block];
            cell.cpu += service.cpu;
            if let Some(cost) = service.cost {
                let weight = service.cpu.max(1e-9);
                cell.known += weight;
                cell.low += weight * cost.low;
                cell.likely += weight * cost.likely;
                cell.high += weight * cost.high;
            }
        }
    }
    services
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{HostModel, fleet};

    fn found(models: &[HostModel]) -> BTreeMap<String, Found> {
        let fleet = Fleet::merge(fleet(models));
        let policy = megapage_decide::known("megapage").unwrap();
        gains(&fleet, &crate::replay::replay(&fleet, policy, 2, &|_| ()), 1)
    }

    #[test]
    fn more_hosts_that_differ_widen_an_interval_and_the_likely_value_lies_in_it() {
        let alike = found(&[HostModel::plain("a", 0.2), HostModel::plain("b", 0.2)]);
        let differ = found(&[HostModel::plain("a", 0.02), HostModel::plain("b", 0.4)]);
        let width = |found: &BTreeMap<String, Found>| {
            let [low, likely, high] = found["plain"].share.unwrap();
            assert!(low <= likely && likely <= high, "{found:?}");
            high - low
        };
        assert!(width(&differ) > 2.0 * width(&alike), "{} {}", width(&differ), width(&alike));
        assert!(width(&alike) > 0.0, "an estimate has an interval though hosts are alike");
    }

    #[test]
    fn a_normal_value_is_one() {
        let mut random = Random::new(7);
        let values: Vec<f64> = (0..10_000).map(|_| normal(&mut random)).collect();
        let mean = values.iter().sum::<f64>() / 1e4;
        let beyond = values.iter().filter(|value| **value > NINETY).count();
        assert!(mean.abs() < 0.04 && (400..600).contains(&beyond), "{mean} {beyond}");
    }
}
