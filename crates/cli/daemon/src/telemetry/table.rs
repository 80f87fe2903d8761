//! Table of all metrics that are exported, documented, or named by alerts and dashboards. A row
//! holds everything about a metric, including the function that reads it.

use super::value::{Labels, Row, Rows, Value, by, count, info, level, one};
use super::{Known, Last as LastPass, PARTS, Telemetry};
use crate::shared::Shared;
use Source::{Daemon, Executor, Kernel, Last, Passes, Process};
use Value::{Count, Level, Seconds, Spread};
use megapage_act::execute::Counters;
use megapage_act::execute::counters::{ERRORS, Kind};
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_kernel::{KernelError, KernelRoot, helper, process_cpu_time, thp};
use megapage_observe::machine;
use megapage_snapshot::{CostSource, Machine, group};
use std::sync::atomic::Ordering::Relaxed;

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name without [`PREFIX`]; `EVENT` in it stands for the kernel's name of the event.
    pub name: &'static str,
    /// Its labels, in their order.
    pub labels: &'static [&'static str],
    /// Its help text.
    pub help: &'static str,
    /// Function that reads the metric.
    pub(super) source: Source,
}

/// Reader of a metric, with a variant for each source.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Sums over the passes.
    Passes(fn(&Telemetry) -> Rows<'_>),
    /// Values of the last pass; no rows before the first pass.
    Last(fn(&LastPass) -> Rows<'_>),
    /// The executor's counts of system calls; [`Source::Passes`] has the counts of actions. Each
    /// action's rows exist from the start, so that the first failure shows as an increase.
    Executor(fn(&Counters) -> Rows<'_>),
    /// One row for each process, with the labels that follow `pid` and `name`.
    Process(fn(&Known) -> Option<Row<'_>>),
    /// The daemon's use of resources.
    Daemon(fn(&Shared) -> Rows<'_>),
    /// Counters of the kernel that no other exporter exports.
    Kernel(fn(&KernelSeen) -> Rows<'_>),
}

impl Metric {
    /// Returns `counter`, `histogram` or `gauge`, by the name: only counters end in `_total`, and
    /// spans of time that are not added up are histograms.
    pub fn kind(&self) -> &'static str {
        match self.name {
            name if name.ends_with("_total") => "counter",
            name if name.ends_with("_seconds") && !name.ends_with("_timestamp_seconds") => "histogram",
            _ => "gauge",
        }
    }
}

/// Start of every name.
pub const PREFIX: &str = "megapage_";

/// Declares [`METRICS`]: the name, labels, help text and source of each metric.
macro_rules! metrics {
    ($($name:ident($($label:ident),*) $help:literal = $source:expr;)+) => {
        /// Every metric, in the order in which they are written.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: stringify!($name),
            labels: &[$(stringify!($label)),*],
            help: $help,
            source: $source,
        }),+];
    };
}

metrics! {
    build_info(version) "Version of megapage; always 1"
        = Passes(|_| info(&[env!("CARGO_PKG_VERSION")]));
    policy_info(policy, dry_run) "Policy of the last pass, and whether it was a dry run; always 1"
        = Last(|last| info(&[last.policy, &last.dry_run.to_string()]));
    tracker_info(tracker) "Tracker that samples accesses; always 1"
        = Last(|last| last.tracker.map_or_else(Rows::new, |tracker| info(&[tracker.name()])));
    translation_info(source) "Source of address translation costs: measured, estimated or none; always 1"
        = Last(|last| info(&[last.costs.map_or("none", CostSource::name)]));
    passes_total() "Completed passes: observe, decide, act"
        = Passes(|from| one(Count(from.passes)));
    last_pass_timestamp_seconds() "End of the last pass, in seconds since the epoch"
        = Last(|last| one(Level(last.wall.as_secs_f64())));
    pass_seconds(part) "Duration of each phase of a pass: observe, decide, act"
        = Passes(|from| by(PARTS.iter().zip(&from.pass_seconds), Spread));
    pass_cpu_seconds_total() "CPU time of the daemon in its passes"
        = Passes(|from| one(Seconds(from.pass_cpu.as_secs_f64())));
    actions_total(policy, action, result) "Attempted actions, by result"
        = Passes(|from| {
            let row = |((policy, action, result), count): (&(&str, &str, &str), &u64)| {
                (vec![policy.to_string(), action.to_string(), result.to_string()], Count(*count))
            };
            from.actions.iter().map(row).collect()
        });
    actions_left_total() "Actions deferred by a budget, a pause, time, or a back-off after a failure"
        = Passes(|from| one(Count(from.left)));
    action_seconds(action) "Time in system calls per action"
        = Passes(|from| by(&from.action_seconds, Spread));
    latency_backoffs_total() "Pauses or smaller batches after a slow call or a lack of memory"
        = Passes(|from| one(Count(from.backed_off)));
    promoted_bytes_total(policy) "Memory promoted to huge pages"
        = Passes(|from| by(&from.moved, |sum| Count(sum.promoted_bytes)));
    freed_bytes_total(policy) "Memory released to the machine"
        = Passes(|from| by(&from.moved, |sum| Count(sum.freed_bytes)));
    watched_processes() "Watched processes"
        = Last(|last| one(Level(last.status.watched as f64)));
    skipped_processes() "Selected processes that are skipped for now"
        = Last(|last| one(Level(last.status.skipped as f64)));
    huge_bytes() "Huge memory of the watched processes; shared memory counts once"
        = Last(|last| one(Level(last.status.huge_bytes as f64)));
    memory_short() "1 while the policy finds memory short, else 0"
        = Last(|last| one(Level(f64::from(u8::from(last.status.short)))));
    executor_refusals_total(action, errno) "Regions that the kernel refused, by errno"
        = Executor(|from| each_of(from, ERRORS, |kind| kind.refused));
    executor_shared_total(action) "Regions skipped without a system call because a forked process shares them"
        = Executor(|from| each(from, |kind| kind.shared));
    executor_retried_total(action) "Regions retried after a failure"
        = Executor(|from| each(from, |kind| kind.retried));
    executor_left_total(action, why) "Actions deferred by the byte budget, by time, or by a pause"
        = Executor(|from| {
            let left = |kind: &Kind| [kind.left.budget, kind.left.time, kind.left.pause];
            each_of(from, ["budget", "time", "pause"], left)
        });
    executor_pauses_total(why)
        "Pauses after slow or late calls, or lack of memory (machine or control group)"
        = Executor(|from| {
            let it = from.pauses;
            let by_cause = [("slow", it.slow), ("late", it.late), ("memory", it.memory), ("group", it.group)];
            by(by_cause, Count)
        });
    executor_call_seconds() "Duration of one system call"
        = Executor(|from| one(Spread(&from.calls)));
    executor_held_seconds() "Time that one call held the mmap lock of a process without a break"
        = Executor(|from| one(Spread(&from.held)));
    executor_forgotten_total() "Promotions too many to record, which on_exit cannot undo"
        = Executor(|from| one(Count(from.forgotten)));
    process_info(pid, name, uid, cgroup, unit, pod)
        "User number, control group, systemd unit and Kubernetes pod of the process; always 1"
        = Process(|known| {
            let unit = group::unit(&known.cgroup).unwrap_or_default().to_string();
            let pod = group::pod(&known.cgroup).unwrap_or_default();
            Some((vec![known.uid.to_string(), known.cgroup.clone(), unit, pod], Level(1.0)))
        });
    process_huge_bytes(pid, name) "Huge memory of the process"
        = Process(|known| level(known.status.huge_bytes));
    process_resident_bytes(pid, name) "Resident memory of the process, hugetlb pages included"
        = Process(|known| level(known.status.resident_bytes));
    process_bloat_bytes(pid, name) "Zeros found so far in huge pages of the process"
        = Process(|known| level(known.status.bloat_bytes));
    process_translation_ratio(pid, name)
        "Share of the process's cycles spent on address translation, where known"
        = Process(|known| known.status.translation_share.map(|share| (Labels::new(), Level(share))));
    process_actions_total(pid, name) "Actions on the process"
        = Process(|known| count(known.status.done.actions));
    process_promoted_bytes_total(pid, name) "Memory of the process promoted to huge pages"
        = Process(|known| count(known.status.done.promoted_bytes));
    process_freed_bytes_total(pid, name) "Memory of the process released to the machine"
        = Process(|known| count(known.status.done.freed_bytes));
    daemon_cpu_seconds_total() "CPU time of the daemon"
        = Daemon(|_| one(Seconds(process_cpu_time().as_secs_f64())));
    daemon_resident_bytes() "Resident memory of the daemon"
        = Daemon(|shared| shared.resident().and_then(level).into_iter().collect());
    http_responses_total(code) "HTTP responses, by status code"
        = Daemon(|shared| by(shared.responses(), Count));
    http_dropped_total() "Connections closed without a response: slow, idle, or too many"
        = Daemon(|shared| one(Count(shared.dropped.load(Relaxed))));
    kernel_read_errors_total() "Scrapes without kernel metrics because a kernel file could not be read"
        = Daemon(|shared| one(Count(shared.read_errors.load(Relaxed))));
    locked_processes() "Processes skipped for now because their mmap lock is held"
        = Daemon(|_| one(Level(helper::counts().locked as f64)));
    deadlines_missed_total() "Deadlines missed because a process's mmap lock was held"
        = Daemon(|_| one(Count(helper::counts().missed)));
    stuck_helpers() "Helper processes that wait for an mmap lock and cannot be killed"
        = Daemon(|_| one(Level(helper::counts().stuck as f64)));
    helper_refusals_total() "Calls not made because too many helper processes are stuck or busy"
        = Daemon(|_| one(Count(helper::counts().refused)));
    memory_pressure_ratio(kind, window)
        "Share of time in which some tasks, or all active tasks, waited for memory"
        = Kernel(|from| {
            let Some(it) = &from.machine.pressure else { return Rows::new() };
            [("some", "10s", it.some_10s), ("some", "60s", it.some_60s), ("full", "10s", it.full_10s)]
                .map(|(kind, window, percent)| (vec![kind.into(), window.into()], Level(percent / 100.0)))
                .into()
        });
    compact_EVENT_total() "Compaction events since boot: each compact_EVENT of vmstat"
        = Kernel(|from| events(from, "compact_"));
    thp_EVENT_total() "THP events since boot: each thp_EVENT of vmstat"
        = Kernel(|from| events(from, "thp_"));
    khugepaged_collapsed_pages_total() "Huge pages collapsed by khugepaged since boot"
        = Kernel(|from| {
            let khugepaged = from.machine.thp.as_ref().and_then(|thp| thp.khugepaged);
            khugepaged.and_then(|own| count(own.pages_collapsed)).into_iter().collect()
        });
    khugepaged_full_scans_total() "Full scans by khugepaged since boot"
        = Kernel(|from| from.full_scans.and_then(count).into_iter().collect());
    node_fragmentation_ratio(node) "Share of the node's free memory in blocks too small for a 2 MiB page"
        = Kernel(|from| {
            let known = from.machine.nodes.iter().filter_map(|node| Some((node.node, node.fragmentation?)));
            by(known, Level)
        });
    node_huge_pages_available(node) "2 MiB pages (order 9) available without compaction"
        = Kernel(|from| {
            by(from.machine.nodes.iter().map(|node| (node.node, node.huge_available as f64)), Level)
        });
    hugetlb_pages(pagesize, node, state) "Pages of the hugetlb pools: total, free and surplus"
        = Kernel(|from| from.pools.clone());
    hugetlb_reserved_pages(pagesize) "Free pages of the hugetlb pools that are reserved for mappings"
        = Kernel(|from| {
            by(from.machine.pools.iter().map(|pool| (pool.page_size, pool.reserved as f64)), Level)
        });
}

/// Returns one row for each action.
fn each(counters: &Counters, of: fn(&Kind) -> u64) -> Rows<'static> {
    by(counters.kinds(), |kind| Count(of(kind)))
}

/// Returns one row for each action and each of `names`.
fn each_of<const N: usize>(
    counters: &Counters,
    names: [&'static str; N],
    of: impl Fn(&Kind) -> [u64; N],
) -> Rows<'static> {
    let rows = counters.kinds().into_iter().flat_map(|(action, kind)| {
        let counts = names.into_iter().zip(of(kind));
        counts.map(move |(name, count)| (vec![action.to_string(), name.to_string()], Count(count)))
    });
    rows.collect()
}

/// Returns one row for each event with this prefix; the event's name takes the place of labels.
fn events(from: &KernelSeen, prefix: &str) -> Rows<'static> {
    by(from.machine.counters.iter().filter(|(event, _)| event.starts_with(prefix)), |count| Count(*count))
}

/// State of the kernel at one scrape.
#[derive(Debug)]
pub(super) struct KernelSeen {
    machine: Machine,
    full_scans: Option<u64>,
    /// Rows of the pools' pages by size, node and state.
    pools: Rows<'static>,
}

impl KernelSeen {
    /// Reads the state.
    pub fn read(root: &KernelRoot) -> Result<KernelSeen, KernelError> {
        let full_scans = thp::collapse_limits(root)?.map(|limits| limits.full_scans);
        Ok(KernelSeen { machine: machine(root)?, full_scans, pools: pools(root)? })
    }
}

fn pools(root: &KernelRoot) -> Result<Rows<'static>, KernelError> {
    let mut scopes: Vec<(u32, PoolScope)> =
        hugetlb::nodes(root)?.into_iter().map(|node| (node, PoolScope::Node(node))).collect();
    if scopes.is_empty() {
        // Without NUMA the machine is its only node.
        scopes.push((0, PoolScope::Machine));
    }
    let mut pools = Rows::new();
    for size in hugetlb::page_sizes(root)? {
        for (node, scope) in &scopes {
            let counts = match hugetlb::counts(root, size, *scope) {
                // A node without memory has no pools; a node can also be taken away meanwhile.
                Err(error) if error.is_gone() => continue,
                counts => counts?,
            };
            let states = [("total", counts.total), ("free", counts.free), ("surplus", counts.surplus)];
            pools.extend(states.map(|(state, pages)| {
                (vec![size.to_string(), node.to_string(), state.into()], Level(pages as f64))
            }));
        }
    }
    Ok(pools)
}
