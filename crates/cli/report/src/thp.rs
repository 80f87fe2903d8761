//! Settings of transparent huge pages: their state, their changes, and their file for a reboot.

use crate::text::{cells, lines};
use crate::{shown_path, table};
use megapage_act::thp::{Persist, Step, commands};
use megapage_kernel::thp::RawSetting;
use serde::Serialize;

/// One setting.
#[derive(Debug, Serialize)]
pub struct Shown<'a> {
    name: &'a str,
    value: &'a str,
    takes: &'a [String],
}

impl<'a> From<&'a RawSetting> for Shown<'a> {
    fn from(it: &'a RawSetting) -> Shown<'a> {
        Shown { name: &it.name, value: &it.value, takes: &it.words }
    }
}

/// Returns the table of settings.
pub fn settings(all: &[Shown<'_>]) -> String {
    let takes = |it: &Shown<'_>| if it.takes.is_empty() { "a number".into() } else { it.takes.join(" ") };
    let rows = all.iter().map(|it| cells![it.name, it.value, takes(it)]);
    table(&["SETTING", "VALUE", "TAKES"], rows).trim_end().to_string() + "\n"
}

/// Returns the changes, or with `dry_run` the shell lines that make them.
pub fn changed(steps: &[Step], dry_run: bool) -> String {
    let mut text = if dry_run { lines(commands(steps)) } else { String::new() };
    for step in steps {
        if step.before == step.after {
            text += &format!("# {} is {} already\n", step.name, step.after);
        } else if !dry_run {
            text += &format!("{}: {} (was {})\n", step.name, step.after, step.before);
        }
    }
    text
}

/// Returns the change to the file that keeps settings, or with `dry_run` the shell lines for it.
pub fn kept(kept: &Persist, remove: bool, dry_run: bool) -> String {
    let path = shown_path(&kept.path);
    let mut text = match (kept.is_no_op(), dry_run) {
        (true, _) if remove => "# Nothing is kept.\n".into(),
        (true, _) => format!("# {path} is already as requested.\n"),
        (false, true) => lines(kept.commands()),
        (false, false) if remove => format!("removed {path}\n"),
        (false, false) => format!("wrote {path}\n"),
    };
    text += &lines(kept.notes.iter().map(|note| format!("# Note: {note}.")));
    if !remove && !kept.is_no_op() {
        text += "# To take effect now: megapage thp set with the same words\n";
    }
    text
}
