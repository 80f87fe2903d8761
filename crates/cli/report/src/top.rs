//! The machine and its processes at a glance: their huge pages, their heat, the cost of
//! translation, and changes.

mod cells;
mod columns;
#[doc(hidden)]
pub mod daemon;
mod keys;
mod text;

pub use columns::Key;
pub use keys::{Prompt, help};
pub use text::{Head, Page, screen, table};

use megapage_snapshot::daemon::{DaemonSeen, Totals};
use megapage_snapshot::group;
use megapage_snapshot::{
    Machine, Missed, MissedWhy, Outline, Process, ProcessSampling, Sampling, Snapshot, TranslationCost, wire,
};
use megapage_units::{Bytes, Pid};
use regex_lite::Regex;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

/// Schema of [`Top`] as JSON.
pub const SCHEMA: &str = "megapage.top/1";

/// Content of one refresh.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Top<'a> {
    /// Time of the snapshot, since boot.
    #[serde(serialize_with = "wire::seconds", rename = "taken_seconds")]
    pub taken: Duration,
    /// Time since the snapshot that changes and rates are measured from; `None` for the first.
    #[serde(serialize_with = "wire::some_seconds", rename = "interval_seconds")]
    pub interval: Option<Duration>,
    /// The machine.
    pub machine: &'a Machine,
    /// Machine's counters per second of the interval; `None` for the first snapshot.
    pub rates_per_second: Option<BTreeMap<&'a str, f64>>,
    /// Method of sampling access bits; `None` if they are not sampled.
    pub sampling: Option<&'a Sampling>,
    /// Daemon that acts on this machine; `None` if none answers.
    pub daemon: Option<&'a DaemonSeen>,
    /// The processes, sorted.
    pub processes: Vec<Row>,
    /// Number of processes that a filter has omitted.
    pub filtered_out: usize,
    /// Requested processes that could not be observed, each with the reason.
    pub missed: &'a [Missed],
}

/// One process. Unknown values are `None`, never 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// The process.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// The command name.
    pub name: String,
    /// The real user.
    pub uid: u32,
    /// Login name of that user; `None` if there is none.
    pub user: Option<String>,
    /// Control group; empty if it is unknown.
    pub cgroup: String,
    /// Innermost unit of systemd on the path of the control group.
    pub unit: Option<String>,
    /// Identifier of the Kubernetes pod that it belongs to.
    pub pod: Option<String>,
    /// Namespace and name of the pod, if this node shows them.
    pub pod_name: Option<String>,
    /// Resident memory, hugetlb included.
    pub resident_bytes: u64,
    /// Part of `resident_bytes` on hugetlb pages.
    pub hugetlb_bytes: u64,
    /// Part of `resident_bytes` on pages of 2 MiB or more.
    pub huge_bytes: Option<u64>,
    /// `huge_bytes` as a share of `resident_bytes`, 0 to 1.
    pub huge_share: Option<f64>,
    /// Mean number of accessed base pages, of 512, over the sampled regions.
    pub coverage: Option<f64>,
    /// The translation cost.
    pub translation: Option<TranslationCost>,
    /// Zero-filled memory within transparent huge pages, as far as they were scanned.
    pub bloat_bytes: Option<u64>,
    /// Share of the private transparent huge pages, 0 to 1, that was scanned for `bloat_bytes`.
    pub bloat_share: Option<f64>,
    /// Growth of `huge_bytes` over the interval; negative if it shrank.
    pub huge_change_bytes: Option<i64>,
    /// Memory that is swapped out.
    pub swap_bytes: u64,
    /// Method of sampling its access bits.
    pub sampling: Option<ProcessSampling>,
    /// Age of the last sample.
    pub sampled_ago_seconds: Option<f64>,
    /// Age of the oldest sample in `coverage`: a large process is sampled part by part.
    pub oldest_sample_seconds: Option<f64>,
    /// Share of the present memory, 0 to 1, that `coverage` is about.
    pub sampled_share: Option<f64>,
    /// Daemon's actions on it; `None` if there were none, or if the daemon does not say.
    pub daemon: Option<Totals>,
    /// Reason why it could not be observed.
    pub missed: Option<Missed>,
    /// Time of its start, if it was observed: a reused pid is another process.
    #[serde(skip)]
    start_ticks: Option<u64>,
}

impl Key {
    /// Returns the key that is `steps` columns to the right of this one (to the left if negative),
    /// around the edge.
    #[must_use]
    pub fn step(self, steps: isize) -> Key {
        let at = Key::ALL.iter().position(|&key| key == self).unwrap_or(0) as isize;
        Key::ALL[(at + steps).rem_euclid(Key::ALL.len() as isize) as usize]
    }
}

impl<'a> Top<'a> {
    /// Returns the content of `now`, and its difference from `before`. `outlines` are of the wanted
    /// processes; a process that `now` lacks is listed with the values of its outline.
    pub fn new(before: Option<&Snapshot>, now: &'a Snapshot, outlines: &[Outline]) -> Top<'a> {
        let interval = before
            .and_then(|before| now.taken.checked_sub(before.taken))
            .filter(|interval| *interval > Duration::ZERO);
        let rates = before.zip(interval).map(|(before, interval)| rates(before, now, interval));
        let outline = |process: &Process| outlines.iter().find(|outline| outline.pid == process.id.pid);
        let observed = |process| Row::observed(process, outline(process), before, now.taken);
        let mut rows: Vec<Row> = now.processes.iter().map(observed).collect();
        for outline in outlines {
            if now.process(outline.pid).is_none() {
                let missed = now.missed.iter().find(|missed| missed.pid == outline.pid);
                rows.push(Row::outlined(outline, missed));
            }
        }
        let mut top = Top {
            taken: now.taken,
            interval,
            machine: &now.machine,
            rates_per_second: rates,
            sampling: now.sampling.as_ref(),
            daemon: None,
            processes: rows,
            filtered_out: 0,
            missed: &now.missed,
        };
        top.sort(Key::Resident, false);
        top
    }

    /// Adds a daemon's report, and its actions on each of the processes.
    #[must_use]
    pub fn with_daemon(mut self, seen: Option<&'a DaemonSeen>) -> Top<'a> {
        self.daemon = seen;
        for row in &mut self.processes {
            row.daemon = seen.and_then(|seen| {
                let same = |pid: i32, start: u64| pid == row.pid.0 && Some(start) == row.start_ticks;
                let told = seen.status.processes.iter().find(|told| same(told.pid, told.start_ticks));
                told.map(|told| told.done).filter(|done| done.actions > 0)
            });
        }
        self
    }

    /// Keeps the processes that a filter matches: by the command name, the user, the unit or
    /// control group, the pod, or the number.
    pub fn filter(&mut self, filter: &Regex) {
        let all = self.processes.len();
        self.processes.retain(|row| row.matches(filter));
        self.filtered_out += all - self.processes.len();
    }

    /// Sorts the processes.
    pub fn sort(&mut self, key: Key, reverse: bool) {
        self.processes.sort_by(|one, other| key.compare(one, other));
        if reverse {
            self.processes.reverse();
        }
    }
}

fn rates<'a>(before: &Snapshot, now: &'a Snapshot, interval: Duration) -> BTreeMap<&'a str, f64> {
    let per_second = |(name, &count): (&'a String, &u64)| {
        let former = *before.machine.counters.get(name)?;
        Some((name.as_str(), count.saturating_sub(former) as f64 / interval.as_secs_f64()))
    };
    now.machine.counters.iter().filter_map(per_second).collect()
}

impl Row {
    /// Returns the user's name, or the number if there is no name.
    pub fn user(&self) -> Cow<'_, str> {
        self.user.as_deref().map_or_else(|| self.uid.to_string().into(), Cow::Borrowed)
    }

    /// Returns the unit, or the control group if systemd has made no unit of it; empty at the root.
    pub fn unit_or_group(&self) -> &str {
        self.unit.as_deref().unwrap_or(if self.cgroup == "/" { "" } else { &self.cgroup })
    }

    /// Returns the pod's name, or its identifier if there is no name; empty outside pods.
    pub fn pod_or_uid(&self) -> &str {
        self.pod_name.as_deref().or(self.pod.as_deref()).unwrap_or_default()
    }

    fn matches(&self, filter: &Regex) -> bool {
        let (user, pid) = (self.user(), self.pid.to_string());
        let texts = [
            &self.name,
            &*user,
            &self.cgroup,
            &pid,
            self.pod_or_uid(),
            self.pod.as_deref().unwrap_or_default(),
        ];
        texts.iter().any(|text| filter.is_match(text))
    }

    fn observed(
        process: &Process,
        outline: Option<&Outline>,
        before: Option<&Snapshot>,
        taken: Duration,
    ) -> Row {
        let huge = process.backing.huge();
        // Another process may have the pid by now: then no change is shown.
        let former = before
            .and_then(|before| before.process(process.id.pid))
            .filter(|former| former.id == process.id)
            .map(|former| former.backing.huge());
        let scanned = process.regions.iter().any(|region| region.zeros.is_some());
        let sampled = process.sampling.as_ref();
        Row {
            pid: process.id.pid,
            name: process.name.clone(),
            uid: process.uid,
            user: outline.and_then(|outline| outline.user.clone()),
            cgroup: process.cgroup.clone(),
            unit: group::unit(&process.cgroup).map(str::to_string),
            pod: group::pod(&process.cgroup),
            pod_name: outline.and_then(|outline| outline.pod_name.clone()),
            resident_bytes: process.backing.total().0,
            hugetlb_bytes: process.backing.hugetlb().0,
            huge_bytes: Some(huge.0),
            huge_share: Some(process.huge_share()),
            coverage: process.mean_coverage(),
            translation: process.translation,
            bloat_bytes: scanned.then(|| process.bloat().0),
            bloat_share: scanned.then(|| process.scanned_share()),
            huge_change_bytes: former.map(|former| huge.0 as i64 - former.0 as i64),
            swap_bytes: process.swap.0,
            sampling: sampled.cloned(),
            sampled_ago_seconds: sampled.map(|own| taken.saturating_sub(own.sampled).as_secs_f64()),
            oldest_sample_seconds: process
                .oldest_sample()
                .map(|oldest| taken.saturating_sub(oldest).as_secs_f64()),
            sampled_share: sampled.map(|_| process.sampled_share()),
            daemon: None,
            missed: None,
            start_ticks: Some(process.id.start_ticks),
        }
    }

    fn outlined(outline: &Outline, missed: Option<&Missed>) -> Row {
        let none = outline.resident() == Bytes::ZERO;
        Row {
            pid: outline.pid,
            name: outline.name.clone(),
            uid: outline.uid,
            user: outline.user.clone(),
            cgroup: outline.cgroup.clone(),
            unit: group::unit(&outline.cgroup).map(str::to_string),
            pod: group::pod(&outline.cgroup),
            pod_name: outline.pod_name.clone(),
            resident_bytes: outline.resident().0,
            hugetlb_bytes: outline.hugetlb.0,
            huge_bytes: none.then_some(0),
            swap_bytes: outline.swap.0,
            missed: Some(missed.cloned().unwrap_or_else(|| Missed {
                pid: outline.pid,
                why: MissedWhy::Failed,
                what: format!("process {} was not observed", outline.pid),
            })),
            ..Row::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;
    use megapage_snapshot::{Leaf, MappingKind};

    fn outline(pid: i32, rss: u64) -> Outline {
        Outline {
            pid: Pid(pid),
            name: "postgres".into(),
            uid: 107,
            user: Some("postgres".into()),
            cgroup: "/system.slice/system-postgresql.slice/postgresql@15-main.service".into(),
            pod_name: None,
            rss: Bytes::mib(rss),
            hugetlb: Bytes::ZERO,
            swap: Bytes::mib(3),
        }
    }

    fn two() -> (Snapshot, Snapshot) {
        let before = synthetic::snapshot(vec![synthetic::store(), synthetic::process(12, "idle")]);
        let mut now = before.clone();
        now.taken += Duration::from_secs(2);
        *now.machine.counters.get_mut("thp_fault_alloc").unwrap() += 25;
        now.processes[0].backing.thp += Bytes::mib(24);
        now.processes[1].id.start_ticks += 1;
        (before, now)
    }

    #[test]
    fn changes_are_those_of_the_interval() {
        let (before, now) = two();
        let top = Top::new(Some(&before), &now, &[]);
        assert_eq!(top.interval, Some(Duration::from_secs(2)));
        let rates = top.rates_per_second.as_ref().unwrap();
        assert_eq!((rates["thp_fault_alloc"], rates["thp_split_page"]), (12.5, 0.0));
        assert_eq!(top.processes[0].pid, Pid(4711));
        assert_eq!(top.processes[0].huge_change_bytes, Some(24 << 20));
        assert_eq!(top.processes[0].sampled_ago_seconds, Some(3.0));
        assert_eq!(top.processes[1].huge_change_bytes, None, "another process with the same pid");
        let first = Top::new(None, &now, &[]);
        assert_eq!((first.interval, &first.rates_per_second), (None, &None));
        assert_eq!(first.processes[0].huge_change_bytes, None);
    }

    #[test]
    fn a_mean_of_old_and_few_samples_says_so() {
        let (_, mut now) = two();
        let regions = &mut now.processes[0].regions;
        regions.iter_mut().for_each(|region| region.accessed = None);
        // The heap's four regions of 580 MiB and more; one of them was sampled a minute ago.
        let mut few = regions.iter_mut().skip(3).take(4);
        few.by_ref().take(1).for_each(|region| {
            region.accessed = synthetic::accessed(17);
            region.accessed.as_mut().unwrap().sampled -= Duration::from_secs(60);
        });
        few.for_each(|region| region.accessed = synthetic::accessed(17));
        let top = Top::new(None, &now, &[]);
        let row = &top.processes[0];
        assert_eq!((row.sampled_ago_seconds, row.oldest_sample_seconds), (Some(3.0), Some(63.0)));
        let share = row.sampled_share.unwrap();
        assert!(share > 0.005 && share < 0.01, "{share}");
        let text = text::table(&top, &synthetic::head(Key::Pid), 160);
        assert!(text.contains(" 63s <1%"), "{text}");
    }

    #[test]
    fn bloat_is_whole_when_all_that_is_private_was_scanned() {
        let (_, mut now) = two();
        // Shared huge pages are not scanned.
        synthetic::map(&mut now.processes[0], 0x7fff_0000_0000, 4, MappingKind::Shared, "", |_, region| {
            region.leaf = Leaf::Huge2m;
        });
        let share = |now: &Snapshot| Top::new(None, now, &[]).processes[0].bloat_share;
        assert_eq!(share(&now), Some(1.0));
        let scanned = now.processes[0].regions.iter_mut().filter(|region| region.zeros.is_some());
        scanned.take(50).for_each(|region| region.zeros = None);
        assert_eq!(share(&now), Some(0.75));
    }

    #[test]
    fn a_process_that_is_denied_keeps_what_everybody_may_see() {
        let (_, mut now) = two();
        now.missed.push(Missed {
            pid: Pid(99),
            why: MissedWhy::Denied,
            what: "process 99 is another user's: run as root".into(),
        });
        let top = Top::new(None, &now, &[outline(99, 2000), outline(4711, 1)]);
        assert_eq!(top.processes.len(), 3, "one that is observed is not listed twice");
        let row = &top.processes[0];
        assert_eq!((row.pid, row.resident_bytes, row.swap_bytes), (Pid(99), 2000 << 20, 3 << 20));
        assert_eq!((row.huge_share, row.huge_bytes, row.bloat_bytes), (None, None, None));
        assert!(row.missed.as_ref().unwrap().what.contains("run as root"));
    }

    #[test]
    fn what_is_not_known_comes_last() {
        let (before, mut now) = two();
        now.processes.push(synthetic::process(7, "a"));
        now.processes[1].translation = now.processes[0].translation.map(|mut cost| {
            cost.share = 0.2;
            cost
        });
        let mut top = Top::new(Some(&before), &now, &[]);
        let mut order = |key, reverse| {
            top.sort(key, reverse);
            top.processes.iter().map(|row| row.pid.0).collect::<Vec<_>>()
        };
        assert_eq!(order(Key::Cost, false), [12, 4711, 7]);
        assert_eq!(order(Key::Pid, false), [7, 12, 4711]);
        assert_eq!(order(Key::Name, true), [4711, 12, 7]);
        assert_eq!(order(Key::Change, false)[0], 4711);
        assert_eq!(order(Key::Bloat, false), [4711, 7, 12]);
    }

    #[test]
    fn keys_go_round() {
        assert_eq!(Key::Pid.step(-1), Key::Swap);
        assert_eq!(Key::Swap.step(1), Key::Pid);
        assert_eq!(Key::Resident.step(2), Key::Coverage);
    }

    #[test]
    fn a_filter_looks_at_name_user_unit_pod_and_number() {
        let (_, now) = two();
        let count = |filter: &str| {
            let mut top = Top::new(None, &now, &[outline(99, 2000)]);
            top.filter(&Regex::new(filter).unwrap());
            assert_eq!(top.processes.len() + top.filtered_out, 3);
            top.processes.len()
        };
        assert_eq!(
            (count("^redis"), count("^postgres$"), count("postgresql@15"), count("^99$")),
            (1, 1, 1, 1)
        );
        assert_eq!((count(""), count("no-such-process")), (3, 0));
    }

    #[test]
    fn units_sort_with_those_without_one_last() {
        let (_, mut now) = two();
        now.processes[1].cgroup = "/system.slice/a.service".into();
        let mut top = Top::new(None, &now, &[outline(99, 2000)]);
        top.sort(Key::Unit, false);
        let order: Vec<i32> = top.processes.iter().map(|row| row.pid.0).collect();
        assert_eq!(order, [12, 99, 4711]);
    }
}
