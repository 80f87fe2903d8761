//! Findings of `observe`, for people.

use super::{Advice, Cost, Exact, ObserveFound, ProgramReport, Seconds, Slowdown};
use crate::bench::Spread;
use crate::experiment::Section;
use megapage_units::Bytes;

/// Returns its tables.
pub(super) fn sections(found: &ObserveFound) -> Vec<Section> {
    let sampling = found.sampling.iter().map(|sampling| {
        Section::text(format!(
            "accessed bits by {}; a first access after a clearing costs {:.0} ns",
            sampling.tracker.name(),
            sampling.first_access_ns
        ))
    });
    let mut sections: Vec<Section> = sampling.collect();
    sections.extend(found.exact.as_ref().map(exact));
    sections.extend(found.cost.as_ref().map(cost));
    sections.extend(found.slowdown.as_ref().map(slowdown));
    sections.extend(found.advice.as_ref().map(advice));
    sections
}

fn exact(exact: &Exact) -> Section {
    let found = &exact.found;
    let row =
        |what: &str, counts: [u64; 3]| [what.to_string()].into_iter().chain(counts.map(|n| n.to_string()));
    Section::new(
        format!("exact, {} rounds", exact.rounds),
        &["", "compared", "wrong", "disturbed by others"],
        [
            row("base pages", [found.pages, found.wrong, found.disturbed]),
            row("huge regions", [found.huge_regions, found.wrong_huge, found.disturbed_huge]),
        ],
    )
}

fn cost(cost: &Cost) -> Section {
    let row = |what: &str, spread: &Spread| {
        [what.to_string(), format!("{:.2}", spread.median), format!("{:.2}-{:.2}", spread.min, spread.max)]
    };
    Section::new(
        format!("cost, of {} resident", Bytes(cost.resident_bytes)),
        &["processor time", "ms for each GiB", "range"],
        [
            row("read", &cost.read_ms_per_gib),
            row("clear, all bits set", &cost.clear_ms_per_gib),
            row("clear, none set", &cost.clear_idle_ms_per_gib),
            row("(clear_refs, whole process)", &cost.clear_refs_ms_per_gib),
        ],
    )
    .then(format!(
        "others waited for its memory for at most {:.1} ms meanwhile; beside clear_refs for {:.1} ms",
        cost.clear_wait_ms.median, cost.clear_refs_wait_ms.median
    ))
}

fn slowdown(slowdown: &Slowdown) -> Section {
    let percent = |value: f64| format!("{:+.2} %", 100.0 * value);
    let row = |what: &str, spread: &Spread| {
        [
            what.to_string(),
            percent(spread.median),
            format!("{} to {}", percent(spread.min), percent(spread.max)),
        ]
    };
    let believed = slowdown.believed.map(|believed| format!(", believed {:.2} %", 100.0 * believed));
    Section::new(
        format!(
            "slowdown of a program with {}, all in use, by {} samples; budget {:.1} %{}",
            Bytes(slowdown.bytes),
            slowdown.samples,
            100.0 * slowdown.budget,
            believed.unwrap_or_default()
        ),
        &["", "slower by", "range"],
        [row("observed", &slowdown.slowdown), row("none observed", &slowdown.control)],
    )
}

fn advice(advice: &Advice) -> Section {
    let title = format!("advice, median of {} runs, the copies taking turns", advice.runs);
    let mut programs: Vec<&ProgramReport> = advice.programs.iter().collect();
    programs.sort_by(|one, other| other.measured.median.total_cmp(&one.measured.median));
    let rows = programs.iter().map(|report| {
        let (predicted, advised, source) = match &report.predicted {
            Some(found) => (
                format!("{:.2} ({:.2}-{:.2})", found.gain[1], found.gain[0], found.gain[2]),
                match found.verdict.as_str() {
                    "use-huge-pages" => "switch",
                    "try-it" => "try it",
                    _ => "do not",
                },
                found.source.clone(),
            ),
            None => ("-".to_string(), "-", "-".to_string()),
        };
        [
            report.program.to_string(),
            format!("{:.2} ({:.2}-{:.2})", report.measured.median, report.interval[0], report.interval[1]),
            predicted,
            advised.to_string(),
            source,
            report
                .huge_share
                .map_or("-".into(), |[base, huge]| format!("{:.0}, {:.0} %", 100.0 * base, 100.0 * huge)),
        ]
    });
    let header = ["program", "measured gain", "predicted", "advice", "source", "huge: base, huge"];
    let mut section = Section::new(title, &header, rows);
    for report in &programs {
        if let Some(why) = &report.failure {
            section = section.then(format!("! {}: no advice: {why}", report.program));
        }
    }
    for (program, why) in &advice.left_out {
        section = section.then(format!("! {program} was left out: {why}"));
    }
    let sum = |of: fn(&Seconds) -> f64| programs.iter().map(|report| of(&report.seconds)).sum::<f64>();
    section = section.then(format!(
        "it took {:.0} s to start the copies, {:.0} s to ask, {:.0} s to let them work",
        sum(|seconds| seconds.starting),
        sum(|seconds| seconds.asking),
        sum(|seconds| seconds.working)
    ));
    if let (Some(tau), Some(exact)) = (advice.tau_b, advice.tau_b_exact) {
        section = section.then(format!("Kendall's tau-b {tau:.2} over all pairs ({exact:.2} without ties)"));
    }
    let pairs = &advice.distinguished;
    if let Some(tau) = pairs.tau_b {
        section = section.then(format!(
            "{tau:.2} over the {} of {} pairs whose measured intervals do not overlap: {} right, {} wrong",
            pairs.pairs, pairs.all_pairs, pairs.right, pairs.wrong
        ));
    }
    section
}
