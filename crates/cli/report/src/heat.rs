//! Heat over time as a picture: rows are time, columns are ranges of addresses.

mod text;

pub use text::{screen, text};

use crate::value::percent;
use megapage_snapshot::{Heat, HeatCell, HeatRow, Process, wire};
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use std::time::Duration;

/// Schema of [`HeatMap`] as JSON.
pub const SCHEMA: &str = "megapage.map-watch/1";

/// Length of an empty range that is a gap: program, heap, mapped memory and stack lie further
/// apart.
const APART: u64 = 1 << 30;

/// Subject of a picture.
#[derive(Clone, Copy, Debug)]
pub struct HeatMap<'a> {
    /// The process.
    pub pid: Pid,
    /// Its command name.
    pub name: &'a str,
    /// Samples of its accesses.
    pub heat: &'a Heat,
}

/// A column of the picture: neighbouring ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    /// The numbers of the ranges, ascending: see [`Heat`].
    units: Vec<u64>,
    /// Number of its band, from 0: bands are far apart.
    band: usize,
}

impl Column {
    fn cell(&self, row: &HeatRow) -> HeatCell {
        let mut sum = HeatCell::default();
        self.units.iter().filter_map(|unit| row.cells.get(unit)).for_each(|cell| sum.add(*cell));
        sum
    }
}

/// A band of the picture: columns without a large gap between them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Band {
    /// The first address.
    start: u64,
    /// Length from the first address to the end.
    length: Bytes,
    /// Name of the mapping of the first range that has a name.
    name: String,
    /// Sum of all samples in it.
    sum: HeatCell,
}

impl Band {
    /// Describes the band: `7f2c40000000 + 1.20 GiB [heap]: 12 % accessed, 40 % on huge pages`.
    fn describe(&self) -> String {
        let name = if self.name.is_empty() { "anonymous" } else { &self.name };
        let huge = self.sum.huge as f64 / self.sum.sampled.max(1) as f64;
        let heat = self.sum.heat().map_or("-".into(), percent);
        format!(
            "{:x} + {} {name}: {heat} % accessed, {} % on huge pages",
            self.start,
            self.length,
            percent(huge)
        )
    }
}

/// Returns the bands, and their columns: at most `most`, counting the gaps between bands.
fn columns(heat: &Heat, most: usize) -> (Vec<Column>, Vec<Band>) {
    let units = heat.units();
    let far = (APART / heat.unit.0).max(2);
    let mut runs: Vec<&[u64]> = units.chunk_by(|one, next| next - one < far).collect();
    // Many small bands would consist mostly of gaps.
    if runs.len() * 4 > most.max(4) {
        runs = vec![&units[..]];
    }
    let room = most.saturating_sub(runs.len().saturating_sub(1)).max(1);
    let count = |together: usize| runs.iter().map(|run| run.len().div_ceil(together)).sum::<usize>();
    let mut together = units.len().div_ceil(room).max(1);
    while count(together) > room && together < units.len() {
        together += 1;
    }
    let columns = runs.iter().enumerate().flat_map(|(band, run)| {
        run.chunks(together).map(move |units| Column { units: units.to_vec(), band })
    });
    let band = |run: &&[u64]| {
        let (first, last) = (run.first().copied().unwrap_or(0), run.last().copied().unwrap_or(0));
        let mut sum = HeatCell::default();
        let rows = heat.rows.iter().flat_map(|row| row.cells.range(first..=last));
        rows.for_each(|(_, cell)| sum.add(*cell));
        let name = heat.names.range(first..=last).map(|(_, name)| name).find(|name| !name.is_empty());
        Band {
            start: first * heat.unit.0,
            length: heat.unit * (last + 1 - first),
            name: name.cloned().unwrap_or_default(),
            sum,
        }
    };
    (columns.collect(), runs.iter().filter(|run| !run.is_empty()).map(band).collect())
}

impl HeatMap<'_> {
    /// Returns the title: the process, the time, and the size of rows and columns.
    fn title(&self, rows: &[HeatRow], columns: &[Column]) -> String {
        let time = rows.last().map_or(Duration::ZERO, |row| row.to);
        let widest = columns.iter().map(|column| column.units.len()).max().unwrap_or(1) as u64;
        format!(
            "{} (pid {}): heat over {:.0} s; a row is {:.1} s, a column at most {}",
            self.name,
            self.pid,
            time.as_secs_f64(),
            time.as_secs_f64() / rows.len().max(1) as f64,
            self.heat.unit * widest,
        )
    }

    /// Returns the whole picture as a value for JSON. `process` is the process as last seen.
    pub fn document<'a>(&self, process: Option<&'a Process>) -> Document<'a> {
        let (columns, bands) = columns(self.heat, usize::MAX / 8);
        let units: Vec<u64> = columns.iter().flat_map(|column| column.units.iter().copied()).collect();
        let name = |unit: &u64| self.heat.names.get(unit).cloned().unwrap_or_default();
        let row = |row: &HeatRow| {
            let bytes = |of: fn(&HeatCell) -> u64| {
                units.iter().map(|unit| row.cells.get(unit).map(|cell| Heat::bytes(of(cell)).0)).collect()
            };
            DocumentRow {
                from: row.from,
                to: row.to,
                sampled_bytes: bytes(|cell| cell.sampled),
                accessed_bytes: bytes(|cell| cell.accessed),
                huge_bytes: bytes(|cell| cell.huge),
            }
        };
        Document {
            pid: self.pid,
            name: self.name.into(),
            uid: process.map(|process| process.uid),
            cgroup: process.map(|process| process.cgroup.as_str()),
            range_bytes: self.heat.unit.0,
            bands: bands.len(),
            ranges: units
                .iter()
                .map(|unit| Range { start: format!("{:x}", unit * self.heat.unit.0), mapping: name(unit) })
                .collect(),
            rows: self.heat.rows.iter().map(row).collect(),
        }
    }
}

/// [`HeatMap`] as JSON. Each row has a value for each range, or null if nothing was sampled there.
/// Values are sums over the samples of a row.
#[derive(Clone, Debug, Serialize)]
pub struct Document<'a> {
    #[serde(serialize_with = "wire::pid")]
    pid: Pid,
    name: String,
    uid: Option<u32>,
    cgroup: Option<&'a str>,
    range_bytes: u64,
    bands: usize,
    ranges: Vec<Range>,
    rows: Vec<DocumentRow>,
}

/// One range.
#[derive(Clone, Debug, Serialize)]
struct Range {
    start: String,
    mapping: String,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
struct DocumentRow {
    #[serde(serialize_with = "wire::seconds", rename = "from_seconds")]
    from: Duration,
    #[serde(serialize_with = "wire::seconds", rename = "to_seconds")]
    to: Duration,
    sampled_bytes: Vec<Option<u64>>,
    accessed_bytes: Vec<Option<u64>>,
    huge_bytes: Vec<Option<u64>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;
    use megapage_units::HUGE_2M;

    /// Returns the heat of a process with a heap of `mib` MiB, and a stack far away. The heap's
    /// first half is hot in even samples, its second half in odd ones; the stack is always hot.
    pub(super) fn heat(mib: u64, samples: u64) -> Heat {
        let mut heat = Heat::new(Duration::ZERO);
        let regions = mib / 2;
        for at in 1..=samples {
            let mut process = synthetic::process(7, "p");
            let start = 0x7000_0000_0000;
            synthetic::map(
                &mut process,
                start,
                regions,
                megapage_snapshot::MappingKind::Anonymous,
                "",
                |index, region| {
                    let first_half = index < regions / 2;
                    region.accessed = synthetic::accessed(if first_half == (at % 2 == 0) { 512 } else { 0 });
                },
            );
            let stack = 0x7fff_0000_0000;
            synthetic::map(
                &mut process,
                stack,
                1,
                megapage_snapshot::MappingKind::Stack,
                "[stack]",
                |_, region| {
                    region.accessed = synthetic::accessed(512);
                },
            );
            for region in &mut process.regions {
                if let Some(accessed) = &mut region.accessed {
                    accessed.sampled = Duration::from_secs(at);
                }
            }
            assert!(heat.add(&process, Duration::from_secs(at)));
        }
        heat
    }

    #[test]
    fn columns_fit_and_hold_every_range_once() {
        let heat = heat(600, 4);
        let all = heat.units();
        for most in [1, 7, 40, 200, 1000] {
            let (columns, bands) = columns(&heat, most);
            assert!(columns.len() + bands.len().saturating_sub(1) <= most.max(bands.len() * 2 - 1), "{most}");
            let units: Vec<u64> = columns.iter().flat_map(|column| column.units.iter().copied()).collect();
            assert_eq!(units, all);
        }
        let (_, bands) = columns(&heat, 100);
        assert_eq!(bands.len(), 2);
        assert_eq!((bands[0].length, bands[1].name.as_str()), (Bytes::mib(600), "[stack]"));
        assert!(
            bands[0].describe().starts_with("700000000000 + 600 MiB anonymous: 50.0 % accessed"),
            "{bands:?}"
        );
    }

    #[test]
    fn json_has_a_value_for_each_row_and_range() {
        let heat = heat(40, 3);
        let map = HeatMap { pid: Pid(7), name: "p", heat: &heat };
        let value: serde_json::Value =
            serde_json::from_str(&crate::json(SCHEMA, &map.document(None))).unwrap();
        assert_eq!(value["schema"], SCHEMA);
        assert_eq!((value["range_bytes"].as_u64(), value["bands"].as_u64()), (Some(HUGE_2M as u64), Some(2)));
        let rows = value["rows"].as_array().unwrap();
        assert_eq!((rows.len(), value["ranges"].as_array().unwrap().len()), (3, 21));
        assert_eq!(rows[0]["accessed_bytes"].as_array().unwrap().len(), 21);
        assert_eq!(
            (&rows[0]["accessed_bytes"][0], &rows[1]["accessed_bytes"][0]),
            (&0.into(), &(HUGE_2M as u64).into())
        );
    }
}
