//! Every metric there is: what is exported, documented, and named by alerts and dashboards.

/// What kind of figure a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until the daemon, or the kernel, starts anew.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

impl Kind {
    /// As the text formats name it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name; `EVENT` in it stands for what the kernel calls the event.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels, in their order.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

const fn metric(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind, labels, help }
}

/// Every metric, in the order in which they are written.
pub const METRICS: &[Metric] = &[
    metric("megapage_build_info", Kind::Gauge, &["version"], "The version of megapage; always 1"),
    metric(
        "megapage_policy_info",
        Kind::Gauge,
        &["policy", "dry_run"],
        "The policy of the last pass, and whether nothing is changed; always 1",
    ),
    metric("megapage_tracker_info", Kind::Gauge, &["tracker"], "How accesses are sampled; always 1"),
    metric(
        "megapage_translation_info",
        Kind::Gauge,
        &["source"],
        "How translation costs are found out: measured, estimated or none; always 1",
    ),
    metric("megapage_passes_total", Kind::Counter, &[], "Passes of the loop: observe, decide, act"),
    metric(
        "megapage_last_pass_timestamp_seconds",
        Kind::Gauge,
        &[],
        "When the last pass ended, since the epoch",
    ),
    metric("megapage_pass_seconds", Kind::Histogram, &["part"], "Time that each part of a pass took"),
    metric(
        "megapage_pass_cpu_seconds_total",
        Kind::Counter,
        &[],
        "Processor time of the daemon in its passes",
    ),
    metric(
        "megapage_actions_total",
        Kind::Counter,
        &["policy", "action", "result"],
        "Actions that were tried, by what was obtained",
    ),
    metric(
        "megapage_actions_left_total",
        Kind::Counter,
        &[],
        "Actions that a policy asked for and that were left for later: by budgets, pauses, time, or after a failure",
    ),
    metric("megapage_action_seconds", Kind::Histogram, &["action"], "Time in system calls for one action"),
    metric(
        "megapage_latency_backoffs_total",
        Kind::Counter,
        &[],
        "How often a pause or smaller batches followed, after a slow call or for want of memory",
    ),
    metric("megapage_promoted_bytes_total", Kind::Counter, &["policy"], "Memory made huge"),
    metric("megapage_freed_bytes_total", Kind::Counter, &["policy"], "Memory given back to the machine"),
    metric("megapage_watched_processes", Kind::Gauge, &[], "Processes that are watched"),
    metric(
        "megapage_passed_over_processes",
        Kind::Gauge,
        &[],
        "Processes that were selected and are not watched for now",
    ),
    metric(
        "megapage_huge_bytes",
        Kind::Gauge,
        &[],
        "Huge memory of the watched processes; shared memory counts once",
    ),
    metric("megapage_memory_short", Kind::Gauge, &[], "1 where the policy was told that memory runs short"),
    metric(
        "megapage_executor_asked_total",
        Kind::Counter,
        &["action"],
        "Actions that the executor was handed: each has a result, or was left",
    ),
    metric(
        "megapage_executor_results_total",
        Kind::Counter,
        &["action", "result"],
        "What came of actions, by the page tables",
    ),
    metric(
        "megapage_executor_refusals_total",
        Kind::Counter,
        &["action", "errno"],
        "Regions that the kernel refused, by its error",
    ),
    metric(
        "megapage_executor_shared_total",
        Kind::Counter,
        &["action"],
        "Regions that the kernel was not asked about, since a forked process shares them",
    ),
    metric(
        "megapage_executor_retried_total",
        Kind::Counter,
        &["action"],
        "Regions that were tried again after they had failed",
    ),
    metric(
        "megapage_executor_dropped_total",
        Kind::Counter,
        &["action"],
        "Actions that are not tried again for limits.back_off_most, or ever: impossible, denied, gone, unsupported",
    ),
    metric(
        "megapage_executor_left_total",
        Kind::Counter,
        &["action", "why"],
        "Actions left for later: by the budget of bytes, by time, or in a pause",
    ),
    metric(
        "megapage_executor_pauses_total",
        Kind::Counter,
        &["why"],
        "Pauses: slow and late are the latency guard, memory and group want of memory",
    ),
    metric(
        "megapage_executor_promoted_bytes_total",
        Kind::Counter,
        &["action"],
        "Memory that actions made huge",
    ),
    metric(
        "megapage_executor_freed_bytes_total",
        Kind::Counter,
        &["action"],
        "Memory that actions gave back to the machine",
    ),
    metric("megapage_executor_call_seconds", Kind::Histogram, &[], "Time that one call to the kernel took"),
    metric(
        "megapage_executor_held_seconds",
        Kind::Histogram,
        &[],
        "How long one call held the lock of a process's memory at a stretch",
    ),
    metric(
        "megapage_executor_forgotten_total",
        Kind::Counter,
        &[],
        "Promotions that on_exit cannot undo: too many to be remembered",
    ),
    metric("megapage_process_huge_bytes", Kind::Gauge, &["pid", "name"], "Huge memory of the process"),
    metric(
        "megapage_process_resident_bytes",
        Kind::Gauge,
        &["pid", "name"],
        "Resident memory of the process, hugetlb pages included",
    ),
    metric(
        "megapage_process_bloat_bytes",
        Kind::Gauge,
        &["pid", "name"],
        "Zeros in huge pages of the process, as far as they were scanned",
    ),
    metric(
        "megapage_process_translation_ratio",
        Kind::Gauge,
        &["pid", "name"],
        "Share of its cycles that address translation takes, where that is known",
    ),
    metric("megapage_process_actions_total", Kind::Counter, &["pid", "name"], "Actions on the process"),
    metric(
        "megapage_process_promoted_bytes_total",
        Kind::Counter,
        &["pid", "name"],
        "Memory of the process made huge",
    ),
    metric(
        "megapage_process_freed_bytes_total",
        Kind::Counter,
        &["pid", "name"],
        "Memory of the process given back to the machine",
    ),
    metric("megapage_daemon_cpu_seconds_total", Kind::Counter, &[], "Processor time of the daemon"),
    metric("megapage_daemon_resident_bytes", Kind::Gauge, &[], "Resident memory of the daemon"),
    metric("megapage_http_responses_total", Kind::Counter, &["code"], "Answers over the socket, by status"),
    metric(
        "megapage_http_dropped_total",
        Kind::Counter,
        &[],
        "Connections that were closed unanswered: slow, idle, or too many",
    ),
    metric(
        "megapage_kernel_read_errors_total",
        Kind::Counter,
        &[],
        "Scrapes that lack what follows because a kernel file could not be read",
    ),
    metric(
        "megapage_locked_processes",
        Kind::Gauge,
        &[],
        "Processes that do not answer since their memory map is locked, and are left alone for now",
    ),
    metric(
        "megapage_deadlines_missed_total",
        Kind::Counter,
        &[],
        "How often a process did not answer in time since its memory map was locked",
    ),
    metric(
        "megapage_stuck_helpers",
        Kind::Gauge,
        &[],
        "Helper processes of the daemon that wait for a locked memory map and cannot be ended",
    ),
    metric(
        "megapage_helper_refusals_total",
        Kind::Counter,
        &[],
        "Calls that were not made since too many helpers are stuck, or at work",
    ),
    metric(
        "megapage_memory_pressure_ratio",
        Kind::Gauge,
        &["kind", "window"],
        "Share of the time in which some task, or all that had work, waited for memory",
    ),
    metric(
        "megapage_thp_EVENT_total",
        Kind::Counter,
        &[],
        "Events of transparent huge pages since boot: each thp_EVENT of vmstat",
    ),
    metric(
        "megapage_compact_EVENT_total",
        Kind::Counter,
        &[],
        "Events of memory compaction since boot: each compact_EVENT of vmstat",
    ),
    metric(
        "megapage_khugepaged_collapsed_pages_total",
        Kind::Counter,
        &[],
        "Huge pages that khugepaged has made since boot",
    ),
    metric(
        "megapage_khugepaged_full_scans_total",
        Kind::Counter,
        &[],
        "How often khugepaged has been through all memory since boot",
    ),
    metric(
        "megapage_node_fragmentation_ratio",
        Kind::Gauge,
        &["node"],
        "Share of the node's free memory in blocks too small for a 2 MiB page",
    ),
    metric(
        "megapage_node_huge_pages_available",
        Kind::Gauge,
        &["node"],
        "Pages of 2 MiB (order 9) that can be had without compaction",
    ),
    metric(
        "megapage_hugetlb_pages",
        Kind::Gauge,
        &["pagesize", "node", "state"],
        "Pages of the hugetlb pools: total; of these free, and surplus",
    ),
    metric(
        "megapage_hugetlb_reserved_pages",
        Kind::Gauge,
        &["pagesize"],
        "Free pages of the hugetlb pools that are promised to mappings",
    ),
];
