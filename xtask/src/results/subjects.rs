//! The ten lines: what each subject compares, by the values that its reports hold.

use super::compare::{Comparison, Spread, Standing};
use super::{Results, text};
use serde_json::Value;

/// A line.
pub(super) struct Subject {
    name: &'static str,
    compare: fn(&Results) -> Vec<Comparison>,
}

/// In the order of the table.
pub(super) const SUBJECTS: [Subject; 10] = [
    Subject { name: "Random access, allocation, search", compare: access },
    Subject { name: "Nothing to gain: work, start", compare: idle },
    Subject { name: "Real programs, processor time", compare: programs },
    Subject { name: "Daemon: time until huge", compare: promote },
    Subject { name: "Daemon: memory near a limit", compare: bloat },
    Subject { name: "Daemon: programs that compete", compare: fair },
    Subject { name: "Daemon: its own cost", compare: cost },
    Subject { name: "First touch, restart, segments", compare: kept },
    Subject { name: "Children of large processes", compare: children },
    Subject { name: "Code on huge pages", compare: code },
];

impl Subject {
    /// The row of the table.
    pub(super) fn row(&self, results: &Results) -> String {
        let compared = (self.compare)(results);
        let cell = |standing: Standing| {
            let texts: Vec<String> =
                compared.iter().filter(|one| one.standing() == standing).map(Comparison::text).collect();
            if texts.is_empty() { "-".to_string() } else { texts.join("; ") }
        };
        let [leads, level, loses] = [Standing::Leads, Standing::Level, Standing::Loses].map(cell);
        format!("| {} | {leads} | {level} | {loses} |\n", self.name)
    }
}

fn list<'a>(results: &'a Results, name: &str, path: &str) -> Vec<&'a Value> {
    let found = results.get(name).and_then(|report| report.pointer(path)).and_then(Value::as_array);
    found.into_iter().flatten().collect()
}

fn spread(value: &Value, path: &str) -> Option<Spread> {
    Spread::of(value.pointer(path)?)
}

fn row<'a>(rows: &[&'a Value], key: &str, name: &str) -> Option<&'a Value> {
    rows.iter().find(|row| text(row, key) == name).copied()
}

/// Of the rows that `counts` the one with the least value at `path`, by its `key`.
fn least<'a>(
    rows: &[&'a Value],
    key: &str,
    counts: impl Fn(&str) -> bool,
    value: impl Fn(&Value) -> Option<Spread>,
) -> Option<(&'a str, Spread)> {
    let values = rows.iter().filter(|row| counts(text(row, key)));
    let values = values.filter_map(|row| Some((text(row, key), value(row)?)));
    values.min_by(|(_, one), (_, other)| one.median.total_cmp(&other.median))
}

fn against(what: String, ours: Option<Spread>, theirs: Option<(&str, Spread)>) -> Option<Comparison> {
    let (name, theirs) = theirs?;
    Some(Comparison { what, against: name.into(), ours: ours?, theirs })
}

/// A phase of a bench of allocators, against the best that is not megapage's.
fn allocators(results: &Results, bench: &str, phases: &[&str]) -> Vec<Comparison> {
    let mut compared = Vec::new();
    for case in list(results, bench, "/cases") {
        let rows: Vec<&Value> = case["rows"].as_array().into_iter().flatten().collect();
        for phase in phases {
            let value = |row: &Value| spread(row, &format!("/phases_ns/{phase}"));
            let ours = row(&rows, "peer", "megapage").and_then(value);
            let what = match text(case, "case") {
                name if name == bench => format!("{bench} {phase}"),
                name => format!("{name} {phase}"),
            };
            compared.extend(against(
                what,
                ours,
                least(&rows, "peer", |peer| !peer.starts_with("megapage"), value),
            ));
        }
    }
    compared
}

fn access(results: &Results) -> Vec<Comparison> {
    let mut compared = allocators(results, "access", &["allocate", "access"]);
    compared.extend(allocators(results, "retrieval", &["access"]));
    compared
}

fn idle(results: &Results) -> Vec<Comparison> {
    let mut compared = allocators(results, "idle", &["process"]);
    for case in list(results, "startup", "/cases") {
        let rows: Vec<&Value> = case["rows"].as_array().into_iter().flatten().collect();
        for peer in ["megapage-library", "megapage"] {
            let value = |row: &Value| spread(row, "/phases_ns/process");
            let ours = row(&rows, "peer", peer).and_then(value);
            compared.extend(against(
                format!("start by {peer}"),
                ours,
                least(&rows, "peer", |peer| peer == "glibc", value),
            ));
        }
    }
    for case in list(results, "release", "/cases") {
        let rows: Vec<&Value> = case["rows"].as_array().into_iter().flatten().collect();
        let value = |row: &Value| spread(row, "/figures/after_bytes");
        let ours = row(&rows, "peer", "megapage").and_then(value);
        let what = format!("resident after free, {}", text(case, "case"));
        compared.extend(against(
            what,
            ours,
            least(&rows, "peer", |peer| !peer.starts_with("megapage"), value),
        ));
    }
    compared
}

/// Processor time of the whole run of each program. Against plain, the geometric mean over all; against each other way, too: the
/// mean of the ratios where both ran.
fn programs(results: &Results) -> Vec<Comparison> {
    let runs = list(results, "programs", "/runs");
    let of = |case: &str, way: &str| {
        let runs = runs.iter().filter(|run| text(run, "case") == case && text(run, "way") == way);
        let ended = runs.filter(|run| run["failed"].is_null());
        Spread::over(ended.filter_map(|run| run.pointer("/whole/cpu")?.as_f64()))
    };
    let cases: Vec<&str> =
        list(results, "programs", "/cases").into_iter().map(|case| text(case, "name")).collect();
    let mut compared = Vec::new();
    for way in list(results, "programs", "/ways") {
        let way = text(way, "name");
        if OWN_WAYS.contains(&way) {
            continue;
        }
        let ratios = cases.iter().filter_map(|case| Some(of(case, "ours")?.median / of(case, way)?.median));
        let ratios: Vec<f64> = ratios.collect();
        let what = format!("geometric mean of {}", ratios.len());
        let one = Spread::over([1.0]).map(|one| (way, one));
        compared.extend(against(what, geometric_mean(&ratios), one));
    }
    // The single programs in which another way is ahead of ours, beyond what their rounds differ by.
    for case in cases {
        let others = list(results, "programs", "/ways").into_iter().map(|way| text(way, "name"));
        let others = others.filter(|way| !OWN_WAYS.contains(way));
        let best = others.filter_map(|way| Some((way, of(case, way)?)));
        let best = best.min_by(|(_, one), (_, other)| one.median.total_cmp(&other.median));
        let one = against(case.into(), of(case, "ours"), best);
        compared.extend(one.filter(|one| one.standing() == Standing::Loses));
    }
    compared
}

/// Ways of the bench of programs that are megapage's.
const OWN_WAYS: [&str; 3] = ["ours", "learned", "other"];

/// `None` of none.
fn geometric_mean(ratios: &[f64]) -> Option<Spread> {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    Spread::over((!ratios.is_empty()).then(|| (sum / ratios.len() as f64).exp()))
}

fn promote(results: &Results) -> Vec<Comparison> {
    let rows = list(results, "promote", "/promote/rows");
    let mut compared = Vec::new();
    for (what, path) in [("time", "/huge_seconds"), ("processor time", "/cpu_seconds")] {
        let value = |row: &Value| spread(row, path);
        let ours = row(&rows, "configuration", "megapage").and_then(value);
        for counts in [|name: &str| name.starts_with("thp-hard"), |name: &str| name == "thp-always"] {
            compared.extend(against(what.into(), ours, least(&rows, "configuration", counts, value)));
        }
    }
    compared
}

fn bloat(results: &Results) -> Vec<Comparison> {
    let rows = list(results, "bloat", "/bloat/rows");
    let mut compared = Vec::new();
    for name in ["megapage", "megapage-always"] {
        let Some(ours) = row(&rows, "configuration", name) else { continue };
        let one = Spread::over([1.0]);
        let memory = spread(ours, "/rss_end_of_never");
        compared.extend(against(format!("{name}: memory"), memory, one.map(|one| ("base pages'", one))));
        let time = spread(ours, "/throughput_of_always").map(Spread::inverse);
        let best = least(
            &rows,
            "configuration",
            |name| name.starts_with("thp-"),
            |row| {
                // Of what does not complete no time counts.
                let completes = row["completed"].as_u64() == Some(row["samples"].as_array()?.len() as u64);
                spread(row, "/throughput_of_always").map(Spread::inverse).filter(|_| completes)
            },
        );
        compared.extend(against(format!("{name}: time for a command"), time, best));
    }
    compared
}

fn fair(results: &Results) -> Vec<Comparison> {
    let rows: Vec<&Value> = list(results, "fair", "/fair/rows")
        .into_iter()
        .filter(|row| row["warmed"].as_bool() == Some(true))
        .collect();
    let mut compared = Vec::new();
    for (what, path) in [("those that gain", "/sensitive_ratio"), ("the others", "/insensitive_ratio")] {
        let value = |row: &Value| spread(row, path);
        let ours = row(&rows, "configuration", "megapage").and_then(value);
        compared.extend(against(
            what.into(),
            ours,
            least(&rows, "configuration", |name| name.starts_with("thp-"), value),
        ));
    }
    compared
}

/// Against what is demanded of it: no peer has such a cost, and the kernel's is in the other lines.
fn cost(results: &Results) -> Vec<Comparison> {
    let rows = list(results, "cost", "/cost/rows");
    let demand = Spread::over([0.01]).map(|demand| ("1 % of a processor", demand));
    let of = |name: &str| {
        let ours = row(&rows, "configuration", name)?;
        against(format!("{name} at rest"), spread(ours, "/own_share"), demand)
    };
    ["megapage", "megapage-always"].into_iter().filter_map(of).collect()
}

fn kept(results: &Results) -> Vec<Comparison> {
    let mut compared = Vec::new();
    let sources = list(results, "fault", "/sources");
    for (what, name, peer, path) in [
        ("a page of the broker", "broker", "thp", "/touch_ns/p50"),
        ("a page of the broker", "broker", "hugetlb", "/touch_ns/p50"),
        ("a heap from the broker", "run-pool", "run-thp", "/whole_ns"),
    ] {
        let value = |row: &Value| spread(row, path);
        let ours = row(&sources, "source", name).and_then(value);
        compared.extend(against(
            what.into(),
            ours,
            least(&sources, "source", |source| source == peer, value),
        ));
    }
    let starts = list(results, "restart", "/restart/starts");
    let size = results.get("restart").and_then(|report| report.pointer("/restart/size_bytes"));
    for layout in ["single file", "file per page"] {
        let seconds: Vec<&Value> = starts
            .iter()
            .filter(|row| {
                text(row, "start") == "second"
                    && text(row, "layout") == layout
                    && row.get("size_bytes") == size
            })
            .copied()
            .collect();
        let value = |row: &Value| spread(row, "/wall_ms");
        let ours = row(&seconds, "side", "megapage").and_then(value);
        compared.extend(against(
            format!("second start, {layout}"),
            ours,
            least(&seconds, "side", |side| side == "dpdk", value),
        ));
    }
    // Time to allocate, write and free a block, over all sizes and modes.
    let whole = |row: &Value, side: &str| -> Option<f64> {
        let cost = row.get(side)?;
        ["allocate_us", "free_us", "memset_us"].into_iter().map(|name| cost.get(name)?.as_f64()).sum()
    };
    let rows = list(results, "malloc", "/malloc/rows");
    let ratios = rows.iter().filter_map(|row| Some(whole(row, "megapage")? / whole(row, "dpdk")?));
    let ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_finite()).collect();
    let what = "a block of a segment, allocated, written and freed,".to_string();
    compared.extend(against(what, geometric_mean(&ratios), Spread::over([1.0]).map(|one| ("dpdk", one))));
    compared
}

fn children(results: &Results) -> Vec<Comparison> {
    let mut compared = Vec::new();
    let rows = list(results, "fork", "/native");
    if let Some(largest) = rows.iter().filter_map(|row| row["heap_bytes"].as_u64()).max() {
        let rows: Vec<&Value> =
            rows.into_iter().filter(|row| row["heap_bytes"].as_u64() == Some(largest)).collect();
        let value = |row: &Value| spread(row, "/whole/fork/median_ns");
        let ours = row(&rows, "pages", "hugetlb-private").and_then(value);
        for peer in ["base", "thp"] {
            let what = format!("fork and exec, {} MiB on a pool,", largest >> 20);
            compared.extend(against(what, ours, least(&rows, "pages", |pages| pages == peer, value)));
        }
    }
    let rows = list(results, "snapshot", "/rows");
    let value = |row: &Value| {
        let samples = row["samples"].as_array()?;
        Spread::over(samples.iter().filter_map(|sample| sample.pointer("/during/p999_ns")?.as_f64()))
    };
    let ours = row(&rows, "configuration", "run-snapshot").and_then(value);
    for peer in ["base", "thp"] {
        let theirs = least(&rows, "configuration", |name| name == peer, value);
        compared.extend(against("p99.9 of Redis while it saves".into(), ours, theirs));
    }
    compared
}

/// Gains are times as fast, so that the inverse is compared; of each program the best way of megapage's.
fn code(results: &Results) -> Vec<Comparison> {
    let mut compared = Vec::new();
    let rows = list(results, "text-generated", "/rows");
    for hot in ["4096", "8192"] {
        let value = |row: &Value| {
            let gain = row.pointer(&format!("/gains/{hot}"))?;
            Spread::over(["low", "median", "high"].into_iter().filter_map(|name| gain.get(name)?.as_f64()))
                .map(Spread::inverse)
        };
        let ours =
            least(&rows, "way", |way| ["file", "thp", "2m"].contains(&way), value).map(|(_, ours)| ours);
        for peer in ["none", "libhugetlbfs", "glibc"] {
            let theirs = least(&rows, "way", |way| way == peer, value);
            let theirs =
                theirs.map(|(name, theirs)| (if name == "none" { "base pages" } else { name }, theirs));
            compared.extend(against(format!("{hot} hot pages of code"), ours, theirs));
        }
    }
    let findings = list(results, "text", "/findings");
    let mut cases: Vec<&str> = findings.iter().map(|finding| text(finding, "case")).collect();
    cases.dedup();
    for case in cases {
        let of: Vec<&Value> =
            findings.iter().filter(|finding| text(finding, "case") == case).copied().collect();
        let value = |finding: &Value| {
            let gain = finding.get("to_none")?;
            Spread::over(["low", "median", "high"].into_iter().filter_map(|name| gain.get(name)?.as_f64()))
                .map(Spread::inverse)
        };
        let ours = least(&of, "way", |way| ["file", "thp", "2m"].contains(&way), value).map(|(_, ours)| ours);
        compared.extend(against(case.into(), ours, Spread::over([1.0]).map(|one| ("base pages", one))));
    }
    compared
}
