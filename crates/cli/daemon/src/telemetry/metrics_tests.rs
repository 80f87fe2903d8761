//! Tests of the metrics' text, read as strictly as the formats say.

use super::*;
use crate::telemetry::table::{Metric, PREFIX};
use crate::telemetry::tests::{pass, promoted, refused, telemetry};
use megapage_act::execute::Counters;
use megapage_act::execute::counters::ERRORS;
use megapage_kernel::KernelRoot;
use megapage_snapshot::{CostSource, Sampling, TrackerKind, TranslationCost};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// Returns a state with a value for every metric: two policies, processes, a captured machine.
fn shared(tree: &str) -> Arc<Shared> {
    let mut telemetry = telemetry(2, 10);
    let mut first = pass(1, &[(5, "quo\"te\\\nnew"), (6, "b"), (7, "c")]);
    first.done = vec![promoted(5, 1), refused(6, 2)];
    first.backed_off = 2;
    let snapshot = Arc::make_mut(&mut first.snapshot);
    snapshot.processes[0].translation =
        Some(TranslationCost { share: 0.25, low: 0.2, high: 0.3, source: CostSource::Measured });
    snapshot.sampling = Some(Sampling {
        tracker: TrackerKind::Bpf,
        lacks: Vec::new(),
        skipped: Vec::new(),
        first_access_ns: 400.0,
        budget: 0.01,
    });
    let mut counted = Counters::default();
    (counted.promote.retried, counted.promote.left.time) = (3, 2);
    counted.promote.refused[ERRORS.iter().position(|error| *error == "EAGAIN").unwrap()] = 2;
    counted.pauses.slow = 5;
    // Binary fractions (61 and 244 us) make the sum exact.
    [1.0, 1.0, 1.0, 4.0].iter().for_each(|part| counted.calls.observe(part / f64::from(1 << 14)));
    first.executor = Some(counted);
    first.costs = Some(CostSource::Estimated);
    telemetry.note(&first, Duration::from_secs(2));
    // The other policy: sums of both are reported.
    let mut second = first.clone();
    second.policy = "ingens";
    telemetry.note(&second, Duration::from_secs(3));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures").join(tree);
    let shared = Shared::new(KernelRoot::captured(root), telemetry);
    shared.answered(200);
    Arc::new(shared)
}

/// Samples by full name, each with its labels as written and its value; families with their type.
struct Text {
    types: BTreeMap<String, String>,
    samples: Vec<(String, String, f64)>,
}

/// Reads a text. Panics on faults that the formats forbid: a sample without its family's lines
/// before it, a family in two places, two equal samples, an invalid name or label, no number as
/// value.
fn read(text: &str, counters_end_in_total: bool) -> Text {
    let (mut types, mut samples, mut alike) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
    let mut current = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty() && !types.contains_key(name), "{line}");
            current = name.to_string();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, current, "HELP and TYPE belong together");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            types.insert(name.to_string(), kind.to_string());
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{line}");
            assert!(labels.ends_with('}'), "{line}");
            let kind = &types[&current];
            let suffixes: &[&str] = match kind.as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                "counter" if counters_end_in_total => &["_total"],
                _ => &[""],
            };
            assert!(
                suffixes.iter().any(|suffix| name.strip_suffix(suffix) == Some(&current)),
                "{name} is not of {current}, a {kind}"
            );
            assert!(alike.insert(series.to_string()), "twice: {series}");
            samples.push((name.to_string(), labels.to_string(), value.parse().unwrap()));
        }
    }
    Text { types, samples }
}

/// Returns true if `name` matches `pattern` in the table.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once("EVENT") {
        Some((before, after)) => name
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            .is_some_and(|event| !event.is_empty()),
        None => pattern == name,
    }
}

/// Returns the metric in the table for a `name` in the classic text.
fn of_table(name: &str) -> Option<&'static Metric> {
    let name = name.strip_prefix(PREFIX)?;
    METRICS.iter().find(|metric| matches(metric.name, name))
}

#[test]
fn every_metric_is_reported_and_none_that_is_not_in_the_table() {
    let open = openmetrics(&shared("linux-6.18-one-node"));
    assert!(open.ends_with("\n# EOF\n"));
    let classic = read(&classic(&open), false);
    let reported: BTreeSet<&str> = classic
        .types
        .iter()
        .map(|(name, kind)| {
            let metric = of_table(name).unwrap_or_else(|| panic!("{name} is not in the table"));
            assert_eq!(metric.kind(), kind, "{name}");
            metric.name
        })
        .collect();
    let table: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(reported, table);
    assert_eq!(table.len(), METRICS.len(), "no name twice");
    for metric in METRICS {
        assert!(!metric.help.is_empty() && !metric.help.ends_with('.'), "{}", metric.name);
    }
    // Both texts have the same samples.
    let open = read(&open, true);
    assert_eq!(open.samples, classic.samples);
    let value = |name: &str, labels: &str| {
        let found = open.samples.iter().find(|one| one.0 == name && one.1.contains(labels));
        found.unwrap_or_else(|| panic!("no {name} {labels}")).2
    };
    assert_eq!(value("megapage_actions_total", "policy=\"ingens\",action=\"promote\",result=\"done\""), 1.0);
    assert_eq!(value("megapage_action_seconds_bucket", "le=\"0.015\",action=\"recover\""), 0.0);
    assert_eq!(value("megapage_action_seconds_bucket", "le=\"+Inf\",action=\"recover\""), 2.0);
    assert_eq!(value("megapage_translation_info", "source=\"estimated\""), 1.0);
    for (name, labels, expected) in [
        ("refusals_total", "action=\"promote\",errno=\"EAGAIN\"", 2.0),
        ("refusals_total", "action=\"recover\",errno=\"ENOMEM\"", 0.0),
        ("retried_total", "action=\"promote\"", 3.0),
        ("left_total", "action=\"promote\",why=\"time\"", 2.0),
        ("pauses_total", "why=\"slow\"", 5.0),
        ("call_seconds_bucket", "le=\"0.0001\"", 3.0),
        ("call_seconds_bucket", "le=\"0.00025\"", 4.0),
        ("call_seconds_count", "", 4.0),
        ("call_seconds_sum", "", 7.0 / f64::from(1 << 14)),
    ] {
        assert_eq!(value(&format!("megapage_executor_{name}"), labels), expected, "{name}{{{labels}}}");
    }
    assert!(!open.samples.iter().any(|one| one.1.contains("action=\"pre-zero\"")), "it was not requested");
    assert_eq!(value("megapage_pass_seconds_count", "part=\"act\""), 2.0);
    assert_eq!(value("megapage_memory_pressure_ratio", "kind=\"some\",window=\"10s\""), 0.125);
    // Control characters are replaced; a quote and a backslash are escaped.
    assert_eq!(value("megapage_process_translation_ratio", r#"pid="5",name="quo\"te\\?new""#), 0.25);
    let shown = open.samples.iter().filter(|one| one.0 == "megapage_process_huge_bytes").count();
    assert_eq!(shown, 2, "bounded by the configuration");
}

#[test]
fn labels_are_those_of_the_table() {
    let text = read(&classic(&openmetrics(&shared("two-nodes-by-hand"))), false);
    for (name, labels, _) in &text.samples {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        let metric = of_table(name).or_else(|| of_table(family?)).unwrap();
        let mut names = Vec::new();
        let mut rest = labels.trim_end_matches('}');
        while let Some((name, after)) = rest.split_once("=\"") {
            names.push(name.trim_start_matches(','));
            let mut escaped = false;
            let end = after.find(|c| {
                c == '"' && !escaped || {
                    escaped = c == '\\' && !escaped;
                    false
                }
            });
            rest = &after[end.unwrap() + 1..];
        }
        names.retain(|name| *name != "le");
        assert_eq!(names, metric.labels, "{name}{{{labels}");
    }
    let pools = text.samples.iter().filter(|one| one.0 == "megapage_hugetlb_pages");
    let nodes: BTreeSet<&str> = pools.filter_map(|one| one.1.split("node=\"").nth(1)?.get(..1)).collect();
    assert_eq!(nodes.len(), 2, "{nodes:?}");
}

#[test]
fn a_kernel_that_cannot_be_read_leaves_out_its_part() {
    let directory = tempfile::tempdir().unwrap();
    let shared = Arc::new(Shared::new(KernelRoot::captured(directory.path()), telemetry(2, 2)));
    openmetrics(&shared);
    let text = read(&openmetrics(&shared), true);
    let errors = text.samples.iter().find(|one| one.0 == "megapage_kernel_read_errors_total").unwrap();
    assert_eq!(errors.2, 1.0, "reported by the next scrape");
    assert!(!text.types.keys().any(|name| name.starts_with("megapage_thp_")));
    assert!(
        !text.types.contains_key("megapage_huge_bytes"),
        "nothing is reported of passes before the first"
    );
}

#[test]
fn this_machine_is_reported() {
    let shared = Arc::new(Shared::new(KernelRoot::live(), telemetry(2, 2)));
    let text = read(&classic(&openmetrics(&shared)), false);
    assert!(text.types.contains_key("megapage_daemon_resident_bytes"));
    assert!(text.types.contains_key("megapage_node_huge_pages_available"));
}
