//! Verdict on one service: huge pages are worth it, by which means, or a reason against them.

use crate::fleet::{Fleet, Host};
use crate::gain::Gain;
use crate::recording::Service;
use crate::statistics::quantile;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M};
use serde::Serialize;

/// Least gain that is worth a change, 3 %: as in `megapage advise`.
pub const WORTH_IT: f64 = 1.03;
/// Share of its memory on huge pages from which on little is left to do.
const MOSTLY_HUGE: f64 = 0.9;
/// Least processor time of a service that is not idle, in seconds for each second of a host.
const LEAST_USAGE: f64 = 0.001;
/// Maximum of the 99th percentile of steady memory, as a multiple of its median.
const STEADY: f64 = 1.25;
/// Maximum share of its pages that a pool may fill with zeros.
const DENSE: f64 = 0.1;
/// Least memory that is worth a pool of 1 GiB pages, and the share of it that they must hold.
const GIANT: u64 = 8 << 30;
const MOSTLY_GIANT: f64 = 0.9;
/// Least part of the cost that a policy removes if it promotes the service.
const LEAST_RELIEF: f64 = 0.2;

megapage_units::named! {
    /// Verdict on a service.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Verdict {
        /// Even the lower end of the interval is worth it.
        Enable = "enable",
        /// The likely gain is worth it, but not the lower end.
        TryIt = "try it",
        /// It gains next to nothing.
        Nothing = "nothing",
        /// It already runs on huge pages.
        AlreadyHuge = "huge already",
        /// Its cost of address translation is unknown.
        Unknown = "unknown",
    }
}

impl Verdict {
    /// Returns true if the service should have huge pages.
    pub const fn is_for(self) -> bool {
        matches!(self, Verdict::Enable | Verdict::TryIt)
    }
}

megapage_units::named! {
    /// Means by which a service gets huge pages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Means {
        /// Transparent huge pages: `megapage daemon`, or `megapage enable`.
        Thp = "THP",
        /// A hugetlb pool of 2 MiB pages: its memory is dense and steady, and it does not fork.
        #[serde(rename = "pool-2m")]
        Pool2m = "pool of 2 MiB",
        /// A hugetlb pool of 1 GiB pages.
        #[serde(rename = "pool-1g")]
        Pool1g = "pool of 1 GiB",
        /// The software's setting for its shared memory, and a pool of 2 MiB pages.
        OwnSetting = "its own setting",
    }
}

/// Knowledge about a service over all of its hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traits {
    /// Known software that it runs.
    pub app: Option<String>,
    /// Processor seconds for each second of a host that it was recorded on.
    pub usage: f64,
    /// Number of hosts that it was recorded on.
    pub hosts: usize,
    /// Memory that huge pages could hold, at the maximum on any host, in bytes.
    could: u64,
    /// Memory that is huge or could be, at the maximum on any host, in bytes. Then sums over time,
    /// of the huge memory and of all of it.
    need: u64,
    huge: f64,
    all: f64,
    /// True if its memory is steady on every host.
    steady: bool,
    fill: f64,
    shared: f64,
    anonymous: f64,
    forks: bool,
    off: bool,
    giant: f64,
    reach: u64,
    /// Number of moments with a known cost.
    pub known: usize,
}

impl Traits {
    pub(crate) fn of(fleet: &Fleet, name: &str) -> Traits {
        let mut found = Traits { steady: true, ..Traits::default() };
        let (mut cpu, mut seconds) = (0.0, 0.0);
        for host in fleet.hosts.values() {
            let services: Vec<(f64, &Service)> = of_host(host, name);
            if services.is_empty() {
                continue;
            }
            found.hosts += 1;
            seconds += host.seconds();
            found.reach = found.reach.max(u64::from(host.header.tlb.second) * BASE_PAGE as u64);
            let needs: Vec<(f64, f64)> =
                services.iter().map(|(span, service)| (f64::from(service.need), *span)).collect();
            found.steady &= quantile(&needs, 0.99) <= STEADY * quantile(&needs, 0.5);
            for (span, service) in services {
                cpu += service.cpu;
                let weight = span.max(1e-9);
                found.app = found.app.take().or_else(|| service.app.clone());
                found.could = found.could.max(service.could);
                found.need = found.need.max(u64::from(service.need) * HUGE_2M as u64);
                found.huge += weight * (service.huge + service.hugetlb) as f64;
                found.all += weight * (service.huge + service.hugetlb + service.could) as f64;
                found.fill += weight * service.fill as f64;
                found.shared += weight * service.shared as f64;
                found.anonymous += weight * service.anonymous as f64;
                found.giant += weight * f64::from(service.giant) * (1u64 << 30) as f64;
                found.forks |= service.forks;
                found.off |= service.off;
                found.known += usize::from(service.cost.is_some());
            }
        }
        found.usage = if seconds > 0.0 { cpu / seconds } else { 0.0 };
        found
    }

    /// Returns the bounds of the gain without a measurement: memory within reach of the TLB needs
    /// no page walks. Returns `None` if the reach does not suffice.
    pub(crate) fn bounded(&self) -> Option<Gain> {
        (self.could.max(self.need) <= self.reach).then_some(Gain { low: 1.0, likely: 1.0, high: WORTH_IT })
    }

    /// Returns the verdict and its reason, by the gain if it is known, and by the part of the cost
    /// that the policy removes.
    pub(crate) fn judge(&self, gain: Option<Gain>, relief: Option<f64>) -> (Verdict, String) {
        if self.all > 0.0 && self.huge / self.all >= MOSTLY_HUGE {
            let share = 100.0 * self.huge / self.all;
            return (Verdict::AlreadyHuge, format!("{share:.0} % of its memory is on huge pages"));
        }
        if self.need == 0 {
            return (Verdict::Nothing, "it has no memory that huge pages could hold".into());
        }
        if self.need <= self.reach {
            let (need, reach) = (Bytes(self.need), Bytes(self.reach));
            let why =
                format!("only {need} could be on huge pages, and a TLB reaches {reach} with pages of 4 KiB");
            return (Verdict::Nothing, why);
        }
        if self.usage < LEAST_USAGE {
            let seconds = self.usage * crate::gain::DAY;
            return (
                Verdict::Nothing,
                format!("it is idle: {seconds:.0} processor seconds a day on each host"),
            );
        }
        let Some(gain) = gain else {
            let why = "what address translation costs it was never seen: it took too little time, or was not sampled";
            return (Verdict::Unknown, why.into());
        };
        if gain.low >= WORTH_IT {
            let off = if self.off { "; it has switched THP off for itself" } else { "" };
            return (Verdict::Enable, format!("even the lower end of the interval is worth it{off}"));
        }
        if gain.likely >= WORTH_IT {
            return (
                Verdict::TryIt,
                "the likely gain is worth it, the lower end of the interval is not".into(),
            );
        }
        let why = match () {
            () if relief.is_some_and(|relief| relief < LEAST_RELIEF) => {
                "the policy would promote little of it".into()
            }
            () if gain.high < WORTH_IT => {
                format!("even the upper end of the interval, {:.3}, is not worth a change", gain.high)
            }
            () => format!("the likely gain, {:.3}, is not worth a change", gain.likely),
        };
        (Verdict::Nothing, why)
    }

    /// Returns the means, for a service that should have huge pages.
    pub(crate) fn means(&self) -> Means {
        if self.shared > 4.0 * self.anonymous && self.app.is_some() {
            return Means::OwnSetting;
        }
        let is_dense = self.fill <= DENSE * self.all.max(1.0);
        if self.forks || !self.steady || !is_dense {
            return Means::Thp;
        }
        match self.need >= GIANT && self.giant >= MOSTLY_GIANT * self.all {
            true => Means::Pool1g,
            false => Means::Pool2m,
        }
    }
}

fn of_host<'a>(host: &'a Host, name: &str) -> Vec<(f64, &'a Service)> {
    let moments = host.moments.iter();
    moments
        .filter_map(|(_, moment)| {
            moment.services.iter().find(|service| service.id == name).map(|service| (moment.span, service))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traits() -> Traits {
        Traits {
            usage: 0.5,
            hosts: 1,
            could: 1 << 30,
            need: 1 << 30,
            all: 1.0,
            steady: true,
            reach: 6 << 20,
            ..Traits::default()
        }
    }

    fn gain(low: f64, likely: f64, high: f64) -> Option<Gain> {
        Some(Gain { low, likely, high })
    }

    #[test]
    fn each_verdict_has_its_reason() {
        let of = |traits: &Traits, gain, relief| {
            let (verdict, why) = traits.judge(gain, relief);
            (verdict, why)
        };
        let traits = traits();
        assert_eq!(of(&traits, gain(1.1, 1.2, 1.3), Some(1.0)).0, Verdict::Enable);
        assert_eq!(of(&traits, gain(1.0, 1.2, 1.3), Some(1.0)).0, Verdict::TryIt);
        let expect = |traits: &Traits, gain, relief, verdict, what: &str| {
            let (found, why) = traits.judge(gain, relief);
            assert!(found == verdict && why.contains(what), "{found:?} {why}");
        };
        expect(
            &traits,
            gain(1.0, 1.01, 1.02),
            Some(1.0),
            Verdict::Nothing,
            "upper end of the interval, 1.02",
        );
        expect(&traits, gain(1.0, 1.01, 1.2), Some(1.0), Verdict::Nothing, "the likely gain, 1.01");
        expect(&traits, gain(1.0, 1.01, 1.2), Some(0.1), Verdict::Nothing, "would promote little");
        expect(&traits, None, None, Verdict::Unknown, "never seen");
        let small = Traits { need: 4 << 20, could: 4 << 20, ..traits.clone() };
        expect(&small, None, None, Verdict::Nothing, "a TLB reaches");
        assert!(small.bounded().is_some() && traits.bounded().is_none());
        let idle = Traits { usage: 0.0005, ..traits.clone() };
        expect(&idle, gain(1.1, 1.2, 1.3), Some(1.0), Verdict::Nothing, "idle: 43 processor seconds");
        let huge = Traits { huge: 0.95, ..traits.clone() };
        expect(&huge, gain(1.1, 1.2, 1.3), Some(1.0), Verdict::AlreadyHuge, "95 %");
        expect(&Traits { need: 0, ..traits }, None, None, Verdict::Nothing, "no memory");
    }

    #[test]
    fn a_pool_is_for_what_is_dense_and_steady_and_does_not_fork() {
        let means = |change: fn(&mut Traits)| {
            let mut traits = traits();
            change(&mut traits);
            traits.means()
        };
        assert_eq!(means(|_| ()), Means::Pool2m);
        assert_eq!(means(|it| it.forks = true), Means::Thp);
        assert_eq!(means(|it| it.steady = false), Means::Thp);
        assert_eq!(means(|it| it.fill = 0.2), Means::Thp);
        assert_eq!(means(|it| (it.need, it.giant) = (16 << 30, 0.95)), Means::Pool1g);
        assert_eq!(means(|it| it.giant = 0.95), Means::Pool2m, "a little of 1 GiB is not worth a pool");
        assert_eq!(means(|it| (it.shared, it.app) = (1.0, Some("postgres".into()))), Means::OwnSetting);
        assert_eq!(means(|it| it.shared = 1.0), Means::Pool2m, "its setting is unknown");
    }
}
