//! Tests on known values.

use super::*;

#[test]
fn the_end_of_the_work_lies_between_two_lines() {
    let beat = |seconds: u64, units| Beat {
        wall_ns: seconds * 1_000_000_000,
        cpu_ns: seconds * 500_000_000,
        units,
        finished: false,
    };
    let beats = [beat(5, 100), beat(6, 200), beat(7, 400)];
    assert_eq!(reached(&beats, 100), Some((1.0, 0.5)));
    assert_eq!(reached(&beats, 200), Some((1.5, 0.75)));
    assert_eq!(reached(&beats, 301), None);
    assert_eq!(reached(&[], 1), None);
}

/// A round, and the seconds of the sensitive and of the insensitive programs in it.
type Run = (u32, f64, f64);

fn found(gain: f64, runs: &[(&str, &[Run])]) -> Fair {
    let programs: Vec<Person> = PROGRAMS
        .iter()
        .map(|(program, way, bytes)| Person {
            program,
            way: way.unwrap_or(Way::Chase).name(),
            sensitive: way.is_none(),
            bytes: *bytes,
            units: 1,
        })
        .collect();
    let sample = |&(round, sensitive, insensitive): &Run| FairSample {
        round,
        warmed_bytes: 0,
        finish_seconds: programs
            .iter()
            .map(|program| if program.sensitive { sensitive } else { insensitive })
            .collect(),
        cpu_seconds: vec![7.0; programs.len()],
        huge_bytes: vec![0; programs.len()],
        helper_seconds: 0.0,
    };
    let mut rows: Vec<FairRow> = runs
        .iter()
        .map(|(name, runs)| {
            let configuration = Configuration::select(&[name.to_string()]).unwrap()[0];
            FairRow { samples: runs.iter().map(sample).collect(), ..FairRow::of(&configuration, true) }
        })
        .collect();
    summarise(&mut rows, &programs);
    let trials = vec![Trial { way: Way::Chase.name(), hot_bytes: 1 << 29, gain }];
    Fair { trials, programs, rows, failures: Vec::new() }
}

fn holds(found: &Fair) -> Vec<bool> {
    found.gates().iter().map(|gate| gate.holds).collect()
}

#[test]
fn late_sensitive_or_losing_insensitive_programs_fail() {
    let never: &[Run] = &[(0, 21.0, 21.0)];
    let of = |ours: Run| holds(&found(1.3, &[(NEVER, never), (OURS, &[ours])]));
    assert_eq!(of((0, 18.0, 21.0)), [true, true, true]);
    assert_eq!(of((0, 21.5, 21.0)), [true, false, true]);
    assert_eq!(of((0, 18.0, 22.0)), [true, true, false]);
    let gainless = found(1.02, &[(NEVER, never), (OURS, &[(0, 20.9, 21.0)])]);
    assert_eq!(holds(&gainless), [false, true, true], "there is nothing to be fair about");
    let hard: &[Run] = &[(0, 17.0, 21.0)];
    let worse = found(1.3, &[(NEVER, never), (HARD, hard), (OURS, &[(0, 18.0, 21.0)])]);
    assert_eq!(holds(&worse), [true, false, true]);
    let absent = found(1.3, &[(NEVER, never), (HARD, &[]), (OURS, &[(0, 18.0, 21.0)])]);
    assert_eq!(holds(&absent), [true, false, true], "not compared with every setting");
    assert!(found(1.3, &[(OURS, never)]).gates().is_empty(), "without base pages there is no judging");
}

#[test]
fn rounds_are_compared_with_themselves() {
    // The machine is slower by half in the second round, and the run on base pages of the third
    // failed.
    let never: &[Run] = &[(0, 20.0, 20.0), (1, 30.0, 30.0)];
    let ours: &[Run] = &[(0, 18.0, 20.0), (1, 27.0, 30.0), (2, 99.0, 99.0)];
    let fair = found(1.3, &[(NEVER, never), (OURS, ours)]);
    let ratio = fair.rows[1].sensitive_ratio.unwrap();
    assert!((ratio.min - 0.9).abs() < 1e-9 && (ratio.max - 0.9).abs() < 1e-9, "{ratio:?}");
    assert_eq!(fair.rows[1].sensitive_seconds.unwrap().median, 27.0);
    assert_eq!(holds(&fair), [true, true, true]);
}
