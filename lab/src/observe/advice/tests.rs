use super::*;

fn report(program: &'static str, measured: f64, predicted: f64, recommended: bool) -> ProgramReport {
    let one = |median: f64| Spread { median, min: median, max: median };
    ProgramReport {
        program,
        measured: one(measured),
        interval: [measured, measured],
        turns: 5,
        base_rate: one(1.0),
        huge_rate: one(measured),
        huge_share: None,
        data_bytes: None,
        seconds: Seconds::default(),
        predicted: Some(Predicted {
            recommended,
            verdict: if recommended { "use-huge-pages" } else { "do-not-use" }.into(),
            gain: [predicted, predicted, predicted],
            source: "estimated".into(),
        }),
        failure: None,
    }
}

fn advice(programs: Vec<ProgramReport>) -> Advice {
    let mut advice = Advice {
        runs: 5,
        programs,
        tau_b: None,
        distinguished: Distinguished::default(),
        tau_b_exact: None,
        left_out: Vec::new(),
    };
    advice.judge();
    advice
}

fn good() -> Vec<ProgramReport> {
    let one = |(n, name): (i32, _)| report(name, 1.0 + 0.05 * f64::from(n), 1.0 + 0.03 * f64::from(n), n > 1);
    (0..).zip(DEMANDED).map(one).collect()
}

#[test]
fn each_demand_can_fail_alone() {
    let verdicts = |programs: Vec<ProgramReport>| -> Vec<bool> {
        advice(programs).gates().iter().map(|gate| gate.holds).collect()
    };
    assert_eq!(verdicts(good()), [true; 5]);
    let mut others = good();
    others.iter_mut().take(7).for_each(|one| one.predicted = None);
    others.extend((0..6).map(|n| report("other", 1.5 + f64::from(n), 1.5 + f64::from(n), true)));
    assert_eq!(verdicts(others), [true, false, true, true, true], "eight are not enough, if they are others");
    let mut few = good();
    few.iter_mut().take(2).for_each(|one| one.predicted = None);
    assert_eq!(verdicts(few), [false, false, true, true, true]);
    let mut backwards = good();
    backwards.iter_mut().for_each(|one| one.predicted.as_mut().unwrap().gain[1] *= -1.0);
    assert_eq!(verdicts(backwards), [true, true, false, false, true]);
    let mut rash = good();
    rash[0].predicted.as_mut().unwrap().recommended = true;
    assert_eq!(verdicts(rash), [true, true, true, true, false]);
    assert_eq!(verdicts(Vec::new()), [false; 5]);
}

#[test]
fn only_an_order_that_was_measured_can_be_wrong() {
    let mut programs = good();
    // The first two are predicted in reverse order, and measured alike.
    programs[0].predicted.as_mut().unwrap().gain[1] = 1.04;
    let found = advice(programs.clone());
    assert!(found.distinguished.wrong == 1 && found.distinguished.pairs == 36, "{:?}", found.distinguished);
    programs[0].interval = [0.9, 1.06];
    let found = advice(programs.clone());
    assert_eq!(
        found.distinguished,
        Distinguished { all_pairs: 36, pairs: 35, right: 35, wrong: 0, tau_b: Some(1.0) }
    );
    assert!(found.tau_b.unwrap() < 1.0, "over all pairs it is seen");
    // Intervals so wide that they show next to nothing do not pass.
    programs.iter_mut().for_each(|one| one.interval = [0.9, 1.25]);
    programs[0].interval = [0.8, 0.85];
    let found = advice(programs);
    assert_eq!((found.distinguished.pairs, found.distinguished.tau_b.is_some()), (8, true));
    assert!(!found.gates()[3].holds);
}

#[test]
fn a_demanded_program_that_is_left_out_is_named() {
    let known: Vec<_> = Program::all().into_iter().map(Program::name).collect();
    assert!(DEMANDED.iter().all(|name| known.contains(name)), "{known:?}");
    let mut programs = good();
    programs.retain(|one| one.program != "redis");
    programs.last_mut().unwrap().predicted = None;
    let gates = advice(programs).gates();
    assert!(!gates[1].holds && gates[1].found == "redis, postgres", "{gates:?}");
}

#[test]
fn differences_below_the_resolution_are_ties() {
    let advice = advice(vec![
        report("a", 1.001, 1.0, false),
        report("b", 0.999, 1.001, false),
        report("c", 1.5, 1.3, true),
    ]);
    assert_eq!(advice.tau_b, Some(1.0));
    assert!(advice.tau_b_exact.unwrap() < 0.5);
}

#[test]
fn the_advice_on_the_right_process_is_read() {
    let parse = |text: &str| predicted(serde_json::from_str(text).unwrap(), Pid(7));
    let text = r#"{"schema": "megapage.advise/1", "processes": [{"pid": 7, "recommended": true,
            "verdict": "use-huge-pages", "gain": {"low": 1.1, "likely": 1.2, "high": 1.4, "source": "tried"}, "more": 1}]}"#;
    let expected = Predicted {
        recommended: true,
        verdict: "use-huge-pages".into(),
        gain: [1.1, 1.2, 1.4],
        source: "tried".into(),
    };
    assert_eq!(parse(text).unwrap(), expected);
    assert!(parse(r#"{"processes": []}"#).is_err());
    assert!(
        parse(r#"{"processes": [{"pid": 7, "recommended": false, "verdict": "unknown", "gain": null}]}"#)
            .is_err()
    );
}
