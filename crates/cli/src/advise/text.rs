//! Advice in human form.

use megapage_advise::{Advice, Verdict};
use megapage_kernel::spawn::ChildEvent;
use megapage_report::width;
use megapage_units::shown::one_line;
use std::fmt::Write;

/// Most processes of a group that are listed; `--json` has all.
const MOST_LISTED: usize = 8;

/// Returns one block for each process, or group of processes that share memory.
pub(super) fn human(all: &[Advice]) -> String {
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
        text += &wrapped("with", &format!("{}{more}, which share its memory", pids.join(", ")));
    }
    let mut line = |label: &str, what: String| text += &wrapped(label, &what);
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
        line("kind", advice.kind.words().into());
    }
    for how in &advice.how {
        // Never wrapped, so that it can be copied.
        let _ = writeln!(text, "  {:<8}{}", "how", one_line(&how.what));
        text += &wrapped("", &how.why);
    }
    let mut line = |label: &str, what: String| text += &wrapped(label, &what);
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

/// Returns a line on a program that did not end well.
pub(super) fn failure(event: ChildEvent) -> Option<String> {
    match event {
        ChildEvent::Exited(0) => None,
        ChildEvent::Exited(status) => Some(format!("the program ended with status {status}")),
        ChildEvent::Died(number) => Some(format!("the program died of signal {number}")),
        ChildEvent::Stopped(_) | ChildEvent::Continued => None,
    }
}

/// Returns a labelled paragraph within the width of reports.
fn wrapped(label: &str, what: &str) -> String {
    const INDENT: usize = 10;
    let width = width() - INDENT;
    let mut lines = vec![String::new()];
    for word in one_line(what).split(' ') {
        let last = lines.last_mut().expect("never empty");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.into());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let label = if number == 0 { label } else { "" };
        let _ = writeln!(text, "  {label:<8}{line}");
    }
    text
}
