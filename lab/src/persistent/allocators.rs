//! Allocators at their best settings, beside memory that outlives the program: their times for the
//! same blocks, and for building the same index again.

use super::Bench;
use super::cost::Cost;
use super::process::timed;
use crate::bench::{Spread, command_under, warm};
use crate::experiment::{add_note, found_or_why};
use crate::peers::{self, Peer, Start};
use crate::workload::keep::{KINDS, SIZES};
use crate::workload::measurement::Measurement;
use anyhow::{Context, Result, bail};
use megapage_units::Bytes;
use serde::Serialize;

/// Peers by default: for each allocator the settings that are best by THP and by a pool.
pub(super) const AT_BEST: [&str; 9] = [
    "glibc",
    "glibc-thp",
    "glibc-hugetlb",
    "mimalloc3-reserved",
    "jemalloc-metadata-all",
    "jemalloc-hpa",
    "tcmalloc-memfs",
    "tcmalloc-google",
    "megapage",
];

/// An allocator.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AllocatorRow {
    /// The peer.
    pub peer: &'static str,
    /// Its selection, as shell words.
    pub recipe: String,
    /// The share of its memory on huge pages: the least of the runs; `None` if no run ended.
    pub huge_share: Option<Spread>,
    /// Only for `malloc`: the cost of a block, one for each kind and size that fits.
    pub blocks: Vec<BlockRow>,
    /// Only for `restart`: milliseconds to build the index on its heap.
    pub built_ms: Option<Spread>,
    /// Faults, or the reason for which it did not run.
    pub notes: Vec<String>,
}

/// Blocks of one size.
#[derive(Clone, Debug, Serialize)]
pub struct BlockRow {
    /// `malloc`, or `zmalloc`: of zeros.
    pub kind: &'static str,
    /// Bytes of a block.
    pub size_bytes: u64,
    /// The cost of a block.
    pub cost: Cost,
}

/// Returns the peers of these names; [`AT_BEST`] if none is named.
pub(super) fn select(names: &[String]) -> Result<Vec<&'static Peer>> {
    match names {
        [] => Ok(AT_BEST.iter().filter_map(|name| Peer::named(name)).collect()),
        names => {
            let peers = peers::select(names)?;
            // The pools here are of 2 MiB pages.
            if let Some(peer) = peers.iter().find(|peer| peer.is_gigantic()) {
                bail!("{} is for megapage-lab access and retrieval alone", peer.name);
            }
            Ok(peers)
        }
    }
}

/// Measures the cost of blocks under each.
pub(super) fn blocks(
    bench: &mut Bench<'_>,
    peers: &[&'static Peer],
    size: Bytes,
) -> Result<Vec<AllocatorRow>> {
    let arguments = ["blocks".to_string(), "--size".into(), size.0.to_string()];
    let mut rows = Vec::new();
    for peer in peers {
        let (mut row, found) = under(bench, peer, &arguments, size)?;
        for kind in KINDS {
            for bytes in SIZES {
                let costs = found.iter().filter_map(|found| Cost::read(found, kind, bytes));
                let costs: Vec<Cost> = costs.collect();
                if !costs.is_empty() {
                    row.blocks.push(BlockRow { kind, size_bytes: bytes, cost: Cost::median(&costs) });
                }
            }
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Measures the time to build the index under each, with `arguments` to `retrieval`; it takes
/// `memory`. Peers with a pool come last: it is set to `memory` for them.
pub(super) fn rebuilds(
    bench: &mut Bench<'_>,
    peers: &[&'static Peer],
    arguments: &[String],
    memory: Bytes,
) -> Result<Vec<AllocatorRow>> {
    let mut rows = Vec::new();
    for pool in [false, true] {
        let of: Vec<&&Peer> = peers.iter().filter(|peer| peer.pool.is_some() == pool).collect();
        let mut short = None;
        if pool && !of.is_empty() {
            let wanted = memory + Bytes(memory.0 / 10);
            short = bench.pool.set(wanted).err().map(|error| format!("no pool of {wanted}: {error:#}"));
            warm(wanted, true);
        }
        for peer in of {
            let (mut row, found) = under(bench, peer, arguments, memory)?;
            let built = |found: &Measurement| Some(found.phases.0.get("allocate")?.wall_ns as f64 / 1e6);
            row.built_ms = Spread::of(found.iter().filter_map(built));
            row.notes.extend(short.clone());
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Runs the workload under `peer` in every round, and once before that does not count. A run that
/// fails is a note.
fn under(
    bench: &mut Bench<'_>,
    peer: &Peer,
    arguments: &[String],
    memory: Bytes,
) -> Result<(AllocatorRow, Vec<Measurement>)> {
    let mut row = AllocatorRow { peer: peer.name, recipe: peer.recipe(), ..AllocatorRow::default() };
    let is_missing = matches!(peer.start, Start::Run(_)) && !bench.place.megapage.exists();
    let missing = is_missing.then(|| format!("{} is missing", bench.place.megapage.display()));
    if let Some(why) = bench.place.absence(peer).or(missing) {
        row.notes.push(format!("did not run: {why}"));
        return Ok((row, Vec::new()));
    }
    let mut found = Vec::new();
    for round in 0..=bench.runs {
        let mut command = command_under(peer, bench.place, arguments, memory, Some(bench.mounted.path()))?;
        if peer.pool.is_none() {
            warm(memory, false);
        }
        let ran = timed(&mut command, "", bench.signals).and_then(|took| measurement(&took.printed));
        (bench.progress)(&format!("round {round} of {}: {} {}", bench.runs, arguments[0], peer.name));
        match found_or_why(ran)? {
            Ok(measured) if round > 0 => found.push(measured),
            Ok(_) => {}
            Err(why) => add_note(&mut row.notes, why),
        }
    }
    row.huge_share = Spread::of(found.iter().map(|found| found.backing.huge_share()));
    Ok((row, found))
}

/// Returns the workload's line, among the other output of an allocator.
fn measurement(printed: &str) -> Result<Measurement> {
    let line = printed.lines().rfind(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("the workload said '{}'", printed.trim()))?;
    serde_json::from_str(line).with_context(|| format!("the workload said '{line}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_compared_with_is_there() {
        assert_eq!(select(&[]).unwrap().len(), AT_BEST.len(), "{AT_BEST:?}");
        let error = select(&["dlmalloc".into()]).unwrap_err().to_string();
        assert!(error.starts_with("'dlmalloc' is no peer"), "{error}");
        let error = select(&["megapage-1g".into()]).unwrap_err().to_string();
        assert_eq!(error, "megapage-1g is for megapage-lab access and retrieval alone");
    }

    #[test]
    fn what_an_allocator_says_is_no_measurement() {
        let json = serde_json::to_string(&Measurement { checksum: 7, ..Measurement::default() }).unwrap();
        let printed = format!("mimalloc: warning: no huge pages\n{json}\n");
        assert_eq!(measurement(&printed).unwrap().checksum, 7);
        let error = format!("{:#}", measurement("mimalloc: error").unwrap_err());
        assert_eq!(error, "the workload said 'mimalloc: error'");
    }
}
