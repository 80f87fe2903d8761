//! Cost of reading and clearing accessed bits, for each GiB that is resident. Also the cost of the
//! other way of clearing (`clear_refs`), and the time for which it blocks other processes.

use super::Observe;
use crate::bench::{Gate, Spread};
use crate::child::{Server, check};
use crate::experiment::Stage;
use anyhow::{Context, Result, anyhow};
use megapage_kernel::KernelRoot;
use megapage_kernel::clear_refs::clear_accessed;
use megapage_kernel::process::own_thread_time;
use megapage_kernel::remote_read::RemoteMemory;
use megapage_kernel::smaps::read_smaps;
use megapage_observe::Observer;
use megapage_units::{Bytes, HUGE_2M, Pid, VirtRange};
use serde::Serialize;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Limits for each GiB, in milliseconds of processor time.
const MOST_READ_MS: f64 = 1.0;
const MOST_CLEAR_MS: f64 = 20.0;
/// Pause between two reads of the process's memory.
const READER_PAUSE: Duration = Duration::from_micros(100);
/// Units of random reads between a clearing and a reading: enough to touch most pages again.
const UNITS: f64 = 100.0;

/// Findings of the experiment. Times are the observing thread's processor time, in milliseconds for
/// each GiB.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Resident bytes of the ranges that were cleared and read: base pages, all touched.
    pub resident_bytes: u64,
    /// The time to read.
    pub read_ms_per_gib: Spread,
    /// The time to clear, nearly every bit being set: the share of them is `accessed_share`.
    pub clear_ms_per_gib: Spread,
    /// The time to clear again at once, without a touch in between.
    pub clear_idle_ms_per_gib: Spread,
    /// Longest wait of another process that reads memory of the process while the bits were
    /// cleared, in milliseconds.
    pub clear_wait_ms: Spread,
    /// The time to clear the same bits by `/proc/PID/clear_refs`, which no tracker of single pages
    /// does: it flushes no TLB.
    pub clear_refs_ms_per_gib: Spread,
    /// Longest wait of the reader then. The kernel holds the locks of the address space for writing
    /// all the time, and page faults wait like the reader.
    pub clear_refs_wait_ms: Spread,
    /// The share of pages that were found accessed after the program had touched most of them
    /// again.
    pub accessed_share: Spread,
}

pub(super) fn run(options: &Observe, stage: &mut Stage<'_>, observer: &mut Observer) -> Result<Cost> {
    let Stage { plan, place, signals, progress } = stage;
    let mut command = Command::new(&place.workload);
    command.args(["pattern", "random", "--serve"]).arg(format!("--scale={}", 2.0 * options.scale));
    progress(&format!("cost: a program fills {} GiB; {} rounds", 2.0 * options.scale, plan.runs + 1));
    let mut server = Server::start(signals, &mut command)?;
    let ranges = ranges(server.pid())?;
    let tracker = observer.tracker().context("no way to sample accessed bits")?;
    let units = (UNITS * options.scale).ceil() as u64;
    let pid = server.pid();
    let mut work = || -> Result<()> {
        server.ask(units)?;
        server.answer(signals)?;
        Ok(())
    };
    let mut samples: [Vec<f64>; 7] = Default::default();
    let mut resident = 0;
    for round in 0..=plan.runs {
        check(signals)?;
        work()?;
        let (clear, wait) = beside_reader(pid, ranges[0], || Ok(tracker.clear(pid, &ranges)?))?;
        let (idle, _) = timed(|| Ok(tracker.clear(pid, &ranges)?))?;
        work()?;
        let (read, regions) = timed(|| Ok(tracker.read(pid, &ranges)?))?;
        let pages: u64 = regions.iter().map(|region| u64::from(region.present)).sum();
        resident = 4096 * pages;
        let accessed: u64 = regions.iter().filter_map(|region| region.accessed).map(u64::from).sum();
        let (whole, whole_wait) =
            beside_reader(pid, ranges[0], || Ok(clear_accessed(&KernelRoot::live(), pid)?))?;
        // The first round warms the caches of both.
        if round > 0 {
            let gib = resident as f64 / Bytes::gib(1).0 as f64;
            let share = accessed as f64 / pages.max(1) as f64;
            let found = [read / gib, clear / gib, idle / gib, wait, whole / gib, whole_wait, share];
            samples.iter_mut().zip(found).for_each(|(all, one)| all.push(one));
        }
    }
    let [read, clear, idle, wait, whole, whole_wait, share] = samples.map(Spread::of);
    let none = "no round";
    let cost = Cost {
        resident_bytes: resident,
        read_ms_per_gib: read.context(none)?,
        clear_ms_per_gib: clear.context(none)?,
        clear_idle_ms_per_gib: idle.context(none)?,
        clear_wait_ms: wait.context(none)?,
        clear_refs_ms_per_gib: whole.context(none)?,
        clear_refs_wait_ms: whole_wait.context(none)?,
        accessed_share: share.context(none)?,
    };
    progress(&format!(
        "cost: read {:.2} ms, clear {:.2} ms for each GiB, {:.2} where nothing was touched",
        cost.read_ms_per_gib.median, cost.clear_ms_per_gib.median, cost.clear_idle_ms_per_gib.median
    ));
    Ok(cost)
}

/// Measures this thread's processor time for `work`, in milliseconds; returns also the result of
/// `work`.
fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let start = own_thread_time();
    let found = work()?;
    Ok((1e3 * (own_thread_time() - start).as_secs_f64(), found))
}

/// Does the same as [`timed`], while another thread repeatedly reads a word of the process's
/// memory. For that it needs the lock of the address space, as a page fault does. Returns also the
/// longest of these waits, in milliseconds.
fn beside_reader(pid: Pid, range: VirtRange, work: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
    let memory = RemoteMemory::open(&KernelRoot::live(), pid)?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> std::io::Result<f64> {
            let (mut word, mut longest) = ([0; 8], Duration::ZERO);
            while !done.load(Ordering::Relaxed) {
                let start = Instant::now();
                memory.read(range.start(), &mut word)?;
                longest = longest.max(start.elapsed());
                std::thread::sleep(READER_PAUSE);
            }
            Ok(1e3 * longest.as_secs_f64())
        });
        let worked = timed(work);
        done.store(true, Ordering::Relaxed);
        let waited = reader.join().map_err(|_| anyhow!("the reader panicked"))?;
        Ok((worked?.0, waited.context("reading the program's memory")?))
    })
}

/// Returns the whole regions of a process's large mappings.
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
            gate("clearing all bits of", MOST_CLEAR_MS, self.clear_ms_per_gib.median),
        ]
    }
}
