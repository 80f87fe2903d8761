//! What `bench observe` found, for people.

use super::{Advice, ProgramReport, Report, Seconds};
use crate::run::{gates_table, heading};
use megapage_report::table;
use megapage_units::Bytes;
use std::fmt::Write;

/// The report as text of at most 100 columns.
pub fn human(report: &Report) -> String {
    let mut text = String::from("bench observe\n");
    text += &heading(&report.head);
    if let Some(sampling) = &report.sampling {
        writeln!(
            text,
            "accessed bits by {}; a first access after a clearing costs {:.0} ns",
            sampling.tracker.name(),
            sampling.first_access_ns
        )
        .ok();
    }
    if let Some(exact) = &report.exact {
        writeln!(text, "\nexact, {} rounds", exact.rounds).ok();
        let row = |what: &str, figures: [u64; 3]| {
            [what.to_string()].into_iter().chain(figures.map(|n| n.to_string()))
        };
        text += &table(
            &["", "compared", "wrong", "disturbed by others"],
            [
                row("base pages", [exact.pages, exact.wrong, exact.disturbed]),
                row("huge regions", [exact.huge_regions, exact.wrong_huge, exact.disturbed_huge]),
            ],
        );
    }
    if let Some(cost) = &report.cost {
        let row = |what: &str, spread: &crate::run::Spread| {
            [
                what.to_string(),
                format!("{:.2}", spread.median),
                format!("{:.2}-{:.2}", spread.min, spread.max),
            ]
        };
        writeln!(text, "\ncost, of {} resident", Bytes(cost.resident_bytes)).ok();
        text += &table(
            &["processor time", "ms for each GiB", "range"],
            [
                row("read", &cost.read_ms_per_gib),
                row("clear, all bits set", &cost.clear_ms_per_gib),
                row("clear, none set", &cost.clear_idle_ms_per_gib),
                row("(clear_refs, whole process)", &cost.clear_refs_ms_per_gib),
            ],
        );
        writeln!(
            text,
            "others waited for its memory for at most {:.1} ms meanwhile; beside clear_refs for {:.1} ms",
            cost.clear_wait_ms.median, cost.clear_refs_wait_ms.median
        )
        .ok();
    }
    if let Some(slowdown) = &report.slowdown {
        let percent = |value: f64| format!("{:+.2} %", 100.0 * value);
        let row = |what: &str, spread: &crate::run::Spread| {
            [
                what.to_string(),
                percent(spread.median),
                format!("{} to {}", percent(spread.min), percent(spread.max)),
            ]
        };
        writeln!(
            text,
            "\nslowdown of a program with {}, all in use, by {} samples; budget {:.1} %{}",
            Bytes(slowdown.bytes),
            slowdown.samples,
            100.0 * slowdown.budget,
            slowdown
                .believed
                .map_or(String::new(), |believed| format!(", believed {:.2} %", 100.0 * believed))
        )
        .ok();
        text += &table(
            &["", "slower by", "range"],
            [row("observed", &slowdown.slowdown), row("nobody observed", &slowdown.control)],
        );
    }
    if let Some(advice) = &report.advice {
        text += &advice_table(advice);
    }
    for (case, why) in &report.failed {
        writeln!(text, "! {case} did not run: {why}").ok();
    }
    if !report.gates.is_empty() {
        writeln!(text, "\n{}", gates_table(&report.gates).trim_end()).ok();
    }
    text
}

fn advice_table(advice: &Advice) -> String {
    let mut text = format!("\nadvice, median of {} runs, the copies taking turns\n", advice.runs);
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
    text += &table(&["program", "measured gain", "predicted", "advice", "source", "huge: base, huge"], rows);
    for report in &programs {
        if let Some(why) = &report.failure {
            writeln!(text, "! {}: no advice: {why}", report.program).ok();
        }
    }
    for (program, why) in &advice.left_out {
        writeln!(text, "! {program} was left out: {why}").ok();
    }
    let sum = |of: fn(&Seconds) -> f64| programs.iter().map(|report| of(&report.seconds)).sum::<f64>();
    writeln!(
        text,
        "it took {:.0} s to start the copies, {:.0} s to ask, {:.0} s to let them work",
        sum(|seconds| seconds.starting),
        sum(|seconds| seconds.asking),
        sum(|seconds| seconds.working)
    )
    .ok();
    if let (Some(tau), Some(exact)) = (advice.tau_b, advice.tau_b_exact) {
        writeln!(text, "Kendall's tau-b {tau:.2} over all pairs ({exact:.2} without ties)").ok();
    }
    let told = &advice.told_apart;
    if let Some(tau) = told.tau_b {
        writeln!(
            text,
            "{tau:.2} over the {} of {} pairs whose measured intervals do not overlap: {} right, {} wrong",
            told.pairs, told.all_pairs, told.right, told.wrong
        )
        .ok();
    }
    text
}
