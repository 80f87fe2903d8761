//! Advice in human form.

use crate::text::labelled;
use megapage_advise::{Advice, Verdict};
use megapage_units::shown::one_line;
use std::fmt::Write;

/// Most processes of a group that are listed; `--json` has all.
const MOST_LISTED: usize = 8;
/// Width of a label, in columns.
const LABEL: usize = 8;

/// Returns one block for each process, or group of processes that share memory.
pub fn human(all: &[Advice]) -> String {
    let blocks: Vec<String> = all.iter().map(block).collect();
    blocks.join("\n")
}

fn block(advice: &Advice) -> String {
    let ended = if advice.ended { ", has ended" } else { "" };
    let name = one_line(&advice.name);
    let mut text = format!("{name} ({}{ended}): {}\n", advice.pid, advice.sentence());
    if !advice.others.is_empty() {
        let pids: Vec<String> = advice.others.iter().take(MOST_LISTED).map(ToString::to_string).collect();
        let more = match advice.others.len().saturating_sub(MOST_LISTED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        text += &labelled("with", &format!("{}{more}, which share its memory", pids.join(", ")), LABEL);
    }
    let mut line = |label: &str, what: String| text += &labelled(label, &what, LABEL);
    let is_huge = advice.verdict == Verdict::AlreadyHuge;
    if !is_huge {
        line("gain", gain(advice));
    }
    if let Some(cost) = advice.translation {
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        line(
            "now",
            format!(
                "{} % of its time goes into address translation ({} to {} %, {})",
                percent(cost.share),
                percent(cost.low),
                percent(cost.high),
                cost.source.name()
            ),
        );
    }
    if !is_huge {
        line("kind", advice.kind.name().into());
    }
    for how in &advice.how {
        // Never wrapped, so that it can be copied.
        let _ = writeln!(text, "  {:<LABEL$}{}", "how", one_line(&how.what));
        text += &labelled("", &how.why, LABEL);
    }
    let mut line = |label: &str, what: String| text += &labelled(label, &what, LABEL);
    let memory = advice.memory;
    let shared = match memory.shared.0 {
        0 => String::new(),
        _ => format!(
            "; of {} of shared memory {} is huge, {} could be",
            memory.shared, memory.shared_huge, memory.shared_promotable
        ),
    };
    let zeros = memory.zeros.map_or(String::new(), |zeros| format!(" (about {zeros} of it only zeros)"));
    line(
        "memory",
        format!(
            "{} of private memory could be huge, {} is{zeros}; a huge page would fill {} more with zeros{shared}",
            memory.promotable, memory.huge, memory.filled
        ),
    );
    for risk in &advice.risks {
        line("risk", risk.clone());
    }
    for why in &advice.why {
        line("why", why.clone());
    }
    text
}

fn gain(advice: &Advice) -> String {
    let Some(gain) = advice.gain else { return "not known".into() };
    if advice.estimate.is_none() && advice.trial.is_none() && gain.likely == 1.0 {
        let memory = &advice.memory;
        let why = match (memory.promotable.0, memory.shared.0 - memory.shared_huge.0) {
            (0, 0) => "it has no memory that could be huge",
            (_, 0) => "its memory is small",
            (_, _) => "its private memory is small",
        };
        return format!("none to speak of: {why}");
    }
    format!("{:.2}x to {:.2}x, likely {:.2}x ({})", gain.low, gain.high, gain.likely, gain.source.name())
}
