//! Gates of megapage's default in each bench, judged from the values.

use super::cases::Bench;
use super::report::{BenchFound, CaseReport, Row};
use super::{Gate, Spread};
use crate::peers::{BASELINE, LIBRARY_ALONE, OURS, Peer, SHORT};

/// Largest share of the time on 4 KiB pages for access to memory on huge pages.
const ACCESS_RATIO: f64 = 0.70;
/// Least share of the heap on huge pages.
const HUGE_SHARE: f64 = 0.95;
/// Largest ratio of resident memory to that of the best peer, after most is freed.
const RESIDENT_RATIO: f64 = 1.10;
/// Share of the remaining memory on huge pages from which on a peer has kept them.
const KEPT_SHARE: f64 = 0.5;
/// Least share of its former speed for a program that has nothing to gain.
const IDLE_SPEED: f64 = 0.98;
/// Time that preloading the library adds to a program's start.
const STARTUP_NS: f64 = 2e6;
/// Difference above which two values never count as equal, even on a noisy machine.
const MOST_NOISE: f64 = 0.10;

/// Judges the rows that ran; a bench without megapage's default has no gates.
pub(super) fn judge(found: &BenchFound) -> Vec<Gate> {
    found.cases.iter().flat_map(|case| gates_of(case, found.bench)).collect()
}

fn gates_of(case: &CaseReport, bench: Bench) -> Vec<Gate> {
    let Some(ours) = case.row(OURS).filter(|row| !row.samples.is_empty()) else { return Vec::new() };
    let gates = match bench {
        Bench::Access => vec![
            ratio_at_most(case, ours, "access", ACCESS_RATIO),
            as_fast_as_best(case, ours, "access"),
            as_fast_as_best(case, ours, "allocate"),
            Some(huge(case, ours)),
        ],
        Bench::Retrieval(_) => vec![as_fast_as_best(case, ours, "access"), Some(huge(case, ours))],
        Bench::Release(_) => vec![resident_in_plenty(case, ours), resident_when_short(case)],
        Bench::Idle => vec![ratio_at_most(case, ours, "process", 1.0 / IDLE_SPEED)],
        Bench::Startup => vec![startup(case)],
    };
    gates.into_iter().flatten().collect()
}

fn ratio_at_most(case: &CaseReport, ours: &Row, phase: &str, bound: f64) -> Option<Gate> {
    let ratio = *ours.ratios.get(phase)?;
    Some(Gate {
        case: case.case,
        demand: format!("{phase}: at most {bound:.2} of {BASELINE}"),
        found: format!("{ratio:.2}"),
        holds: ratio <= bound,
    })
}

/// Returns the other peer with the least value, as `of` takes it from a row.
fn best(case: &CaseReport, of: impl Fn(&Row) -> Option<Spread>) -> Option<(&str, Spread)> {
    let others = case.rows.iter().filter(|row| Peer::named(row.peer).is_some_and(|peer| !peer.is_ours()));
    let values = others.filter_map(|row| Some((row.peer, of(row)?)));
    values.min_by(|(_, one), (_, other)| one.median.total_cmp(&other.median))
}

fn as_fast_as_best(case: &CaseReport, ours: &Row, phase: &str) -> Option<Gate> {
    let of = |row: &Row| row.phases_ns.get(phase).copied();
    let (name, theirs) = best(case, of)?;
    let own = of(ours)?;
    // If the runs of either lie this far apart, an equal difference of medians means nothing.
    let noise = own.noise().max(theirs.noise()).min(MOST_NOISE);
    let ratio = own.median / theirs.median;
    Some(Gate {
        case: case.case,
        demand: format!("{phase}: as fast as {name}, the best (noise {:.0} %)", 100.0 * noise),
        found: format!("{ratio:.2} of its time"),
        holds: ratio <= 1.0 + noise,
    })
}

fn huge(case: &CaseReport, ours: &Row) -> Gate {
    let share = ours.huge_share.map_or(0.0, |spread| spread.min);
    Gate {
        case: case.case,
        demand: format!("heap on huge pages: at least {:.0} % in every run", 100.0 * HUGE_SHARE),
        found: format!("{:.0} %", 100.0 * share),
        holds: share >= HUGE_SHARE,
    }
}

/// Judges the memory that stays while memory is plentiful: huge pages are kept then, so the
/// comparison is with peers that keep theirs.
fn resident_in_plenty(case: &CaseReport, ours: &Row) -> Option<Gate> {
    let keeps =
        |row: &Row| row.values.get("after_huge_share").is_some_and(|share| share.median >= KEPT_SHARE);
    resident(case, ours, "in plenty", "that keeps huge pages", keeps)
}

/// Judges the memory that stays while memory is short: huge pages are given up then, so the
/// comparison is with every peer.
fn resident_when_short(case: &CaseReport) -> Option<Gate> {
    resident(case, case.row(SHORT)?, "when short", "of all", |_| true)
}

fn resident(
    case: &CaseReport,
    ours: &Row,
    memory: &str,
    among: &str,
    counts: impl Fn(&Row) -> bool,
) -> Option<Gate> {
    let of = |row: &Row| row.values.get("after_bytes").copied();
    let (name, theirs) = best(case, |row| of(row).filter(|_| counts(row)))?;
    let ratio = of(ours)?.median / theirs.median;
    Some(Gate {
        case: case.case,
        demand: format!("resident, memory {memory}: at most {RESIDENT_RATIO:.2} of {name}, the best {among}"),
        found: format!("{ratio:.2}"),
        holds: ratio <= RESIDENT_RATIO,
    })
}

fn startup(case: &CaseReport) -> Option<Gate> {
    let of = |name: &str| Some(case.row(name)?.phases_ns.get("process")?.median);
    let added = of(LIBRARY_ALONE)? - of(BASELINE)?;
    Some(Gate {
        case: case.case,
        demand: format!("preloading adds less than {:.0} ms", STARTUP_NS / 1e6),
        found: format!("{:.2} ms", added / 1e6),
        holds: added < STARTUP_NS,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::GIGANTIC;
    use crate::workload::measurement::Measurement;
    use std::collections::BTreeMap;

    fn row(peer: &'static str, access: f64, ratio: f64, share: f64) -> Row {
        let spread = |median: f64| Spread { median, min: median * 0.98, max: median * 1.02 };
        Row {
            peer,
            phases_ns: BTreeMap::from([("access".into(), spread(access)), ("allocate".into(), spread(1.0))]),
            ratios: BTreeMap::from([("access".into(), ratio)]),
            values: BTreeMap::new(),
            huge_share: Some(Spread { median: share, min: share, max: share }),
            gigantic_share: Some(Spread { median: 0.0, min: 0.0, max: 0.0 }),
            left_out: Vec::new(),
            notes: Vec::new(),
            samples: vec![Measurement::default()],
        }
    }

    fn case(ours: Row) -> CaseReport {
        let rows = vec![row("glibc", 100.0, 1.0, 0.0), row("mimalloc3", 65.0, 0.65, 0.9), ours];
        CaseReport { case: "small", arguments: Vec::new(), rows }
    }

    fn verdicts(ours: Row) -> Vec<bool> {
        gates_of(&case(ours), Bench::Access).iter().map(|gate| gate.holds).collect()
    }

    #[test]
    fn each_demand_can_fail_alone() {
        assert_eq!(verdicts(row(OURS, 65.5, 0.655, 0.99)), [true; 4]);
        assert_eq!(verdicts(row(OURS, 65.5, 0.71, 0.99)), [false, true, true, true]);
        assert_eq!(verdicts(row(OURS, 68.0, 0.68, 0.99)), [true, false, true, true]);
        assert_eq!(verdicts(row(OURS, 65.0, 0.65, 0.5)), [true, true, true, false]);
    }

    #[test]
    fn pages_of_1_gib_are_no_best_peer_and_have_no_gate() {
        let without = case(row(OURS, 65.5, 0.655, 0.99));
        let mut with = without.clone();
        with.rows.push(row(GIGANTIC, 10.0, 0.10, 1.0));
        assert_eq!(gates_of(&with, Bench::Access), gates_of(&without, Bench::Access));
        with.rows.retain(|row| row.peer != OURS);
        assert!(gates_of(&with, Bench::Access).is_empty());
    }

    #[test]
    fn without_our_row_nothing_is_judged() {
        assert!(gates_of(&case(row("megapage-thp", 65.0, 0.65, 1.0)), Bench::Access).is_empty());
    }
}
