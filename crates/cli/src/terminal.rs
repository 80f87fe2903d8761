//! A terminal in full-screen mode: alternate screen, keys one by one. Every way out restores both.
//!
//! Keys are read here and not by crossterm: its event loop spins without end on a terminal that has
//! been hung up.

use crate::output::in_locale;
use crossterm::{cursor, execute, queue, terminal};
use megapage_kernel::spawn::{Signals, signal, stop_self, wait_any_readable};
use megapage_report::line::{Line, Paint};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

/// The user's next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// No request: the time is up.
    Nothing,
    /// Leave.
    Quit,
    /// Die of this signal, which arrived.
    Die(i32),
    /// Stop, as a shell's job control does.
    Stop,
    /// Refresh now.
    Refresh,
    /// Only draw again: the size has changed, or the screen is ours again.
    Redraw,
    /// Sort by the next column to the left (-1) or right (1).
    Column(isize),
    /// Reverse the order.
    Reverse,
    /// Scroll down by this number of lines, or up if negative.
    Scroll(isize),
    /// Scroll down by this number of screens, or up if negative.
    Turn(isize),
    /// Explain keys and columns.
    Help,
    /// Begin to type a filter.
    Filter,
    /// A typed character.
    Type(char),
    /// Erase the last typed character.
    Erase,
    /// Keep the typed text.
    Keep,
    /// Drop the typed text.
    Drop,
}

impl Request {
    /// Returns true if it came from a key.
    pub fn is_key(self) -> bool {
        !matches!(self, Request::Nothing | Request::Die(_) | Request::Stop | Request::Redraw)
    }
}

/// The terminal, in full-screen mode until this is dropped.
#[derive(Debug)]
pub(crate) struct Terminal {
    signals: Signals,
    requests: VecDeque<Request>,
    /// True while letters are text.
    typing: bool,
}

impl Terminal {
    /// Takes over the terminal of standard input and output.
    pub fn take() -> io::Result<Terminal> {
        use signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
        let signals = Signals::take(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH])?;
        enter()?;
        // Messages printed in raw mode, or on the alternate screen before it goes, would be lost.
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            former(panic);
        }));
        Ok(Terminal { signals, requests: VecDeque::new(), typing: false })
    }

    /// Returns columns and lines.
    pub fn size(&self) -> (usize, usize) {
        // If the kernel does not know the size: 80 by 24, the classic terminal.
        let (columns, lines) = match terminal::size() {
            Ok((columns, lines)) if columns > 0 && lines > 0 => (columns, lines),
            _ => (80, 24),
        };
        (columns.into(), lines.into())
    }

    /// Replaces the screen's content by `lines`.
    pub fn draw(&self, lines: &[Line], paint: Paint) -> io::Result<()> {
        let (columns, _) = self.size();
        let mut out = io::stdout().lock();
        queue!(out, terminal::BeginSynchronizedUpdate, cursor::MoveTo(0, 0))?;
        for (number, line) in lines.iter().enumerate() {
            let end = if number + 1 < lines.len() { "\r\n" } else { "" };
            write!(out, "{}", in_locale(&line.show(paint, columns)))?;
            queue!(out, terminal::Clear(terminal::ClearType::UntilNewLine))?;
            write!(out, "{end}")?;
        }
        queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown), terminal::EndSynchronizedUpdate)?;
        out.flush()
    }

    /// Waits for a key or a signal, at most `time`.
    pub fn wait(&mut self, time: Duration) -> io::Result<Request> {
        if self.requests.is_empty() {
            let input = io::stdin();
            if !wait_any_readable(&[input.as_fd(), self.signals.as_fd()], time)? {
                return Ok(Request::Nothing);
            }
            while let Some(came) = self.signals.next()? {
                self.requests.push_back(match came.number {
                    signal::SIGWINCH => Request::Redraw,
                    signal::SIGTSTP => Request::Stop,
                    number => Request::Die(number),
                });
            }
            if wait_any_readable(&[input.as_fd()], Duration::ZERO)? {
                self.requests.extend(read_keys(&mut self.typing)?);
            }
        }
        match self.requests.pop_front() {
            Some(Request::Stop) => {
                leave();
                stop_self()?;
                enter()?;
                Ok(Request::Redraw)
            }
            // Keys without a meaning here: only draw again.
            request => Ok(request.unwrap_or(Request::Redraw)),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    let entered = execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide);
    if entered.is_err() {
        leave();
    }
    entered
}

/// Restores the terminal. Ignores errors: the terminal may have gone away.
fn leave() {
    let _ = execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

/// Reads the keys that have been pressed. The end of input, or a terminal that was hung up, is a
/// request to leave.
fn read_keys(typing: &mut bool) -> io::Result<Vec<Request>> {
    // As long as the buffer of standard input, so that no byte stays in it.
    let mut bytes = [0; 8192];
    match io::stdin().lock().read(&mut bytes) {
        Ok(0) => Ok(vec![Request::Quit]),
        Ok(count) => Ok(keys(&bytes[..count], typing)),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Vec::new()),
        // EIO: hung up.
        Err(error) if error.raw_os_error() == Some(5) => Ok(vec![Request::Quit]),
        Err(error) => Err(error),
    }
}

/// Translates bytes from a terminal into requests (ECMA-48; xterm's control sequences). Skips those
/// without a meaning here. While a filter is typed, letters are text.
fn keys(mut bytes: &[u8], typing: &mut bool) -> Vec<Request> {
    let mut requests = Vec::new();
    while let [first, rest @ ..] = bytes {
        bytes = rest;
        let request = match first {
            0x1b => match rest {
                // The Escape key, unless a sequence follows: CSI, or SS3 in the keypad's
                // application mode.
                [b'[' | b'O', sequence @ ..] => {
                    let Some(end) = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
                        break;
                    };
                    bytes = &sequence[end + 1..];
                    sequence_request(&sequence[..=end])
                }
                _ if std::mem::take(typing) => Some(Request::Drop),
                _ => Some(Request::Quit),
            },
            // In raw mode Ctrl-C and Ctrl-Z raise no signal.
            0x03 => Some(Request::Quit),
            0x1a => Some(Request::Stop),
            b'\r' | b'\n' if std::mem::take(typing) => Some(Request::Keep),
            0x08 | 0x7f if *typing => Some(Request::Erase),
            _ if *typing => {
                let (letter, length) = letter(first, rest);
                bytes = &rest[length..];
                letter.map(Request::Type)
            }
            b'q' => Some(Request::Quit),
            b'/' => {
                *typing = true;
                Some(Request::Filter)
            }
            b'?' | b'h' => Some(Request::Help),
            b' ' | b'\r' => Some(Request::Refresh),
            b's' | b'>' => Some(Request::Column(1)),
            b'<' => Some(Request::Column(-1)),
            b'r' => Some(Request::Reverse),
            b'j' => Some(Request::Scroll(1)),
            b'k' => Some(Request::Scroll(-1)),
            _ => None,
        };
        requests.extend(request);
    }
    requests
}

/// Returns the printable character that begins with `first`, and the number of following bytes that
/// belong to it.
fn letter(first: &u8, rest: &[u8]) -> (Option<char>, usize) {
    let length = match first {
        0xc2..=0xdf => 1,
        0xe0..=0xef => 2,
        0xf0..=0xf4 => 3,
        _ => 0,
    };
    let length = length.min(rest.len());
    let bytes: Vec<u8> = std::iter::once(*first).chain(rest[..length].iter().copied()).collect();
    let letter = std::str::from_utf8(&bytes).ok().and_then(|text| text.chars().next());
    (letter.filter(|letter| !letter.is_control()), length)
}

fn sequence_request(sequence: &[u8]) -> Option<Request> {
    match sequence {
        b"A" => Some(Request::Scroll(-1)),
        b"B" => Some(Request::Scroll(1)),
        b"C" => Some(Request::Column(1)),
        b"D" => Some(Request::Column(-1)),
        b"H" | b"1~" => Some(Request::Scroll(isize::MIN)),
        b"F" | b"4~" => Some(Request::Scroll(isize::MAX)),
        b"5~" => Some(Request::Turn(-1)),
        b"6~" => Some(Request::Turn(1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressed(bytes: &[u8]) -> Vec<Request> {
        keys(bytes, &mut false)
    }

    #[test]
    fn keys_are_requests() {
        assert_eq!(pressed(b"rq?"), [Request::Reverse, Request::Quit, Request::Help]);
        assert_eq!(pressed(b"\x03"), [Request::Quit]);
        assert_eq!(pressed(b"\x1b"), [Request::Quit]);
        assert_eq!(
            pressed(b"\x1b[C\x1bOD\x1b[6~"),
            [Request::Column(1), Request::Column(-1), Request::Turn(1)]
        );
    }

    #[test]
    fn what_means_nothing_is_skipped() {
        // A function key with a modifier, a letter of two bytes, a sequence that is cut off.
        assert_eq!(pressed(b"\x1b[15;5~r"), [Request::Reverse]);
        assert_eq!(pressed("är".as_bytes()), [Request::Reverse]);
        assert!(pressed(b"x\x1b[1").is_empty() && pressed(b"").is_empty());
    }

    #[test]
    fn while_a_filter_is_typed_letters_are_text() {
        let typed = |letter| Request::Type(letter);
        assert_eq!(
            pressed("/qä\x7f\rq".as_bytes()),
            [Request::Filter, typed('q'), typed('ä'), Request::Erase, Request::Keep, Request::Quit]
        );
        let mut typing = true;
        assert_eq!(keys(b"r\x1b", &mut typing), [typed('r'), Request::Drop]);
        assert!(!typing);
        assert_eq!(keys(b"\x1b[A\x03\xff\xc3", &mut true), [Request::Scroll(-1), Request::Quit]);
    }
}
