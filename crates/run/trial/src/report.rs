//! The results of a trial, as data and as text.

use megapage_decide::judge::{Better, Decision, Outcome};
use megapage_report::WIDTH;
use megapage_report::line::{Paint, Style, wrap};
use megapage_units::Bytes;
use serde::Serialize;

/// Columns before the text of a line.
const INDENT: usize = 12;

/// One process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessReport {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// Private memory that is present.
    pub private_bytes: u64,
    /// Part of it that was huge before the trial, and has stayed so.
    pub huge_before_bytes: u64,
    /// Bytes of the regions that the trial has made huge and base.
    pub moved_bytes: u64,
}

/// A trial: `megapage.trial/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The service, as the user named it.
    pub service: String,
    /// The unit; empty if the service runs in none.
    pub unit: String,
    /// The metric, in words.
    pub metric: String,
    /// The better values: greater or smaller ones.
    pub better: Better,
    /// The least gain that is worth it.
    pub least_gain: f64,
    /// The chance that the interval is wrong.
    pub error: f64,
    /// The longest time of the trial.
    pub most_seconds: f64,
    /// The shortest length of a window.
    pub period_seconds: f64,
    /// The settling time after a switch.
    pub settle_seconds: f64,
    /// The seed that the order was drawn with.
    pub seed: u64,
    /// The processes.
    pub processes: Vec<ProcessReport>,
    /// The share of the private memory that was made huge and base.
    pub share: f64,
    /// Largest number of regions that were huge at a time, added up over the processes.
    pub promoted_regions: u64,
    /// Bytes of zeros that splits have freed.
    pub freed_bytes: u64,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The file in which the next start finds the verdict; `None` if none was kept.
    pub verdict_file: Option<String>,
    /// Notes for the user, one sentence each.
    pub notes: Vec<String>,
}

impl Report {
    /// Returns true if the trial has decided.
    pub fn is_decided(&self) -> bool {
        self.outcome.decision.is_known()
    }
}

/// Returns the report as text.
pub fn human(report: &Report) -> String {
    let outcome = &report.outcome;
    let headline = match outcome.decision {
        Decision::Gains => "huge pages gain",
        Decision::NoGain => "huge pages do not gain as much as is worth it",
        Decision::Hurts => "huge pages hurt",
        Decision::Undecided => "undecided",
    };
    let mut text = format!("{}: {headline}: {}\n", report.service, outcome.gain.in_words());
    let mut line = |name: &str, what: String| {
        for (number, part) in wrap(Style::PLAIN, &what, WIDTH as usize - INDENT).into_iter().enumerate() {
            let name = if number == 0 { name } else { "" };
            text += &format!("  {name:<9} {}\n", part.show(Paint::Plain, WIDTH as usize));
        }
    };
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

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_decide::judge::{Block, Gain};

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
