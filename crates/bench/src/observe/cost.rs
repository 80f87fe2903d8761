//! What reading and clearing accessed bits costs us, for each GiB that is resident.

use super::{Options, Progress};
use crate::child::{Server, check};
use crate::run::{Gate, Place, Spread};
use anyhow::{Context, Result};
use megapage_kernel::KernelRoot;
use megapage_kernel::process::own_thread_time;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::Signals;
use megapage_observe::Observer;
use megapage_units::{Bytes, HUGE_2M, Pid, VirtRange};
use serde::Serialize;
use std::process::Command;

/// What is demanded for each GiB, in milliseconds of processor time.
const MOST_READ_MS: f64 = 1.0;
const MOST_CLEAR_MS: f64 = 20.0;
/// Units of random reads between a clearing and a reading: as many as touch most pages again.
const UNITS: f64 = 100.0;

/// What came of it. Times are the observing thread's processor time, in milliseconds for each GiB.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Resident bytes of the ranges that were cleared and read: base pages, all touched.
    pub resident_bytes: u64,
    /// To read.
    pub read_ms_per_gib: Spread,
    /// To clear.
    pub clear_ms_per_gib: Spread,
    /// The share of pages that were found accessed after the program had touched most of them again.
    pub accessed_share: Spread,
}

pub(super) fn run(
    options: &Options,
    place: &Place,
    signals: &Signals,
    observer: &mut Observer,
    progress: Progress<'_>,
) -> Result<Cost> {
    let mut command = Command::new(&place.workload);
    command.args(["pattern", "random", "--serve"]).arg(format!("--scale={}", 2.0 * options.scale));
    let mut server = Server::start(signals, &mut command)?;
    let ranges = ranges(server.pid())?;
    let tracker = observer.tracker().context("no way to sample accessed bits")?;
    let (mut reads, mut clears, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    let mut resident = 0;
    for round in 0..=options.runs {
        check(signals)?;
        let start = own_thread_time();
        tracker.clear(server.pid(), &ranges)?;
        let clear = own_thread_time() - start;
        server.ask((UNITS * options.scale).ceil() as u64)?;
        server.answer(signals)?;
        let start = own_thread_time();
        let regions = tracker.read(server.pid(), &ranges)?;
        let read = own_thread_time() - start;
        let pages: u64 = regions.iter().map(|region| u64::from(region.present)).sum();
        resident = 4096 * pages;
        // The first round warms the caches of both.
        if round > 0 {
            let gib = resident as f64 / Bytes::gib(1).0 as f64;
            reads.push(1e3 * read.as_secs_f64() / gib);
            clears.push(1e3 * clear.as_secs_f64() / gib);
            let accessed: u64 = regions.iter().filter_map(|region| region.accessed).map(u64::from).sum();
            shares.push(accessed as f64 / pages.max(1) as f64);
        }
    }
    let spread = |samples: Vec<f64>| Spread::of(samples).context("no round");
    let cost = Cost {
        resident_bytes: resident,
        read_ms_per_gib: spread(reads)?,
        clear_ms_per_gib: spread(clears)?,
        accessed_share: spread(shares)?,
    };
    progress(&format!(
        "cost: read {:.2} ms, clear {:.2} ms for each GiB",
        cost.read_ms_per_gib.median, cost.clear_ms_per_gib.median
    ));
    Ok(cost)
}

/// The whole regions of a process's large mappings.
fn ranges(pid: Pid) -> Result<Vec<VirtRange>> {
    let mappings = read_smaps(&KernelRoot::live(), pid)?;
    let large = mappings.iter().filter(|mapping| mapping.is_heap_like() && mapping.rss >= Bytes::mib(1));
    let ranges: Vec<VirtRange> =
        large.filter_map(|mapping| mapping.range.aligned_interior(HUGE_2M as u64)).collect();
    anyhow::ensure!(!ranges.is_empty(), "the workload has no memory to observe: use a larger --scale");
    Ok(ranges)
}

impl Cost {
    pub(super) fn gates(&self) -> Vec<Gate> {
        let gate = |what: &str, most: f64, found: f64| Gate {
            case: "cost",
            demand: format!("{what} a GiB: at most {most:.0} ms of processor time"),
            found: format!("{found:.2} ms"),
            holds: found <= most,
        };
        vec![
            gate("reading", MOST_READ_MS, self.read_ms_per_gib.median),
            gate("clearing", MOST_CLEAR_MS, self.clear_ms_per_gib.median),
        ]
    }
}
