//! Table of all metrics: those exported, documented, and named by alerts and dashboards.

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name without [`PREFIX`]; `EVENT` in it stands for the kernel's name of the event.
    pub name: &'static str,
    /// Its labels, in their order.
    pub labels: &'static [&'static str],
    /// Its help text.
    pub help: &'static str,
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

const fn metric(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, labels, help }
}

/// Every metric, in the order in which they are written.
pub const METRICS: &[Metric] = &[
    metric("build_info", &["version"], "Version of megapage; always 1"),
    metric(
        "policy_info",
        &["policy", "dry_run"],
        "Policy of the last pass, and whether it was a dry run; always 1",
    ),
    metric("tracker_info", &["tracker"], "Tracker that samples accesses; always 1"),
    metric(
        "translation_info",
        &["source"],
        "Source of translation costs: measured, estimated or none; always 1",
    ),
    metric("passes_total", &[], "Completed passes: observe, decide, act"),
    metric("last_pass_timestamp_seconds", &[], "End of the last pass, in seconds since the epoch"),
    metric("pass_seconds", &["part"], "Duration of each phase of a pass"),
    metric("pass_cpu_seconds_total", &[], "CPU time of the daemon in its passes"),
    metric("actions_total", &["policy", "action", "result"], "Attempted actions, by result"),
    metric(
        "actions_left_total",
        &[],
        "Requested actions that were deferred: by a budget, a pause, time, or a back-off after a failure",
    ),
    metric("action_seconds", &["action"], "Time in system calls per action"),
    metric("latency_backoffs_total", &[], "Pauses or smaller batches after a slow call or a lack of memory"),
    metric("promoted_bytes_total", &["policy"], "Memory promoted to huge pages"),
    metric("freed_bytes_total", &["policy"], "Memory released to the machine"),
    metric("watched_processes", &[], "Watched processes"),
    metric("skipped_processes", &[], "Selected processes that are skipped for now"),
    metric("huge_bytes", &[], "Huge memory of the watched processes; shared memory counts once"),
    metric("memory_short", &[], "1 while memory is short for the policy"),
    metric(
        "executor_asked_total",
        &["action"],
        "Actions handed to the executor: each has a result or was deferred",
    ),
    metric("executor_results_total", &["action", "result"], "Results of actions, by the page tables"),
    metric("executor_refusals_total", &["action", "errno"], "Regions that the kernel refused, by errno"),
    metric(
        "executor_shared_total",
        &["action"],
        "Regions skipped without a system call because a forked process shares them",
    ),
    metric("executor_retried_total", &["action"], "Regions retried after a failure"),
    metric(
        "executor_dropped_total",
        &["action"],
        "Actions not retried before limits.back_off_most, or never: impossible, denied, gone, unsupported",
    ),
    metric(
        "executor_left_total",
        &["action", "why"],
        "Deferred actions: by the byte budget, by time, or by a pause",
    ),
    metric(
        "executor_pauses_total",
        &["why"],
        "Pauses: slow and late by the latency guard, memory and group by a lack of memory",
    ),
    metric("executor_promoted_bytes_total", &["action"], "Memory that actions promoted to huge pages"),
    metric("executor_freed_bytes_total", &["action"], "Memory that actions released to the machine"),
    metric("executor_call_seconds", &[], "Duration of one system call"),
    metric(
        "executor_held_seconds",
        &[],
        "Time that one call held the mmap lock of a process without a break",
    ),
    metric("executor_forgotten_total", &[], "Promotions that on_exit cannot undo: too many to record"),
    metric(
        "process_info",
        &["pid", "name", "uid", "cgroup", "unit", "pod"],
        "Whose the process is: user number, control group, systemd unit, Kubernetes pod; always 1",
    ),
    metric("process_huge_bytes", &["pid", "name"], "Huge memory of the process"),
    metric(
        "process_resident_bytes",
        &["pid", "name"],
        "Resident memory of the process, hugetlb pages included",
    ),
    metric("process_bloat_bytes", &["pid", "name"], "Zeros found in huge pages of the process so far"),
    metric(
        "process_translation_ratio",
        &["pid", "name"],
        "Share of the process's cycles spent on address translation, where known",
    ),
    metric("process_actions_total", &["pid", "name"], "Actions on the process"),
    metric("process_promoted_bytes_total", &["pid", "name"], "Memory of the process promoted to huge pages"),
    metric("process_freed_bytes_total", &["pid", "name"], "Memory of the process released to the machine"),
    metric("daemon_cpu_seconds_total", &[], "CPU time of the daemon"),
    metric("daemon_resident_bytes", &[], "Resident memory of the daemon"),
    metric("http_responses_total", &["code"], "HTTP responses, by status code"),
    metric("http_dropped_total", &[], "Connections closed without a response: slow, idle, or too many"),
    metric(
        "kernel_read_errors_total",
        &[],
        "Scrapes without the metrics below because a kernel file could not be read",
    ),
    metric("locked_processes", &[], "Processes skipped for now because their mmap lock is held"),
    metric("deadlines_missed_total", &[], "Deadlines missed because a process's mmap lock was held"),
    metric("stuck_helpers", &[], "Helper processes that wait for an mmap lock and cannot be killed"),
    metric("helper_refusals_total", &[], "Calls not made because too many helpers are stuck or busy"),
    metric(
        "memory_pressure_ratio",
        &["kind", "window"],
        "Share of time in which some tasks, or all with work, waited for memory",
    ),
    metric("thp_EVENT_total", &[], "THP events since boot: each thp_EVENT of vmstat"),
    metric("compact_EVENT_total", &[], "Compaction events since boot: each compact_EVENT of vmstat"),
    metric("khugepaged_collapsed_pages_total", &[], "Huge pages collapsed by khugepaged since boot"),
    metric("khugepaged_full_scans_total", &[], "Full scans by khugepaged since boot"),
    metric(
        "node_fragmentation_ratio",
        &["node"],
        "Share of the node's free memory in blocks too small for a 2 MiB page",
    ),
    metric("node_huge_pages_available", &["node"], "2 MiB pages (order 9) available without compaction"),
    metric(
        "hugetlb_pages",
        &["pagesize", "node", "state"],
        "Pages of the hugetlb pools: total, and of these free and surplus",
    ),
    metric(
        "hugetlb_reserved_pages",
        &["pagesize"],
        "Free pages of the hugetlb pools that are reserved for mappings",
    ),
];
