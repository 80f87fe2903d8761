//! Every metric there is: what is exported, documented, and named by alerts and dashboards.

megapage_units::named! {
    /// The type of a metric.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        /// It only grows, until the daemon, or the kernel, starts anew.
        Counter = "counter",
        /// It goes up and down.
        Gauge = "gauge",
        /// Counts by size.
        Histogram = "histogram",
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
    /// Its help text.
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
    metric("megapage_build_info", Kind::Gauge, &["version"], "Version of megapage; always 1"),
    metric(
        "megapage_policy_info",
        Kind::Gauge,
        &["policy", "dry_run"],
        "Policy of the last pass, and whether it was a dry run; always 1",
    ),
    metric("megapage_tracker_info", Kind::Gauge, &["tracker"], "Tracker that samples accesses; always 1"),
    metric(
        "megapage_translation_info",
        Kind::Gauge,
        &["source"],
        "Source of translation costs: measured, estimated or none; always 1",
    ),
    metric("megapage_passes_total", Kind::Counter, &[], "Completed passes: observe, decide, act"),
    metric(
        "megapage_last_pass_timestamp_seconds",
        Kind::Gauge,
        &[],
        "End of the last pass, in seconds since the epoch",
    ),
    metric("megapage_pass_seconds", Kind::Histogram, &["part"], "Duration of each phase of a pass"),
    metric("megapage_pass_cpu_seconds_total", Kind::Counter, &[], "CPU time of the daemon in its passes"),
    metric(
        "megapage_actions_total",
        Kind::Counter,
        &["policy", "action", "result"],
        "Attempted actions, by result",
    ),
    metric(
        "megapage_actions_left_total",
        Kind::Counter,
        &[],
        "Requested actions that were deferred: by a budget, a pause, time, or a back-off after a failure",
    ),
    metric("megapage_action_seconds", Kind::Histogram, &["action"], "Time in system calls per action"),
    metric(
        "megapage_latency_backoffs_total",
        Kind::Counter,
        &[],
        "Pauses or smaller batches after a slow call or a lack of memory",
    ),
    metric("megapage_promoted_bytes_total", Kind::Counter, &["policy"], "Memory promoted to huge pages"),
    metric("megapage_freed_bytes_total", Kind::Counter, &["policy"], "Memory released to the machine"),
    metric("megapage_watched_processes", Kind::Gauge, &[], "Watched processes"),
    metric("megapage_skipped_processes", Kind::Gauge, &[], "Selected processes that are skipped for now"),
    metric(
        "megapage_huge_bytes",
        Kind::Gauge,
        &[],
        "Huge memory of the watched processes; shared memory counts once",
    ),
    metric("megapage_memory_short", Kind::Gauge, &[], "1 while memory is short for the policy"),
    metric(
        "megapage_executor_asked_total",
        Kind::Counter,
        &["action"],
        "Actions handed to the executor: each has a result or was deferred",
    ),
    metric(
        "megapage_executor_results_total",
        Kind::Counter,
        &["action", "result"],
        "Results of actions, by the page tables",
    ),
    metric(
        "megapage_executor_refusals_total",
        Kind::Counter,
        &["action", "errno"],
        "Regions that the kernel refused, by errno",
    ),
    metric(
        "megapage_executor_shared_total",
        Kind::Counter,
        &["action"],
        "Regions skipped without a system call because a forked process shares them",
    ),
    metric("megapage_executor_retried_total", Kind::Counter, &["action"], "Regions retried after a failure"),
    metric(
        "megapage_executor_dropped_total",
        Kind::Counter,
        &["action"],
        "Actions not retried before limits.back_off_most, or never: impossible, denied, gone, unsupported",
    ),
    metric(
        "megapage_executor_left_total",
        Kind::Counter,
        &["action", "why"],
        "Deferred actions: by the byte budget, by time, or by a pause",
    ),
    metric(
        "megapage_executor_pauses_total",
        Kind::Counter,
        &["why"],
        "Pauses: slow and late by the latency guard, memory and group by a lack of memory",
    ),
    metric(
        "megapage_executor_promoted_bytes_total",
        Kind::Counter,
        &["action"],
        "Memory that actions promoted to huge pages",
    ),
    metric(
        "megapage_executor_freed_bytes_total",
        Kind::Counter,
        &["action"],
        "Memory that actions released to the machine",
    ),
    metric("megapage_executor_call_seconds", Kind::Histogram, &[], "Duration of one system call"),
    metric(
        "megapage_executor_held_seconds",
        Kind::Histogram,
        &[],
        "Time that one call held the mmap lock of a process without a break",
    ),
    metric(
        "megapage_executor_forgotten_total",
        Kind::Counter,
        &[],
        "Promotions that on_exit cannot undo: too many to record",
    ),
    metric(
        "megapage_process_info",
        Kind::Gauge,
        &["pid", "name", "uid", "cgroup", "unit", "pod"],
        "Whose the process is: user number, control group, systemd unit, Kubernetes pod; always 1",
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
        "Zeros found in huge pages of the process so far",
    ),
    metric(
        "megapage_process_translation_ratio",
        Kind::Gauge,
        &["pid", "name"],
        "Share of the process's cycles spent on address translation, where known",
    ),
    metric("megapage_process_actions_total", Kind::Counter, &["pid", "name"], "Actions on the process"),
    metric(
        "megapage_process_promoted_bytes_total",
        Kind::Counter,
        &["pid", "name"],
        "Memory of the process promoted to huge pages",
    ),
    metric(
        "megapage_process_freed_bytes_total",
        Kind::Counter,
        &["pid", "name"],
        "Memory of the process released to the machine",
    ),
    metric("megapage_daemon_cpu_seconds_total", Kind::Counter, &[], "CPU time of the daemon"),
    metric("megapage_daemon_resident_bytes", Kind::Gauge, &[], "Resident memory of the daemon"),
    metric("megapage_http_responses_total", Kind::Counter, &["code"], "HTTP responses, by status code"),
    metric(
        "megapage_http_dropped_total",
        Kind::Counter,
        &[],
        "Connections closed without a response: slow, idle, or too many",
    ),
    metric(
        "megapage_kernel_read_errors_total",
        Kind::Counter,
        &[],
        "Scrapes without the metrics below because a kernel file could not be read",
    ),
    metric(
        "megapage_locked_processes",
        Kind::Gauge,
        &[],
        "Processes skipped for now because their mmap lock is held",
    ),
    metric(
        "megapage_deadlines_missed_total",
        Kind::Counter,
        &[],
        "Deadlines missed because a process's mmap lock was held",
    ),
    metric(
        "megapage_stuck_helpers",
        Kind::Gauge,
        &[],
        "Helper processes that wait for an mmap lock and cannot be killed",
    ),
    metric(
        "megapage_helper_refusals_total",
        Kind::Counter,
        &[],
        "Calls not made because too many helpers are stuck or busy",
    ),
    metric(
        "megapage_memory_pressure_ratio",
        Kind::Gauge,
        &["kind", "window"],
        "Share of time in which some tasks, or all with work, waited for memory",
    ),
    metric("megapage_thp_EVENT_total", Kind::Counter, &[], "THP events since boot: each thp_EVENT of vmstat"),
    metric(
        "megapage_compact_EVENT_total",
        Kind::Counter,
        &[],
        "Compaction events since boot: each compact_EVENT of vmstat",
    ),
    metric(
        "megapage_khugepaged_collapsed_pages_total",
        Kind::Counter,
        &[],
        "Huge pages collapsed by khugepaged since boot",
    ),
    metric("megapage_khugepaged_full_scans_total", Kind::Counter, &[], "Full scans by khugepaged since boot"),
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
        "2 MiB pages (order 9) available without compaction",
    ),
    metric(
        "megapage_hugetlb_pages",
        Kind::Gauge,
        &["pagesize", "node", "state"],
        "Pages of the hugetlb pools: total, and of these free and surplus",
    ),
    metric(
        "megapage_hugetlb_reserved_pages",
        Kind::Gauge,
        &["pagesize"],
        "Free pages of the hugetlb pools that are reserved for mappings",
    ),
];
