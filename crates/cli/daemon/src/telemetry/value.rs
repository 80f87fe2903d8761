//! One metric with its rows, as the encoder takes it.

use super::table::{METRICS, PREFIX};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::fmt;

/// A value.
pub(super) enum Value<'a> {
    Count(u64),
    Seconds(f64),
    Level(f64),
    Spread(&'a super::histogram::Histogram),
    /// Counts by bounds in seconds, not added up, and the sum of the counted values.
    Buckets(Vec<(f64, u64)>, f64),
}

/// Labels, in the order of the metric's table entry.
pub(super) type Labels = Vec<String>;

/// Writes a metric, unless there is nothing to report.
pub(super) fn write<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    rows: impl IntoIterator<Item = (Labels, Value<'a>)>,
) -> fmt::Result {
    let metric = METRICS.iter().find(|metric| matches(metric.name, name)).ok_or(fmt::Error)?;
    let mut rows = rows.into_iter().peekable();
    let Some((_, first)) = rows.peek() else { return Ok(()) };
    let kind = match first {
        Value::Count(_) | Value::Seconds(_) => MetricType::Counter,
        Value::Level(_) => MetricType::Gauge,
        Value::Spread(_) | Value::Buckets(..) => MetricType::Histogram,
    };
    let name = format!("{PREFIX}{}", name.strip_suffix("_total").unwrap_or(name));
    let mut family = encoder.encode_descriptor(&name, metric.help, None, kind)?;
    for (labels, value) in rows {
        let labels: Vec<(&str, String)> = metric.labels.iter().copied().zip(labels).collect();
        match labels.is_empty() {
            true => put(&mut family, &value)?,
            false => put(&mut family.encode_family(&labels)?, &value)?,
        }
    }
    Ok(())
}

fn put(to: &mut MetricEncoder<'_>, value: &Value<'_>) -> fmt::Result {
    match value {
        Value::Count(count) => to.encode_counter::<NoLabelSet, u64, u64>(count, None),
        Value::Seconds(seconds) => to.encode_counter::<NoLabelSet, f64, f64>(seconds, None),
        Value::Level(level) => to.encode_gauge(level),
        Value::Spread(spread) => {
            to.encode_histogram::<NoLabelSet>(spread.sum(), spread.count(), &spread.buckets(), None)
        }
        Value::Buckets(buckets, sum) => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            to.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
    }
}

/// Returns true if `name` matches `pattern` in the table.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once("EVENT") {
        Some((before, after)) => name
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            .is_some_and(|event| !event.is_empty()),
        None => pattern == name,
    }
}

pub(super) fn one(value: Value<'_>) -> [(Labels, Value<'_>); 1] {
    [(Vec::new(), value)]
}

pub(super) fn label(value: &str) -> Labels {
    vec![value.to_string()]
}
