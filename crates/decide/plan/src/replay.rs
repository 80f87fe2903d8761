//! Effects of a policy on a recorded host.
//!
//! The recorded moments become snapshots, and the daemon's policy sees them one after the other.
//! Its promotions and demotions change a small state: the huge regions, and the free memory. The
//! rate of page visits is solved for, such that the model gives the recorded cost of address
//! translation on base pages. The replay finds the remaining part of this cost.

mod run;
mod shape;

use crate::fleet::{Fleet, Host};
use crate::plan::QUANTILE;
use crate::recording::Service;
use crate::statistics::quantile;
use crate::translation::{WalkCosts, translation};
use megapage_decide::Known;
use megapage_units::BASE_PAGE;
use run::Run;
pub use run::state;
use shape::{Series, Shape, present};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum of regions of one host's replay. Beyond it, each stands for several.
const MOST_REGIONS: u64 = 1024;
/// Steps of one host's replay: a day, minute by minute. Longer recordings have longer steps. Steps
/// that moments cut short are additional, at most as many again.
const MOST_STEPS: f64 = 1440.0;
/// Shortest step, in seconds.
const LEAST_STEP: f64 = 1.0;
/// Least duration of a replay, in seconds. A shorter recording is stretched to it: else it would
/// show the start of a policy, and not its final effect.
const LEAST_REPLAY: f64 = 3600.0;
/// Maximum of replayed hosts. Services of the others take the mean of these.
pub(crate) const MOST_HOSTS: usize = 64;

/// Effects of the policy on one service of one host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Replay {
    /// Part of the recorded cost that disappears, 0 to 1.
    pub relief: f64,
    /// Bytes of zeros that huge pages add, at [`QUANTILE`].
    pub bloat: f64,
}

/// Replays of a fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Replays {
    by_host: BTreeMap<String, BTreeMap<String, Replay>>,
    mean: BTreeMap<String, Replay>,
    /// Number of replayed hosts.
    pub simulated: usize,
    /// Hosts on which memory did not suffice under the policy, although it did without.
    pub out_of_memory: Vec<String>,
}

impl Replays {
    /// Returns the effects of the policy on a service of a host. If this host was not replayed,
    /// they are those of other hosts; `None` if the service was replayed nowhere.
    pub fn of(&self, host: &str, service: &str) -> Option<Replay> {
        let own = self.by_host.get(host).and_then(|services| services.get(service));
        own.or_else(|| self.mean.get(service)).copied()
    }
}

/// Replays the hosts of a fleet under a policy, `threads` at once. Passes the share of finished
/// hosts to `progress`.
pub(crate) fn replay(
    fleet: &Fleet,
    policy: &Known,
    threads: usize,
    progress: &(dyn Fn(f64) + Sync),
) -> Replays {
    let stride = fleet.hosts.len().div_ceil(MOST_HOSTS).max(1);
    let hosts: Vec<(&String, &Host)> = fleet.hosts.iter().step_by(stride).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<Option<OfHost>>> = Mutex::new((0..hosts.len()).map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, hosts.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((_, host)) = hosts.get(at) else { return };
                    let found = of_host(host, policy);
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
}

fn of_host(host: &Host, policy: &Known) -> OfHost {
    let Some(model) = Model::of(host) else { return OfHost::default() };
    let mut run = Run::new(&model, policy);
    model.frames.iter().for_each(|frame| run.frame(frame));
    let services = model.services.iter().zip(run.accounts).map(|(service, account)| {
        let mut bloat = account.bloat;
        // A service has no bloat while it does not exist.
        bloat.push((0.0, model.seconds - account.seconds));
        let bloat = quantile(&bloat, QUANTILE) * model.scale;
        (service.id.clone(), Replay { relief: account.totals.relief(service, model.seconds), bloat })
    });
    OfHost { services: services.collect(), out_of_memory: run.out_of_memory && model.base_pages_suffice() }
}

/// Model of a host for the replay.
struct Model {
    walks: WalkCosts,
    frames: Vec<Frame>,
    /// Duration of all frames together, in seconds.
    seconds: f64,
    /// Time from one step to the next, in seconds.
    step: f64,
    /// Memory that the services share, in base pages.
    memory: u64,
    /// Share of free memory that is unusable for huge pages.
    fragmentation: f64,
    /// Regions of the host for each region of the replay.
    scale: f64,
    services: Vec<Modelled>,
}

/// Successive moments, together at least as long as a step.
#[derive(Default)]
struct Frame {
    seconds: f64,
    /// Regions and processor time of the existing services, by their places in the model.
    services: BTreeMap<usize, (u32, f64)>,
}

/// A service of a host.
struct Modelled {
    id: String,
    shape: Shape,
    /// Visits per second of work.
    rate: f64,
    /// Duration of a second of work on base pages, in seconds.
    on_base: f64,
    /// Cost of translation on huge pages alone, in seconds for each second of work.
    when_huge: f64,
    /// True if the recorded cost is the whole cost of walks, and not only the part that huge pages
    /// would save.
    measured: bool,
}

impl Model {
    /// Returns the model; `None` if no service has memory that huge pages could hold.
    fn of(host: &Host) -> Option<Model> {
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
        let memory = memory(host, scale) / BASE_PAGE as u64;
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

/// Returns the costs of walks with the host's TLBs. If one region stands for several, TLBs and
/// caches shrink by the same factor, so that the footprint stays as large relative to them.
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

/// Returns the bytes that the services share: the available memory and their own, at the moment
/// with the least.
fn memory(host: &Host, scale: u64) -> u64 {
    let theirs = |services: &[Service]| services.iter().map(present).sum::<u64>();
    let together = host.moments.iter().map(|(_, moment)| moment.available + theirs(&moment.services)).min();
    let peak = host.moments.iter().map(|(_, moment)| theirs(&moment.services)).max().unwrap_or(0);
    let recorded = host.header.memory;
    let memory = together.unwrap_or(recorded).min(recorded.max(peak));
    // Memory must hold what it held in the recording, and the regions that are cut short.
    (memory.max(peak + peak / 50) / scale).max(64 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{HostModel, fleet};
    use megapage_decide::known;

    fn replayed(fleet: &Fleet, policy: &str) -> Replays {
        replay(fleet, known(policy).unwrap(), 2, &|_| ())
    }

    #[test]
    fn the_policy_takes_away_what_translation_costs_and_without_it_nothing_goes() {
        let fleet = Fleet::merge(fleet(&[HostModel::plain("h", 0.3)]));
        let with = replayed(&fleet, "megapage");
        let found = with.of("h", "plain").unwrap();
        assert!(found.relief > 0.8, "{found:?}");
        let without = replayed(&fleet, "linux-4k");
        assert_eq!(without.of("h", "plain").unwrap(), Replay { relief: 0.0, bloat: 0.0 });
        // A host that was not replayed takes the mean.
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
    fn a_large_host_is_replayed_by_a_part_of_its_regions() {
        let small = Fleet::merge(fleet(&[HostModel::plain("h", 0.3)]));
        let large = Fleet::merge(fleet(&[HostModel { regions: 40_000, ..HostModel::plain("h", 0.3) }]));
        let found = |fleet: &Fleet| replayed(fleet, "megapage").of("h", "plain").unwrap();
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
        let model = Model::of(&fleet.hosts["h"]).unwrap();
        let mut run = Run::new(&model, known("megapage").unwrap());
        model.frames.iter().for_each(|frame| run.frame(frame));
        assert!((1000..=2 * MOST_STEPS as u64).contains(&run.steps), "{}", run.steps);
        let relief = run.accounts[0].totals.relief(&model.services[0], model.seconds);
        assert!(relief > 0.8, "{relief}");
    }

    #[test]
    fn who_recovers_bloat_has_memory_for_what_grows_and_who_does_not_runs_out() {
        // Half-full regions, twice as many later: if huge, they alone would fill the machine.
        let mut recordings = fleet(&[HostModel::plain("h", 0.3)]);
        recordings[0].header.memory = 1 << 30;
        for (minute, moment) in recordings[0].moments.iter_mut().enumerate() {
            let need = if minute < 60 { 400 } else { 800 };
            moment.available = (1 << 30) - (u64::from(need) << 20);
            let service = &mut moment.services[0];
            (service.need, service.could) = (need, u64::from(need) << 20);
        }
        let fleet = Fleet::merge(recordings);
        let starved = |policy| !replayed(&fleet, policy).out_of_memory.is_empty();
        assert!(starved("linux") && !starved("linux-4k") && !starved("megapage"));
    }
}
