//! Standard output and standard error: whether they take colour, a reader that may go away, and text that others have
//! chosen. Nothing of this command is written to either but from here (and by the screen of `top`).

use megapage_report::line::Paint;
use megapage_units::shown;
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

/// Prints `text`. `Ok(false)` where the reader has gone away, as `head` does: no failure, but the end. What steers a terminal
/// is not printed: a report holds names that others have chosen.
pub fn print(text: &str) -> io::Result<bool> {
    put(&shown::lines(text))
}

/// The same, where `text` may hold the sequences that set colours.
pub fn print_painted(text: &str) -> io::Result<bool> {
    put(&shown::painted(text))
}

/// A path as a part of a line.
pub fn shown_path(path: &Path) -> String {
    shown::one_line(&path.display().to_string())
}

fn put(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Shows text of several lines on standard error, such as a report while a program runs.
pub fn show_aside(text: &str) {
    let _ = io::stderr().write_all(shown::lines(text).as_bytes());
}

/// Shows how far long work is, in the line of standard error, a terminal, in which it was shown before.
pub fn show_progress(text: &str) {
    let _ = write!(io::stderr(), "\rmegapage: {}  ", shown::one_line(text));
}

/// Clears that line.
pub fn end_progress() {
    let _ = write!(io::stderr(), "\r\x1b[K");
}

/// Says `what` on standard error, in one line that begins with the name of this command. Where that has gone, nobody is to
/// be told.
pub fn say(what: impl Display) {
    let line = format!("megapage: {}\n", shown::message(&what.to_string()));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Says what has failed, with its causes.
pub fn say_error(error: &anyhow::Error) {
    say(shown::error(error.as_ref()));
}
