//! Cost of allocating and freeing, by size and for clean and dirty memory, as DPDK's malloc_perf
//! shows it.

use super::Bench;
use super::allocators::{self, AllocatorRow};
use super::cost::Cost;
use super::dpdk::{Unlink, read_malloc_perf};
use super::process::timed;
use crate::bench::Gate;
use crate::peers::Peer;
use crate::workload::keep::{KINDS, SIZES};
use crate::workload::measurement::Measurement;
use anyhow::{Context, Result};
use megapage_units::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::process::Command;

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Malloc {
    /// Memory that is allocated from.
    pub size_bytes: u64,
    /// One for each mode, kind and size that fits.
    pub rows: Vec<MallocRow>,
    /// The same blocks on allocators' heaps.
    pub allocators: Vec<AllocatorRow>,
}

/// One size.
#[derive(Clone, Debug, Serialize)]
pub struct MallocRow {
    /// `clean`: memory is fresh (existing); `dirty`: it is reused (never).
    pub mode: &'static str,
    /// `malloc`, or `zmalloc`: of zeros.
    pub kind: &'static str,
    /// Bytes of a block.
    pub size_bytes: u64,
    /// The heap of a segment.
    pub megapage: Cost,
    /// DPDK's; `None` if it did not run.
    pub dpdk: Option<Cost>,
}

impl Malloc {
    pub(super) fn gates(&self) -> Vec<Gate> {
        let mut gates = Vec::new();
        for mode in ["clean", "dirty"] {
            let rows = self.rows.iter().filter(|row| row.mode == mode);
            let cleared = |row: &MallocRow| {
                let cost = &row.megapage;
                // The header and its alignment add up to 128 bytes, which counts for blocks of the
                // smallest size.
                (cost.cleared_allocating + cost.cleared_freeing) / (row.size_bytes as f64 + 128.0)
            };
            let most = rows.map(cleared).fold(0.0, f64::max);
            gates.push(Gate {
                case: "malloc",
                demand: format!("{mode} memory is cleared once at the most"),
                found: format!("{most:.2} times"),
                holds: most <= 1.0,
            });
        }
        gates.extend(self.against_dpdk("up to 4 KiB", 1.5, |size| size <= 4 << 10));
        gates.extend(self.against_dpdk("from 1 MiB on", 1.0, |size| size >= 1 << 20));
        gates
    }

    /// Judges if each row of these sizes takes at most `most` times DPDK's time to allocate and
    /// free a block, which malloc_perf calls the total. `None` if DPDK did not run.
    fn against_dpdk(&self, which: &str, most: f64, sizes: fn(u64) -> bool) -> Option<Gate> {
        let ratio = |row: &MallocRow| -> Option<f64> {
            let total = |cost: &Cost| cost.allocate_us + cost.free_us;
            Some(total(&row.megapage) / total(row.dpdk.as_ref()?)).filter(|ratio| ratio.is_finite())
        };
        let rows = self.rows.iter().filter(|row| sizes(row.size_bytes));
        let (row, worst) =
            rows.filter_map(|row| Some((row, ratio(row)?))).max_by(|one, other| one.1.total_cmp(&other.1))?;
        Some(Gate {
            case: "malloc",
            demand: format!(
                "blocks {which}, each size: allocated and freed in at most {most:.1} of dpdk's time"
            ),
            found: format!("{worst:.2} ({} {}, {})", row.mode, row.kind, Bytes(row.size_bytes)),
            holds: worst <= most,
        })
    }
}

type Costs = BTreeMap<(&'static str, u64), Cost>;

pub(super) fn run(bench: &mut Bench<'_>, size: Bytes, peers: &[&'static Peer]) -> Result<Malloc> {
    let mut rows = Vec::new();
    for (mode, unlink) in [("clean", Unlink::Existing), ("dirty", Unlink::Never)] {
        let (mut ours, mut theirs): (Vec<Costs>, Vec<Costs>) = (Vec::new(), Vec::new());
        for round in 0..=bench.runs {
            bench.mounted.clear()?;
            let mine = megapage(bench, size, unlink)?;
            bench.mounted.clear()?;
            let dpdks = dpdk(bench, size, unlink)?;
            (bench.progress)(&format!("round {round} of {}: {mode}", bench.runs));
            if round > 0 {
                ours.push(mine);
                theirs.extend(dpdks);
            }
        }
        for kind in KINDS {
            for bytes in SIZES {
                let of = |side: &[Costs]| {
                    let samples: Vec<Cost> =
                        side.iter().filter_map(|values| values.get(&(kind, bytes)).copied()).collect();
                    (!samples.is_empty()).then(|| Cost::median(&samples))
                };
                if let Some(megapage) = of(&ours) {
                    rows.push(MallocRow { mode, kind, size_bytes: bytes, megapage, dpdk: of(&theirs) });
                }
            }
        }
    }
    bench.mounted.clear()?;
    let allocators = allocators::blocks(bench, peers, size)?;
    Ok(Malloc { size_bytes: size.0, rows, allocators })
}

fn megapage(bench: &Bench<'_>, size: Bytes, unlink: Unlink) -> Result<Costs> {
    let mut command = Command::new(&bench.place.workload);
    command.args(["keep", "malloc", "--file-per-page", "--size", &size.0.to_string()]);
    command.args(["--unlink", unlink.name()]).arg("--directory").arg(bench.mounted.side("megapage"));
    let took = timed(&mut command, "", bench.signals)?;
    let found: Measurement = serde_json::from_str(&took.printed)
        .with_context(|| format!("the workload said '{}'", took.printed.trim()))?;
    let mut values = Costs::new();
    for kind in KINDS {
        for bytes in SIZES {
            values.extend(Cost::read(&found, kind, bytes).map(|cost| ((kind, bytes), cost)));
        }
    }
    Ok(values)
}

/// Runs DPDK's bench. With reuse DPDK runs twice: the first run leaves memory for the second one to
/// find.
fn dpdk(bench: &Bench<'_>, size: Bytes, unlink: Unlink) -> Result<Option<Costs>> {
    let Some(dpdk) = &bench.dpdk else { return Ok(None) };
    let directory = bench.mounted.side("dpdk");
    if unlink == Unlink::Never {
        timed(&mut dpdk.command(&directory, size, unlink, false), "quit\n", bench.signals)?;
    }
    let mut command = dpdk.command(&directory, size, unlink, false);
    let took = timed(&mut command, "malloc_perf_autotest\nquit\n", bench.signals)?;
    read_malloc_perf(&took.printed).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(size_bytes: u64, ours: f64, dpdks: Option<f64>) -> MallocRow {
        let cost = |us: f64| Cost {
            allocate_us: us / 4.0,
            free_us: us * 3.0 / 4.0,
            memset_us: 9.0,
            ..Cost::default()
        };
        MallocRow { mode: "clean", kind: "malloc", size_bytes, megapage: cost(ours), dpdk: dpdks.map(cost) }
    }

    #[test]
    fn the_worst_size_decides_against_dpdk() {
        let rows = vec![
            row(64, 0.09, Some(0.06)),
            row(4096, 0.2, Some(0.2)),
            row(65_536, 9.0, Some(1.0)),
            row(1 << 20, 4.0, Some(5.0)),
        ];
        let malloc = Malloc { size_bytes: 0, rows, allocators: Vec::new() };
        let found = |malloc: &Malloc| -> Vec<_> {
            let gates = malloc.gates().into_iter().filter(|gate| gate.demand.contains("dpdk"));
            gates.map(|gate| (gate.found, gate.holds)).collect()
        };
        assert_eq!(
            found(&malloc),
            [("1.50 (clean malloc, 64 B)".into(), true), ("0.80 (clean malloc, 1 MiB)".into(), true)]
        );
        let slower = vec![row(64, 0.092, Some(0.06)), row(1 << 20, 5.1, Some(5.0))];
        let slower = Malloc { rows: slower, ..malloc };
        assert!(found(&slower).iter().all(|(_, holds)| !holds), "{:?}", found(&slower));
        let alone = Malloc { rows: vec![row(64, 0.09, None)], ..slower };
        assert!(found(&alone).is_empty());
    }
}
