//! Heat over time: the accessed part of each range of addresses, sample after sample, in bounded
//! memory.

use crate::{PAGES, Process};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Most ranges that are distinguished; beyond it, neighbours are joined.
const MOST_UNITS: usize = 1024;
/// Most rows that are kept; beyond it, neighbours are joined.
const MOST_ROWS: usize = 240;

/// Samples of one range, in base pages; the sum if the cell holds several samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeatCell {
    /// Base pages present in regions that were sampled.
    pub sampled: u64,
    /// Part of `sampled` that was accessed. A huge page has one accessed bit for its 512 base
    /// pages.
    pub accessed: u64,
    /// Part of `sampled` that huge pages map.
    pub huge: u64,
}

impl HeatCell {
    /// Returns the accessed share of the sampled pages, 0 to 1; `None` if nothing was sampled.
    pub fn heat(&self) -> Option<f64> {
        (self.sampled > 0).then(|| self.accessed as f64 / self.sampled as f64)
    }

    /// Adds another cell.
    pub fn add(&mut self, other: HeatCell) {
        self.sampled += other.sampled;
        self.accessed += other.accessed;
        self.huge += other.huge;
    }
}

/// Period of time, and the accesses in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatRow {
    /// Start of the period, since the first look.
    pub from: Duration,
    /// End of the period, since the first look.
    pub to: Duration,
    /// Ranges that were sampled, by number: the address divided by [`Heat::unit`].
    pub cells: BTreeMap<u64, HeatCell>,
    /// Samples in the row.
    samples: u32,
}

impl HeatRow {
    /// Appends the row that follows.
    pub fn join(&mut self, next: &HeatRow) {
        self.to = next.to;
        self.samples += next.samples;
        for (unit, cell) in &next.cells {
            self.cells.entry(*unit).or_default().add(*cell);
        }
    }
}

/// Heat over time of one process: at most 240 rows of at most 1024 ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heat {
    /// Length of a range: 2 MiB, or a doubling of it if the process is large.
    pub unit: Bytes,
    /// The rows, the oldest first.
    pub rows: Vec<HeatRow>,
    /// Name of the mapping at a range: one that begins in the range or before it.
    pub names: BTreeMap<u64, String>,
    /// Ranges for which any row has a value.
    units: BTreeSet<u64>,
    /// Samples that go into one row.
    samples_per_row: u32,
    /// Time of the first look, since boot.
    began: Duration,
    /// Time since boot up to which samples are included.
    seen: Duration,
}

impl Heat {
    /// Creates an empty heat; `began` is the time since boot.
    pub fn new(began: Duration) -> Heat {
        Heat {
            unit: Bytes(HUGE_2M as u64),
            rows: Vec::new(),
            names: BTreeMap::new(),
            units: BTreeSet::new(),
            samples_per_row: 1,
            began,
            seen: began,
        }
    }

    /// Adds the samples of `process` since the last call. Returns false if there were none. `taken`
    /// is the time since boot.
    pub fn add(&mut self, process: &Process, taken: Duration) -> bool {
        let mut row = HeatRow { samples: 1, ..HeatRow::default() };
        let mut newest = self.seen;
        for region in &process.regions {
            let Some(accessed) = region.accessed.filter(|it| it.sampled > self.seen) else { continue };
            newest = newest.max(accessed.sampled);
            let present = u64::from(region.present);
            let huge = if region.leaf.is_huge() { present } else { 0 };
            let cell = HeatCell {
                sampled: present,
                accessed: u64::from(accessed.coverage.min(PAGES)).min(present),
                huge,
            };
            let unit = region.start() / self.unit.0;
            row.cells.entry(unit).or_default().add(cell);
            if let Some(mapping) = process.mappings.get(region.mapping as usize) {
                self.names.entry(unit).or_insert_with(|| mapping.name.clone());
            }
        }
        if newest == self.seen {
            return false;
        }
        row.from = self.seen.saturating_sub(self.began);
        row.to = taken.saturating_sub(self.began);
        self.seen = newest;
        self.units.extend(row.cells.keys());
        match self.rows.last_mut() {
            Some(last) if last.samples < self.samples_per_row => last.join(&row),
            _ => self.rows.push(row),
        }
        self.bound();
        true
    }

    /// Returns the ranges for which any row has a value, ascending.
    pub fn units(&self) -> Vec<u64> {
        self.units.iter().copied().collect()
    }

    /// Returns the rows, with neighbours joined so that there are at most `most`.
    pub fn rows(&self, most: usize) -> Vec<HeatRow> {
        let together = self.rows.len().div_ceil(most.max(1)).max(1);
        self.rows.chunks(together).map(joined).collect()
    }

    /// Converts a count of base pages to bytes.
    pub fn bytes(pages: u64) -> Bytes {
        Bytes(pages.saturating_mul(BASE_PAGE as u64))
    }

    fn bound(&mut self) {
        while self.units.len() > MOST_UNITS {
            self.units = self.units.iter().map(|unit| unit / 2).collect();
            self.unit = self.unit * 2;
            for row in &mut self.rows {
                let mut cells: BTreeMap<u64, HeatCell> = BTreeMap::new();
                for (unit, cell) in std::mem::take(&mut row.cells) {
                    cells.entry(unit / 2).or_default().add(cell);
                }
                row.cells = cells;
            }
            for (unit, name) in std::mem::take(&mut self.names) {
                self.names.entry(unit / 2).or_insert(name);
            }
        }
        if self.rows.len() > MOST_ROWS {
            // An odd row remains single: 241 rows become 121.
            self.rows = self.rows.chunks(2).map(joined).collect();
            self.samples_per_row = self.samples_per_row.saturating_mul(2);
        }
    }
}

/// Joins rows that follow each other to one.
fn joined(rows: &[HeatRow]) -> HeatRow {
    let mut all =
        HeatRow { from: rows.first().map(|row| row.from).unwrap_or_default(), ..HeatRow::default() };
    rows.iter().for_each(|row| all.join(row));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accessed, Leaf, ProcessId, Region};
    use megapage_units::{HugeCount, HugePage, Pid};

    /// Returns a process with regions `(number, coverage)`, sampled at this second.
    fn process(at: u64, regions: impl IntoIterator<Item = (u64, u16)>) -> Process {
        let mut process =
            Process::without_memory(ProcessId { pid: Pid(7), start_ticks: 1, start_stack: 0 }, "p");
        process.regions = regions
            .into_iter()
            .map(|(number, coverage)| Region {
                accessed: Some(Accessed {
                    coverage,
                    average: 0.0,
                    last: None,
                    sampled: Duration::from_secs(at),
                }),
                ..Region::of_base_pages(HugePage::nth(number), PAGES)
            })
            .collect();
        process
    }

    #[test]
    fn only_new_samples_make_a_row() {
        let mut heat = Heat::new(Duration::from_secs(10));
        assert!(heat.add(&process(11, [(1, 512), (3, 0)]), Duration::from_secs(11)));
        assert!(!heat.add(&process(11, [(1, 512), (3, 0)]), Duration::from_secs(12)), "seen already");
        assert!(heat.add(&process(13, [(1, 128)]), Duration::from_secs(13)));
        let heats: Vec<Option<f64>> = heat.rows.iter().map(|row| row.cells[&1].heat()).collect();
        assert_eq!(heats, [Some(1.0), Some(0.25)]);
        assert_eq!(heat.units(), [1, 3]);
        let (from, to) = (heat.rows[1].from, heat.rows[1].to);
        assert_eq!((from, to), (Duration::from_secs(1), Duration::from_secs(3)));
        let joined = heat.rows(1);
        assert_eq!((joined.len(), joined[0].cells[&1].accessed), (1, 640));
        let mut huge = process(20, [(5, 512)]);
        huge.regions[0].leaf = Leaf::Huge2m;
        heat.add(&huge, Duration::from_secs(20));
        assert_eq!(heat.rows[2].cells[&5].huge, 512);
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_lost() {
        let mut heat = Heat::new(Duration::ZERO);
        let (regions, samples) = (5000, 1000);
        for at in 1..=samples {
            heat.add(&process(at, (0..regions).map(|number| (number, 256))), Duration::from_secs(at));
        }
        assert!(
            heat.rows.len() <= MOST_ROWS
                && heat.units().len() <= MOST_UNITS
                && heat.names.len() <= MOST_UNITS
        );
        assert_eq!(heat.unit, HugeCount(8).bytes());
        let sum: u64 = heat.rows.iter().flat_map(|row| row.cells.values()).map(|cell| cell.accessed).sum();
        assert_eq!(sum, regions * samples * 256);
        assert_eq!(heat.rows.last().unwrap().to, Duration::from_secs(samples));
        assert!(heat.rows.windows(2).all(|pair| pair[0].to <= pair[1].to && pair[0].from < pair[1].from));
    }
}
