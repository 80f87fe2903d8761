//! Text of all metrics at this moment.

use super::table::{KernelSeen, METRICS, Source};
use super::value::{Rows, write};
use super::{Known, Telemetry};
use crate::shared::Shared;
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
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let shared = &self.0;
        {
            let telemetry = shared.telemetry();
            let heaviest = telemetry.heaviest();
            write_all(&mut to, |source| telemetry.rows(source, &heaviest))?;
        }
        write_all(&mut to, |source| match source {
            Source::Daemon(read) => Some(read(shared)),
            _ => None,
        })?;
        // Read without the lock: a scrape does not keep the loop waiting.
        match KernelSeen::read(&shared.root) {
            Ok(seen) => write_all(&mut to, |source| match source {
                Source::Kernel(read) => Some(read(&seen)),
                _ => None,
            }),
            Err(error) => {
                shared.read_errors.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%error, "kernel metrics are left out of a scrape");
                Ok(())
            }
        }
    }
}

/// Writes the metrics for which `rows` returns rows.
fn write_all<'a>(to: &mut DescriptorEncoder<'_>, rows: impl Fn(Source) -> Option<Rows<'a>>) -> fmt::Result {
    METRICS.iter().try_for_each(|metric| write(to, metric, rows(metric.source).unwrap_or_default()))
}

impl Telemetry {
    /// Returns the rows of a metric of the passes. `processes` are the processes that get rows.
    fn rows<'a>(&'a self, source: Source, processes: &[&'a Known]) -> Option<Rows<'a>> {
        Some(match source {
            Source::Passes(read) => read(self),
            Source::Last(read) => read(self.last.as_ref()?),
            Source::Executor(read) => read(self.executor.as_ref()?),
            Source::Process(read) => {
                let whose = |known: &Known| [known.status.pid.to_string(), known.status.name.clone()];
                let rows = processes.iter().filter_map(|known| Some((known, read(known)?)));
                rows.map(|(known, row)| (whose(known).into_iter().chain(row.0).collect(), row.1)).collect()
            }
            Source::Daemon(_) | Source::Kernel(_) => return None,
        })
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
