//! Standard output and standard error: whether they take colour, a reader that may go away, and text that others have
//! chosen. Nothing of this command is written to either but from here (and by the screens of `top` and `map --watch`).

mod progress;

pub use progress::{end_progress, progress};

use megapage_report::line::Paint;
use megapage_units::shown;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::Path;

/// Colour on a terminal that has it, unless the user wants none (<https://no-color.org>).
pub fn paint() -> Paint {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if io::stdout().is_terminal() && !unwanted && !is_dumb() { Paint::Colour } else { Paint::Plain }
}

/// Whether the terminal knows no more than letters: by terminfo(5), `TERM` is `dumb`, or says nothing.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Colour, for a picture that is drawn with blocks: those are not ASCII.
pub fn paint_blocks() -> Paint {
    if takes_utf8() { paint() } else { Paint::Plain }
}

/// Whether the user's locale takes more than ASCII (locale(7)). One that names no encoding at all is taken to.
fn takes_utf8() -> bool {
    let named = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    named.is_none_or(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// `text` as the user's locale takes it.
pub fn in_locale(text: &str) -> Cow<'_, str> {
    if takes_utf8() { text.into() } else { shown::ascii(text).into() }
}

/// Has reports fit the reader's terminal: as wide as COLUMNS says, or the terminal itself.
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

/// Prints `text`. `Ok(false)` where the reader has gone away, as `head` does: no failure, but the end. What steers a terminal
/// is not printed: a report holds names that others have chosen.
pub fn print(text: &str) -> io::Result<bool> {
    put(&shown::lines(text))
}

/// The same, where `text` may hold the sequences that set colours.
pub fn print_painted(text: &str) -> io::Result<bool> {
    put(&shown::painted(text))
}

/// Prints the answer of a command: `value` as JSON of this schema, or the text for people.
pub fn answer(
    as_json: bool,
    schema: &str,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> io::Result<bool> {
    print(&if as_json { megapage_report::json(schema, value) + "\n" } else { text() })
}

/// A path as a part of a line.
pub fn shown_path(path: &Path) -> String {
    shown::one_line(&path.display().to_string())
}

fn put(text: &str) -> io::Result<bool> {
    // JSON and SVG are UTF-8 wherever they go.
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

/// Says `what` on standard error, in one line that begins with the name of this command. Where that has gone, nobody is to
/// be told.
pub fn say(what: impl Display) {
    progress::make_room();
    let line = format!("megapage: {}\n", shown::message(&what.to_string()));
    let _ = io::stderr().write_all(in_locale(&line).as_bytes());
}

/// Says what has failed, with its causes.
pub fn say_error(error: &anyhow::Error) {
    say(shown::error(error.as_ref()));
}
