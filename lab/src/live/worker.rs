//! The workloads that report their progress, as seen by the bench.

use crate::bench::Place;
use crate::child::Server;
use crate::workload::probe::Touches;
use crate::workload::requests::{FAULT, GO, MARKED, MERGE, PAUSE, REPORT, TOUCH, TOUCHED, UNMERGE, WORK};
use crate::workload::steady::{Beat, Way};
use anyhow::{Context, Result, ensure};
use megapage_act::demote::Demotion;
use megapage_act::promote::{Bounds, Promotion, candidates, identify};
use megapage_decide::Promotions;
use megapage_kernel::KernelRoot;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::process::read_status;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::Signals;
use megapage_units::{Bytes, HUGE_2M, HugePage, Pid, VirtRange};
use std::process::Command;
use std::time::Duration;

/// Limits of the promotion or the splitting of a whole workload.
const BOUNDS: Bounds = Bounds { batch: 64, time: Duration::from_secs(60), pause_percent: 0 };
/// Regions that [`Worker::huge_share`] looks at, at most.
const LOOKED_AT: usize = 64;
/// Attempts: pages that were used just now are busy for a moment.
const TRIES: u32 = 6;

/// A workload that runs until the value is dropped.
#[derive(Debug)]
pub(super) struct Worker {
    server: Server,
    /// Its progress so far.
    pub(super) beats: Vec<Beat>,
}

/// Work of a steady worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    pub(super) way: Way,
    pub(super) size: u64,
    pub(super) hot: u64,
    /// The units after which it stops.
    pub(super) units: Option<u64>,
    /// Time between two lines of progress.
    pub(super) interval: Duration,
}

impl Worker {
    /// Starts one without waiting until its memory is filled: [`Worker::ready`] waits.
    pub(super) fn steady(steady: &Steady, place: &Place, signals: &Signals) -> Result<Worker> {
        let mut command = Command::new(&place.workload);
        command.args(["steady", steady.way.name(), "--size", &steady.size.to_string()]);
        command.args(["--hot", &steady.hot.to_string()]);
        command.args(["--interval", &steady.interval.as_millis().max(1).to_string()]);
        if let Some(units) = steady.units {
            command.args(["--units", &units.to_string()]);
        }
        Worker::start(command, signals)
    }

    /// Starts a latency probe.
    pub(super) fn probe(size: u64, filled: f64, place: &Place, signals: &Signals) -> Result<Worker> {
        let mut command = Command::new(&place.workload);
        command.args(["probe", "--size", &size.to_string(), &format!("--filled={filled}")]);
        Worker::start(command, signals)
    }

    /// Starts one that keeps every processor busy, as khugepaged keeps one when it never pauses,
    /// and waits until they are busy.
    pub(super) fn busy(place: &Place, signals: &Signals) -> Result<Worker> {
        let mut command = Command::new(&place.workload);
        command.arg("busy");
        let mut worker = Worker::start(command, signals)?;
        worker.ready(signals)?;
        Ok(worker)
    }

    fn start(mut command: Command, signals: &Signals) -> Result<Worker> {
        Ok(Worker { server: Server::open(signals, &mut command)?, beats: Vec::new() })
    }

    pub(super) fn pid(&self) -> Pid {
        self.server.pid()
    }

    /// Waits until its memory is filled.
    pub(super) fn ready(&mut self, signals: &Signals) -> Result<()> {
        self.server.ready(signals)
    }

    /// Lets it work.
    pub(super) fn go(&mut self) -> Result<()> {
        self.server.ask(GO)
    }

    /// Lets it pause.
    pub(super) fn pause(&mut self) -> Result<()> {
        self.server.ask(PAUSE)
    }

    /// Lets it make itself known to khugepaged.
    pub(super) fn fault(&mut self) -> Result<()> {
        self.server.ask(FAULT)
    }

    /// Lets it work in another way, or in another part of its memory, from now on.
    pub(super) fn work(&mut self, way: Way, hot: u64) -> Result<()> {
        self.server.ask(format!("{WORK} {} {hot}", way.name()))
    }

    /// Lets it read a word of each page of all its memory, and waits for the end of that.
    pub(super) fn touch(&mut self, signals: &Signals) -> Result<()> {
        self.server.ask(TOUCH)?;
        loop {
            let line = self.server.line(signals)?;
            if line == TOUCHED {
                return Ok(());
            }
            self.note(&line)?;
        }
    }

    /// Returns a probe's touches since the last report.
    pub(super) fn touches(&mut self, signals: &Signals) -> Result<Touches> {
        self.server.ask(REPORT)?;
        let line = self.server.line(signals)?;
        serde_json::from_str(&line).with_context(|| format!("the probe said '{line}'"))
    }

    /// Lets a probe mark all its memory for KSM, or unmark it, which takes apart merged pages. An
    /// error has the kernel's answer.
    pub(super) fn merge(&mut self, on: bool, signals: &Signals) -> Result<()> {
        self.server.ask(if on { MERGE } else { UNMERGE })?;
        let line = self.server.line(signals)?;
        ensure!(line == MARKED, "prctl(PR_SET_MEMORY_MERGE), since Linux 6.4: {line}");
        Ok(())
    }

    /// Takes in the progress that it has reported by now.
    pub(super) fn drain(&mut self) -> Result<()> {
        self.server.lines()?.iter().try_for_each(|line| self.note(line))
    }

    fn note(&mut self, line: &str) -> Result<()> {
        let beat = serde_json::from_str(line).with_context(|| format!("the workload said '{line}'"))?;
        self.beats.push(beat);
        Ok(())
    }

    /// Makes all its memory in `within` huge, from outside. Fails if less than 95 % could be.
    pub(super) fn promote(&self, within: Option<VirtRange>) -> Result<()> {
        let root = KernelRoot::live();
        let (process, mut promotions) = (identify(&root, self.pid())?, Promotions::default());
        let mut left = Vec::new();
        for _ in 0..TRIES {
            left = candidates(&root, self.pid(), 1, usize::MAX)?.regions;
            if let Some(within) = within {
                left.retain(|region| within.intersection(region.range()).is_some());
            }
            if left.is_empty() {
                return Ok(());
            }
            Promotion { process, regions: left.clone(), bounds: BOUNDS }
                .apply_patiently(&root, &mut promotions)?;
        }
        let all = within.map_or(self.resident()?, |range| range.len().0);
        let missing = left.len() as u64 * HUGE_2M as u64;
        ensure!(
            missing as f64 <= 0.05 * all as f64,
            "{} of {} could not be made huge",
            Bytes(missing),
            Bytes(all)
        );
        Ok(())
    }

    /// Splits all its huge pages. Fails if some stay.
    pub(super) fn split(&self) -> Result<()> {
        let root = KernelRoot::live();
        let (process, mut promotions) = (identify(&root, self.pid())?, Promotions::default());
        for attempt in 0..TRIES {
            let regions = self.huge_regions()?;
            if regions.is_empty() {
                return Ok(());
            }
            if attempt > 0 {
                // Pages that were just made huge wait in queues of their processor; there they
                // cannot be split.
                megapage_kernel::lru::LruDrain::new()
                    .and_then(|drain| drain.drain())
                    .context("the LRU queues")?;
            }
            Demotion { process, regions, bounds: BOUNDS }.apply(&root, &mut promotions)?;
        }
        let stays = self.huge_regions()?.len();
        ensure!(stays == 0, "{stays} huge pages of the workload cannot be split");
        Ok(())
    }

    /// Returns the regions that are huge, as the kernel reports them.
    pub(super) fn huge_regions(&self) -> Result<Vec<HugePage>> {
        let root = KernelRoot::live();
        let mut pagemap = Pagemap::open(&root, self.pid())?;
        let mut found = Vec::new();
        for mapping in read_smaps(&root, self.pid())? {
            if mapping.anon_huge > Bytes::ZERO {
                let huge =
                    pagemap.regions(mapping.range)?.into_iter().filter(|region| region.huge == Some(true));
                found.extend(huge.map(|region| region.page));
            }
        }
        Ok(found)
    }

    /// Returns its anonymous huge memory, in bytes, as the kernel reports it.
    pub(super) fn huge(&self) -> Result<u64> {
        let mappings = read_smaps(&KernelRoot::live(), self.pid())?;
        Ok(mappings.iter().map(|mapping| mapping.anon_huge.0).sum())
    }

    /// Returns the same of the regions in `range` only, which is cheaper to read.
    pub(super) fn huge_within(&self, range: VirtRange) -> Result<u64> {
        let regions = Pagemap::open(&KernelRoot::live(), self.pid())?.regions(range)?;
        let huge = regions.iter().filter(|region| region.huge == Some(true));
        Ok(huge.count() as u64 * HUGE_2M as u64)
    }

    /// Returns the share of `range` that is huge, from 0 to 1, by [`LOOKED_AT`] of its regions:
    /// cheap enough for frequent use.
    pub(super) fn huge_share(&self, range: VirtRange) -> Result<f64> {
        let starts: Vec<u64> = (range.start()..range.end()).step_by(HUGE_2M).collect();
        let some = starts.iter().step_by(starts.len().div_ceil(LOOKED_AT).max(1));
        let looked_at: Vec<VirtRange> =
            some.filter_map(|start| VirtRange::new(*start, start + HUGE_2M as u64)).collect();
        let held = Pagemap::open(&KernelRoot::live(), self.pid())?.held(&looked_at)?;
        let huge = held.iter().filter(|region| region.huge == Some(true)).count();
        Ok(huge as f64 / looked_at.len().max(1) as f64)
    }

    /// Returns all its resident bytes.
    pub(super) fn rss(&self) -> Result<u64> {
        Ok(read_status(&KernelRoot::live(), self.pid())?.rss.0)
    }

    /// Returns its resident heap, in bytes.
    fn resident(&self) -> Result<u64> {
        let mappings = read_smaps(&KernelRoot::live(), self.pid())?;
        Ok(mappings.iter().filter(|mapping| mapping.is_heap_like()).map(|mapping| mapping.rss.0).sum())
    }

    /// Returns the highest `bytes` of its largest mapping, in whole regions: the part in which a
    /// steady worker works.
    pub(super) fn top(&self, bytes: u64) -> Result<VirtRange> {
        let mappings = read_smaps(&KernelRoot::live(), self.pid())?;
        let largest =
            mappings.iter().filter(|mapping| mapping.is_heap_like()).max_by_key(|mapping| mapping.rss);
        let range = largest.context("the workload has no memory")?.range;
        let inside =
            range.aligned_interior(HUGE_2M as u64).context("the workload has less than a huge page")?;
        let start = inside.end().saturating_sub(bytes).max(inside.start()).next_multiple_of(HUGE_2M as u64);
        VirtRange::new(start, inside.end()).context("the workload has less than a huge page")
    }
}

/// Returns the units for each second of processor time between two lines of progress.
pub(super) fn rate(from: &Beat, to: &Beat) -> f64 {
    let seconds = to.cpu_ns.saturating_sub(from.cpu_ns) as f64 / 1e9;
    if seconds > 0.0 { (to.units - from.units) as f64 / seconds } else { 0.0 }
}
