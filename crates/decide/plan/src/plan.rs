//! The plan: the benefit of huge pages for each service, and the need of each host for them.

use crate::fleet::Fleet;
use crate::gain::{DAY, Gain, gains};
use crate::judge::{Means, Traits, Verdict};
use crate::need::simultaneous;
use crate::recording::{Recording, Service};
use crate::replay::{MOST_HOSTS, replay};
use crate::statistics::plain_quantile;
use megapage_decide::{POLICIES, known};
use megapage_units::{Bytes, HUGE_1G, HUGE_2M};
use serde::Serialize;
use std::collections::BTreeMap;
use thiserror::Error;

/// Quantile of needs over time and of memory at risk.
pub(crate) const QUANTILE: f64 = 0.99;
/// Seed of all randomness.
const SEED: u64 = 1;
/// Number of services that the closing sentence names.
const FIRST: usize = 3;

/// Options of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Name of the policy (see [`megapage_decide::POLICIES`]).
    pub policy: String,
    /// Number of hosts replayed at once.
    pub threads: usize,
}

impl Default for Options {
    /// Returns the options with megapage's policy.
    fn default() -> Options {
        Options { policy: "megapage".into(), threads: 1 }
    }
}

/// Reason for which there is no plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// No recording allows a plan.
    #[error("nothing to plan from: {0}")]
    Nothing(String),
    /// The policy does not exist.
    #[error("no policy is named '{name}'; known: {known}")]
    Policy {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },
}

/// Values with an interval, such as processor seconds a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Amount {
    /// Lower end.
    pub low: f64,
    /// Best guess.
    pub likely: f64,
    /// Upper end.
    pub high: f64,
}

/// One service over the fleet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServicePlan {
    /// Name or hash.
    pub service: String,
    /// Known software that it runs.
    pub app: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// Reason of the verdict.
    pub why: String,
    /// Number of hosts that it was recorded on.
    pub hosts: usize,
    /// Processor seconds a day, over all hosts.
    pub cpu_seconds_per_day: f64,
    /// Speed-up factor under the policy; `None` if it is unknown.
    pub gain: Option<Gain>,
    /// Processor seconds a day that it would save, over all hosts; 0 if it should not have huge
    /// pages.
    pub saved_cpu_seconds_per_day: Amount,
    /// Huge pages of 2 MiB that would hold its memory, at the quantile of each host, over all
    /// hosts.
    pub huge_pages: u64,
    /// Memory at risk: zeros that huge pages would add under the policy, at the quantile of each
    /// host, over all hosts. It is 0 if the service should not have huge pages.
    pub memory_at_risk_bytes: u64,
    /// Part of the recorded cost that the policy removes, 0 to 1; `None` if nothing was replayed.
    pub relief: Option<f64>,
    /// Means by which it gets huge pages; `None` if it should not have any.
    pub means: Option<Means>,
}

/// Needs of one host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostPlan {
    /// Name or hash.
    pub host: String,
    /// Memory of the host, in bytes.
    pub memory_bytes: u64,
    /// Number of processors; 0 if it is unknown.
    pub processors: u32,
    /// Recorded seconds.
    pub seconds: f64,
    /// Number of services that should have huge pages.
    pub services: usize,
    /// Huge pages of 2 MiB that they need at once, at the quantile, by any means.
    pub huge_pages: u64,
    /// Pages of the pool of 2 MiB, for the services with this means.
    pub pool_2m_pages: u64,
    /// Pages of the pool of 1 GiB.
    pub pool_1g_pages: u64,
    /// Share of the host's memory in both pools.
    pub pool_share: f64,
    /// Memory at risk of all of these services.
    pub memory_at_risk_bytes: u64,
    /// Share of one processor that recording took.
    pub record_cpu_share: f64,
}

/// Complete result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Name of the policy.
    pub policy: String,
    /// Quantile of needs, 0 to 1.
    pub quantile: f64,
    /// The seed.
    pub seed: u64,
    /// Number of hosts.
    pub recorded_hosts: usize,
    /// Number of replayed hosts. Services of the others take their mean.
    pub simulated_hosts: usize,
    /// Recorded seconds of all hosts.
    pub recorded_seconds: f64,
    /// Services: first those that save most processor time, then those that gain most.
    pub services: Vec<ServicePlan>,
    /// Hosts, by name.
    pub hosts: Vec<HostPlan>,
    /// Processor seconds a day of all services on all hosts.
    pub cpu_seconds_per_day: f64,
    /// Processor seconds a day that the services with huge pages would save.
    pub saved_cpu_seconds_per_day: Amount,
    /// Their memory at risk.
    pub memory_at_risk_bytes: u64,
    /// Services to enable first.
    pub first: Vec<String>,
    /// The benefit, in one sentence.
    pub sentence: String,
    /// Notes on the plan, one line each.
    pub notes: Vec<String>,
}

/// Plans from recordings in any order. Passes the share of replayed hosts to `progress`.
pub fn plan(
    recordings: Vec<Recording>,
    options: &Options,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Plan, PlanError> {
    let Some(policy) = known(&options.policy) else {
        let known: Vec<&str> = POLICIES.iter().map(|known| known.name).collect();
        return Err(PlanError::Policy { name: options.policy.clone(), known: known.join(", ") });
    };
    let fleet = Fleet::merge(recordings);
    let mut notes = fleet.notes.clone();
    if fleet.hosts.is_empty() {
        let why = notes.first().cloned().unwrap_or_else(|| "no recordings".into());
        return Err(PlanError::Nothing(why));
    }
    let replays = replay(&fleet, policy, options.threads, progress);
    let found = gains(&fleet, &replays, SEED);
    let mut total_resampled: Vec<f64> = Vec::new();
    let mut services: Vec<ServicePlan> = Vec::new();
    for (name, found) in &found {
        let traits = Traits::of(&fleet, name);
        let hosts = fleet.hosts.iter().filter(|(_, host)| host.services().contains(&name.as_str()));
        let (mut huge_pages, mut at_risk) = (0, 0.0);
        let mut reliefs = Vec::new();
        for (host_name, host) in hosts {
            let own = |it: &Service| if it.id == *name { u64::from(it.need) } else { 0 };
            huge_pages += simultaneous(host, own);
            if let Some(replay) = replays.of(host_name, name) {
                at_risk += replay.bloat;
                reliefs.push(replay.relief);
            }
        }
        let relief = (!reliefs.is_empty()).then(|| reliefs.iter().sum::<f64>() / reliefs.len() as f64);
        let times = |share: f64| 1.0 / (1.0 - share);
        let gain = found
            .share
            .map(|[low, likely, high]| Gain { low: times(low), likely: times(likely), high: times(high) })
            .or_else(|| traits.bounded());
        let (verdict, why) = traits.judge(gain, relief);
        let mut saved = Amount::default();
        if let (true, Some([_, likely, _])) = (verdict.is_for(), found.share) {
            saved = amount(found.cpu * likely, &found.resampled);
            total_resampled.resize(found.resampled.len(), 0.0);
            total_resampled.iter_mut().zip(&found.resampled).for_each(|(sum, value)| *sum += value);
        }
        services.push(ServicePlan {
            service: name.clone(),
            app: traits.app.clone(),
            verdict,
            why,
            hosts: traits.hosts,
            cpu_seconds_per_day: found.cpu,
            gain,
            saved_cpu_seconds_per_day: saved,
            huge_pages,
            memory_at_risk_bytes: if verdict.is_for() { at_risk as u64 } else { 0 },
            relief,
            means: verdict.is_for().then(|| traits.means()),
        });
    }
    let likely = |gain: &Option<Gain>| gain.map_or(0.0, |gain| gain.likely);
    services.sort_by(|one, other| {
        let saved = |it: &ServicePlan| it.saved_cpu_seconds_per_day.likely;
        saved(other)
            .total_cmp(&saved(one))
            .then(likely(&other.gain).total_cmp(&likely(&one.gain)))
            .then(one.service.cmp(&other.service))
    });
    let saved_likely: f64 = services.iter().map(|it| it.saved_cpu_seconds_per_day.likely).sum();
    let saved = amount(saved_likely, &total_resampled);
    let hosts = hosts(&fleet, &services, &replays);
    if fleet.hosts.len() > MOST_HOSTS {
        notes.push(format!(
            "{} of {} hosts were replayed: services of the others take their mean",
            replays.simulated,
            fleet.hosts.len()
        ));
    }
    for host in &replays.out_of_memory {
        notes.push(format!("{host}: under {} memory did not suffice in the replay", options.policy));
    }
    let short = fleet.hosts.values().filter(|host| host.seconds() < DAY / 2.0).count();
    if short > 0 {
        notes.push(format!(
            "{short} of {} hosts were recorded for less than half a day: their peaks may not have been seen",
            fleet.hosts.len()
        ));
    }
    let mut lacks: BTreeMap<&str, usize> = BTreeMap::new();
    fleet
        .hosts
        .values()
        .flat_map(|host| &host.header.lacks)
        .for_each(|it| *lacks.entry(it).or_default() += 1);
    notes.extend(lacks.iter().map(|(what, count)| match count {
        1 => format!("on one host: {what}"),
        count => format!("on {count} hosts: {what}"),
    }));
    let cpu = services.iter().map(|service| service.cpu_seconds_per_day).sum();
    let at_risk = services.iter().map(|service| service.memory_at_risk_bytes).sum();
    // Certain services come first, regardless of their savings.
    let of = |verdict| services.iter().filter(move |it| it.verdict == verdict).map(|it| it.service.clone());
    let first: Vec<String> = of(Verdict::Enable).chain(of(Verdict::TryIt)).take(FIRST).collect();
    Ok(Plan {
        policy: options.policy.clone(),
        quantile: QUANTILE,
        seed: SEED,
        recorded_hosts: fleet.hosts.len(),
        simulated_hosts: replays.simulated,
        recorded_seconds: fleet.hosts.values().map(|host| host.seconds()).sum(),
        sentence: sentence(cpu, saved, at_risk, &first),
        services,
        hosts,
        cpu_seconds_per_day: cpu,
        saved_cpu_seconds_per_day: saved,
        memory_at_risk_bytes: at_risk,
        first,
        notes,
    })
}

fn amount(likely: f64, resampled: &[f64]) -> Amount {
    if resampled.is_empty() {
        return Amount { low: likely, likely, high: likely };
    }
    Amount {
        low: plain_quantile(resampled, 0.05).min(likely),
        likely,
        high: plain_quantile(resampled, 0.95).max(likely),
    }
}

fn hosts(fleet: &Fleet, services: &[ServicePlan], replays: &crate::replay::Replays) -> Vec<HostPlan> {
    let means: BTreeMap<&str, Means> =
        services.iter().filter_map(|it| it.means.map(|means| (it.service.as_str(), means))).collect();
    fleet
        .hosts
        .iter()
        .map(|(name, host)| {
            let need = |service: &Service, of: &dyn Fn(Means) -> bool| match means.get(service.id.as_str()) {
                Some(means) if of(*means) => u64::from(service.need),
                _ => 0,
            };
            let is_giant = |means| means == Means::Pool1g;
            let giant = |service: &Service| match need(service, &is_giant) {
                0 => 0,
                _ => u64::from(service.giant),
            };
            let pool_2m = simultaneous(host, |service| {
                // The rest that 1 GiB pages do not hold.
                let left = need(service, &is_giant).saturating_sub(giant(service) * 512);
                left + need(service, &|means| matches!(means, Means::Pool2m | Means::OwnSetting))
            });
            let pool_1g = simultaneous(host, giant);
            let memory = host.header.memory;
            let pool = pool_2m * HUGE_2M as u64 + pool_1g * HUGE_1G as u64;
            let names = host.services();
            let chosen: Vec<&&str> = names.iter().filter(|name| means.contains_key(**name)).collect();
            let at_risk = chosen.iter().filter_map(|service| replays.of(name, service)).map(|it| it.bloat);
            let (seconds, own) = host.recorded;
            HostPlan {
                host: name.clone(),
                memory_bytes: memory,
                processors: host.header.processors,
                seconds: host.seconds(),
                services: chosen.len(),
                huge_pages: simultaneous(host, |service| need(service, &|_| true)),
                pool_2m_pages: pool_2m,
                pool_1g_pages: pool_1g,
                pool_share: if memory > 0 { pool as f64 / memory as f64 } else { 0.0 },
                memory_at_risk_bytes: at_risk.sum::<f64>() as u64,
                record_cpu_share: if seconds > 0.0 { own / seconds } else { 0.0 },
            }
        })
        .collect()
}

fn sentence(cpu: f64, saved: Amount, at_risk: u64, first: &[String]) -> String {
    if first.is_empty() {
        return "no service that was recorded would gain enough to be worth a change: leave all as they are"
            .into();
    }
    let names = match first {
        [one] => one.clone(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
        [] => String::new(),
    };
    let percent = |seconds: f64| 100.0 * seconds / cpu.max(1e-9);
    format!(
        "huge pages would save about {:.0} processor seconds a day ({:.1} % of all, {:.1} to {:.1} %) for {} of memory \
         at risk; enable first {names}",
        saved.likely,
        percent(saved.likely),
        percent(saved.low),
        percent(saved.high),
        Bytes(at_risk)
    )
}

#[cfg(test)]
mod tests;
