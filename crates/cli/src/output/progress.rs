//! One progress line on a terminal's standard error while a command takes longer than two seconds:
//! the work, and its time so far. The line is erased before any other output, and at the end.

use super::{in_locale, is_dumb};
use megapage_units::shown;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time before the line appears: a quick command shows none.
const QUICK: Duration = Duration::from_secs(2);
/// Interval at which the line is redrawn.
const TICK: Duration = Duration::from_millis(500);

/// State of the line.
struct State {
    /// The command's present work; `None` if it takes no long time.
    what: Option<String>,
    since: Option<Instant>,
    /// True if the line is on the screen.
    shown: bool,
}

static STATE: Mutex<State> = Mutex::new(State { what: None, since: None, shown: false });
static WRITER: Once = Once::new();

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the work that the line shows from now on, if it takes long.
pub fn progress(what: impl Into<String>) {
    if !io::stderr().is_terminal() || is_dumb() {
        return;
    }
    let mut state = state();
    state.what = Some(what.into());
    state.since.get_or_insert_with(Instant::now);
    drop(state);
    // If the thread cannot start, there is no line; that is no error.
    WRITER.call_once(|| drop(thread::Builder::new().name("progress".into()).spawn(write)));
}

/// Ends the line: the work is done, or the command now writes to the terminal itself.
pub fn end_progress() {
    let mut state = state();
    state.clear();
    (state.what, state.since) = (None, None);
}

/// Erases the line from the screen, before other output. It comes back if the work goes on.
pub(super) fn make_room() {
    state().clear();
}

impl State {
    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn write() {
    loop {
        thread::sleep(TICK);
        let mut state = state();
        let elapsed = state.since.map_or(Duration::ZERO, |since| since.elapsed());
        let Some(what) = state.what.as_ref().filter(|_| elapsed >= QUICK) else { continue };
        let size = crossterm::terminal::size().ok();
        let line = line(what, elapsed, columns(size.map(|(columns, _)| columns)));
        let _ = write!(io::stderr(), "\r{}\x1b[K", in_locale(&line));
        state.shown = true;
    }
}

/// Returns the columns of the terminal. One that does not know its size says 0, and gets 80.
fn columns(said: Option<u16>) -> usize {
    said.filter(|columns| *columns > 0).map_or(80, |columns| usize::from(columns).max(20))
}

/// Returns the line for a terminal of this number of columns. The last column stays free, for some
/// terminals wrap there.
fn line(what: &str, elapsed: Duration, columns: usize) -> String {
    let time = format!(", {} s", elapsed.as_secs());
    let room = columns.saturating_sub(time.len() + 1);
    megapage_report::value::fit(&format!("megapage: {}", shown::one_line(what)), room) + &time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_and_steers_nothing() {
        let seconds = Duration::from_secs(75);
        assert_eq!(line("observing redis", seconds, 80), "megapage: observing redis, 75 s");
        assert_eq!([None, Some(0), Some(7), Some(132)].map(columns), [80, 80, 20, 132]);
        let long = line(&"a\x1b[2J\n".repeat(50), seconds, 60);
        assert_eq!(long.chars().count(), 59);
        assert!(!long.chars().any(shown::is_steering) && long.ends_with("…, 75 s"), "{long}");
    }
}
