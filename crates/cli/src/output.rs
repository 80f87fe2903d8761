//! Standard output and standard error: colour, readers that have gone away, and text that other
//! programs chose. Only this module and the screen of `top` write to them.

mod progress;

pub use progress::{end_progress, progress};

use megapage_report::line::Paint;
use megapage_units::shown;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

/// Returns colour if standard output is a terminal that has it, unless the user sets `NO_COLOR`
/// (<https://no-color.org>).
pub fn paint() -> Paint {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if io::stdout().is_terminal() && !unwanted && !is_dumb() { Paint::Colour } else { Paint::Plain }
}

/// Returns true if the terminal shows text only: `TERM` is `dumb` (terminfo(5)), empty or not set.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Returns [`paint`] for a picture that is drawn with blocks. Blocks are not ASCII, so that the
/// locale must take UTF-8.
pub fn paint_blocks() -> Paint {
    if takes_utf8() { paint() } else { Paint::Plain }
}

/// Returns true if the user's locale takes UTF-8 (locale(7)). Assumes so if no locale is set.
fn takes_utf8() -> bool {
    let named = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    named.is_none_or(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// Returns `text` in the characters that the user's locale takes.
pub fn in_locale(text: &str) -> Cow<'_, str> {
    if takes_utf8() { text.into() } else { shown::ascii(text).into() }
}

/// Fits reports to the reader's terminal: as wide as `COLUMNS` says, or else as the terminal itself
/// says.
pub fn fit_terminal() {
    let named = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse::<usize>().ok());
    let of_terminal = || {
        let size = io::stdout().is_terminal().then(crossterm::terminal::size)?;
        size.ok().map(|(columns, _)| usize::from(columns))
    };
    if let Some(columns) =
        named.filter(|columns| *columns > 0).or_else(of_terminal).filter(|columns| *columns > 0)
    {
        megapage_report::set_columns(columns);
    }
}

/// Prints `text`. Returns `Ok(false)` if the reader has gone away, as `head` does: the output ends,
/// without an error. Shows each character that steers a terminal as `?`, for a report holds names
/// that other programs chose.
pub fn print(text: &str) -> io::Result<bool> {
    put(&shown::lines(text))
}

/// Prints `text`, which may hold the sequences that set colours.
pub fn print_painted(text: &str) -> io::Result<bool> {
    put(&shown::painted(text))
}

/// Prints the answer of a command: `value` as JSON of this schema, or the human text.
pub fn answer(
    as_json: bool,
    schema: &str,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> io::Result<bool> {
    print(&if as_json { megapage_report::json(schema, value) + "\n" } else { text() })
}

fn put(text: &str) -> io::Result<bool> {
    // JSON and SVG are UTF-8 in every locale.
    let is_document = text.starts_with(['{', '<']);
    let text = if is_document { text.into() } else { in_locale(text) };
    progress::make_room();
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Shows text of several lines on standard error, such as a report while a program runs.
pub fn show_aside(text: &str) {
    progress::make_room();
    let _ = io::stderr().write_all(in_locale(&shown::lines(text)).as_bytes());
}

/// Prints `what` on standard error, in one line that begins with the name of this command. Ignores
/// a standard error that has gone away.
pub fn say(what: impl Display) {
    progress::make_room();
    let line = format!("megapage: {}\n", shown::message(&what.to_string()));
    let _ = io::stderr().write_all(in_locale(&line).as_bytes());
}

/// Prints a failure on standard error, with its causes.
pub fn say_error(error: &anyhow::Error) {
    say(shown::error(error.as_ref()));
}
