//! Which columns of the table fit a terminal.

use super::{Key, Row, Top, daemon};
use crate::WIDTH;
use crate::value::{percent, time};
use megapage_snapshot::MissedWhy;

/// The columns after the name and before the last ones: title, width, what it is sorted by.
pub(super) const CELLS: [(&str, usize, Key); 7] = [
    ("RESIDENT", 8, Key::Resident),
    ("HUGE%", 5, Key::Huge),
    ("COVERAGE%", 9, Key::Coverage),
    ("COST%", 16, Key::Cost),
    ("BLOAT", 6, Key::Bloat),
    ("HUGE+-", 6, Key::Change),
    ("SWAP", 5, Key::Swap),
];
/// The width of each of the last columns: what the daemon did, and how the process was sampled.
pub(super) const LAST: usize = 14;
pub(super) const PID: usize = 7;
/// A name has at least this many columns.
const LEAST_NAME: usize = 15;
/// Where there is no room for all: the columns that are left out first, by their places in [`CELLS`].
const LEFT_OUT_FIRST: [usize; 6] = [6, 5, 2, 4, 3, 1];

/// The columns that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    cells: [bool; CELLS.len()],
    done: bool,
    sampled: bool,
    /// What the name has.
    pub name: usize,
}

impl Columns {
    /// As many as fit so many columns. What the table is sorted by is always among them, and what the daemon did, where
    /// there is one.
    pub fn of(top: &Top<'_>, key: Key, width: usize) -> Columns {
        let full = usize::from(WIDTH);
        let done = top.daemon.is_some();
        let sampled = width >= if done { full + 1 + LAST } else { full };
        let mut columns = Columns { cells: [true; CELLS.len()], done, sampled, name: LEAST_NAME };
        for cell in LEFT_OUT_FIRST {
            if columns.least() <= width {
                break;
            }
            columns.cells[cell] = CELLS[cell].2 == key;
        }
        columns.name += width.saturating_sub(columns.least());
        columns
    }

    /// What they need.
    fn least(&self) -> usize {
        let cells: usize = self.cells().map(|(_, (_, width, _))| width + 1).sum();
        let last = usize::from(self.done) + usize::from(self.sampled);
        PID + 1 + LEAST_NAME + cells + last * (LAST + 1)
    }

    /// Those of [`CELLS`] that are shown, with their places in it.
    pub fn cells(&self) -> impl Iterator<Item = (usize, (&'static str, usize, Key))> {
        let shown = self.cells;
        CELLS.into_iter().enumerate().filter(move |(at, _)| shown[*at])
    }

    /// The title and the text of each of the last columns.
    pub fn last(&self, row: Option<&Row>) -> Vec<(&'static str, String)> {
        let done = self.done.then(|| ("DAEMON", row.map(daemon::done).unwrap_or_default()));
        let sampled = self.sampled.then(|| ("SAMPLED", row.map(sampled).unwrap_or_default()));
        done.into_iter().chain(sampled).collect()
    }
}

/// How old the oldest sample is, how much of the memory was sampled, and what that costs the process; or why nothing is
/// known.
fn sampled(row: &Row) -> String {
    match (&row.sampling, row.sampled_ago_seconds, &row.missed) {
        (Some(own), Some(ago), _) => {
            let oldest = row.oldest_sample_seconds.unwrap_or(ago);
            let share = row.sampled_share.unwrap_or(0.0);
            format!("{} {}% {}%", time(oldest), whole_percent(share), percent(own.slowdown))
        }
        (_, _, Some(missed)) => match missed.why {
            MissedWhy::Denied => "denied".into(),
            MissedWhy::Gone => "ended".into(),
            MissedWhy::Replaced => "replaced".into(),
            MissedWhy::Locked => "locked".into(),
            MissedWhy::Bounded => "too large".into(),
            MissedWhy::Postponed => "later".into(),
            MissedWhy::Failed => "failed".into(),
        },
        _ => "-".into(),
    }
}

/// A share as whole per cent in at most three columns; 100 is all, and `<1` is something.
fn whole_percent(share: f64) -> String {
    match share * 100.0 {
        value if value > 0.0 && value < 1.0 => "<1".into(),
        value => format!("{}", value.floor()),
    }
}
