//! DAMON on the virtual addresses of processes: the kernel probes one random page of each region at every interval,
//! and counts how many probes found their page accessed.
//!
//! The coverage is an estimate from these probes: the share that found the page accessed. The monitors run on
//! between a clear and a read, and until the tracker is dropped.

use super::usage::{open, track_error, usage};
use super::{RegionBits, TrackError, Tracker};
use megapage_kernel::damon::{self, Configuration, Count, Damon, Target, Tried};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_snapshot::{Leaf, PAGES, TrackerKind};
use megapage_units::{HUGE_2M, Pid, VirtRange};
use std::time::Duration;

/// From one probe to the next: a page counts that was accessed within this time.
const SAMPLE: Duration = Duration::from_millis(50);
/// Over how long the probes are summed up.
const AGGREGATION: Duration = Duration::from_secs(1);
/// Probes of each range in one aggregation.
const PROBES: u64 = (AGGREGATION.as_millis() / SAMPLE.as_millis()) as u64;
/// Ranges that are probed one by one for a process. Where it has more regions, several share one.
const MOST_CELLS: u64 = 1024;
/// Processes that are monitored at once; each takes a kernel thread.
const MOST_TARGETS: usize = 64;

/// The tracker by DAMON. Needs root, a kernel with CONFIG_DAMON_VADDR, and that no other process uses DAMON.
#[derive(Debug)]
pub struct DamonVirtual {
    root: KernelRoot,
    operations: String,
    /// Taken with the first process.
    damon: Option<Damon>,
    /// One monitor each, in this order.
    targets: Vec<(Pid, Vec<VirtRange>)>,
}

impl DamonVirtual {
    /// Finds out whether DAMON is there, free, and can do it; leaves it as it was.
    pub fn new(root: &KernelRoot) -> Result<DamonVirtual, TrackError> {
        let failed = |what: String| Err(TrackError::Failed(what));
        match damon::monitors(root)? {
            None => {
                let file = damon::path();
                return failed(format!("this kernel has no DAMON in sysfs ({file}; CONFIG_DAMON_SYSFS)"));
            }
            Some(0) => {
                if let Some(parameter) = damon::exclusive(root) {
                    return failed(format!(
                        "the kernel's own DAMON monitor runs and shares with no other; `echo N > {parameter}` stops it"
                    ));
                }
            }
            Some(count) => {
                return failed(format!(
                    "DAMON is in use by another process: {} holds {count}, and taking it would end that",
                    damon::path()
                ));
            }
        }
        let operations = Damon::take(root, 1)?.operations(0)?;
        // With `vaddr` the kernel would replace our ranges by its own at every update.
        match ["fvaddr", "vaddr"].into_iter().find(|name| operations.iter().any(|found| found == name)) {
            Some(name) => Ok(DamonVirtual {
                root: root.clone(),
                operations: name.into(),
                damon: None,
                targets: Vec::new(),
            }),
            None => failed(format!(
                "this kernel's DAMON knows no virtual addresses, only {} (CONFIG_DAMON_VADDR)",
                operations.join(", ")
            )),
        }
    }

    /// Has the monitor in `slot` watch what its target says; the others go on.
    fn restart(&self, damon: &Damon, slot: usize) -> Result<(), KernelError> {
        let (pid, ranges) = &self.targets[slot];
        damon.stop(slot);
        damon.configure(slot, &configuration(&self.operations, *pid, ranges))?;
        damon.start(slot)
    }

    /// Makes a monitor for each target and starts them all. Those of processes that have gone meanwhile stay off.
    fn restart_all(&mut self, pid: Pid) -> Result<(), KernelError> {
        let damon = match self.damon.take() {
            Some(mut damon) => {
                damon.resize(self.targets.len())?;
                damon
            }
            None => Damon::take(&self.root, self.targets.len())?,
        };
        for slot in 0..self.targets.len() {
            match self.restart(&damon, slot) {
                Err(error) if self.targets[slot].0 == pid => return Err(error),
                _ => {}
            }
        }
        self.damon = Some(damon);
        Ok(())
    }

    /// Has `pid` watched: by its own monitor, by that of a process that has gone, or by a new one. The number of
    /// monitors cannot be changed while one is on: only a new one interrupts the others.
    fn watch(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), KernelError> {
        let own = self.targets.iter().position(|(target, _)| *target == pid);
        let is_gone = |(target, _): &(Pid, _)| open(&self.root, *target).is_err();
        let slot = own.or_else(|| self.targets.iter().position(is_gone));
        // The oldest gives way.
        let slot = slot.or((self.targets.len() == MOST_TARGETS).then_some(0));
        let target = (pid, ranges.to_vec());
        match (slot, self.damon.take()) {
            (Some(slot), Some(damon)) => {
                self.targets[slot] = target;
                self.restart(&damon, slot)?;
                self.damon = Some(damon);
                Ok(())
            }
            (_, damon) => {
                self.damon = damon;
                self.targets.push(target);
                self.restart_all(pid)
            }
        }
    }
}

impl Tracker for DamonVirtual {
    fn kind(&self) -> TrackerKind {
        TrackerKind::DamonVirtual
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[
            "Coverage is an estimate from 20 random probes of each region, within about 110 of 512 pages.",
            "It counts what is accessed within 50 ms at any time of the last second, not over the whole sample.",
            "Of a process of more than 2 GiB, neighbouring regions share one estimate.",
        ]
    }

    fn clear(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        open(&self.root, pid)?;
        if self.targets.iter().any(|(target, known)| *target == pid && known == ranges) {
            // The probes go on by themselves.
            return Ok(());
        }
        if ranges.is_empty() {
            return Ok(());
        }
        let watched = self.watch(pid, ranges);
        if watched.is_err() {
            // As if no process had used DAMON.
            self.targets.clear();
            self.damon = None;
        }
        watched.map_err(|error| track_error(pid, error))
    }

    fn read(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        let mut regions = usage(&self.root, pid, &mut open(&self.root, pid)?, ranges)?;
        let monitor = self.targets.iter().position(|(target, _)| *target == pid);
        let (Some(damon), Some(monitor)) = (&self.damon, monitor) else {
            // Not cleared yet: what it holds is known, what it accessed is not.
            return Ok(regions);
        };
        let tried = damon.tried(monitor).map_err(|error| track_error(pid, error))?;
        for region in &mut regions {
            if let Some(share) = share(&tried, region.start) {
                region.accessed = Some(match region.leaf {
                    // One bit for all: a probe anywhere finds it.
                    leaf if leaf.is_huge() => u16::from(share > 0.0) * PAGES,
                    Leaf::Base | Leaf::Huge2m | Leaf::Hugetlb2m | Leaf::Hugetlb1g => {
                        region.present.min((share * f64::from(PAGES)).round() as u16)
                    }
                });
            }
        }
        Ok(regions)
    }
}

/// One cell for each region, or for several where there are too many. Between as many ranges as cells and no more,
/// the kernel neither merges nor splits them.
fn configuration(operations: &str, pid: Pid, ranges: &[VirtRange]) -> Configuration {
    let huge = HUGE_2M as u64;
    let all: u64 = ranges.iter().map(|range| range.len().0 / huge).sum();
    let step = all.div_ceil(MOST_CELLS).max(1) * huge;
    let cells: Vec<VirtRange> = ranges
        .iter()
        .flat_map(|range| {
            (range.start()..range.end())
                .step_by(step as usize)
                .filter_map(move |start| VirtRange::new(start, range.end().min(start + step)))
        })
        .collect();
    // The kernel wants at least 3.
    let count = cells.len().max(3) as u64;
    Configuration {
        target: Target::Process { operations: operations.into(), pid },
        ranges: cells,
        regions: (count, count),
        sample: SAMPLE,
        aggregation: AGGREGATION,
        apply: SAMPLE,
        count: Count::Probes,
    }
}

/// The share of the probes of the region at `start` that found it accessed, over the ranges that overlap it; `None`
/// where none does.
fn share(tried: &[Tried], start: u64) -> Option<f64> {
    let region = VirtRange::new(start, start + HUGE_2M as u64)?;
    let first = tried.partition_point(|tried| tried.range.end() <= start);
    let overlaps = tried[first..]
        .iter()
        .map_while(|tried| Some((region.intersection(tried.range)?.len().0 as f64, tried.accesses)));
    let (bytes, weighted) = overlaps.fold((0.0, 0.0), |(bytes, weighted), (overlap, accesses)| {
        let share = accesses.min(PROBES) as f64 / PROBES as f64;
        (bytes + overlap, weighted + overlap * share)
    });
    (bytes > 0.0).then(|| weighted / bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn tried(start: u64, end: u64, accesses: u64) -> Tried {
        Tried { range: VirtRange::new(start * MIB, end * MIB).unwrap(), accesses }
    }

    /// As Debian's Linux 7.3 boots.
    #[test]
    fn the_kernels_own_monitor_is_named_and_left_alone() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        for (file, text) in [
            ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n"),
            ("sys/module/damon_stat/parameters/enabled", "Y\n"),
        ] {
            let path = tree.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let said = DamonVirtual::new(&root).unwrap_err().to_string();
        assert!(said.contains("/sys/module/damon_stat/parameters/enabled"), "{said}");
    }

    #[test]
    fn shares_are_weighted_by_overlap() {
        let tried = [tried(0, 3, 20), tried(3, 4, 0), tried(8, 12, 10)];
        assert_eq!(share(&tried, 0), Some(1.0));
        assert_eq!(share(&tried, 2 * MIB), Some(0.5));
        assert_eq!(share(&tried, 4 * MIB), None);
        assert_eq!(share(&tried, 8 * MIB), Some(0.5));
        let over = [self::tried(0, 2, 30)];
        assert_eq!(share(&over, 0), Some(1.0), "the kernel may count one probe more");
    }

    #[test]
    fn many_regions_share_cells_and_few_have_one_each() {
        let range = |start, end| VirtRange::new(start * MIB, end * MIB).unwrap();
        let few = configuration("fvaddr", Pid(1), &[range(0, 4), range(10, 12)]);
        assert_eq!(few.ranges, [range(0, 2), range(2, 4), range(10, 12)]);
        assert_eq!(few.regions, (3, 3));
        let many = configuration("fvaddr", Pid(1), &[range(0, 16 * 1024)]);
        assert_eq!(many.ranges.len() as u64, MOST_CELLS);
        assert_eq!(many.ranges[1], range(16, 32));
        assert_eq!(configuration("vaddr", Pid(1), &[range(0, 2)]).regions, (3, 3));
    }
}
