//! Verdicts from a report's values: the gates, and the findings on real programs.

use super::{CASES, Gain, Row, TextFound, Walks, Way, real};
use crate::bench::{Gate, Spread};
use serde::Serialize;

/// Least factor by which huge pages are faster at 4096 and 8192 hot pages of code.
const GAIN: f64 = 1.25;
/// Least factor by which the compiler's user time is less, primed.
const COMPILER_GAIN: f64 = 1.05;
/// The most milliseconds that moving 64 MiB may take in all.
const MOVING_MS: f64 = 50.0;
/// Fewest rounds that have an interval of 95 %.
const LEAST_ROUNDS: usize = 6;

/// The verdict on one way of a real program.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The case.
    pub case: &'static str,
    /// The way.
    pub way: &'static str,
    /// The factor by which it takes less processor time than `none`.
    pub to_none: Gain,
    /// The same to `again`, which is `none` a second time; `None` for `again` itself.
    pub to_again: Option<Gain>,
    /// The jitter of its throughput, of a server: the median over the rounds, a share of the mean.
    pub jitter: Option<f64>,
    /// The verdict.
    pub shown: Shown,
}

/// Verdict from intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shown {
    /// Both intervals lie above 1.
    Gain,
    /// Both lie below.
    Loss,
    /// This machine shows neither.
    Neither,
    /// There are too few rounds for an interval.
    TooFewRounds,
    /// The same program, started the same way, differs from itself: the verdict on the case's other
    /// ways is in doubt.
    Differs,
}

impl Shown {
    /// Returns it in words.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Shown::Gain => "a gain",
            Shown::Loss => "a loss",
            Shown::Neither => "neither gain nor loss",
            Shown::TooFewRounds => "nothing: too few rounds",
            Shown::Differs => "differs from itself",
        }
    }
}

/// Returns the name of a case's value of processor time.
fn value(case: &str) -> &'static str {
    if case == CASES[1] { "user" } else { real::CPU }
}

/// Returns, for each way of each real program, the reduction of processor time, and the verdict on
/// it.
pub(super) fn findings(report: &TextFound) -> Vec<Finding> {
    let ns = |case: &str, way: Way| {
        let row = report.rows.iter().find(|row| row.case == case && row.way == way.name())?;
        row.ns.get(value(case))
    };
    let of = |row: &Row| {
        let own = row.ns.get(value(row.case))?;
        let to_none = Gain::of(ns(row.case, Way::BASELINE)?, own)?;
        let control = ns(row.case, Way::Again).filter(|_| row.way != Way::Again.name());
        let to_again = control.and_then(|again| Gain::of(again, own));
        let above = |gain: &Gain| gain.low > 1.0;
        let below = |gain: &Gain| gain.high < 1.0;
        let both = |holds: &dyn Fn(&Gain) -> bool| holds(&to_none) && to_again.as_ref().is_none_or(holds);
        let shown = match (both(&above), both(&below)) {
            _ if own.len() < LEAST_ROUNDS => Shown::TooFewRounds,
            (false, false) => Shown::Neither,
            _ if row.way == Way::Again.name() => Shown::Differs,
            (true, _) => Shown::Gain,
            (_, true) => Shown::Loss,
        };
        let jitter = Spread::median_of(&row.jitter);
        Some(Finding { case: row.case, way: row.way, to_none, to_again, jitter, shown })
    };
    let real = report.rows.iter().filter(|row| CASES[1..].contains(&row.case));
    real.filter(|row| row.way != Way::BASELINE.name()).filter_map(of).collect()
}

/// Returns the demands, judged.
pub(super) fn gates(report: &TextFound) -> Vec<Gate> {
    let mut gates = Vec::new();
    let rows = |case: &'static str| report.rows.iter().filter(move |row| row.case == case);
    let peers = [Way::Libhugetlbfs.name(), Way::Glibc.name()];
    // A peer that got no huge page does not count.
    let runs = |row: &Row| row.huge_bytes.iter().any(|bytes| *bytes > 0);
    let best = |value: &str, ours: bool| {
        rows(CASES[0])
            .filter(|row| row.way != Way::BASELINE.name() && peers.contains(&row.way) != ours)
            .filter(|row| ours || runs(row))
            .filter_map(|row| Some((row.gains.get(value)?, row.way)))
            .max_by(|one, other| one.0.median.total_cmp(&other.0.median))
    };
    for value in ["4096", "8192"] {
        let Some((gain, way)) = best(value, true) else { continue };
        gates.push(Gate {
            case: CASES[0],
            demand: format!("{value} hot pages of code: at least {GAIN} times as fast"),
            found: format!("{:.2} ({:.2} to {:.2}), {way}", gain.median, gain.low, gain.high),
            holds: gain.median >= GAIN,
        });
        // If no peer got a huge page, there is nothing to compare with.
        if let Some((peer, name)) = best(value, false) {
            gates.push(Gate {
                case: CASES[0],
                demand: format!("{value} hot pages of code: not below the best peer"),
                found: format!("{:.2} against {:.2}, {name}", gain.median, peer.median),
                holds: gain.high >= peer.low,
            });
        }
    }
    for row in rows(CASES[0]).filter(|row| row.way == "thp") {
        let (Some(moving), Some(pages)) =
            (Spread::median_of(&row.moving_ms), Spread::median_of(&row.pages_ms))
        else {
            continue;
        };
        gates.push(Gate {
            case: CASES[0],
            demand: format!("64 MiB are moved within {MOVING_MS} ms"),
            found: format!("{moving:.1} ms, {pages:.1} ms of them for the kernel's pages"),
            holds: moving <= MOVING_MS,
        });
    }
    for row in rows(CASES[1]).filter(|row| row.way == "file") {
        let Some(gain) = row.gains.get(value(CASES[1])) else { continue };
        let walks = report.walks.iter().find(|walks| walks.case == CASES[1]).and_then(Walks::could_gain);
        let walks = walks.map_or(String::new(), |gain| format!("; page walks alone: {gain:.3}"));
        gates.push(Gate {
            case: CASES[1],
            demand: format!("user time of the primed compiler: at least {COMPILER_GAIN} times as fast"),
            found: format!("{:.3} ({:.3} to {:.3}){walks}", gain.median, gain.low, gain.high),
            holds: gain.median >= COMPILER_GAIN,
        });
    }
    gates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Found;
    use crate::text::row;

    fn report(rows: Vec<Row>) -> TextFound {
        TextFound {
            scale: 1.0,
            glibc: None,
            rows,
            absent: Vec::new(),
            findings: Vec::new(),
            walks: Vec::new(),
        }
    }

    #[test]
    fn gates_judge_the_best_of_our_ways() {
        let gain = |median| Gain { median, low: median - 0.1, high: median + 0.1 };
        let mut file = row(CASES[0], "file");
        file.gains.insert("4096".into(), gain(1.3));
        let mut thp = row(CASES[0], "thp");
        thp.gains.insert("4096".into(), gain(1.2));
        // 40 ms without the time for the pages, which does not count.
        thp.moving_ms.push(70.0);
        thp.pages_ms.push(30.0);
        let mut peer = row(CASES[0], "libhugetlbfs");
        peer.gains.insert("4096".into(), gain(1.6));
        peer.huge_bytes.push(1);
        let mut idle = row(CASES[0], "glibc");
        idle.gains.insert("4096".into(), gain(2.0));
        idle.huge_bytes.push(0);
        let mut compiler = row(CASES[1], "file");
        compiler.gains.insert("user".into(), gain(1.04));
        let mut report = report(vec![file, thp, peer, compiler, idle]);
        let walks = Walks { case: CASES[1], pages_per_ms: vec![2000.0; 10], walk_ns: Some(10.0) };
        report.walks.push(walks);
        let gates = gates(&report);
        let holds: Vec<bool> = gates.iter().map(|gate| gate.holds).collect();
        assert_eq!(holds, [true, false, false, false], "{gates:?}");
        // 2000 walks of 10 ns in a million nanoseconds.
        assert_eq!(gates[3].found, "1.040 (0.940 to 1.140); page walks alone: 1.020");
        report.rows[3].ns.insert("user".into(), vec![1e9; 9]);
        report.rows.push(report.rows[3].clone());
        report.rows[5].way = Way::BASELINE.name();
        report.rows[5].failures.push("word ".repeat(50));
        report.findings = findings(&report);
        let text = format!("{:?}", report.sections());
        assert!(text.contains("neither gain nor loss") && text.contains("2.0 %"), "{text}");
        assert_eq!(report.notes().len(), 1, "{:?}", report.notes());
    }

    /// Checks that a gain has to beat `none` and also `again`, which is the same program a second
    /// time.
    #[test]
    fn a_gain_is_shown_where_both_intervals_exclude_none() {
        let shown = |none: f64, again: f64, own: f64, rounds: usize| {
            let rows = [("none", none), ("again", again), ("thp", own)].map(|(way, ns)| {
                let mut row = row("mariadb", way);
                row.ns.insert(real::CPU.into(), vec![ns; rounds]);
                row
            });
            let findings = findings(&report(rows.to_vec()));
            assert_eq!((findings[0].way, findings[0].to_again), ("again", None));
            (findings[0].shown, findings[1].shown)
        };
        assert_eq!(shown(1.0, 1.0, 0.9, 9), (Shown::Neither, Shown::Gain));
        assert_eq!(shown(1.0, 1.0, 1.1, 9), (Shown::Neither, Shown::Loss));
        assert_eq!(shown(1.0, 1.0, 1.0, 9).1, Shown::Neither);
        assert_eq!(shown(1.0, 0.9, 0.9, 9), (Shown::Differs, Shown::Neither));
        assert_eq!(shown(1.0, 1.1, 1.05, 9), (Shown::Differs, Shown::Neither));
        assert_eq!(shown(1.0, 1.0, 0.9, 5), (Shown::TooFewRounds, Shown::TooFewRounds));
    }
}
