//! Lines and paragraphs that the modules share.

use crate::line::{Paint, Style, show, wrap};
use crate::width;
use megapage_units::shown::one_line;
use std::fmt::Display;
use std::path::Path;

/// Makes the cells of a table's row from values that can be displayed.
macro_rules! cells {
    ($($value:expr),+ $(,)?) => { [$($value.to_string()),+] };
}
pub(crate) use cells;

/// Returns a value as a cell; a dash if there is none.
pub(crate) fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// Returns one line for each text.
pub fn lines<T: Display>(texts: impl IntoIterator<Item = T>) -> String {
    texts.into_iter().map(|text| format!("{text}\n")).collect()
}

/// Returns `one` for a count of 1, else the count and `many`.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    if count == 1 { one.into() } else { format!("{count} {many}") }
}

/// Returns a path in the form for a part of a line.
pub fn shown_path(path: &Path) -> String {
    one_line(&path.display().to_string())
}

/// Wraps `text` at spaces into lines of at most [`width`] columns. The first line begins with
/// `first`, the others with `other`. A longer word stays whole.
pub(crate) fn wrapped(text: &str, first: &str, other: &str) -> String {
    let mut out = String::new();
    let mut line = first.to_string();
    let mut is_fresh = true;
    // A line break within a name must not start a line.
    for word in one_line(text).split(' ') {
        if !is_fresh && line.chars().count() + 1 + word.chars().count() > width() {
            out += line.trim_end();
            out.push('\n');
            line = other.to_string();
            is_fresh = true;
        }
        if !is_fresh {
            line.push(' ');
        }
        line += word;
        is_fresh = false;
    }
    out + line.trim_end() + "\n"
}

/// Wraps `text` and keeps its leading spaces. Indents further lines by `hanging` more columns.
/// Other runs of blanks become one space.
pub(crate) fn indented(text: &str, hanging: usize) -> String {
    let indent = text.len() - text.trim_start().len();
    let words: Vec<&str> = text.split_whitespace().collect();
    wrapped(&words.join(" "), &" ".repeat(indent), &" ".repeat(indent + hanging))
}

/// Wraps `text` after a label of `column` columns, which begins two columns from the edge.
pub(crate) fn labelled(label: &str, text: &str, column: usize) -> String {
    wrapped(text, &format!("  {label:<column$}"), &" ".repeat(2 + column))
}

/// Wraps `text` into lines that leave two columns free. A longer word is cut.
pub(crate) fn paragraph(text: &str) -> String {
    show(&wrap(Style::PLAIN, text, width() - 2), Paint::Plain, width())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WIDTH;

    #[test]
    fn lines_are_broken_at_spaces() {
        let text = wrapped(&"word ".repeat(60), "  first  ", "         ");
        assert!(text.lines().count() > 2);
        assert!(text.lines().all(|line| line.len() <= WIDTH as usize && !line.ends_with(' ')), "{text}");
        assert!(
            text.starts_with("  first  word") && text.lines().nth(1).unwrap().starts_with("         word")
        );
        let long = "x".repeat(120);
        assert_eq!(wrapped(&format!("a {long}"), "", ""), format!("a\n{long}\n"));
    }

    #[test]
    fn lines_are_broken_at_blanks() {
        let out = indented(&format!("  {}", "word ".repeat(40)), 0);
        assert!(out.lines().count() > 1);
        assert!(out.lines().all(|line| line.starts_with("  word") && line.chars().count() <= 100), "{out}");
        let out = indented(&"x".repeat(300), 0);
        assert_eq!(out.lines().count(), 1);
    }
}
