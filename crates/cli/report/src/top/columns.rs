//! Selection of the table's columns that fit a terminal.

use super::{Key, Row, Top, cells, daemon};
use crate::value::{change, fit, percent, size, time};
use megapage_snapshot::{MissedWhy, PAGES};
use megapage_units::Bytes;
use megapage_units::shown::one_line;

/// A column of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// Its title.
    pub title: &'static str,
    /// Least width.
    pub width: usize,
    /// True if its text begins at its left edge.
    pub left: bool,
    /// Key that sorts the table by this column.
    pub key: Option<Key>,
    /// Its text.
    text: fn(&Row) -> String,
}

const fn number(title: &'static str, width: usize, key: Key, text: fn(&Row) -> String) -> Column {
    Column { title, width, left: false, key: Some(key), text }
}

const fn words(title: &'static str, width: usize, key: Key, text: fn(&Row) -> String) -> Column {
    Column { title, width, left: true, key: Some(key), text }
}

const fn last(title: &'static str, text: fn(&Row) -> String) -> Column {
    Column { title, width: 14, left: false, key: None, text }
}

const USER: usize = 1;
const NAME: usize = 2;
const UNIT: usize = 3;
const POD: usize = 4;
const HUGE: usize = 6;
const COVERAGE: usize = 7;
const COST: usize = 8;
const BLOAT: usize = 9;
const CHANGE: usize = 10;
const SWAP: usize = 11;
const DAEMON: usize = 12;
const SAMPLED: usize = 13;

/// All columns, from the left.
pub(super) const ALL: [Column; 14] = [
    number("PID", 7, Key::Pid, |row| row.pid.to_string()),
    words("USER", 8, Key::User, |row| row.user().into_owned()),
    words("NAME", 15, Key::Name, |row| one_line(&row.name)),
    words("UNIT", 16, Key::Unit, |row| one_line(row.unit_or_group())),
    words("POD", 16, Key::Pod, |row| one_line(row.pod_or_uid())),
    number("RESIDENT", 8, Key::Resident, |row| size(Bytes(row.resident_bytes))),
    number("HUGE%", 5, Key::Huge, |row| known(row.huge_share.map(percent))),
    number("COVERAGE%", 9, Key::Coverage, |row| {
        known(row.coverage.map(|coverage| percent(coverage / f64::from(PAGES))))
    }),
    number("COST%", 16, Key::Cost, |row| known(row.translation.as_ref().map(cells::cost))),
    number("BLOAT", 6, Key::Bloat, |row| {
        known(row.bloat_bytes.map(|bytes| cells::bloat(bytes, row.bloat_share)))
    }),
    number("HUGE+-", 6, Key::Change, |row| known(row.huge_change_bytes.map(change))),
    number("SWAP", 5, Key::Swap, |row| size(Bytes(row.swap_bytes))),
    last("DAEMON", daemon::done),
    last("SAMPLED", sampled),
];

/// Columns that are omitted first if there is no room for all. The others always stay: the name and
/// size of the process, and the daemon's actions if there is a daemon. The unit of a process in a
/// pod is a scope of the container runtime.
const LEFT_OUT_FIRST: [usize; 10] = [SAMPLED, SWAP, CHANGE, UNIT, POD, COVERAGE, USER, BLOAT, COST, HUGE];
/// Columns that get the remaining room, in this order; the name gets the rest.
const GROW_FIRST: [usize; 4] = [USER, NAME, POD, UNIT];

fn known(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

/// Columns that are shown, each with its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns([Option<usize>; ALL.len()]);

impl Columns {
    /// Returns as many columns as fit into `width`. The column that the table is sorted by is
    /// always among them.
    pub fn of(top: &Top<'_>, key: Key, width: usize) -> Columns {
        let mut columns = Columns(ALL.map(|column| Some(column.width)));
        let is_key = |at: usize| ALL[at].key == Some(key);
        for (at, there) in [
            (UNIT, top.processes.iter().any(|row| !row.unit_or_group().is_empty())),
            (POD, top.processes.iter().any(|row| row.pod.is_some())),
            (DAEMON, top.daemon.is_some()),
        ] {
            if !there && !is_key(at) {
                columns.0[at] = None;
            }
        }
        for at in LEFT_OUT_FIRST {
            if columns.width() <= width {
                break;
            }
            if !is_key(at) {
                columns.0[at] = None;
            }
        }
        for at in GROW_FIRST {
            let left = width.saturating_sub(columns.width());
            if let Some(own) = &mut columns.0[at] {
                let texts = top.processes.iter().map(|row| (ALL[at].text)(row).chars().count());
                *own += texts.max().unwrap_or(0).saturating_sub(*own).min(left);
            }
        }
        let left = width.saturating_sub(columns.width());
        columns.0[NAME] = columns.0[NAME].map(|own| own + left);
        columns
    }

    /// Returns their total width.
    fn width(&self) -> usize {
        self.shown().map(|(_, width)| width + 1).sum::<usize>().saturating_sub(1)
    }

    /// Returns the columns that are shown, each with its width.
    pub fn shown(&self) -> impl Iterator<Item = (Column, usize)> {
        let widths = self.0;
        ALL.into_iter().zip(widths).filter_map(|(column, width)| width.map(|width| (column, width)))
    }
}

impl Column {
    /// Returns the text of a row in `width` columns.
    pub fn cell(&self, row: &Row, width: usize) -> String {
        self.placed(&fit(&(self.text)(row), width), width)
    }

    /// Returns any text at the column's edge.
    pub fn placed(&self, text: &str, width: usize) -> String {
        if self.left { format!("{text:<width$}") } else { format!("{text:>width$}") }
    }

    /// Returns the key that sorts by this column.
    pub fn key(&self) -> Option<Key> {
        self.key
    }
}

/// Returns the age of the oldest sample, the sampled share of the memory, and the cost of that to
/// the process; or the reason why nothing is known.
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
            MissedWhy::Vetoed => "left alone".into(),
            MissedWhy::Failed => "failed".into(),
        },
        _ => "-".into(),
    }
}

/// Returns a share as whole per cent in at most three columns. Rounds down, so 100 means all; `<1`
/// is more than zero.
fn whole_percent(share: f64) -> String {
    match share * 100.0 {
        value if value > 0.0 && value < 1.0 => "<1".into(),
        value => format!("{}", value.floor()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;
    use megapage_snapshot::Snapshot;

    fn snapshot(cgroup: &str) -> Snapshot {
        let mut store = synthetic::store();
        store.cgroup = cgroup.into();
        synthetic::snapshot(vec![store])
    }

    fn titles(now: &Snapshot, key: Key, width: usize) -> String {
        let top = Top::new(None, now, &[]);
        let columns = Columns::of(&top, key, width);
        let fits = columns.width() <= width;
        assert!(fits || width < 60, "{width}: {columns:?}");
        columns.shown().map(|(column, _)| column.title).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn columns_leave_one_by_one_where_it_is_narrow() {
        let now = snapshot("/system.slice/redis-server.service");
        for (width, expected) in [
            (200, "PID USER NAME UNIT RESIDENT HUGE% COVERAGE% COST% BLOAT HUGE+- SWAP SAMPLED"),
            (120, "PID USER NAME UNIT RESIDENT HUGE% COVERAGE% COST% BLOAT HUGE+- SWAP"),
            (100, "PID USER NAME UNIT RESIDENT HUGE% COVERAGE% COST% BLOAT"),
            (80, "PID USER NAME RESIDENT HUGE% COST% BLOAT"),
            (60, "PID NAME RESIDENT HUGE% COST%"),
        ] {
            assert_eq!(titles(&now, Key::Resident, width), expected, "{width}");
        }
        assert_eq!(titles(&now, Key::Swap, 60), "PID NAME RESIDENT HUGE% SWAP");
        assert_eq!(titles(&now, Key::Pod, 60), "PID NAME POD RESIDENT HUGE%", "asked for");
        for width in 60..=200 {
            titles(&now, Key::Unit, width);
        }
    }

    #[test]
    fn pods_and_units_have_a_column_where_there_are_any() {
        let none = snapshot("/");
        assert!(!titles(&none, Key::Pid, 200).contains("UNIT"));
        let pod = "/kubepods/pod0d1e2f30-1111-2222-3333-444455556666/4f5e";
        let now = snapshot(pod);
        assert!(titles(&now, Key::Pid, 200).contains("UNIT POD"));
        assert!(titles(&now, Key::Pid, 100).contains("NAME POD"), "the pod stays longer");
        let top = Top::new(None, &now, &[]);
        let (column, width) = Columns::of(&top, Key::Pid, 200).shown().nth(POD).unwrap();
        assert_eq!(column.cell(&top.processes[0], width).trim(), "0d1e2f30-1111-2222-3333-444455556666");
    }
}
