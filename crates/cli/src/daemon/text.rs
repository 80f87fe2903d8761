//! The result of a pass, for a reader.

use megapage_act::execute::Done;
use megapage_daemon::Pass;
use megapage_decide::{Action, Obtained};
use megapage_units::shown::one_line;
use megapage_units::{Bytes, HugePage, Pid};
use std::fmt::Write;

/// Most actions of one pass that are listed; the others are counted.
const MOST_LINES: usize = 40;

/// Returns the lines of a pass: one for the pass, one for each action, and with `always` one for
/// each skipped process. The calls of a dry run are only in its JSON. A pass without actions has no
/// line unless `always`.
pub fn pass(pass: &Pass, always: bool) -> String {
    let mut text = String::new();
    if pass.done.is_empty() && !always {
        return text;
    }
    let (promoted, freed) = sums(&pass.done);
    let would = if pass.dry_run { "would have " } else { "" };
    let _ = writeln!(
        text,
        "pass {}: policy {}, {} watched, {} huge; {would}promoted {promoted}, freed {freed}{}{}",
        pass.number,
        pass.policy,
        match pass.watched {
            1 => "1 process".into(),
            count => format!("{count} processes"),
        },
        pass.huge,
        if pass.left > 0 { format!(", {} actions deferred", pass.left) } else { String::new() },
        if pass.short { ", memory is short" } else { "" },
    );
    for done in pass.done.iter().take(MOST_LINES) {
        let _ = writeln!(text, "  {}", line(pass, done));
    }
    if let Some(more) = pass.done.len().checked_sub(MOST_LINES).filter(|more| *more > 0) {
        let _ = writeln!(text, "  and {more} more (--json shows all)");
    }
    if always {
        for missed in &pass.snapshot.missed {
            let _ = writeln!(text, "  skipped: {}", one_line(&missed.what));
        }
    }
    text
}

fn sums(done: &[Done]) -> (Bytes, Bytes) {
    (done.iter().map(|done| done.promoted).sum(), done.iter().map(|done| done.freed).sum())
}

fn line(pass: &Pass, done: &Done) -> String {
    let action = &done.outcome.action;
    let who = |pid: Pid| {
        let name = pass.snapshot.process(pid).map(|process| one_line(&process.name)).unwrap_or_default();
        format!("{pid} ({name})")
    };
    let call = |page: HugePage, advice: &str| format!("{} {advice}", page.range());
    let (what, reason) = match action {
        Action::Promote { process, region, size, .. } => {
            (format!("{} {} to {size}", who(process.pid), call(*region, "promote")), action.reason())
        }
        Action::Demote { process, region, .. } => {
            (format!("{} {}", who(process.pid), call(*region, "split")), action.reason())
        }
        Action::Recover { process, region, .. } => {
            (format!("{} {}", who(process.pid), call(*region, "recover")), action.reason())
        }
        Action::ZeroScan { process, regions, .. } => {
            (format!("{} scan {} regions for zeros", who(process.pid), regions.len()), action.reason())
        }
    };
    let reason = format!("{reason:?}");
    if pass.dry_run && done.outcome.obtained == Obtained::Done {
        return format!("{what}, {}: not done, a dry run", words(&reason));
    }
    let mut text = format!("{what}, {}: {}", words(&reason), words(&format!("{:?}", done.outcome.obtained)));
    if let Some(why) = &done.why {
        let _ = write!(text, " ({why})");
    }
    text
}

/// Returns `GuaranteedShare` as `guaranteed share`.
fn words(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_words() {
        assert_eq!(words("GuaranteedShare"), "guaranteed share");
        assert_eq!(words("Done"), "done");
    }
}
