//! Tests of the estimate on recordings by `observe advice --record`: `fixtures/advice`.

use super::rank::tau_b;
use megapage_observe::cost::recording::Recording;
use std::fs;
use std::path::Path;

/// Prediction and measurement of one program.
struct Judged {
    program: String,
    gain: [f64; 3],
    measured: f64,
    interval: [f64; 2],
}

fn set(name: &str) -> Vec<Judged> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/advice").join(name);
    let mut files: Vec<_> = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.into_iter().map(|path| judged(&path)).collect()
}

fn judged(path: &Path) -> Judged {
    let recording: Recording = serde_json::from_slice(&fs::read(path).unwrap())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let gain = recording.estimate().unwrap_or_else(|why| panic!("{}: {why}", path.display())).gain;
    let measured = recording.measured.unwrap_or_else(|| panic!("{}: not measured", path.display()));
    Judged {
        measured: measured.median,
        interval: measured.interval,
        gain: [gain.low, gain.likely, gain.high],
        program: recording.program,
    }
}

fn holds(name: &str) {
    let mut all = set(name);
    // A program with hardly any memory is judged without an estimate: there is nothing to gain.
    all.push(Judged {
        program: "compute".into(),
        gain: [1.0, 1.0, 1.03],
        measured: 1.0,
        interval: [0.99, 1.01],
    });
    let said: Vec<String> = all
        .iter()
        .map(|it| {
            format!(
                "{} {:.2} {:.2} [{:.2} {:.2}]",
                it.program, it.measured, it.gain[1], it.gain[0], it.gain[2]
            )
        })
        .collect();
    assert!(all.len() >= 10, "{name}: {said:#?}");
    let rounded = |value: f64| (value * 100.0).round();
    let pairs: Vec<(f64, f64)> = all.iter().map(|it| (rounded(it.gain[1]), rounded(it.measured))).collect();
    let tau = tau_b(&pairs).unwrap();
    assert!(tau >= 0.65, "{name}: the orders agree by {tau:.2}: {said:#?}");
    // Nearly all pairs that the measurement distinguishes are in the right order.
    let (mut right, mut wrong) = (0, 0);
    for (at, (one, predicted)) in all.iter().zip(&pairs).enumerate() {
        for (other, other_predicted) in all.iter().zip(&pairs).take(at) {
            if one.interval[0] > other.interval[1] || other.interval[0] > one.interval[1] {
                let same = (predicted.0 - other_predicted.0) * (one.measured - other.measured);
                right += u32::from(same > 0.0);
                wrong += u32::from(same < 0.0);
            }
        }
    }
    assert!(right >= 20 && right >= 6 * wrong, "{name}: {right} pairs right, {wrong} wrong: {said:#?}");
    let misled: Vec<&Judged> = all.iter().filter(|it| it.measured < 1.03 && it.gain[0] >= 1.03).collect();
    assert!(misled.is_empty(), "{name}: {} is advised to switch for nothing: {said:#?}", misled[0].program);
    let held =
        all.iter().filter(|it| it.gain[0] <= it.measured + 0.01 && it.measured - 0.01 <= it.gain[2]).count();
    assert!(10 * held >= 7 * all.len(), "{name}: only {held} are in their interval: {said:#?}");
    let advised = all.iter().filter(|it| it.gain[0] >= 1.03).count();
    assert!(advised >= 3, "{name}: only {advised} are advised to switch: {said:#?}");
}

#[test]
fn the_estimate_holds_on_a_busy_machine() {
    holds("busy-1");
}

#[test]
fn the_estimate_holds_on_another_run() {
    holds("busy-2");
}

#[test]
fn the_estimate_holds_on_what_it_was_not_made_with() {
    holds("busy-3");
}
