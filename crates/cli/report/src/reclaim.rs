//! Memory of zeros that was taken back from processes.

use crate::table;
use crate::text::{cells, lines, or_dash};
use megapage_act::reclaim::Reclaimed;
use megapage_units::{Bytes, HUGE_2M};

/// Returns the table of processes; with `dry_run` also the shell lines that split huge pages.
pub fn reclaimed(all: &[Reclaimed], dry_run: bool) -> String {
    let rows = all.iter().map(|it| {
        cells![
            it.pid,
            Bytes(it.huge * HUGE_2M as u64),
            Bytes(it.zero_bytes),
            it.bloated,
            or_dash(it.outcome.map(|outcome| outcome.demoted)),
            or_dash(it.outcome.map(|outcome| Bytes(outcome.freed_bytes))),
        ]
    });
    let text = table(&["PID", "HUGE", "OF IT ZEROS", "TO SPLIT", "SPLIT", "FREED"], rows);
    let commands = all.iter().filter(|_| dry_run).flat_map(|it| it.demotion.dry_run());
    text.trim_end().to_string() + "\n" + &lines(commands)
}
