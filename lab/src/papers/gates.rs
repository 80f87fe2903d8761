//! Gates: published findings without a number, and invariants of every run.

use super::values::{COSTS, PAIRS, first, run};
use super::{Gate, Runs, Value};
use megapage_simulate::Fate;

/// Judges the gates.
pub(super) fn judge(values: &[Value], runs: &Runs) -> Vec<Gate> {
    let mut gates = Vec::new();

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

    let pair = |row: &str, what: &str| {
        let is = |value: &&Value| value.table == PAIRS && value.row == row && value.what.ends_with(what);
        values.iter().find(is).map_or(f64::NAN, |value| value.ours)
    };
    let random = |what| pair("random 4 GB", what);
    let base = random("on base pages");
    let gap = (base / random("with HawkEye-PMU") - base / random("with HawkEye-G")) * 100.0;
    gates.push(Gate {
        name: "HawkEye-PMU over HawkEye-G, random 4 GB",
        wanted: "36 points, within 8".to_string(),
        got: format!("{gap:.1} points"),
        passed: (gap - 36.0).abs() <= 8.0,
    });
    let (pmu, global) = (pair("cg.D", "with HawkEye-PMU"), pair("cg.D", "with HawkEye-G"));
    gates.push(Gate {
        name: "HawkEye-PMU before HawkEye-G, cg.D beside mg.D",
        wanted: "less time: 1202 s, 1450 s".to_string(),
        got: format!("{pmu:.0} s, {global:.0} s"),
        passed: pmu < global,
    });
    let mg = values
        .iter()
        .find(|value| value.table == COSTS && value.row == "mg.D" && value.what.contains("gain"));
    let mg = mg.map_or(f64::NAN, |value| value.ours);
    gates.push(Gate {
        name: "mg.D gain",
        wanted: "at most 1.02x".to_string(),
        got: format!("{mg:.3}x"),
        passed: mg <= 1.02,
    });
    let total = |policy: &str| run(runs, &format!("three-plus-three/{policy}")).total_seconds();
    let (hawkeye, linux, ingens) = (total("hawkeye-g"), total("linux"), total("ingens"));
    gates.push(Gate {
        name: "three Graph500 and three XSBench together",
        wanted: "HawkEye takes less time than Linux and Ingens".to_string(),
        got: format!("{hawkeye:.0} s, {linux:.0} s, {ingens:.0} s"),
        passed: hawkeye < linux && hawkeye < ingens,
    });

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
    // Each region may become huge once, and once more after each split.
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
    use super::super::values::{seconds, values, work_seconds};
    use super::super::{JOBS, Role};
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
        assert!(values.iter().any(|value| value.role == Role::Tested));
        let gates = judge(&values, &runs);
        // Equal runs meet no gate except those of one run.
        assert!(gates.iter().find(|gate| gate.name == "golden order").unwrap().passed);
        assert!(!gates.iter().find(|gate| gate.name.contains("cg.D beside mg.D")).unwrap().passed);
        assert!(values.iter().any(|value| !value.is_met()));
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
