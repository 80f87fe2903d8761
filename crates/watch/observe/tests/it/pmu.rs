//! Translation cost from counts that were made by hand from published figures. The formulas are
//! checked, not a processor (fixtures/perf/README.md).

use megapage_kernel::Processor;
use megapage_kernel::perf::Reading;
use megapage_observe::cost::pmu::{Calibration, Counted, Interval, NoCost, Recipe, interval, recipe, share};
use megapage_snapshot::{CostSource, TranslationCost};
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Recording {
    schema: String,
    source: String,
    processor: Which,
    events: Vec<String>,
    readings: Vec<Vec<Thread>>,
    calibration: Option<Miss>,
}

#[derive(Deserialize)]
struct Which {
    vendor: String,
    family: u32,
    model: u32,
}

#[derive(Deserialize)]
struct Thread {
    enabled_ns: u64,
    running_ns: u64,
    counts: Vec<u64>,
}

#[derive(Deserialize)]
struct Miss {
    walkers: u32,
    dependent_cycles: f64,
}

struct Recorded {
    recipe: &'static Recipe,
    calibration: Option<Calibration>,
    intervals: Vec<Interval>,
}

fn recorded(name: &str) -> Recorded {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../fixtures/perf")
        .join(name)
        .with_extension("json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let recording: Recording = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(recording.schema, "megapage.perf-recording/1");
    assert!(!recording.source.is_empty());
    let Which { vendor, family, model } = recording.processor;
    let recipe = recipe(&Processor { vendor, family, model }).unwrap();
    assert_eq!(recipe.events().count(), recording.events.len(), "{name}");
    let calibration = recording.calibration.map(|miss| {
        let (high, low) = (miss.dependent_cycles, miss.dependent_cycles / f64::from(miss.walkers));
        Calibration { cycles: (low * high).sqrt(), low, high }
    });
    assert_eq!(calibration.is_some(), matches!(recipe.counted, Counted::Misses { .. }), "{name}");
    let intervals = recording
        .readings
        .windows(2)
        .map(|pair| {
            let threads: Vec<Reading> =
                pair[1].iter().zip(&pair[0]).map(|(now, then)| passed(then, now)).collect();
            interval(&threads)
        })
        .collect();
    Recorded { recipe, calibration, intervals }
}

fn passed(then: &Thread, now: &Thread) -> Reading {
    Reading {
        enabled_ns: now.enabled_ns - then.enabled_ns,
        running_ns: now.running_ns - then.running_ns,
        counts: now.counts.iter().zip(&then.counts).map(|(now, then)| now - then).collect(),
    }
}

fn cost(name: &str) -> TranslationCost {
    let Recorded { recipe, calibration, intervals } = recorded(name);
    let cost = share(recipe, calibration, &intervals).unwrap();
    assert_eq!(cost.source, CostSource::Measured);
    assert!(cost.low <= cost.share && cost.share <= cost.high, "{name}: {cost:?}");
    cost
}

#[test]
fn haswell_tells_the_published_costs_apart() {
    let (dependent, streaming) = (cost("haswell-dependent"), cost("haswell-streaming"));
    assert!((dependent.share - 0.39).abs() < 0.005 && dependent.high - dependent.low < 0.02, "{dependent:?}");
    assert!((streaming.share - 0.0104).abs() < 0.0005 && streaming.high < 0.012, "{streaming:?}");
}

#[test]
fn skylake_scales_what_others_kept_from_being_counted() {
    let value = cost("skylake-shared-counters");
    assert!((value.share - 0.49).abs() < 0.01, "{value:?}");
    // Walks for loads and stores may fall into the same cycles. Also, 40 % of the time was not
    // counted (half of it: 20 % either way).
    assert!((0.22..0.28).contains(&value.low), "{value:?}");
    assert!((0.57..0.61).contains(&value.high), "{value:?}");
}

#[test]
fn sapphire_rapids_phases_widen_the_interval() {
    let value = cost("sapphire-rapids-phases");
    assert!((value.share - 0.126).abs() < 0.005, "{value:?}");
    assert!(value.high - value.share > 0.05, "{value:?}");
}

#[test]
fn zen_counts_misses_and_is_less_sure() {
    let value = cost("zen-3-random");
    // The share is 36 / 160 if each access waits, and a sixth of that if six walks are always under
    // way.
    assert!((value.share - 36.0 / 6f64.sqrt() / 160.0).abs() < 0.005, "{value:?}");
    assert!((0.03..0.04).contains(&value.low) && (0.22..0.24).contains(&value.high), "{value:?}");
}

#[test]
fn a_process_that_hardly_ran_has_no_cost() {
    let Recorded { recipe, calibration, intervals } = recorded("ivy-bridge-idle");
    let none = share(recipe, calibration, &intervals).unwrap_err();
    assert!(matches!(none, NoCost::TooShort(cycles) if cycles < 1e7), "{none}");
}
