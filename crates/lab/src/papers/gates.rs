//! Values from runs, and the gates.

use super::{Gate, Role, Runs, Source, Value};
use Role::{Fitted, Tested};
use Source::{Recalled, Summary};
use megapage_simulate::Fate;
use megapage_simulate::machine::{ProcessResult, Run};

const GIB: f64 = (1u64 << 30) as f64;

fn run<'a>(runs: &'a Runs, name: &str) -> &'a Run {
    &runs.get(name).unwrap_or_else(|| panic!("no job is named {name}")).run
}

fn first<'a>(runs: &'a Runs, name: &str) -> &'a ProcessResult {
    &run(runs, name).processes[0]
}

/// From the start of the first process to its end.
fn seconds(runs: &Runs, name: &str) -> f64 {
    first(runs, name).seconds(run(runs, name).seconds)
}

/// The same without the time in which it fills its memory: benchmarks time what comes after.
fn work_seconds(runs: &Runs, name: &str) -> f64 {
    let process = first(runs, name);
    let begins = process.phases.iter().find(|(phase, _)| phase == "work").map_or(0.0, |(_, at)| *at);
    seconds(runs, name) - (begins - process.start)
}

/// The translation cost at the start of the work.
fn first_cost(process: &ProcessResult) -> f64 {
    process.points.iter().map(|point| point.cost).find(|cost| *cost > 0.0).unwrap_or(0.0)
}

/// When the cost has come 95 % of the way from its first value to its lowest, in seconds from the start.
fn recovery_time(process: &ProcessResult) -> f64 {
    let high = first_cost(process);
    let low = process.points.iter().map(|point| point.cost).filter(|cost| *cost > 0.0).fold(high, f64::min);
    let recovered = low + 0.05 * (high - low);
    let point = process.points.iter().find(|point| point.cost > 0.0 && point.cost <= recovered);
    point.map_or(f64::INFINITY, |point| point.time - process.start)
}

struct Table(Vec<Value>, &'static str);

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
        self.0.push(Value { table: self.1, row: row.into(), what, published, source, ours, role });
    }
}

/// All values.
pub(super) fn values(runs: &Runs) -> Vec<Value> {
    let mut table = Table(Vec::new(), "");
    faults(&mut table, runs);
    redis(&mut table, runs);
    costs(&mut table, runs);
    recovered(&mut table, runs);
    pairs(&mut table, runs);
    fault_bound(&mut table, runs);
    table.1 = "daemon's own work";
    let hawkeye = runs.iter().filter(|(name, _)| name.contains("hawkeye"));
    let worst = hawkeye.map(|(_, done)| done.run.daemon_peak_share).fold(0.0, f64::max);
    table.add("HawkEye, worst minute", "% of a core", 3.4, Summary, worst * 100.0, Tested);
    table.0
}

fn faults(table: &mut Table, runs: &Runs) {
    table.1 = FAULTS;
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
    table.1 = BLOAT;
    // Both were in view when the wait and the pace of large values were chosen.
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

    table.1 = "Redis: memory and throughput";
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
        // Throughput is in proportion to the cycles that are left; the scale is that of the first row.
        let ours = 106.1 * (1.0 - last.cost) / (1.0 - slow);
        table.add(row, "K requests/s", throughput, Recalled, ours, role);
    }
}

fn costs(table: &mut Table, runs: &Runs) {
    table.1 = COSTS;
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
    table.add("cg.D", "x gain, native", 1.62, Recalled, gain("cg.D/linux-4k", "cg.D/linux"), Tested);
    let ours = gain("cg.D/linux-4k, virtual", "cg.D/linux, virtual");
    table.add("cg.D", "x gain, virtual", 2.7, Recalled, ours, Tested);
    table.add("mg.D", "x gain, native", 1.01, Recalled, gain("mg.D/linux-4k", "mg.D/linux"), Tested);

    table.1 = "virtualised, HawkEye over Linux (18 to 90 %)";
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
    table.1 = REMOVAL;
    for (program, name) in [("Graph500", "graph500"), ("XSBench", "xsbench")] {
        for (policy, job, published) in
            [("Linux", "linux", 1000.0), ("Ingens", "ingens", 1000.0), ("HawkEye", "hawkeye-g", 300.0)]
        {
            let ours = recovery_time(first(runs, &format!("{name}/{job}")));
            // The pace was fitted on Linux, the hot part's size on HawkEye, both with Graph500.
            let role = if name == "graph500" && job != "ingens" { Fitted } else { Tested };
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
    table.1 = PAIRS;
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
    }
}

fn fault_bound(table: &mut Table, runs: &Runs) {
    table.1 = SPIN_UP;
    let columns = ["linux-4k", "linux", "ingens", "hawkeye-4k", "hawkeye-g"];
    let names = ["Linux-4K", "Linux-2M", "Ingens", "HawkEye-4K", "HawkEye-2M"];
    let rows: [(&str, &str, [f64; 5], &[usize]); 4] = [
        ("Redis", "redis-fill", [233.0, 437.0, 192.0, 236.0, 551.0], &[1]),
        ("SparseHash", "sparsehash", [50.1, 17.2, 51.5, 46.6, 10.6], &[0, 1]),
        ("JVM", "jvm", [37.7, 18.6, 52.7, 29.8, 1.37], &[0, 1]),
        ("VM", "vm", [40.6, 9.7, 41.8, 30.2, 0.70], &[0, 1, 3]),
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
    let ours = seconds(runs, "vm/linux") / seconds(runs, "vm/hawkeye-g");
    table.add("VM", "x, Linux-2M to HawkEye-2M", 13.0, Summary, ours, Tested);
}

const FAULTS: &str = "faults, 100 GB touched";
const BLOAT: &str = "Redis: bloat on 48 GB";
const COSTS: &str = "translation cost";
const REMOVAL: &str = "time until the cost is removed";
const PAIRS: &str = "PMU against G";
const SPIN_UP: &str = "programs bound by faults";

/// Judges the gates.
pub(super) fn judge(values: &[Value], runs: &Runs) -> Vec<Gate> {
    let of = |table: &'static str, part: &'static str| {
        values.iter().filter(move |value| {
            value.table == table && (value.row.contains(part) || value.what.contains(part))
        })
    };
    let worst = |table, part| {
        of(table, part).map(Value::deviation).max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN)
    };
    let within = |name, table, part, share: f64| {
        let worst = worst(table, part);
        Gate {
            name,
            wanted: format!("within {:.0} %", share * 100.0),
            got: format!("{:+.1} % at worst", worst * 100.0),
            passed: worst.abs() <= share,
        }
    };
    let mut gates = vec![within("fault table", FAULTS, "", 0.05)];

    let fate = |job| first(runs, job).fate;
    let out = |fate| matches!(fate, Fate::OutOfMemory { .. });
    let fates = [fate("redis/linux"), fate("redis/ingens"), fate("redis/hawkeye-g")];
    let word = |fate| if out(fate) { "out of memory" } else { "finishes" };
    gates.push(Gate {
        name: "Redis outcome",
        wanted: "Linux and Ingens out of memory, HawkEye finishes".to_string(),
        got: format!("Linux {}, Ingens {}, HawkEye {}", word(fates[0]), word(fates[1]), word(fates[2])),
        passed: out(fates[0]) && out(fates[1]) && !out(fates[2]),
    });
    gates.push(within("Redis bloat", BLOAT, "bloat", 0.15));

    let time = |part: &'static str| of(PAIRS, part).find(|value| value.row == "random 4 GB");
    let gain = |part| match (time("base pages"), time(part)) {
        (Some(base), Some(other)) => base.ours / other.ours,
        _ => f64::NAN,
    };
    let gap = (gain("HawkEye-PMU") - gain("HawkEye-G")) * 100.0;
    gates.push(Gate {
        name: "HawkEye-PMU over HawkEye-G",
        wanted: "36 points, within 8".to_string(),
        got: format!("{gap:.1} points"),
        passed: (gap - 36.0).abs() <= 8.0,
    });
    let cg = || of(COSTS, "gain").filter(|value| value.row == "cg.D");
    let cg_worst = cg().map(Value::deviation).max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN);
    gates.push(Gate {
        name: "cg.D gain, native and virtual",
        wanted: "within 10 %".to_string(),
        got: format!("{:+.1} % at worst", cg_worst * 100.0),
        passed: cg_worst.abs() <= 0.10,
    });
    let mg = of(COSTS, "gain").find(|value| value.row == "mg.D").map_or(f64::NAN, |value| value.ours);
    gates.push(Gate {
        name: "mg.D gain",
        wanted: "at most 1.02x".to_string(),
        got: format!("{mg:.3}x"),
        passed: mg <= 1.02,
    });
    gates.push(within("time until the cost is removed", REMOVAL, "", 0.20));
    gates.push(within("VM spin-up, 13x", SPIN_UP, "Linux-2M to HawkEye-2M", 0.15));

    let order: Vec<String> = run(runs, "golden")
        .promoted
        .iter()
        .map(|&(process, address)| {
            format!("{}{}", ["A", "B", "C"][process.min(2)], ((address - (4 << 30)) >> 21) + 1)
        })
        .collect();
    let order = order.join(",");
    gates.push(Gate {
        name: "golden order",
        wanted: GOLDEN.to_string(),
        passed: order == GOLDEN,
        got: if order == GOLDEN { "the same".to_string() } else { order },
    });
    gates.extend(invariants(runs));
    gates
}

const GOLDEN: &str = "A1,B1,C1,C2,B2,C3,C4,B3,B4,A2,C5,A3";

fn invariants(runs: &Runs) -> Vec<Gate> {
    let broken: Vec<&str> = runs.iter().filter(|(_, done)| !done.conserved).map(|(name, _)| *name).collect();
    let bloated = run(runs, "redis/freebsd")
        .processes
        .iter()
        .flat_map(|process| &process.points)
        .filter(|point| point.resident_bytes != point.useful_bytes)
        .count();
    // Each region may become huge once, and once more for each time that it was split.
    let restless: Vec<&str> = runs
        .iter()
        .filter(|(name, _)| !name.starts_with("redis/"))
        .filter(|(_, done)| done.run.demotions > done.run.promotions / 10 + 10)
        .map(|(name, _)| *name)
        .collect();
    let gate = |name, wanted: &str, bad: &[&str]| Gate {
        name,
        wanted: wanted.to_string(),
        got: if bad.is_empty() { "so it is".to_string() } else { bad.join(", ") },
        passed: bad.is_empty(),
    };
    vec![
        gate("memory is conserved", "every page in one state, in every run", &broken),
        Gate {
            name: "FreeBSD never bloats",
            wanted: "resident is useful, at every moment of Redis".to_string(),
            got: format!("{bloated} moments otherwise"),
            passed: bloated == 0,
        },
        gate("no promote and demote in turn", "on a steady load next to no demotions", &restless),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::JOBS;
    use super::*;

    fn job(name: &str) -> super::super::Done {
        JOBS.iter().find(|job| job.name == name).unwrap().run()
    }

    #[test]
    fn every_run_that_a_figure_needs_is_a_job() {
        let golden = job("golden");
        let runs: Runs = JOBS.iter().map(|job| (job.name, golden.clone())).collect();
        assert_eq!(runs.len(), JOBS.len(), "two jobs have one name");
        let values = values(&runs);
        assert!(values.len() > 60);
        assert!(values.iter().any(|value| value.role == Tested));
        let gates = judge(&values, &runs);
        // Runs that are all the same meet no gate but those of this one.
        assert!(gates.iter().find(|gate| gate.name == "golden order").unwrap().passed);
        assert!(!gates.iter().find(|gate| gate.name == "fault table").unwrap().passed);
    }

    #[test]
    fn huge_pages_zeroed_ahead_spin_a_vm_up_thirteen_times_as_fast() {
        let name = |name| (name, job(name));
        let runs: Runs = [name("vm/linux"), name("vm/hawkeye-g")].into_iter().collect();
        let times = seconds(&runs, "vm/linux") / seconds(&runs, "vm/hawkeye-g");
        assert!((times / 13.0 - 1.0).abs() <= 0.15, "{times}");
        assert!(runs.values().all(|done| done.conserved));
    }

    #[test]
    fn the_counters_beat_coverage_by_thirty_six_points() {
        let name = |name| (name, job(name));
        let runs: Runs = [name("random/linux-4k"), name("random/hawkeye-pmu"), name("random/hawkeye-g")]
            .into_iter()
            .collect();
        let base = work_seconds(&runs, "random/linux-4k");
        let gain = |name| base / work_seconds(&runs, name);
        let gap = (gain("random/hawkeye-pmu") - gain("random/hawkeye-g")) * 100.0;
        assert!((gap - 36.0).abs() <= 8.0, "{gap}");
    }
}
