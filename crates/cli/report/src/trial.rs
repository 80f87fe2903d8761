//! Trials of huge pages on running services, and their results.

use crate::table;
use crate::text::{cells, labelled};
use megapage_decide::judge::Decision;
use megapage_launch::verdict::{Verdict, date};
use megapage_trial::Report;
use megapage_units::Bytes;
use std::path::Path;

/// Width of a label, in columns.
const LABEL: usize = 10;

/// Returns the result of a trial.
pub fn human(report: &Report) -> String {
    let outcome = &report.outcome;
    let headline = match outcome.decision {
        Decision::Gains => "huge pages gain",
        Decision::NoGain => "huge pages do not gain as much as is worth it",
        Decision::Hurts => "huge pages hurt",
        Decision::Undecided => "undecided",
    };
    let mut text = format!("{}: {headline}: {}\n", report.service, outcome.gain.in_words());
    let mut line = |name: &str, what: String| text += &labelled(name, &what, LABEL);
    line("metric", report.metric.clone());
    line(
        "decision",
        format!(
            "worth it from {:+.1} % on; the interval is wrong with a chance of at most {:.0} %",
            100.0 * report.least_gain,
            100.0 * report.error
        ),
    );
    let counted = outcome.blocks.len() as u64 - u64::from(outcome.empty_blocks);
    let empty = match outcome.empty_blocks {
        0 => String::new(),
        empty => format!(", {empty} more without a value"),
    };
    line(
        "blocks",
        format!(
            "{counted} pairs of windows of {:.1} s in random order{empty}; {:.0} s in all",
            outcome.window_seconds, outcome.seconds
        ),
    );
    if let Some(harm) = &outcome.harm {
        line(
            "guard",
            format!(
                "stopped {:.1} s after the switch: {:.0} % worse than on base pages, and well again without",
                harm.after_seconds,
                100.0 * harm.drop
            ),
        );
    }
    let moved: Bytes = report.processes.iter().map(|it| Bytes(it.moved_bytes)).sum();
    let processes = report.processes.len();
    line(
        "memory",
        format!(
            "{moved} made huge and base in turns: {:.0} % of the private memory of {processes} process{}",
            100.0 * report.share,
            if processes == 1 { "" } else { "es" }
        ),
    );
    line("cost", format!("switching took at most {:.2} % of its processor time", 100.0 * outcome.cost_share));
    let now =
        if outcome.is_huge { "stays huge until the service ends" } else { "is on base pages as before" };
    line("now", format!("the memory {now}"));
    for note in &report.notes {
        line("note", note.clone());
    }
    if report.verdict_file.is_some() {
        line("kept", "for the next start of this build (megapage trial --list)".into());
    }
    text
}

/// Returns verdicts as a table, each with whether its build is the one installed now.
pub fn verdicts(verdicts: &[(&Verdict, bool)]) -> String {
    let rows = verdicts.iter().map(|&(it, is_current)| {
        let program = Path::new(&it.build.program);
        let of = program.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let build = it.build.build.get(..8).unwrap_or(&it.build.build);
        let state = if is_current { "" } else { ", replaced" };
        let build = format!("{of} {build}{state}");
        cells![it.service(), it.decision.name(), it.gain.in_words(), date(it.decided), build]
    });
    table(&["SERVICE", "TRIAL", "GAIN", "SINCE", "BUILD"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_decide::judge::{Better, Block, Gain, Outcome};
    use megapage_trial::ProcessReport;

    #[test]
    fn a_report_says_what_was_found_and_what_is_now() {
        let outcome = Outcome {
            decision: Decision::Gains,
            gain: Gain { low: Some(0.052), likely: Some(0.07), high: Some(0.091) },
            blocks: vec![Block { huge_first: true, base: Some(1.0), huge: Some(1.1) }; 9],
            empty_blocks: 1,
            harm: None,
            is_huge: true,
            cost_share: 0.0062,
            processor_seconds: 100.0,
            seconds: 181.0,
            window_seconds: 10.0,
            stopped: None,
        };
        let process = ProcessReport {
            pid: 7,
            name: "x".into(),
            private_bytes: 600 << 20,
            huge_before_bytes: 0,
            moved_bytes: 512 << 20,
        };
        let mut report = Report {
            service: "a.service".into(),
            unit: "a.service".into(),
            metric: "calls that read and write per CPU second".into(),
            better: Better::More,
            least_gain: 0.01,
            error: 0.05,
            most_seconds: 1800.0,
            period_seconds: 10.0,
            settle_seconds: 1.0,
            seed: 3,
            processes: vec![process],
            share: 0.85,
            promoted_regions: 256,
            freed_bytes: 0,
            outcome,
            verdict_file: None,
            notes: vec!["a note".into()],
        };
        let text = human(&report);
        assert!(text.starts_with("a.service: huge pages gain: +7.0 % (+5.2 to +9.1 %)\n"), "{text}");
        for part in
            ["8 pairs of windows of 10.0 s", "1 more without", "0.62 %", "stays huge", "note      a note"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        report.outcome.decision = Decision::Hurts;
        report.outcome.is_huge = false;
        let text = human(&report);
        assert!(text.contains("huge pages hurt") && text.contains("on base pages as before"), "{text}");
    }
}
