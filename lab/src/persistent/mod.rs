//! `megapage-lab restart` and `malloc`: memory that outlives its program, against DPDK's, which is
//! its model.
//!
//! Architecture invariant: both sides have the same pages, the same sizes and modes, and separate
//! hugetlbfs. These are unmounted at the end, after a failure and after a signal; the files in them
//! are removed between runs.

mod allocators;
mod cost;
mod dpdk;
mod malloc;
mod place;
mod process;
mod restart;
mod sizes;
mod table;

use crate::arguments::size;
use crate::bench::{Gate, Place, Pool, must_fit, warm};
use crate::experiment::{Experiment, Found, Needs, Plan, Section, Stage};
use crate::workload::index::segment_size;
use anyhow::Result;
use megapage_kernel::spawn::Signals;
use megapage_units::Bytes;
use place::Mounted;
use serde::Serialize;

pub use allocators::{AllocatorRow, BlockRow};
pub use cost::Cost;
pub use malloc::{Malloc, MallocRow};
pub use restart::{IndexReport, Restart, StartRow};
pub use sizes::{Curve, Pays, SizeRow};

/// Pages beyond the requested ones, for the needs of a side itself.
const SLACK: Bytes = Bytes::mib(128);
/// Memory of a workload beside its segment.
const WORKLOAD: Bytes = Bytes::mib(256);
const ROOT: &str = "a pool of huge pages and a mount are root's";

/// Measure how soon a restarted program has its persistent memory again, compared with DPDK, and an
/// index in it
#[derive(Clone, Debug, clap::Args)]
pub struct RestartExperiment {
    /// starts, sizes, index [default: all]
    pub cases: Vec<String>,
    /// Memory of a program that starts, 64m to 64g
    #[arg(long, default_value = "4g", value_parser = pool_size)]
    pub size: Bytes,
    /// Largest memory of the curve over sizes, 64m to 64g; where it does not fit, what fits
    #[arg(long, default_value = "16g", value_parser = pool_size)]
    pub largest: Bytes,
    /// Bytes of the index's postings, 1m to 16g
    #[arg(long, default_value = "4g", value_parser = memory_size)]
    pub index: Bytes,
    /// Leave DPDK out
    #[arg(long, conflicts_with = "install")]
    pub alone: bool,
    /// Allocators to compare with, separated by commas, as of megapage bench [default: each at its
    /// best]
    #[arg(long, value_delimiter = ',')]
    pub peers: Vec<String>,
}

/// Measure the cost of allocating and freeing in a segment, by size, compared with DPDK
#[derive(Clone, Debug, clap::Args)]
pub struct MallocExperiment {
    /// Memory to allocate from, 64m to 64g; DPDK's bench needs 2600m
    #[arg(long, default_value = "2700m", value_parser = pool_size)]
    pub size: Bytes,
    /// Leave DPDK out
    #[arg(long, conflicts_with = "install")]
    pub alone: bool,
    /// Allocators to compare with, separated by commas, as of megapage bench [default: each at its
    /// best]
    #[arg(long, value_delimiter = ',')]
    pub peers: Vec<String>,
}

/// Reads bytes, 1 MiB to 16 GiB.
pub fn memory_size(text: &str) -> Result<Bytes, String> {
    size(Bytes::mib(1), Bytes::gib(16))(text)
}

fn pool_size(text: &str) -> Result<Bytes, String> {
    size(Bytes::mib(64), Bytes::gib(64))(text)
}

impl RestartExperiment {
    /// Returns the hugetlb pages that starts and the index need, in bytes.
    fn pool(&self) -> Bytes {
        let asked = |case: &str, size: Bytes| if self.wants(case) { size } else { Bytes::ZERO };
        asked("starts", self.size).max(asked("index", segment_size(self.index))) + SLACK
    }

    /// Returns the sizes of the curve that fit into memory now, and those that are skipped.
    fn sizes(&self) -> Result<(Vec<Bytes>, Vec<String>)> {
        if !self.wants("sizes") {
            return Ok(Default::default());
        }
        let beside = SLACK + WORKLOAD;
        let can_give = must_fit(Self::NAME, sizes::LEAST + beside, "a machine with more memory")?;
        Ok(sizes::fitting(self.largest, can_give.saturating_sub(beside)))
    }

    /// Returns the pool in which all cases find room, one after the other.
    fn whole_pool(&self, sizes: &[Bytes]) -> Bytes {
        sizes.last().map_or(Bytes::ZERO, |largest| *largest + SLACK).max(self.pool())
    }

    /// Returns the memory of the index on a heap, with two threads' counts.
    fn heap(&self) -> Bytes {
        self.index + Bytes(4 * self.index.0.min(Bytes::gib(1).0)) + Bytes::mib(512)
    }
}

impl Experiment for RestartExperiment {
    const NAME: &'static str = "restart";
    const CASES: &'static [&'static str] = &["starts", "sizes", "index"];
    type Found = RestartFound;

    fn cases(&self) -> &[String] {
        &self.cases
    }

    fn validate(&self) -> Result<()> {
        allocators::select(&self.peers).map(|_| ())
    }

    fn needs(&self) -> Needs {
        // A second index on the heap, to compare its answers, and the counts of two threads. The
        // counts take 2 GB each from 1 GiB of postings on, and in proportion below.
        let besides = if self.wants("index") { self.heap() } else { WORKLOAD };
        needs(self.pool() + besides, self.alone)
    }

    fn dry_run(&self, _: &Plan) -> Vec<String> {
        // If it would be refused, the pool of the others is shown.
        dry_run(self.whole_pool(&self.sizes().unwrap_or_default().0))
    }

    fn measure(&self, stage: &mut Stage<'_>) -> Result<RestartFound> {
        let (sizes, left_out) = self.sizes()?;
        let (dpdk, restart) = on_hugetlbfs(stage, self.whole_pool(&sizes), self.alone, |bench| {
            let mut found = Restart { size_bytes: self.size.0, ..Restart::default() };
            if self.wants("sizes") {
                found.sizes = Some(sizes::measure(bench, &sizes, left_out)?);
                // The others need memory beside the pool, and find the remaining pages as warm.
                bench.pool.set(self.pool())?;
            }
            if self.wants("starts") {
                found.starts = restart::starts(bench, self.size)?;
            }
            if self.wants("index") {
                found.index = Some(restart::keep_index(bench, self.index)?);
                let arguments = restart::retrieval_arguments(self.index);
                let peers = allocators::select(&self.peers)?;
                found.rebuilds = allocators::rebuilds(bench, &peers, &arguments, self.heap())?;
            }
            Ok(found)
        })?;
        Ok(RestartFound { dpdk, restart })
    }
}

impl Experiment for MallocExperiment {
    const NAME: &'static str = "malloc";
    type Found = MallocFound;

    fn validate(&self) -> Result<()> {
        allocators::select(&self.peers).map(|_| ())
    }

    fn needs(&self) -> Needs {
        needs(self.size + SLACK + WORKLOAD, self.alone)
    }

    fn dry_run(&self, _: &Plan) -> Vec<String> {
        dry_run(self.size + SLACK)
    }

    fn measure(&self, stage: &mut Stage<'_>) -> Result<MallocFound> {
        let peers = allocators::select(&self.peers)?;
        let run = |bench: &mut Bench<'_>| malloc::run(bench, self.size, &peers);
        let (dpdk, malloc) = on_hugetlbfs(stage, self.size + SLACK, self.alone, run)?;
        Ok(MallocFound { dpdk, malloc })
    }
}

/// Findings of `restart`.
#[derive(Clone, Debug, Serialize)]
pub struct RestartFound {
    /// DPDK's version; `None` if it did not run: it is absent, or was not asked for.
    pub dpdk: Option<String>,
    /// The measurements.
    pub restart: Restart,
}

/// Findings of `malloc`.
#[derive(Clone, Debug, Serialize)]
pub struct MallocFound {
    /// DPDK's version; `None` if it did not run: it is absent, or was not asked for.
    pub dpdk: Option<String>,
    /// The measurements.
    pub malloc: Malloc,
}

impl Found for RestartFound {
    fn gates(&self) -> Vec<Gate> {
        self.restart.gates()
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections = table::restart(&self.restart);
        sections.extend(table::allocators(&self.restart.rebuilds));
        sections.extend(self.dpdk.as_ref().map(Section::text));
        sections
    }

    fn notes(&self) -> Vec<String> {
        absent(self.dpdk.as_deref())
    }
}

impl Found for MallocFound {
    fn gates(&self) -> Vec<Gate> {
        self.malloc.gates()
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections = vec![table::malloc(&self.malloc)];
        sections.extend(table::allocators(&self.malloc.allocators));
        sections.extend(self.dpdk.as_ref().map(Section::text));
        sections
    }

    fn notes(&self) -> Vec<String> {
        absent(self.dpdk.as_deref())
    }
}

fn absent(dpdk: Option<&str>) -> Vec<String> {
    match dpdk {
        Some(_) => Vec::new(),
        None => vec![format!("dpdk did not run ({})", dpdk::HOW_TO_INSTALL)],
    }
}

fn needs(memory: Bytes, alone: bool) -> Needs {
    let packages = if alone { Vec::new() } else { dpdk::lacks() };
    Needs { root: Some(ROOT), memory, smaller: "smaller sizes", packages, must_install: false }
}

/// Resources of a run.
struct Bench<'a> {
    runs: u32,
    place: &'a Place,
    signals: &'a Signals,
    mounted: Mounted,
    pool: &'a mut Pool,
    dpdk: Option<dpdk::Dpdk>,
    progress: &'a mut dyn FnMut(&str),
}

/// Returns the changes to the machine as shell lines.
fn dry_run(pool: Bytes) -> Vec<String> {
    let pages = pool.0.div_ceil(2 << 20);
    vec![
        format!("megapage pool set 2m=+{pages}"),
        "point=$(mktemp -d)".into(),
        "mount -t hugetlbfs -o pagesize=2097152,mode=1777 none \"$point\"".into(),
        "# both sides run on it alternately; then:".into(),
        "umount \"$point\"; rmdir \"$point\"".into(),
        format!("megapage pool set 2m=-{pages}"),
    ]
}

/// Runs `measure` with a pool and a hugetlbfs on it. Returns DPDK's version, and the result of
/// `measure`.
fn on_hugetlbfs<T>(
    stage: &mut Stage<'_>,
    bytes: Bytes,
    alone: bool,
    measure: impl FnOnce(&mut Bench<'_>) -> Result<T>,
) -> Result<(Option<String>, T)> {
    let dpdk = if alone { None } else { dpdk::Dpdk::find() };
    if dpdk.is_none() && !alone {
        (stage.progress)(&format!("absent: dpdk: {} (or --install)", dpdk::HOW_TO_INSTALL));
    }
    let version = dpdk.as_ref().map(|dpdk| dpdk.version.clone());
    let mut pool = Pool::take()?;
    pool.set(bytes)?;
    // Once, for both sides and all rounds: otherwise the first user of a page would pay for the
    // host to find it.
    warm(bytes, true);
    let mounted = Mounted::new()?;
    // Dropped before the pool, on every way out: pages that the mount's files hold cannot be taken
    // out of the pool. The caller drops the signals after both: a signal that has come ends this
    // process when its mask is restored.
    let (runs, place, signals) = (stage.plan.runs, stage.place, stage.signals);
    let mut bench =
        Bench { runs, place, signals, mounted, pool: &mut pool, dpdk, progress: &mut *stage.progress };
    let found = measure(&mut bench)?;
    drop(bench);
    Ok((version, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_sets_the_pool_and_puts_it_back() {
        let lines =
            MallocExperiment { size: Bytes::gib(1), alone: true, peers: Vec::new() }.dry_run(&Plan::of(1));
        assert_eq!(lines[0], "megapage pool set 2m=+576");
        assert_eq!(lines.last().unwrap(), "megapage pool set 2m=-576");
        let cases = vec!["index".to_string()];
        let index = RestartExperiment {
            cases,
            size: Bytes::gib(4),
            largest: Bytes::gib(16),
            index: Bytes::mib(256),
            alone: true,
            peers: Vec::new(),
        };
        // Beside the postings: the offsets of 4 million lists, 32 MiB, and at least the room for
        // the recorded songs.
        assert_eq!(index.dry_run(&Plan::of(1))[0], "megapage pool set 2m=+211");
    }
}
