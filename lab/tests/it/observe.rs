//! `observe` end to end, in a few MiB.

use megapage_lab::bench::Place;
use megapage_lab::experiment::{Plan, Report, conduct};
use megapage_lab::observe::{Observe, ObserveFound};
use megapage_observe::TrackerKind;
use std::path::PathBuf;

fn place() -> Place {
    let workload = PathBuf::from(env!("CARGO_BIN_EXE_megapage-lab-workload"));
    Place { megapage: PathBuf::from("/bin/false"), library: workload.clone(), workload }
}

fn options(case: &str) -> Observe {
    Observe {
        cases: vec![case.into()],
        programs: Vec::new(),
        scale: 0.01,
        tracker: None,
        record: None,
        advise: Vec::new(),
    }
}

fn run(observe: &Observe) -> anyhow::Result<Report<ObserveFound>> {
    conduct(observe, &Plan::of(2), &place(), &mut |_| {})
}

#[test]
fn programs_are_measured_also_where_no_advice_is_to_be_had() {
    if !megapage_testing::require_root() {
        return;
    }
    let programs = vec!["random".into(), "compute".into()];
    let report = run(&Observe { programs, ..options("advice") }).unwrap();
    let advice = report.found.advice.as_ref().unwrap();
    assert_eq!(advice.left_out, []);
    assert_eq!(advice.programs.len(), 2);
    for program in &advice.programs {
        assert!(program.measured.median > 0.0 && program.base_rate.min > 0.0, "{program:?}");
        assert!(program.predicted.is_none() && program.failure.is_some(), "{program:?}");
    }
    let [base, huge] = advice.programs[0].huge_share.unwrap();
    assert!(base < 0.05 && huge > 0.5, "{base} {huge}");
    assert!(!report.is_clean());
    let text = report.human();
    assert!(text.contains("! random: no advice: megapage advise: it said nothing"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn what_there_is_not_is_refused() {
    let refused = |options: &Observe| format!("{:#}", run(options).unwrap_err());
    assert_eq!(
        refused(&options("speed")),
        "'speed' is no case of observe; known: exact, cost, slowdown, advice"
    );
    let unknown = refused(&Observe { programs: vec!["quake".into()], ..options("advice") });
    assert!(unknown.starts_with("'quake' is no program of advice; known: chase, "), "{unknown}");
    let few = conduct(&options("advice"), &Plan::of(1), &place(), &mut |_| {}).unwrap_err();
    assert!(few.to_string().contains("from 2 to 1000"), "{few}");
}

/// Returns true if accessed bits can be sampled exactly here; skips if not.
fn can_sample() -> bool {
    if !megapage_testing::require_root() {
        return false;
    }
    let found =
        megapage_observe::tracker::select(&megapage_kernel::KernelRoot::live(), Some(TrackerKind::Bpf));
    if let Err(error) = &found {
        megapage_testing::skip(&format!("no exact tracker: {error}"));
    }
    found.is_ok()
}

#[test]
fn bits_are_compared_and_costs_are_counted() {
    if !can_sample() {
        return;
    }
    let both = Observe { cases: vec!["exact".into(), "cost".into()], ..options("") };
    let report = run(&both).unwrap();
    assert_eq!(report.found.failed, []);
    let exact = &report.found.exact.as_ref().unwrap().found;
    // 2 % of 1 GiB in whole regions, in ten rounds.
    assert!(exact.pages >= 10 * 5000 && exact.touched > 0 && exact.touched < exact.pages, "{exact:?}");
    assert_eq!((exact.wrong, exact.wrong_huge, exact.lost), (0, 0, 0), "{exact:?}");
    let cost = report.found.cost.as_ref().unwrap();
    assert!(cost.resident_bytes >= 8 << 20 && cost.read_ms_per_gib.median > 0.0, "{cost:?}");
    assert!(cost.clear_ms_per_gib.median > 0.0 && cost.accessed_share.median > 0.5, "{cost:?}");
    assert_eq!(report.found.sampling.as_ref().unwrap().tracker, TrackerKind::Bpf);
    assert_eq!(report.gates.len(), 5);
    let text = report.human();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn the_observed_is_compared_with_one_that_is_not() {
    if !can_sample() {
        return;
    }
    // On a busy machine the programs may be done before the budget allows a sample.
    let sampled = |report: &Report<ObserveFound>| {
        report.found.slowdown.as_ref().is_some_and(|slowdown| slowdown.samples > 0)
    };
    let mut report = run(&options("slowdown")).unwrap();
    for _ in 0..20 {
        if sampled(&report) {
            break;
        }
        report = run(&options("slowdown")).unwrap();
    }
    assert!(report.found.failed.is_empty(), "{:?}", report.found.failed);
    let slowdown = report.found.slowdown.as_ref().unwrap();
    assert!(slowdown.samples > 0 && slowdown.believed.is_some(), "{slowdown:?}");
    assert!(slowdown.slowdown.median.is_finite() && slowdown.control.median.is_finite(), "{slowdown:?}");
    assert!(report.human().contains("none observed"));
}
