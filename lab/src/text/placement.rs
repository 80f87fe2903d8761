//! Where a program's code lies in physical memory is chance: which lines of it share a set of the caches, and what the
//! host backs it by. A draw that all rounds share would pass for a gain, or a loss, so each run makes its own.

use super::{Bench, LONGEST_RUN};
use crate::child::Child;
use anyhow::Result;
use megapage_kernel::Reservation;
use megapage_units::{Bytes, HUGE_2M};
use std::path::Path;
use std::process::Command;

/// At least as much as a program's file: what was just freed would be what the next one gets.
const LEAST: Bytes = Bytes::mib(96);
/// Blocks of 2 MiB beyond that, at most.
const MOST_BLOCKS: usize = 96;

/// Memory that is taken so that what is read in or allocated next comes to lie elsewhere.
fn shift(blocks: usize) -> Option<Reservation> {
    let shift = Reservation::new(LEAST.0 as usize + blocks * HUGE_2M, HUGE_2M).ok()?;
    // By base pages, as far as they are to be had: less of a shift is no failure.
    let _ = shift.open().and_then(|()| shift.populate());
    Some(shift)
}

/// A new place for a program's code, as long as the value lives.
#[derive(Debug, Default)]
pub(super) struct Draw {
    _shift: Option<Reservation>,
    /// What went wrong with it.
    pub(super) failure: Option<String>,
}

impl Bench<'_> {
    /// Lets go of the pages of `file`, and has what the next run reads in and allocates lie elsewhere. With `primed`, the
    /// file is read in at once, in huge folios; the run's own report says what came of that.
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
