//! Text of all metrics at this moment.

use super::value::{Labels, Value, label, one, write};
use super::{Last, PARTS, Telemetry, executor};
use crate::shared::Shared;
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_kernel::{KernelError, KernelRoot, helper, process_cpu_time, thp};
use megapage_observe::machine;
use megapage_snapshot::{CostSource, Machine, group};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Content type of the text that [`openmetrics`] gives.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of the text that [`classic`] gives.
pub const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns all metrics in the OpenMetrics text format.
pub(crate) fn openmetrics(shared: &Arc<Shared>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Everything(Arc::clone(shared))));
    let mut text = String::new();
    // Writing to a string does not fail, and every name that is written is in the table: a test
    // checks each.
    let _ = text::encode(&mut text, &registry);
    text
}

/// Returns the same metrics in Prometheus's older text format, which node_exporter's textfile
/// collector and simple clients read. There a counter's type belongs to its full name, and `# EOF`
/// is only a comment.
pub(crate) fn classic(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut lines = openmetrics.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "# EOF" {
            continue;
        }
        let named = |line: &str, what: &str| {
            let (name, rest) = line.strip_prefix(what)?.split_once(' ')?;
            Some((name.to_string(), rest.to_string()))
        };
        // `# HELP` comes just before its `# TYPE`.
        let typed = lines.peek().and_then(|next| named(next, "# TYPE "));
        match (named(line, "# HELP "), named(line, "# TYPE ")) {
            (Some((name, help)), _) if typed.is_some_and(|(_, kind)| kind == "counter") => {
                text += &format!("# HELP {name}_total {help}\n");
            }
            (_, Some((name, kind))) if kind == "counter" => {
                text += &format!("# TYPE {name}_total counter\n");
            }
            _ => {
                text += line;
                text.push('\n');
            }
        }
    }
    text
}

/// Collector of all metrics for the registry.
#[derive(Debug)]
struct Everything(Arc<Shared>);

impl Collector for Everything {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let shared = &self.0;
        {
            let telemetry = shared.telemetry();
            own(&mut encoder, &telemetry)?;
        }
        daemon(&mut encoder, shared)?;
        // Read without the lock: a scrape does not keep the loop waiting.
        if let Err(error) = kernel(&mut encoder, &shared.root)? {
            shared.read_errors.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%error, "kernel metrics are left out of a scrape");
        }
        Ok(())
    }
}

fn info(labels: &[&str]) -> [(Labels, Value<'static>); 1] {
    [(labels.iter().map(ToString::to_string).collect(), Value::Level(1.0))]
}

/// Writes the metrics of the passes.
fn own(to: &mut DescriptorEncoder<'_>, from: &Telemetry) -> fmt::Result {
    write(to, "build_info", info(&[env!("CARGO_PKG_VERSION")]))?;
    let last = from.last.as_ref();
    if let Some(last) = last {
        write(to, "policy_info", info(&[last.policy, &last.dry_run.to_string()]))?;
        if let Some(tracker) = last.tracker {
            write(to, "tracker_info", info(&[tracker.name()]))?;
        }
        let source = last.costs.map_or("none", CostSource::name);
        write(to, "translation_info", info(&[source]))?;
    }
    write(to, "passes_total", one(Value::Count(from.passes)))?;
    let level = |of: fn(&Last) -> f64| last.map(|last| (Vec::new(), Value::Level(of(last))));
    write(to, "last_pass_timestamp_seconds", level(|last| last.wall.as_secs_f64()))?;
    let parts = PARTS.iter().zip(&from.pass_seconds);
    write(to, "pass_seconds", parts.map(|(part, spread)| (label(part), Value::Spread(spread))))?;
    write(to, "pass_cpu_seconds_total", one(Value::Seconds(from.pass_cpu.as_secs_f64())))?;
    let actions = from.actions.iter().map(|((policy, action, result), count)| {
        (vec![policy.to_string(), action.to_string(), result.to_string()], Value::Count(*count))
    });
    write(to, "actions_total", actions)?;
    write(to, "actions_left_total", one(Value::Count(from.left)))?;
    let spreads = from.action_seconds.iter().map(|(action, spread)| (label(action), Value::Spread(spread)));
    write(to, "action_seconds", spreads)?;
    write(to, "latency_backoffs_total", one(Value::Count(from.backed_off)))?;
    let moved = from.moved.iter();
    let promoted = moved.clone().map(|(policy, sum)| (label(policy), Value::Count(sum.promoted_bytes)));
    write(to, "promoted_bytes_total", promoted)?;
    let freed = moved.map(|(policy, sum)| (label(policy), Value::Count(sum.freed_bytes)));
    write(to, "freed_bytes_total", freed)?;
    write(to, "watched_processes", level(|last| last.status.watched as f64))?;
    write(to, "skipped_processes", level(|last| last.status.skipped as f64))?;
    write(to, "huge_bytes", level(|last| last.status.huge_bytes as f64))?;
    write(to, "memory_short", level(|last| f64::from(u8::from(last.status.short))))?;
    if let Some(counters) = &from.executor {
        executor::write_all(to, counters)?;
    }
    processes(to, from)
}

fn processes(to: &mut DescriptorEncoder<'_>, from: &Telemetry) -> fmt::Result {
    let heaviest = from.heaviest();
    let infos = heaviest.iter().map(|(id, known)| {
        let unit = group::unit(&known.cgroup).unwrap_or_default().to_string();
        let pod = group::pod(&known.cgroup).unwrap_or_default();
        let (pid, uid) = (id.pid.0.to_string(), known.uid.to_string());
        (vec![pid, known.name.clone(), uid, known.cgroup.clone(), unit, pod], Value::Level(1.0))
    });
    write(to, "process_info", infos)?;
    let mut each = |name: &str, value: &dyn Fn(&super::Known) -> Option<Value<'static>>| {
        let rows = heaviest
            .iter()
            .filter_map(|(id, known)| Some((vec![id.pid.0.to_string(), known.name.clone()], value(known)?)));
        write(to, name, rows)
    };
    let level = |bytes: u64| Some(Value::Level(bytes as f64));
    each("process_huge_bytes", &|known| level(known.huge))?;
    each("process_resident_bytes", &|known| level(known.resident))?;
    each("process_bloat_bytes", &|known| level(known.bloat))?;
    each("process_translation_ratio", &|known| known.translation.map(Value::Level))?;
    each("process_actions_total", &|known| Some(Value::Count(known.done.actions)))?;
    each("process_promoted_bytes_total", &|known| Some(Value::Count(known.done.promoted_bytes)))?;
    each("process_freed_bytes_total", &|known| Some(Value::Count(known.done.freed_bytes)))
}

/// Writes the daemon's use of resources.
fn daemon(to: &mut DescriptorEncoder<'_>, shared: &Shared) -> fmt::Result {
    write(to, "daemon_cpu_seconds_total", one(Value::Seconds(process_cpu_time().as_secs_f64())))?;
    let resident = shared.resident().map(|bytes| (Vec::new(), Value::Level(bytes as f64)));
    write(to, "daemon_resident_bytes", resident)?;
    let responses = shared.responses().into_iter();
    let responses = responses.map(|(code, count)| (label(&code.to_string()), Value::Count(count)));
    write(to, "http_responses_total", responses)?;
    let count = |of: &std::sync::atomic::AtomicU64| one(Value::Count(of.load(Ordering::Relaxed)));
    write(to, "http_dropped_total", count(&shared.dropped))?;
    write(to, "kernel_read_errors_total", count(&shared.read_errors))?;
    let helpers = helper::counts();
    write(to, "locked_processes", one(Value::Level(helpers.locked as f64)))?;
    write(to, "deadlines_missed_total", one(Value::Count(helpers.missed)))?;
    write(to, "stuck_helpers", one(Value::Level(helpers.stuck as f64)))?;
    write(to, "helper_refusals_total", one(Value::Count(helpers.refused)))
}

/// Writes counters of the kernel that no other exporter exports. The inner result is of reading.
fn kernel(to: &mut DescriptorEncoder<'_>, root: &KernelRoot) -> Result<Result<(), KernelError>, fmt::Error> {
    let read = || -> Result<(Machine, Option<u64>, Vec<PoolPages>), KernelError> {
        let full_scans = thp::collapse_limits(root)?.map(|limits| limits.full_scans);
        Ok((machine(root)?, full_scans, pools(root)?))
    };
    let (machine, full_scans, pools) = match read() {
        Ok(read) => read,
        Err(error) => return Ok(Err(error)),
    };
    let pressure = machine.pressure.map(|pressure| {
        [
            ("some", "10s", pressure.some_10s),
            ("some", "60s", pressure.some_60s),
            ("full", "10s", pressure.full_10s),
        ]
    });
    let pressure = pressure.into_iter().flatten().map(|(kind, window, percent)| {
        (vec![kind.to_string(), window.to_string()], Value::Level(percent / 100.0))
    });
    write(to, "memory_pressure_ratio", pressure)?;
    for (event, count) in &machine.counters {
        if event.starts_with("thp_") || event.starts_with("compact_") {
            write(to, &format!("{event}_total"), one(Value::Count(*count)))?;
        }
    }
    let collapsed = machine.thp.as_ref().and_then(|thp| thp.khugepaged).map(|own| own.pages_collapsed);
    let count = |count: Option<u64>| count.map(|count| (Vec::new(), Value::Count(count)));
    write(to, "khugepaged_collapsed_pages_total", count(collapsed))?;
    write(to, "khugepaged_full_scans_total", count(full_scans))?;
    let nodes = machine.nodes.iter();
    let fragmentation = nodes
        .clone()
        .filter_map(|node| Some((label(&node.node.to_string()), Value::Level(node.fragmentation?))));
    write(to, "node_fragmentation_ratio", fragmentation)?;
    let available =
        nodes.map(|node| (label(&node.node.to_string()), Value::Level(node.huge_available as f64)));
    write(to, "node_huge_pages_available", available)?;
    let pages = pools.iter().map(|pool| {
        (
            vec![pool.size.clone(), pool.node.to_string(), pool.state.to_string()],
            Value::Level(pool.pages as f64),
        )
    });
    write(to, "hugetlb_pages", pages)?;
    let reserved = machine.pools.iter();
    let reserved =
        reserved.map(|pool| (label(&pool.page_size.to_string()), Value::Level(pool.reserved as f64)));
    write(to, "hugetlb_reserved_pages", reserved)?;
    Ok(Ok(()))
}

/// Number of a pool's pages on a node that are in one state.
struct PoolPages {
    size: String,
    node: u32,
    state: &'static str,
    pages: u64,
}

fn pools(root: &KernelRoot) -> Result<Vec<PoolPages>, KernelError> {
    let mut scopes: Vec<(u32, PoolScope)> =
        hugetlb::nodes(root)?.into_iter().map(|node| (node, PoolScope::Node(node))).collect();
    if scopes.is_empty() {
        // Without NUMA the machine is its only node.
        scopes.push((0, PoolScope::Machine));
    }
    let mut pools = Vec::new();
    for size in hugetlb::page_sizes(root)? {
        for (node, scope) in &scopes {
            let counts = match hugetlb::counts(root, size, *scope) {
                // A node without memory has no pools; a node can also be taken away meanwhile.
                Err(error) if error.is_gone() => continue,
                counts => counts?,
            };
            let states = [("total", counts.total), ("free", counts.free), ("surplus", counts.surplus)];
            pools.extend(states.map(|(state, pages)| PoolPages {
                size: size.to_string(),
                node: *node,
                state,
                pages,
            }));
        }
    }
    Ok(pools)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
