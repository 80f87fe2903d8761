//! Standard output: whether it takes colour, and a reader that may go away.

use megapage_report::line::Paint;
use std::io::{self, ErrorKind, IsTerminal, Write};

/// Colour on a terminal that has it, unless the user wants none (<https://no-color.org>).
pub fn paint() -> Paint {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if io::stdout().is_terminal() && !unwanted && !is_dumb() { Paint::Colour } else { Paint::Plain }
}

/// Whether the terminal knows no more than letters: by terminfo(5), `TERM` is `dumb`, or says nothing.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Prints `text`. `Ok(false)` where the reader has gone away, as `head` does: no failure, but the end.
pub fn print(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}
