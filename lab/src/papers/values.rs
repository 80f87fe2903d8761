//! The published values, and ours from the runs.

use super::{Role, Runs, Source, Tolerance, Value};
use Role::{Fitted, Tested};
use Source::{Notes, Recalled, Summary};
use megapage_simulate::machine::{ProcessResult, Run};

const FAULTS: &str = "faults, 100 GB touched";
const BLOAT: &str = "Redis: bloat on 48 GB";
pub(super) const COSTS: &str = "translation cost";
const REMOVAL: &str = "time until the cost is removed";
pub(super) const PAIRS: &str = "PMU against G";
const SPIN_UP: &str = "programs bound by faults";

/// The tolerance if no other is stated.
const USUAL: Tolerance = Tolerance::Within(0.10);

const GIB: f64 = (1u64 << 30) as f64;

pub(super) fn run<'a>(runs: &'a Runs, name: &str) -> &'a Run {
    &runs.get(name).unwrap_or_else(|| panic!("no job is named {name}")).run
}

pub(super) fn first<'a>(runs: &'a Runs, name: &str) -> &'a ProcessResult {
    &run(runs, name).processes[0]
}

/// Returns the seconds from the start of the first process to its end.
pub(super) fn seconds(runs: &Runs, name: &str) -> f64 {
    first(runs, name).seconds(run(runs, name).seconds)
}

/// Returns the same without the time in which it fills its memory: benchmarks time the work after
/// that.
pub(super) fn work_seconds(runs: &Runs, name: &str) -> f64 {
    let process = first(runs, name);
    let begins = process.phases.iter().find(|(phase, _)| phase == "work").map_or(0.0, |(_, at)| *at);
    seconds(runs, name) - (begins - process.start)
}

/// Returns the translation cost at the start of the work.
fn first_cost(process: &ProcessResult) -> f64 {
    process.points.iter().map(|point| point.cost).find(|cost| *cost > 0.0).unwrap_or(0.0)
}

/// Returns the time at which the cost has covered 95 % of the way from its first value to its
/// lowest, in seconds from the start.
fn recovery_time(process: &ProcessResult) -> f64 {
    let high = first_cost(process);
    let low = process.points.iter().map(|point| point.cost).filter(|cost| *cost > 0.0).fold(high, f64::min);
    let recovered = low + 0.05 * (high - low);
    let point = process.points.iter().find(|point| point.cost > 0.0 && point.cost <= recovered);
    point.map_or(f64::INFINITY, |point| point.time - process.start)
}

/// The values so far, the table of the next ones, and the tolerance there.
struct Table(Vec<Value>, &'static str, Tolerance);

impl Table {
    fn add(
        &mut self,
        row: impl Into<String>,
        what: &'static str,
        published: f64,
        source: Source,
        ours: f64,
        role: Role,
    ) {
        let (table, row, tolerance) = (self.1, row.into(), self.2);
        self.0.push(Value { table, row, what, published, source, ours, role, tolerance });
    }

    fn begin(&mut self, name: &'static str, tolerance: Tolerance) {
        (self.1, self.2) = (name, tolerance);
    }
}

/// Returns all values.
pub(super) fn values(runs: &Runs) -> Vec<Value> {
    let mut table = Table(Vec::new(), "", USUAL);
    faults(&mut table, runs);
    redis(&mut table, runs);
    costs(&mut table, runs);
    recovered(&mut table, runs);
    sooner(&mut table, runs);
    pairs(&mut table, runs);
    promotions(&mut table, runs);
    fault_bound(&mut table, runs);
    table.begin("daemon's own work", Tolerance::AtMost);
    let hawkeye = runs.iter().filter(|(name, _)| name.contains("hawkeye"));
    let share = |done: &super::Done| done.run.daemon_peak_share;
    let worst = hawkeye.max_by(|(_, one), (_, other)| share(one).total_cmp(&share(other)));
    if let Some((name, done)) = worst {
        let row = format!("HawkEye, worst minute of all runs ({name})");
        table.add(row, "% of a core", 3.4, Summary, share(done) * 100.0, Tested);
    }
    table.0
}

fn faults(table: &mut Table, runs: &Runs) {
    table.begin(FAULTS, Tolerance::Within(0.05));
    let rows: [(&str, &str, [f64; 4], Role); 5] = [
        ("Linux-4K", "touch/linux-4k", [26.2e6, 3.5, 92.6, 106.0], Fitted),
        ("Linux-2M", "touch/linux", [51.5e3, 465.0, 23.9, 24.9], Fitted),
        ("Ingens-90%", "touch/ingens", [26.2e6, 3.5, 92.8, 116.0], Tested),
        ("no zeroing, 4K", "touch/linux-4k, zeroed", [26.2e6, 2.65, 69.5, 83.0], Tested),
        ("no zeroing, 2M", "touch/linux, zeroed", [51.5e3, 13.0, 0.7, 4.4], Fitted),
    ];
    for (row, job, [faults, each, all, total], role) in rows {
        let account = first(runs, job).account;
        table.add(row, "faults", faults, Recalled, account.faults as f64, role);
        let ours = account.fault_seconds * 1e6 / account.faults as f64;
        table.add(row, "us per fault", each, Recalled, ours, role);
        table.add(row, "s in faults", all, Recalled, account.fault_seconds, role);
        table.add(row, "s in all", total, Recalled, seconds(runs, job), role);
    }
}

fn redis(table: &mut Table, runs: &Runs) {
    table.begin(BLOAT, Tolerance::Within(0.15));
    // Both were known when the wait and the pace of large values were chosen.
    for (row, job, useful, bloat) in
        [("Linux", "redis/linux", 20.0, 28.0), ("Ingens", "redis/ingens", 28.0, 20.0)]
    {
        let role = Fitted;
        let last = first(runs, job).last();
        let ours = last.map_or(0.0, |point| point.useful_bytes as f64 / GIB);
        table.add(row, "GB useful when memory runs out", useful, Summary, ours, role);
        let ours = last.map_or(0.0, |point| (point.resident_bytes - point.useful_bytes) as f64 / GIB);
        table.add(row, "GB bloat when memory runs out", bloat, Summary, ours, role);
    }
    let reached =
        first(runs, "redis/hawkeye-g").points.iter().map(|point| point.useful_bytes).max().unwrap_or(0);
    table.add("HawkEye", "GB useful reached", 45.0, Summary, reached as f64 / GIB, Tested);

    table.begin("Redis: memory and throughput", USUAL);
    let base = first(runs, "redis-sparse/linux-4k");
    let slow = base.last().map_or(0.0, |point| point.cost);
    for (row, job, memory, throughput) in [
        ("4K", "redis-sparse/linux-4k", 16.2, 106.1),
        ("2M", "redis-sparse/linux", 33.2, 113.8),
        ("HawkEye, no pressure", "redis-sparse/hawkeye-g", 33.2, 113.6),
    ] {
        let role = if row.starts_with('H') { Tested } else { Fitted };
        let Some(last) = first(runs, job).last() else { continue };
        table.add(row, "GB resident", memory, Recalled, last.resident_bytes as f64 / GIB, role);
        // Throughput is in proportion to the remaining cycles; the scale is that of the first row.
        let ours = 106.1 * (1.0 - last.cost) / (1.0 - slow);
        table.add(row, "K requests/s", throughput, Recalled, ours, role);
    }
}

fn costs(table: &mut Table, runs: &Runs) {
    table.begin(COSTS, USUAL);
    for (row, job, published) in [
        ("cg.D", "cg.D/linux-4k", 39.0),
        ("mg.D", "mg.D/linux-4k", 1.04),
        ("bt.D", "bt.D/linux-4k", 6.4),
        ("sp.D", "sp.D/linux-4k", 4.7),
        ("ft.D", "ft.D/linux-4k", 3.9),
    ] {
        let ours = first_cost(first(runs, job)) * 100.0;
        table.add(row, "% of cycles in walks", published, Recalled, ours, Fitted);
    }
    let gain = |base: &str, huge: &str| work_seconds(runs, base) / work_seconds(runs, huge);
    // Known when the cost of a look-up in the TLB's second level was changed.
    table.add("cg.D", "x gain, native", 1.62, Recalled, gain("cg.D/linux-4k", "cg.D/linux"), Fitted);
    let ours = gain("cg.D/linux-4k, virtual", "cg.D/linux, virtual");
    table.add("cg.D", "x gain, virtual", 2.7, Recalled, ours, Tested);
    table.add("mg.D", "x gain, native", 1.01, Recalled, gain("mg.D/linux-4k", "mg.D/linux"), Tested);

    table.begin("virtualised, HawkEye over Linux (18 to 90 %)", USUAL);
    let gain = |workload: &str, how: &str| {
        let policy = |policy: &str| work_seconds(runs, &format!("{workload}/{policy}{how}"));
        (policy("linux") / policy("hawkeye-g") - 1.0) * 100.0
    };
    let all =
        [gain("graph500", ", virtual"), gain("xsbench", ", virtual"), gain("cg.D", ", virtual, fragmented")];
    let (low, high) = (all.iter().copied().fold(f64::MAX, f64::min), all.iter().copied().fold(0.0, f64::max));
    table.add("least of three", "% gain", 18.0, Summary, low, Tested);
    table.add("most of three", "% gain", 90.0, Summary, high, Tested);
}

fn recovered(table: &mut Table, runs: &Runs) {
    table.begin(REMOVAL, USUAL);
    for (program, name) in [("Graph500", "graph500"), ("XSBench", "xsbench")] {
        for (policy, job, published) in
            [("Linux", "linux", 1000.0), ("Ingens", "ingens", 1000.0), ("HawkEye", "hawkeye-g", 300.0)]
        {
            let ours = recovery_time(first(runs, &format!("{name}/{job}")));
            // The pace was fitted on Linux, the hot part's size on HawkEye, both with Graph500;
            // XSBench has the same.
            let role = if job == "ingens" { Tested } else { Fitted };
            table.add(
                format!("{program}, {policy}"),
                "s until it is removed",
                published,
                Summary,
                ours,
                role,
            );
        }
    }
}

fn pairs(table: &mut Table, runs: &Runs) {
    table.begin(PAIRS, USUAL);
    for (row, workload, base, pmu, global) in
        [("random 4 GB", "random", 582.0, 328.0, 413.0), ("cg.D", "cg-mg", 1952.0, 1202.0, 1450.0)]
    {
        if workload == "random" {
            let ours = work_seconds(runs, "random/linux-4k");
            table.add(row, "s on base pages", base, Recalled, ours, Fitted);
        }
        let role = if workload == "random" { Fitted } else { Tested };
        let ours = work_seconds(runs, &format!("{workload}/hawkeye-pmu"));
        table.add(row, "s with HawkEye-PMU", pmu, Recalled, ours, role);
        let ours = work_seconds(runs, &format!("{workload}/hawkeye-g"));
        table.add(row, "s with HawkEye-G", global, Recalled, ours, Tested);
        let times = |policy: &str| work_seconds(runs, &format!("{workload}/{policy}"));
        let ours = times("hawkeye-g") / times("hawkeye-pmu");
        table.add(row, "x, HawkEye-G to HawkEye-PMU", global / pmu, Recalled, ours, Tested);
    }
}

/// Adds the gain of finding the hot memory first: one program alone, in fragmented memory.
fn sooner(table: &mut Table, runs: &Runs) {
    table.begin("one program alone, HawkEye over Linux (13 to 22 %)", USUAL);
    for (row, workload, published, role) in
        [("Graph500", "graph500", 13.0, Tested), ("XSBench", "xsbench", 22.0, Fitted)]
    {
        let time = |policy: &str| work_seconds(runs, &format!("{workload}/{policy}"));
        let ours = (time("linux") / time("hawkeye-g") - 1.0) * 100.0;
        table.add(row, "% gain", published, Notes, ours, role);
    }
}

/// Adds the gain of a promotion: translation time saved for each region made huge, in fragmented
/// memory, in which faults make none huge.
fn promotions(table: &mut Table, runs: &Runs) {
    table.begin("time saved per promotion", USUAL);
    let each = |job: &str| run(runs, job).saved_ns_per_promotion.unwrap_or(0.0);
    // HawkEye-PMU, according to third-party notes: it stops if too little remains to save.
    let ours = each("xsbench/hawkeye-pmu") / each("xsbench/linux");
    table.add("XSBench", "x, HawkEye-PMU to Linux", 44.0, Notes, ours, Tested);
}

fn fault_bound(table: &mut Table, runs: &Runs) {
    table.begin(SPIN_UP, USUAL);
    let columns = ["linux-4k", "linux", "ingens", "hawkeye-4k", "hawkeye-g"];
    let names = ["Linux-4K", "Linux-2M", "Ingens", "HawkEye-4K", "HawkEye-2M"];
    let rows: [(&str, &str, [f64; 5], &[usize]); 4] = [
        ("Redis", "redis-fill", [233.0, 437.0, 192.0, 236.0, 551.0], &[1, 4]),
        ("SparseHash", "sparsehash", [50.1, 17.2, 51.5, 46.6, 10.6], &[0, 1]),
        ("JVM", "jvm", [37.7, 18.6, 52.7, 29.8, 1.37], &[0, 1]),
        ("VM", "vm", [40.6, 9.7, 41.8, 30.2, 0.70], &[0, 1, 4]),
    ];
    for (row, workload, published, fitted) in rows {
        for (at, column) in columns.iter().enumerate() {
            let job = format!("{workload}/{column}");
            let role = if fitted.contains(&at) { Fitted } else { Tested };
            let name = format!("{row}, {}", names[at]);
            if workload == "redis-fill" {
                let ours = first(runs, &job).account.pages_touched as f64 / 1e3 / seconds(runs, &job);
                table.add(name, "K pages/s", published[at], Recalled, ours, role);
            } else {
                table.add(name, "s", published[at], Recalled, seconds(runs, &job), role);
            }
        }
    }
    let times = |slow: &str, quick: &str| seconds(runs, slow) / seconds(runs, quick);
    let ours = times("redis-fill/linux", "redis-fill/hawkeye-g");
    table.add("Redis", "x, Linux-2M to HawkEye-2M", 1.26, Summary, ours, Fitted);
    let ours = times("sparsehash/linux", "sparsehash/hawkeye-g");
    table.add("SparseHash", "x, Linux-2M to HawkEye-2M", 1.62, Summary, ours, Tested);
    table.begin(SPIN_UP, Tolerance::Within(0.15));
    table.add("VM", "x, Linux-2M to HawkEye-2M", 13.0, Summary, times("vm/linux", "vm/hawkeye-g"), Fitted);
    let ours = times("vm/linux-4k", "vm/hawkeye-4k");
    table.add("VM", "x, Linux-4K to HawkEye-4K", 1.2, Summary, ours, Tested);
}
