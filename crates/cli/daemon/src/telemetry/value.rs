//! One metric with its rows, as the encoder takes it.

use super::table::{Metric, PREFIX};
use megapage_act::execute::Histogram;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::fmt;

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Count(u64),
    Seconds(f64),
    Level(f64),
    Spread(&'a Histogram),
}

/// Labels, in the order of the metric's table entry.
pub(super) type Labels = Vec<String>;
/// Labels and their value.
pub(super) type Row<'a> = (Labels, Value<'a>);
/// Rows of a metric.
pub(super) type Rows<'a> = Vec<Row<'a>>;

/// Writes a metric if it has rows. Writes a metric of events as one metric for each event.
pub(super) fn write(to: &mut DescriptorEncoder<'_>, metric: &Metric, rows: Rows<'_>) -> fmt::Result {
    match metric.name.split_once("EVENT") {
        None => write_named(to, metric, metric.name, rows),
        Some((_, after)) => rows.into_iter().try_for_each(|(event, value)| {
            write_named(to, metric, &(event.concat() + after), vec![(Labels::new(), value)])
        }),
    }
}

fn write_named(to: &mut DescriptorEncoder<'_>, metric: &Metric, name: &str, rows: Rows<'_>) -> fmt::Result {
    let Some((_, first)) = rows.first() else { return Ok(()) };
    let kind = match first {
        Value::Count(_) | Value::Seconds(_) => MetricType::Counter,
        Value::Level(_) => MetricType::Gauge,
        Value::Spread(_) => MetricType::Histogram,
    };
    let name = format!("{PREFIX}{}", name.strip_suffix("_total").unwrap_or(name));
    let mut family = to.encode_descriptor(&name, metric.help, None, kind)?;
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
    }
}

/// Returns one row without labels.
pub(super) fn one(value: Value<'_>) -> Rows<'_> {
    vec![(Labels::new(), value)]
}

/// Returns one row with labels and the level 1.
pub(super) fn info(labels: &[&str]) -> Rows<'static> {
    vec![(labels.iter().map(ToString::to_string).collect(), Value::Level(1.0))]
}

/// Returns one row for each label.
pub(super) fn by<'a, L: ToString, T>(
    rows: impl IntoIterator<Item = (L, T)>,
    value: impl Fn(T) -> Value<'a>,
) -> Rows<'a> {
    rows.into_iter().map(|(label, it)| (vec![label.to_string()], value(it))).collect()
}

/// Returns a row without labels, of a count.
pub(super) fn count(count: u64) -> Option<Row<'static>> {
    Some((Labels::new(), Value::Count(count)))
}

/// Returns a row without labels, of a level.
pub(super) fn level(level: u64) -> Option<Row<'static>> {
    Some((Labels::new(), Value::Level(level as f64)))
}
