//! Placement of a program's code in physical memory. It is chance which lines of the code share a
//! set of the caches, and which memory of the host backs it. A draw that all rounds share would
//! look like a gain, or a loss, so each run makes its own.

use super::{Bench, LONGEST_RUN};
use crate::child::Child;
use anyhow::Result;
use megapage_kernel::Reservation;
use megapage_units::{Bytes, HUGE_2M};
use std::path::Path;
use std::process::Command;

/// Least memory taken, more than a program's file: otherwise the next one would get the pages that
/// were just freed.
const LEAST: Bytes = Bytes::mib(96);
/// The most blocks of 2 MiB beyond that.
const MOST_BLOCKS: usize = 96;

/// Takes memory, so that pages that are read in or allocated next lie elsewhere.
fn shift(blocks: usize) -> Option<Reservation> {
    let shift = Reservation::new(LEAST.0 as usize + blocks * HUGE_2M, HUGE_2M).ok()?;
    // By base pages, as far as they are available: a smaller shift is no failure.
    let _ = shift.open().and_then(|()| shift.populate());
    Some(shift)
}

/// A new place for a program's code, while the value lives.
#[derive(Debug, Default)]
pub(super) struct Draw {
    _shift: Option<Reservation>,
    /// The reason if it failed.
    pub(super) failure: Option<String>,
}

impl Bench<'_> {
    /// Releases the pages of `file`, and takes memory, so that the pages of the next run lie
    /// elsewhere. With `primed`, reads the file in at once, in huge folios; the run's own report
    /// shows the result.
    pub(super) fn draw(&self, file: &Path, primed: bool) -> Result<Draw> {
        let left = self.undo(file)?;
        let failure = (left != Some(0)).then(|| {
            format!(
                "its file stays in huge folios: {} bytes",
                left.map_or("some".into(), |it| it.to_string())
            )
        });
        let shift = shift(self.random.borrow_mut().below(MOST_BLOCKS + 1));
        if primed {
            let mut command = Command::new(&self.place.megapage);
            command.args(["remap", "prime", "--json"]).arg(file);
            Child::output(self.signals, &mut command, LONGEST_RUN)?;
        }
        Ok(Draw { _shift: shift, failure })
    }
}
