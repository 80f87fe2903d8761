use super::super::configuration::OURS;
use super::*;
use crate::peers::ALWAYS;

/// Returns lines of progress each 50 ms at these rates, in units for each second of processor time.
fn beats(rates: &[f64]) -> Vec<Beat> {
    let mut beats = vec![Beat::default()];
    for rate in rates {
        let last = beats[beats.len() - 1];
        let units = last.units + (rate * 0.05).round() as u64;
        let (wall_ns, cpu_ns) = (last.wall_ns + 50_000_000, last.cpu_ns + 50_000_000);
        beats.push(Beat { wall_ns, cpu_ns, units, finished: false });
    }
    beats
}

const REFERENCE_RATES: [f64; 2] = [10_000.0, 20_000.0];

#[test]
fn the_gain_counts_from_where_it_stays() {
    let slow = [10_000.0; 40];
    assert_eq!(time_to_gain(&beats(&slow), REFERENCE_RATES), None);
    let fast = [20_000.0; 20];
    let found = time_to_gain(&beats(&[&slow[..], &fast[..]].concat()), REFERENCE_RATES).unwrap();
    // Forty lines on base pages, and nine tenths of a window after them.
    assert!((2.25..=2.35).contains(&found), "{found}");
    let flicker = [&slow[..10], &fast[..7], &slow[..10]].concat();
    assert_eq!(time_to_gain(&beats(&flicker), REFERENCE_RATES), None, "a short burst is no gain");
    assert_eq!(time_to_gain(&[], REFERENCE_RATES), None);
}

pub(super) fn sample(time: Option<f64>, cpu: f64, huge: u64) -> Sample {
    Sample {
        seconds_to_huge: time,
        seconds_to_gain: time,
        waited_for_gain: true,
        warmed_bytes: 0,
        watched_seconds: time.unwrap_or(40.0),
        cpu_seconds: cpu,
        huge_bytes: huge,
        hot_huge_bytes: 0,
        gain: Vec::new(),
    }
}

pub(super) fn of(name: &'static str, samples: Vec<Sample>, always: bool) -> PromoteRow {
    let mut row = PromoteRow { configuration: name, samples, ..PromoteRow::default() };
    row.summarise(HEAP, HOT, always);
    row
}

#[test]
fn what_did_not_come_in_time_is_extrapolated_from_what_was_collapsed() {
    let row = of(ALWAYS, vec![sample(None, 0.1, 80 << 20)], true);
    assert!(row.extrapolated);
    // 7.5 GiB and nine tenths of half a one, at 80 MiB in 40 seconds.
    let expected = 40.0 * (7.5 + 0.45) * 1024.0 / 80.0;
    assert!((row.seconds_to_huge.unwrap().median - expected).abs() < 1e-6);
    assert!((row.cpu_seconds.unwrap().median - expected / 400.0).abs() < 1e-6);
    assert_eq!(of(ALWAYS, vec![sample(None, 0.1, 0)], true).seconds_to_huge, None);
    assert_eq!(of("ingens", vec![sample(None, 0.1, 80 << 20)], false).seconds_to_huge, None);
}

#[test]
fn a_run_without_a_gain_counts_where_what_is_used_was_huge() {
    let noisy = Sample { seconds_to_gain: None, ..sample(Some(3.0), 0.2, 0) };
    let row = of(OURS, vec![noisy, sample(Some(2.0), 0.1, 0), sample(Some(4.0), 0.3, 0)], false);
    assert_eq!((row.seconds_to_huge.unwrap().median, row.cpu_seconds.unwrap().median), (3.0, 0.2));
    assert!(row.seconds_to_gain.is_none() && !row.extrapolated);
    // If one run had no gain to wait for, the others show its time.
    let gainless = Sample { seconds_to_gain: None, waited_for_gain: false, ..sample(Some(3.0), 0.2, 0) };
    let row = of(OURS, vec![gainless, sample(Some(2.0), 0.1, 0), sample(Some(4.0), 0.3, 0)], false);
    assert_eq!(row.seconds_to_huge.unwrap().median, row.seconds_to_gain.unwrap().median);
}
