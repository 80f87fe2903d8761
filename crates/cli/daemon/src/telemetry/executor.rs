//! Counts of the executor, as metrics. They are separate from the loop's counts of decisions, so
//! that the two can be compared.

use super::value::{Labels, Value, label, one, write};
use megapage_act::execute::Counters;
use megapage_act::execute::counters::{BOUNDS, ERRORS, Histogram, Kind, OBTAINED};
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;

/// Writes all of them. Those of an action exist from the start, so that the first failure is an
/// increase.
pub(super) fn write_all(to: &mut DescriptorEncoder<'_>, counters: &Counters) -> fmt::Result {
    let kinds = counters.kinds();
    let each = |of: fn(&Kind) -> u64| {
        kinds.iter().map(move |(action, kind)| (label(action), Value::Count(of(kind)))).collect::<Vec<_>>()
    };
    let results = OBTAINED.map(|(_, name)| name);
    let left = |kind: &Kind| [kind.left.budget, kind.left.time, kind.left.pause];
    let pauses = counters.pauses().into_iter().map(|(why, times)| (label(why), Value::Count(times)));
    write(to, "executor_asked_total", each(|kind| kind.asked))?;
    write(to, "executor_results_total", by(&kinds, results, |kind| kind.obtained))?;
    write(to, "executor_refusals_total", by(&kinds, ERRORS, |kind| kind.refused))?;
    write(to, "executor_shared_total", each(|kind| kind.shared))?;
    write(to, "executor_retried_total", each(|kind| kind.retried))?;
    write(to, "executor_dropped_total", each(Kind::dropped))?;
    write(to, "executor_left_total", by(&kinds, ["budget", "time", "pause"], left))?;
    write(to, "executor_pauses_total", pauses)?;
    write(to, "executor_promoted_bytes_total", each(|kind| kind.promoted_bytes))?;
    write(to, "executor_freed_bytes_total", each(|kind| kind.freed_bytes))?;
    write(to, "executor_call_seconds", one(spread(&counters.calls)))?;
    write(to, "executor_held_seconds", one(spread(&counters.held)))?;
    write(to, "executor_forgotten_total", one(Value::Count(counters.forgotten)))
}

/// Returns one row for each action and each of `names`.
fn by<const N: usize>(
    kinds: &[(&str, &Kind)],
    names: [&'static str; N],
    of: impl Fn(&Kind) -> [u64; N],
) -> Vec<(Labels, Value<'static>)> {
    let rows = kinds.iter().flat_map(|(action, kind)| {
        let counts = names.into_iter().zip(of(kind));
        counts.map(|(name, count)| (vec![action.to_string(), name.to_string()], Value::Count(count)))
    });
    rows.collect()
}

fn spread(times: &Histogram) -> Value<'static> {
    let bounds = BOUNDS.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
    Value::Buckets(bounds.zip(times.counts).collect(), times.sum_ns as f64 / 1e9)
}
