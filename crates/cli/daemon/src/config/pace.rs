//! Promotion rate of the published policies.

use super::text;
use megapage_decide::Pace;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Promotion rate of the published policies (linux, freebsd, ingens, hawkeye-g, hawkeye-pmu and
/// their variants), in rounds of some regions. `act.promoted_per_second` bounds the policy
/// "megapage" instead.
///
/// The default, 8 regions a second, is that of the papers' testbed as inferred from HawkEye (ASPLOS
/// 2019). There Linux and Ingens take about 1000 s for a Graph500 of at most 16 GB: see
/// [`Pace::PAPERS`]. The default of Linux's khugepaged, and of the released kernels of Ingens and
/// HawkEye, is 8 regions every 10 s: `interval = "10s"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PublishedPace {
    /// Regions of 2 MiB that a round promotes (linux: looks at), as khugepaged's `pages_to_scan`
    /// divided by 512; 1 to 65536.
    pub regions: u64,
    /// Time from one round to the next, as khugepaged's `scan_sleep_millisecs`; 10ms to 1h. Rounds
    /// that fall between two passes run in the next pass, at most 1024.
    #[serde(with = "text::time")]
    pub interval: Duration,
}

impl Default for PublishedPace {
    fn default() -> PublishedPace {
        PublishedPace { regions: Pace::PAPERS.work, interval: Pace::PAPERS.every }
    }
}

impl PublishedPace {
    /// Returns it as the crate decide takes it.
    pub fn of_decide(&self) -> Pace {
        Pace { work: self.regions, every: self.interval }
    }

    /// Describes the pace for the log.
    pub fn describe(&self) -> String {
        format!("{} regions every {}", self.regions, text::of_duration(self.interval))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use megapage_decide::{Action, Obtained, Outcome, State, step};
    use megapage_snapshot::{
        Accessed, CostSource, Machine, Mapping, Memory, Node, PAGES, Process, ProcessId, Region, Snapshot,
        TranslationCost,
    };
    use megapage_units::{Bytes, HugePage, Pid, VirtRange};
    use std::time::Duration;

    const BASE: u64 = 0x7f00_0000_0000;

    /// Returns a snapshot of a process with more regions than any policy promotes, and with
    /// different ones each second.
    fn snapshot(second: u64) -> Snapshot {
        let (now, free) = (Duration::from_secs(second), Bytes::gib(12));
        let accessed =
            Some(Accessed { coverage: PAGES, average: f32::from(PAGES), last: Some(now), sampled: now });
        let region = |n: u64| Region {
            accessed,
            ..Region::of_base_pages(HugePage::containing(BASE).offset(1000 * second + n), PAGES)
        };
        let process = Process {
            rss: Bytes::mib(400),
            rss_anonymous: Bytes::mib(400),
            mappings: vec![Mapping::anonymous(VirtRange::new(BASE, BASE + (1 << 40)).unwrap())],
            regions: (0..200).map(region).collect(),
            translation: Some(TranslationCost {
                share: 0.3,
                low: 0.3,
                high: 0.3,
                source: CostSource::Measured,
            }),
            ..Process::without_memory(ProcessId { pid: Pid(20), start_ticks: 1, start_stack: 1 }, "p")
        };
        Snapshot {
            taken: now,
            machine: Machine {
                memory: Memory { total: Bytes::gib(16), free, available: free, ..Memory::default() },
                nodes: vec![Node { node: 0, free, huge_available: 6144, fragmentation: Some(0.0) }],
                ..Machine::default()
            },
            sampling: None,
            processes: vec![process],
            missed: Vec::new(),
        }
    }

    /// Returns the number of regions that are promoted in ten passes, a second apart.
    fn promoted(text: &str) -> usize {
        let config = Config::parse("x", text).unwrap();
        let mut state = State::new(config.make_policy().unwrap(), config.limits.of_decide());
        let pass = |second| {
            let now = Duration::from_secs(second);
            let actions = step(now, &snapshot(second), &mut state);
            let done = |action: &Action| Outcome { action: action.clone(), obtained: Obtained::Done };
            actions.iter().for_each(|action| state.note(now, &done(action)));
            actions
        };
        let actions = (1..=10).flat_map(pass);
        actions.filter(|action| matches!(action, Action::Promote { .. })).count()
    }

    #[test]
    fn published_policies_keep_the_pace_that_is_set() {
        for policy in ["linux", "freebsd", "ingens", "hawkeye-g", "hawkeye-pmu"] {
            let at = |pace: &str| promoted(&format!("policy = \"{policy}\"\n{pace}"));
            assert_eq!(at(""), 80, "{policy}: 8 a second, as in the papers");
            assert_eq!(at("[pace]\ninterval = \"10s\""), 8, "{policy}");
            assert_eq!(at("[pace]\nregions = 32\ninterval = \"2s\""), 160, "{policy}");
        }
    }
}
