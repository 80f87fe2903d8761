//! One line on standard error, a terminal, while a command takes longer than two seconds: what it does, and for how long. It
//! is gone before anything else is written, and at the end.

use super::{in_locale, is_dumb};
use megapage_units::shown;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What is quick needs no line.
const QUICK: Duration = Duration::from_secs(2);
/// The line is written anew so often.
const TICK: Duration = Duration::from_millis(500);

/// The line.
struct State {
    /// What the command does; `None`: nothing that takes long.
    what: Option<String>,
    since: Option<Instant>,
    /// Whether it is on the screen.
    shown: bool,
}

static STATE: Mutex<State> = Mutex::new(State { what: None, since: None, shown: false });
static WRITER: Once = Once::new();

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows what the command does from now on, if it goes on for long.
pub fn progress(what: impl Into<String>) {
    if !io::stderr().is_terminal() || is_dumb() {
        return;
    }
    let mut state = state();
    state.what = Some(what.into());
    state.since.get_or_insert_with(Instant::now);
    drop(state);
    // Without a thread there is no line, and that is all.
    WRITER.call_once(|| drop(thread::Builder::new().name("progress".into()).spawn(write)));
}

/// Shows no more: the work is done, or what follows writes to the terminal itself.
pub fn end_progress() {
    let mut state = state();
    state.clear();
    (state.what, state.since) = (None, None);
}

/// Takes the line from the screen, if it is there, for what is written next. It comes again if the work goes on.
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

/// The columns of a terminal that says so many: one that does not know says 0.
fn columns(said: Option<u16>) -> usize {
    said.filter(|columns| *columns > 0).map_or(80, |columns| usize::from(columns).max(20))
}

/// The line for a terminal of so many columns, of which the last stays free: some terminals go on to the next line there.
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
