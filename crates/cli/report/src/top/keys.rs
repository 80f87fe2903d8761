//! Explanations of the keys and columns of `megapage top`: its last line, and its help.

use super::cells::{CALM, LEAST_WRAP, fields};
use super::columns::ALL;
use crate::WIDTH;
use crate::line::{Line, Style};

/// Content of the last line of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// List of the keys.
    Keys,
    /// Filter that is being typed, and the error in it.
    Filter(&'a str, Option<&'a str>),
}

impl Prompt<'_> {
    /// Returns the line for this many columns.
    pub fn line(self, columns: usize) -> Line {
        match self {
            Prompt::Keys => keys(columns),
            Prompt::Filter(text, wrong) => {
                let after = wrong.unwrap_or("enter keep   esc drop");
                Line::of(Style::BOLD, format!("/{text}_")).with(CALM, format!("   {after}"))
            }
        }
    }
}

/// Returns the keys, as many as fit.
fn keys(columns: usize) -> Line {
    const KEYS: [&str; 7] =
        ["q quit", "? help", "/ filter", "← → sort by", "r reverse", "↑ ↓ scroll", "space refresh"];
    let mut text = String::new();
    for key in KEYS {
        let gap = if text.is_empty() { "" } else { "  " };
        if text.chars().count() + gap.len() + key.chars().count() <= columns {
            text = text + gap + key;
        }
    }
    Line::of(CALM, text)
}

/// Returns the explanations of the keys and the columns, for a screen of this many lines and
/// columns.
pub fn help(lines: usize, columns: usize) -> Vec<Line> {
    const KEYS: [(&str, &str); 8] = [
        ("q, esc", "quit"),
        ("/", "filter by a regular expression: name, user, unit, group, pod, number"),
        ("← →, < >", "sort by the column to the left or right"),
        ("r", "turn the order round"),
        ("↑ ↓, k j", "scroll by a line; page up and down by half a screen; home, end"),
        ("space", "refresh now"),
        ("? or h", "this help; q or ? leaves it"),
        ("ctrl-z", "stop, until fg"),
    ];
    let columns_help = ALL.iter().filter(|it| !it.help.is_empty()).map(|it| (it.title, it.help));
    let note = ("", "-: unknown; narrow terminals leave columns out, never the sorted one");
    let mut out = Vec::new();
    for (name, text) in KEYS.into_iter().chain(columns_help).chain([note]) {
        out.extend(fields(name, text, columns.clamp(LEAST_WRAP, usize::from(WIDTH))));
    }
    out.truncate(lines);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::{self, Paint};

    #[test]
    fn help_names_every_column_and_fits() {
        for (lines, columns) in [(60, 60), (24, 80), (5, 200)] {
            let help = help(lines, columns);
            assert!(help.len() <= lines && help.iter().all(|line| line.width() <= columns));
        }
        assert!(help(99, 80).len() < 24, "it is whole on the smallest usual terminal");
        let text = line::show(&help(99, 100), Paint::Plain, 100);
        for column in super::super::columns::ALL.iter().skip(3) {
            assert!(text.contains(column.title), "{}", column.title);
        }
    }
}
