//! Heaps of a case, each on each kind of pages: one run of the workload for each of them in a
//! round.

use super::{Bench, with_pool};
use crate::workload::fork::Pages;
use anyhow::Result;
use clap::ValueEnum;
use megapage_units::Bytes;
use serde::de::DeserializeOwned;

/// Case that is run with each heap.
pub(super) trait Case {
    /// Output of the workload.
    type Found: DeserializeOwned;
    /// Prefix of the heap in progress lines.
    const PREFIX: &'static str;

    /// Returns the workload's arguments.
    fn arguments(&self, size: Bytes, pages: Pages) -> Vec<String>;

    /// Returns the bytes that a heap takes from the pool.
    fn pool(size: Bytes, pages: Pages) -> Bytes;

    /// Describes a run in a few words.
    fn brief(found: &Self::Found) -> String;
}

/// One heap on one kind of pages, while it is measured.
pub(super) struct Row<T> {
    pub(super) size: Bytes,
    pub(super) pages: Pages,
    pub(super) found: Vec<T>,
    pub(super) notes: Vec<String>,
}

/// All heaps of a case.
pub(super) struct Heaps<C: Case> {
    case: C,
    rows: Vec<Row<C::Found>>,
}

impl<C: Case> Heaps<C> {
    /// Makes the rows of a case; `sizes` is empty for one that is not wanted.
    pub(super) fn new(case: C, sizes: &[Bytes]) -> Heaps<C> {
        let row = |size, pages| Row { size, pages, found: Vec::new(), notes: Vec::new() };
        let kinds = Pages::value_variants();
        let rows = sizes.iter().flat_map(|size| kinds.iter().map(move |pages| row(*size, *pages)));
        Heaps { case, rows: rows.collect() }
    }

    /// Returns the number of runs of one round.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the commands as lines.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |row: &Row<C::Found>| {
            let words = self.case.arguments(row.size, row.pages).join(" ");
            with_pool(C::pool(row.size, row.pages), format!("megapage-lab-workload {words}"))
        };
        self.rows.iter().flat_map(line).collect()
    }

    /// Runs each once.
    pub(super) fn round(&mut self, bench: &mut Bench<'_, '_>) -> Result<()> {
        for row in &mut self.rows {
            let what = format!("{}{} {}", C::PREFIX, row.size, row.pages.name());
            let words = self.case.arguments(row.size, row.pages);
            let found = bench.run(&what, C::pool(row.size, row.pages), &words, C::brief, &mut row.notes)?;
            row.found.extend(found);
        }
        bench.pool.give(Bytes::ZERO);
        Ok(())
    }

    pub(super) fn finish<R>(self, report: impl Fn(Row<C::Found>) -> R) -> Vec<R> {
        self.rows.into_iter().map(report).collect()
    }
}
