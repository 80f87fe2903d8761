//! Value of huge pages: the gain of each policy over a budget of huge pages.
//!
//! A budget is a share of the regions that the programs use. While that many are huge no further
//! huge page is available, at a fault or for a promotion. The rise of a curve shows how well a
//! policy chooses; its end shows the gain of all huge pages.

use crate::compare::{CompareError, Scene, run_all};
use crate::machine::Setup;
use crate::testbed::Speed;
use crate::trace::{Operation, Trace};
use serde::Serialize;
use std::collections::BTreeSet;

/// Budgets in per cent of the regions in use.
pub const BUDGETS: [f64; 9] = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];

/// Policies whose curves are drawn by default: our own, and one of each that was published.
pub const POLICIES: [&str; 6] = ["megapage", "hawkeye-pmu", "hawkeye-g", "ingens", "freebsd", "linux"];

/// One run under a budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The budget, in per cent of the regions in use.
    pub budget_percent: f64,
    /// The same in regions of 2 MiB.
    pub budget_regions: u64,
    /// Translation time saved, in per cent of the time that all programs would take on base pages.
    pub gain_percent: f64,
    /// The same in seconds.
    pub saved_seconds: f64,
    /// The seconds of all programs together.
    pub total_seconds: f64,
    /// Regions that became huge, by a promotion or at a fault.
    pub made_huge: u64,
    /// Nanoseconds saved for each of these; `None` where there is none.
    pub saved_ns_per_promotion: Option<f64>,
    /// True if every program did all of its work.
    pub complete: bool,
}

/// The curve of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// The policy.
    pub policy: String,
    /// Its runs, by budget.
    pub points: Vec<CurvePoint>,
}

/// The curves of several policies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curves {
    /// The trace and the machine.
    #[serde(flatten)]
    pub scene: Scene,
    /// Regions of 2 MiB that the programs use, over all their time: these are 100 %.
    pub footprint_regions: u64,
    /// The curves, in the order in which the policies were asked for.
    pub curves: Vec<Curve>,
}

/// Returns the number of regions that the programs ever populate.
fn footprint(trace: &Trace) -> u64 {
    let regions = |operations: &[Operation]| {
        let populated = operations.iter().filter_map(|operation| match operation {
            Operation::Touch { span, .. }
            | Operation::Populate { span, .. }
            | Operation::Fill { span, .. } => Some(span.regions()),
            _ => None,
        });
        populated.flatten().collect::<BTreeSet<u32>>().len() as u64
    };
    trace.processes.iter().map(|program| regions(&program.operations)).sum()
}

/// Simulates `trace` under each of the policies with each of the `budgets`, in per cent. The other
/// arguments are [`mod@crate::compare`]'s.
pub fn curves(
    trace: &Trace,
    setup: &Setup,
    policies: &[String],
    budgets: &[f64],
    speed: Option<Speed>,
    threads: usize,
) -> Result<Curves, CompareError> {
    let footprint_regions = footprint(trace);
    let regions = |percent: f64| (footprint_regions as f64 * percent / 100.0).round() as u64;
    let jobs: Vec<(&str, Setup)> = policies
        .iter()
        .flat_map(|policy| {
            let with = |percent: &f64| Setup { budget: Some(regions(*percent)), ..setup.clone() };
            budgets.iter().map(move |percent| (policy.as_str(), with(percent)))
        })
        .collect();
    let mut runs = run_all(trace, &jobs, speed, threads)?.into_iter();
    let curve = |policy: &String| {
        let point = |(&percent, run): (&f64, crate::Run)| CurvePoint {
            budget_percent: percent,
            budget_regions: regions(percent),
            gain_percent: run.gain_percent(),
            saved_seconds: run.saved_seconds,
            total_seconds: run.total_seconds(),
            made_huge: run.made_huge,
            saved_ns_per_promotion: run.saved_ns_per_promotion,
            complete: run.is_complete(),
        };
        Curve { policy: policy.clone(), points: budgets.iter().zip(runs.by_ref()).map(point).collect() }
    };
    let curves = policies.iter().map(curve).collect();
    Ok(Curves { scene: Scene::of(trace, setup), footprint_regions, curves })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare;
    use crate::trace::{Program, Span};
    use megapage_snapshot::AccessClass;
    use megapage_units::Bytes;

    /// Returns a trace with a cold part at low addresses, and a hot one behind it. It is long
    /// enough for every policy to finish.
    fn trace() -> Trace {
        let access = |first, count, visits| Operation::Access {
            span: Span::new(first, count),
            pages: 512,
            visits,
            class: AccessClass::Random,
        };
        let operations = vec![
            Operation::Touch { span: Span::new(0, 300), pages: 512, content: 512, own_ns: 0.0 },
            access(0, 200, 1e3),
            access(200, 100, 1e5),
            Operation::Work { seconds: 400.0 },
        ];
        let program = Program { name: "test".into(), start: 0.0, operations };
        Trace { origin: "test".into(), processes: vec![program], ..Trace::default() }
    }

    fn of(policies: &[&str], fragmentation: f64) -> Curves {
        let setup = Setup { fragmentation, ..Setup::new(Bytes::gib(2)) };
        let policies: Vec<String> = policies.iter().map(|policy| policy.to_string()).collect();
        curves(&trace(), &setup, &policies, &BUDGETS, Some(Speed::TESTBED), 2).unwrap()
    }

    #[test]
    fn no_budget_gains_nothing_a_larger_one_no_less_and_all_of_it_is_no_bound() {
        for fragmentation in [0.0, 1.0] {
            let found = of(&POLICIES, fragmentation);
            assert_eq!(found.footprint_regions, 300);
            let setup = Setup { fragmentation, ..Setup::new(Bytes::gib(2)) };
            let names: Vec<String> = POLICIES.map(String::from).to_vec();
            let free = compare(&trace(), &setup, &names, Some(Speed::TESTBED), 2).unwrap();
            for (curve, free) in found.curves.iter().zip(&free.runs) {
                let gains: Vec<f64> = curve.points.iter().map(|point| point.gain_percent).collect();
                let name = &curve.policy;
                assert_eq!((gains[0], curve.points[0].made_huge), (0.0, 0), "{name}");
                assert!(gains.is_sorted(), "{name}, {fragmentation}: {gains:?}");
                let last = curve.points.last().unwrap();
                assert_eq!(last.saved_seconds, free.saved_seconds, "{name}");
                assert_eq!(last.total_seconds, free.total_seconds(), "{name}");
                assert!(last.gain_percent > 5.0, "{name}: {gains:?}");
                assert!(curve.points.iter().all(|point| point.complete), "{name}");
            }
        }
    }

    #[test]
    fn who_chooses_by_use_gains_most_of_it_with_a_third() {
        let found = of(&["megapage", "hawkeye-g", "linux"], 1.0);
        let share = |at: usize| {
            let points = &found.curves[at].points;
            points.iter().find(|point| point.budget_percent == 32.0).unwrap().gain_percent
                / points.last().unwrap().gain_percent
        };
        assert!(share(0) > 0.7 && share(2) < 0.3, "{} {} {}", share(0), share(1), share(2));
    }
}
