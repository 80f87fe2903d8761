//! The ten lines: the comparison of each subject, by the values in its reports.

use super::compare::{Comparison, Standing, inverse, spread_of};
use super::{Results, text};
use megapage_bench::statistics::Spread;
use serde_json::Value;

/// A line.
pub(super) struct Subject {
    name: &'static str,
    compare: fn(&Results) -> Vec<Comparison>,
}

/// The subjects in the order of the table.
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
    /// Renders the row of the table.
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

/// Rows of a report, and the key of their names.
struct Rows<'a>(&'static str, Vec<&'a Value>);

impl<'a> Rows<'a> {
    fn of(results: &'a Results, report: &str, path: &str, key: &'static str) -> Rows<'a> {
        Rows(key, list(results, report, path))
    }

    /// Returns the rows of a case of a bench of allocators, by peer.
    fn of_case(case: &'a Value) -> Rows<'a> {
        Rows("peer", case["rows"].as_array().into_iter().flatten().collect())
    }

    fn only(mut self, counts: impl Fn(&Value) -> bool) -> Rows<'a> {
        self.1.retain(|row| counts(row));
        self
    }

    /// Returns the name and value of the row with the least value, of those whose name `counts`.
    fn least(
        &self,
        counts: impl Fn(&str) -> bool,
        value: impl Fn(&Value) -> Option<Spread>,
    ) -> Option<(&'a str, Spread)> {
        let named = self.1.iter().map(|row| (text(row, self.0), row)).filter(|(name, _)| counts(name));
        let values = named.filter_map(|(name, row)| Some((name, value(row)?)));
        values.min_by(|(_, one), (_, other)| one.median.total_cmp(&other.median))
    }

    /// Compares the row `ours` with the least of those whose name `counts`.
    fn compare(
        &self,
        what: impl Into<String>,
        ours: &str,
        counts: impl Fn(&str) -> bool,
        value: impl Fn(&Value) -> Option<Spread>,
    ) -> Option<Comparison> {
        let (_, own) = self.least(|name| name == ours, &value)?;
        against(what, Some(own), self.least(counts, value))
    }
}

/// Returns a function that reads the value at a path.
fn at(path: impl AsRef<str>) -> impl Fn(&Value) -> Option<Spread> {
    move |row| spread_of(row.pointer(path.as_ref())?)
}

fn against(
    what: impl Into<String>,
    ours: Option<Spread>,
    theirs: Option<(&str, Spread)>,
) -> Option<Comparison> {
    let (name, theirs) = theirs?;
    Some(Comparison { what: what.into(), against: name.into(), ours: ours?, theirs })
}

/// Compares with 1, or another number, under a name.
fn against_number(
    what: impl Into<String>,
    ours: Option<Spread>,
    name: &str,
    number: f64,
) -> Option<Comparison> {
    against(what, ours, Spread::of([number]).map(|number| (name, number)))
}

fn is_other(peer: &str) -> bool {
    !peer.starts_with("megapage")
}

fn is_kernels(configuration: &str) -> bool {
    configuration.starts_with("thp-")
}

/// Compares a phase of a bench of allocators with the best that is not megapage's.
fn allocators(results: &Results, bench: &str, phases: &[&str]) -> Vec<Comparison> {
    let mut compared = Vec::new();
    for case in list(results, bench, "/cases") {
        for phase in phases {
            let what = format!("{} {phase}", text(case, "case"));
            let value = at(format!("/phases_ns/{phase}"));
            compared.extend(Rows::of_case(case).compare(what, "megapage", is_other, value));
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
        for peer in ["megapage-library", "megapage"] {
            let (what, value) = (format!("start by {peer}"), at("/phases_ns/process"));
            compared.extend(Rows::of_case(case).compare(what, peer, |peer| peer == "glibc", value));
        }
    }
    for case in list(results, "release", "/cases") {
        let what = format!("resident after free, {}", text(case, "case"));
        compared.extend(Rows::of_case(case).compare(what, "megapage", is_other, at("/figures/after_bytes")));
    }
    compared
}

/// Compares the processor time of the whole run of each program. Against plain, it is the geometric
/// mean over all. Against each other way, too, it is the mean of the ratios of programs that both
/// ran.
fn programs(results: &Results) -> Vec<Comparison> {
    let runs = list(results, "programs", "/runs");
    let of = |case: &str, way: &str| {
        let runs = runs.iter().filter(|run| text(run, "case") == case && text(run, "way") == way);
        let ended = runs.filter(|run| run["failed"].is_null());
        Spread::of(ended.filter_map(|run| run.pointer("/whole/cpu")?.as_f64()))
    };
    let names = |path| list(results, "programs", path).into_iter().map(|one| text(one, "name"));
    let cases: Vec<&str> = names("/cases").collect();
    let others: Vec<&str> = names("/ways").filter(|way| !OWN_WAYS.contains(way)).collect();
    let mut compared = Vec::new();
    for way in &others {
        let ratios = cases.iter().filter_map(|case| Some(of(case, "ours")?.median / of(case, way)?.median));
        let ratios: Vec<f64> = ratios.collect();
        let what = format!("geometric mean of {}", ratios.len());
        compared.extend(against_number(what, geometric_mean(&ratios), way, 1.0));
    }
    // The single programs in which another way is ahead of ours, by more than the difference
    // between their rounds.
    for case in cases {
        let best = others.iter().filter_map(|way| Some((*way, of(case, way)?)));
        let best = best.min_by(|(_, one), (_, other)| one.median.total_cmp(&other.median));
        let one = against(case, of(case, "ours"), best);
        compared.extend(one.filter(|one| one.standing() == Standing::Loses));
    }
    compared
}

/// Ways of the bench of programs that are megapage's.
const OWN_WAYS: [&str; 5] = ["ours", "ours-2m", "ours-1g", "learned", "other"];

/// Returns the geometric mean; `None` for none.
fn geometric_mean(ratios: &[f64]) -> Option<Spread> {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    Spread::of((!ratios.is_empty()).then(|| (sum / ratios.len() as f64).exp()))
}

fn promote(results: &Results) -> Vec<Comparison> {
    let rows = Rows::of(results, "promote", "/promote/rows", "configuration");
    let mut compared = Vec::new();
    for (what, path) in [("time", "/huge_seconds"), ("processor time", "/cpu_seconds")] {
        for counts in [|name: &str| name.starts_with("thp-hard"), |name: &str| name == "thp-always"] {
            compared.extend(rows.compare(what, "megapage", counts, at(path)));
        }
    }
    compared
}

fn bloat(results: &Results) -> Vec<Comparison> {
    let rows = Rows::of(results, "bloat", "/bloat/rows", "configuration");
    let time = |row: &Value| at("/throughput_of_always")(row).map(inverse);
    // The time of a configuration that does not complete does not count.
    let completed = |row: &Value| {
        let completes = row["completed"].as_u64() == Some(row["samples"].as_array()?.len() as u64);
        time(row).filter(|_| completes)
    };
    let mut compared = Vec::new();
    for name in ["megapage", "megapage-always"] {
        let Some(ours) = rows.1.iter().find(|row| text(row, rows.0) == name) else { continue };
        let memory = at("/rss_end_of_never")(ours);
        compared.extend(against_number(format!("{name}: memory"), memory, "base pages'", 1.0));
        let best = rows.least(is_kernels, completed);
        compared.extend(against(format!("{name}: time for a command"), time(ours), best));
    }
    compared
}

fn fair(results: &Results) -> Vec<Comparison> {
    let rows = Rows::of(results, "fair", "/fair/rows", "configuration").only(|row| row["warmed"] == true);
    [("those that gain", "/sensitive_ratio"), ("the others", "/insensitive_ratio")]
        .into_iter()
        .filter_map(|(what, path)| rows.compare(what, "megapage", is_kernels, at(path)))
        .collect()
}

/// Compares the cost with its demand: no peer has such a cost, and the kernel's is in the other
/// lines.
fn cost(results: &Results) -> Vec<Comparison> {
    let rows = Rows::of(results, "cost", "/cost/rows", "configuration");
    let of = |name: &str| {
        let (_, ours) = rows.least(|configuration| configuration == name, at("/own_share"))?;
        against_number(format!("{name} at rest"), Some(ours), "1 % of a processor", 0.01)
    };
    ["megapage", "megapage-always"].into_iter().filter_map(of).collect()
}

fn kept(results: &Results) -> Vec<Comparison> {
    let mut compared = Vec::new();
    let sources = Rows::of(results, "fault", "/sources", "source");
    for (what, name, peer, path) in [
        ("a page of the broker", "broker", "thp", "/touch_ns/p50"),
        ("a page of the broker", "broker", "hugetlb", "/touch_ns/p50"),
        ("a heap from the broker", "run-pool", "run-thp", "/whole_ns"),
    ] {
        compared.extend(sources.compare(what, name, |source| source == peer, at(path)));
    }
    let size = results.get("restart").and_then(|report| report.pointer("/restart/size_bytes"));
    for layout in ["single file", "file per page"] {
        let seconds = Rows::of(results, "restart", "/restart/starts", "side").only(|row| {
            text(row, "start") == "second" && text(row, "layout") == layout && row.get("size_bytes") == size
        });
        let what = format!("second start, {layout}");
        compared.extend(seconds.compare(what, "megapage", |side| side == "dpdk", at("/wall_ms")));
    }
    // Time to allocate, write and free a block, over all sizes and modes.
    let whole = |row: &Value, side: &str| -> Option<f64> {
        let cost = row.get(side)?;
        ["allocate_us", "free_us", "memset_us"].into_iter().map(|name| cost.get(name)?.as_f64()).sum()
    };
    let rows = list(results, "malloc", "/malloc/rows");
    let ratios = rows.iter().filter_map(|row| Some(whole(row, "megapage")? / whole(row, "dpdk")?));
    let ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_finite()).collect();
    let what = "a block of a segment, allocated, written and freed,";
    compared.extend(against_number(what, geometric_mean(&ratios), "dpdk", 1.0));
    compared
}

fn children(results: &Results) -> Vec<Comparison> {
    let mut compared = Vec::new();
    let size = |row: &Value| row["heap_bytes"].as_u64();
    let largest = list(results, "fork", "/native").into_iter().filter_map(size).max();
    let heaps = Rows::of(results, "fork", "/native", "pages").only(|row| size(row) == largest);
    let saving = Rows::of(results, "snapshot", "/rows", "configuration");
    let p999 = |row: &Value| {
        let samples = row["samples"].as_array()?;
        Spread::of(samples.iter().filter_map(|sample| sample.pointer("/during/p999_ns")?.as_f64()))
    };
    for peer in ["base", "thp"] {
        let what = format!("fork and exec, {} MiB on a pool,", largest.unwrap_or_default() >> 20);
        let value = at("/whole/fork/median_ns");
        compared.extend(heaps.compare(what, "hugetlb-private", |pages| pages == peer, value));
    }
    for peer in ["base", "thp"] {
        let what = "p99.9 of Redis while it saves";
        compared.extend(saving.compare(what, "run-snapshot", |name| name == peer, p999));
    }
    compared
}

/// Compares the inverse of gains, which are factors of speed; for each program, the best of
/// megapage's ways.
fn code(results: &Results) -> Vec<Comparison> {
    let slower = |row: &Value, path: &str| {
        let gain = row.pointer(path)?;
        let values = ["low", "median", "high"].into_iter().filter_map(|name| gain.get(name)?.as_f64());
        Spread::of(values).map(inverse)
    };
    let is_ours = |way: &str| ["file", "thp", "2m"].contains(&way);
    let mut compared = Vec::new();
    let rows = Rows::of(results, "text-generated", "/rows", "way");
    for hot in ["4096", "8192"] {
        let value = |row: &Value| slower(row, &format!("/gains/{hot}"));
        for (peer, shown) in [("none", "base pages"), ("libhugetlbfs", "libhugetlbfs"), ("glibc", "glibc")] {
            let ours = rows.least(is_ours, value).map(|(_, ours)| ours);
            let theirs = rows.least(|way| way == peer, value).map(|(_, theirs)| (shown, theirs));
            compared.extend(against(format!("{hot} hot pages of code"), ours, theirs));
        }
    }
    let mut cases: Vec<&str> =
        list(results, "text", "/findings").iter().map(|finding| text(finding, "case")).collect();
    cases.dedup();
    for case in cases {
        let of = Rows::of(results, "text", "/findings", "way").only(|finding| text(finding, "case") == case);
        let ours = of.least(is_ours, |finding| slower(finding, "/to_none")).map(|(_, ours)| ours);
        compared.extend(against_number(case, ours, "base pages", 1.0));
    }
    compared
}
