//! Selection of the table's columns that fit a terminal.

use super::{Row, Top, cells, daemon};
use crate::text::or_dash;
use crate::value::{change, fit, percent, size, time};
use By::{Most, Text};
use megapage_snapshot::{MissedWhy, PAGES};
use megapage_units::Bytes;
use megapage_units::shown::one_line;
use std::borrow::Cow;
use std::cmp::Ordering;

/// A column of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// Its title.
    pub title: &'static str,
    /// Least width.
    width: usize,
    /// True if its text begins at its left edge.
    left: bool,
    /// Place in the order in which columns leave if room is short; 0 if the column always stays.
    leaves: usize,
    /// Place in the order in which columns get remaining room; 0 if the column gets none. The name
    /// gets the rest.
    grows: usize,
    /// Key that sorts the table by this column.
    pub key: Option<Key>,
    /// Values by which the column sorts rows.
    by: By,
    /// Its text.
    text: fn(&Row) -> String,
    /// Explanation of the column; empty if the title is enough.
    pub help: &'static str,
}

/// Values that rows are sorted by; unknown values come last.
#[derive(Clone, Copy, Debug)]
enum By {
    /// Numbers, the largest first.
    Most(fn(&Row) -> Option<f64>),
    /// Texts, ascending; an empty one is unknown.
    Text(fn(&Row) -> Cow<'_, str>),
}

const LEFT: bool = true;
const RIGHT: bool = false;

/// Declares [`Key`] and [`ALL`]. A row holds everything about a column: title, least width, edge,
/// the places at which it leaves and grows, key, order, text and help.
macro_rules! columns {
    ($($title:literal $width:literal $edge:ident $leaves:literal $grows:literal
        $($key:ident = $name:literal)?, $by:expr, $text:expr, $help:literal;)+) => {
        megapage_units::named! {
            /// Key by which processes are sorted. Most first, names and pids ascending; unknown
            /// values come last.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Key { $($(#[doc = $title] $key = $name,)?)+ }
        }

        /// All columns, from the left.
        pub(super) const ALL: [Column; [$($title),+].len()] = [$(Column {
            title: $title,
            width: $width,
            left: $edge,
            leaves: $leaves,
            grows: $grows,
            key: [$(Some(Key::$key),)? None][0],
            by: $by,
            text: $text,
            help: $help,
        }),+];
    };
}

// The name and size of the process and the daemon's actions always stay. The unit of a process in a
// pod is a scope of the container runtime.
columns! {
    "PID" 7 RIGHT 0 0 Pid = "pid", Most(|row| Some(-f64::from(row.pid.0))), |row| row.pid.to_string(), "";
    "USER" 8 LEFT 7 1 User = "user", Text(Row::user), |row| row.user().into_owned(), "";
    "NAME" 15 LEFT 0 2 Name = "name", Text(|row| (&*row.name).into()), |row| one_line(&row.name), "";
    "UNIT" 16 LEFT 4 4 Unit = "unit", Text(|row| row.unit_or_group().into()),
        |row| one_line(row.unit_or_group()),
        "the innermost service or scope of systemd, or the control group";
    "POD" 16 LEFT 5 3 Pod = "pod", Text(|row| row.pod_or_uid().into()), |row| one_line(row.pod_or_uid()),
        "the Kubernetes pod: namespace/name, or its identifier";
    "RESIDENT" 8 RIGHT 0 0 Resident = "resident",
        Most(|row| Some(row.resident_bytes as f64)), |row| size(Bytes(row.resident_bytes)),
        "resident memory, hugetlb pages included";
    "HUGE%" 5 RIGHT 10 0 Huge = "huge", Most(|row| row.huge_share),
        |row| or_dash(row.huge_share.map(percent)),
        "its share on pages of 2 MiB or more";
    "COVERAGE%" 9 RIGHT 6 0 Coverage = "coverage", Most(|row| row.coverage),
        |row| or_dash(row.coverage.map(|coverage| percent(coverage / f64::from(PAGES)))),
        "mean share of a sampled 2 MiB region that is accessed";
    "COST%" 16 RIGHT 9 0 Cost = "cost", Most(|row| row.translation.map(|cost| cost.share)),
        |row| or_dash(row.translation.as_ref().map(cells::cost)),
        "cycles of address translation: share, its source, interval";
    "BLOAT" 6 RIGHT 8 0 Bloat = "bloat", Most(|row| row.bloat_bytes.map(|bytes| bytes as f64)),
        |row| or_dash(row.bloat_bytes.map(|bytes| cells::bloat(bytes, row.bloat_share))),
        "zeros in huge pages; > while not all were scanned";
    "HUGE+-" 6 RIGHT 3 0 Change = "change", Most(|row| row.huge_change_bytes.map(|bytes| bytes as f64)),
        |row| or_dash(row.huge_change_bytes.map(change)),
        "change of huge memory since the last refresh";
    "SWAP" 5 RIGHT 2 0 Swap = "swap", Most(|row| Some(row.swap_bytes as f64)),
        |row| size(Bytes(row.swap_bytes)), "swapped out";
    "DAEMON" 14 RIGHT 0 0, Most(|_| None), daemon::done, "what megapage daemon promoted (+) and freed (-)";
    "SAMPLED" 14 RIGHT 1 0, Most(|_| None), sampled,
        "age of the oldest sample, share sampled, cost to the process";
}

impl Key {
    /// Returns the order of two rows by this key.
    pub(super) fn compare(self, one: &Row, other: &Row) -> Ordering {
        let by = ALL.iter().find(|column| column.key == Some(self)).map(|column| column.by);
        let order = match by {
            Some(Most(of)) => {
                let [one, other] = [one, other].map(|row| of(row).unwrap_or(f64::NEG_INFINITY));
                other.total_cmp(&one)
            }
            Some(Text(of)) => {
                let (one, other) = (of(one), of(other));
                (one.is_empty(), one).cmp(&(other.is_empty(), other))
            }
            None => Ordering::Equal,
        };
        order.then(one.pid.cmp(&other.pid))
    }
}

/// Columns that are shown, each with its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns([Option<usize>; ALL.len()]);

impl Columns {
    /// Returns as many columns as fit into `width`. The column that the table is sorted by is
    /// always among them.
    pub fn of(top: &Top<'_>, key: Key, width: usize) -> Columns {
        let stays = |column: Column| column.key == Some(key) || column.has_values(top);
        let mut columns = Columns(ALL.map(|column| stays(column).then_some(column.width)));
        for turn in 1..=ALL.len() {
            if columns.width() <= width {
                break;
            }
            columns.change(|column| column.leaves == turn && column.key != Some(key), |_, _| None);
        }
        for turn in 1..=ALL.len() {
            let left = width.saturating_sub(columns.width());
            let grown = |column: &Column, own: usize| {
                let texts = top.processes.iter().map(|row| (column.text)(row).chars().count());
                Some(own + texts.max().unwrap_or(0).saturating_sub(own).min(left))
            };
            columns.change(|column| column.grows == turn, grown);
        }
        let left = width.saturating_sub(columns.width());
        columns.change(|column| column.key == Some(Key::Name), |_, own| Some(own + left));
        columns
    }

    /// Changes the widths of the shown columns that `which` selects.
    fn change(&mut self, which: impl Fn(&Column) -> bool, to: impl Fn(&Column, usize) -> Option<usize>) {
        for (column, own) in ALL.iter().zip(&mut self.0).filter(|(column, _)| which(column)) {
            *own = own.and_then(|own| to(column, own));
        }
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

    /// Returns true if the column has values to show.
    fn has_values(&self, top: &Top<'_>) -> bool {
        match self.title {
            "UNIT" => top.processes.iter().any(|row| !row.unit_or_group().is_empty()),
            "POD" => top.processes.iter().any(|row| row.pod.is_some()),
            "DAEMON" => top.daemon.is_some(),
            _ => true,
        }
    }
}

/// Returns the age of the oldest sample, the sampled share of the memory, and the cost of sampling
/// to the process. If nothing is known, returns the reason.
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
            MissedWhy::Vetoed => "skipped".into(),
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
        let (column, width) =
            Columns::of(&top, Key::Pid, 200).shown().find(|it| it.0.title == "POD").unwrap();
        assert_eq!(column.cell(&top.processes[0], width).trim(), "0d1e2f30-1111-2222-3333-444455556666");
    }
}
