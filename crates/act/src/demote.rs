//! Demotion: the kernel's split of huge pages in another process, and proof of what came of it.
//!
//! The way is the *cold split*: MADV_COLD on one base page inside a transparent huge page splits it whole. Since
//! Linux 6.12 a split also maps those of its base pages that hold only zeros to the shared page of zeros, and frees
//! them: demoting recovers bloat. Nothing is written to swap.

use crate::remote::{Bounds, RemoteError, call_failed, joined, lacking_right, refusal};
use megapage_kernel::pagemap::{Pagemap, Region};
use megapage_kernel::{KernelRoot, process_madvise, spawn};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, Pid, VirtRange};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

/// Regions of one process whose huge pages are to be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demotion {
    /// The process.
    pub pid: Pid,
    /// Aligned 2 MiB regions.
    pub regions: Vec<VirtRange>,
    /// What it may cost.
    pub bounds: Bounds,
}

/// What came of a demotion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DemoteOutcome {
    /// Regions asked for.
    pub asked: u64,
    /// Regions of those that were huge before, by the page tables.
    pub huge_before: u64,
    /// Regions of those that are not huge any more.
    pub demoted: u64,
    /// Bytes of the demoted regions that are no longer present: base pages of zeros that the kernel took back. A
    /// program that fills or frees pages in the same moment shifts this figure.
    pub freed_bytes: u64,
    /// Regions that the kernel refuses to split: locked memory or hugetlb pages (EINVAL).
    pub not_splittable: u64,
    /// Regions that are not mapped any more (ENOMEM).
    pub unmapped: u64,
    /// Regions that were not tried: time was up, or the process ended.
    pub not_tried: u64,
    /// System calls made.
    pub calls: u64,
    /// Time in the calls, in nanoseconds.
    pub elapsed_ns: u64,
    /// Whether the process ended in between. That is no error.
    pub gone: bool,
}

impl DemoteOutcome {
    /// Regions that the kernel passed over though nothing speaks against a split: pages that a forked process
    /// shares, or that something else held at the moment.
    pub fn passed_over(&self) -> u64 {
        let accounted = self.demoted + self.not_splittable + self.unmapped + self.not_tried;
        self.huge_before.saturating_sub(accounted)
    }
}

/// That demotion of memory of `pid` is possible, and that what comes of it can be seen: nothing is promoted to be
/// undone later where this fails.
///
/// # Errors
/// [`RemoteError::Unseen`] before Linux 6.7; and as [`Demotion::apply`].
pub fn check(root: &KernelRoot, pid: Pid) -> Result<(), RemoteError> {
    // Finding nothing to do is enough to find out whether it could be seen.
    let nothing = Demotion { pid, regions: Vec::new(), bounds: Bounds::default() };
    nothing.apply(root).map(|_| ())
}

impl Demotion {
    /// Asks the kernel to split the huge pages of the regions, batch by batch, and reads from the page tables what
    /// came of it. Regions that are not huge are left as they are: an advice on one would only cool it.
    pub fn apply(&self, root: &KernelRoot) -> Result<DemoteOutcome, RemoteError> {
        if !root.is_live() {
            return Err(RemoteError::NotLive);
        }
        let pid = self.pid;
        if let Some(lacking) = lacking_right(root, Some(pid)).map_err(|error| refusal(root, pid, error))? {
            return Err(RemoteError::NotAllowed { pid, lacking });
        }
        let pidfd = spawn::open_pidfd(pid).map_err(|_| RemoteError::Gone(pid))?;
        let before: BTreeMap<u64, Region> = self
            .look(root)?
            .into_iter()
            .filter(|region| region.huge == Some(true))
            .map(|region| (region.range.start(), region))
            .collect();
        let mut outcome = DemoteOutcome {
            asked: self.regions.len() as u64,
            huge_before: before.len() as u64,
            ..DemoteOutcome::default()
        };
        // One base page stands for the whole huge page.
        let pages: Vec<VirtRange> =
            before.keys().filter_map(|&start| VirtRange::new(start, start + BASE_PAGE as u64)).collect();
        let start = Instant::now();
        let batch = self.bounds.batch.clamp(1, process_madvise::MOST_RANGES);
        let mut next = 0;
        while next < pages.len() && start.elapsed() < self.bounds.time {
            let end = (next + batch).min(pages.len());
            outcome.calls += 1;
            match process_madvise::cold(pidfd.as_fd(), &pages[next..end]) {
                // The next call begins at the region that failed, and so learns why.
                Ok(advised) => next += (advised as usize / BASE_PAGE).max(1),
                Err(error) => {
                    match error.kind() {
                        io::ErrorKind::InvalidInput => outcome.not_splittable += 1,
                        io::ErrorKind::OutOfMemory => outcome.unmapped += 1,
                        _ => {
                            if let Some(error) = call_failed(root, pid, error, "MADV_COLD (Linux 5.10)") {
                                return Err(error);
                            }
                            outcome.gone = true;
                            break;
                        }
                    }
                    next += 1;
                }
            }
        }
        outcome.elapsed_ns = start.elapsed().as_nanos() as u64;
        outcome.not_tried = (pages.len() - next.min(pages.len())) as u64;
        match self.look(root) {
            Ok(after) => {
                for region in after.iter().filter(|region| region.huge == Some(false)) {
                    let Some(was) = before.get(&region.range.start()) else { continue };
                    outcome.demoted += 1;
                    outcome.freed_bytes += was.present_bytes().saturating_sub(region.present_bytes()).0;
                }
            }
            Err(RemoteError::Gone(_)) => outcome.gone = true,
            Err(error) => return Err(error),
        }
        Ok(outcome)
    }

    /// The regions as the page tables show them.
    fn look(&self, root: &KernelRoot) -> Result<Vec<Region>, RemoteError> {
        let refused = |error| refusal(root, self.pid, error);
        let mut pagemap = Pagemap::open(root, self.pid).map_err(refused)?;
        if !pagemap.find_out_leaves().map_err(refused)? {
            return Err(RemoteError::Unseen);
        }
        let mut found = Vec::with_capacity(self.regions.len());
        for range in joined(&self.regions) {
            found.extend(pagemap.regions(range).map_err(refused)?);
        }
        Ok(found)
    }

    /// What [`Demotion::apply`] would do, as shell lines. No shell command splits single regions: the lines say
    /// which calls are made.
    pub fn dry_run(&self) -> Vec<String> {
        let pid = self.pid;
        self.regions
            .iter()
            .map(|region| {
                format!("# process_madvise(pidfd of {pid}, first page of {region}, MADV_COLD), if it is huge")
            })
            .collect()
    }

    /// The most that this can demote, in bytes.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.regions.len() as u64 * HUGE_2M as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promote::{Promotion, candidates};
    use megapage_testing::{is_root, skip};

    fn own() -> Pid {
        Pid(std::process::id() as i32)
    }

    #[test]
    fn a_captured_tree_is_not_acted_on() {
        let demotion = Demotion { pid: own(), regions: vec![], bounds: Bounds::default() };
        let tree = tempfile::tempdir().unwrap();
        assert!(matches!(demotion.apply(&KernelRoot::captured(tree.path())), Err(RemoteError::NotLive)));
    }

    #[test]
    fn nothing_is_split_where_nobody_can_see_it() {
        let tree = tempfile::tempdir().unwrap();
        let directory = tree.path().join("proc/9");
        std::fs::create_dir_all(&directory).unwrap();
        // A page map as before Linux 6.7: entries alone.
        std::fs::write(directory.join("pagemap"), vec![0u8; 8 * HUGE_2M / BASE_PAGE]).unwrap();
        let demotion = Demotion { pid: Pid(9), regions: vec![], bounds: Bounds::default() };
        let seen = demotion.look(&KernelRoot::captured(tree.path()));
        assert!(matches!(seen, Err(RemoteError::Unseen)), "{seen:?}");
    }

    #[test]
    fn own_memory_can_be_demoted_or_the_reason_is_told() {
        match check(&KernelRoot::live(), own()) {
            Ok(()) => assert!(is_root(), "without CAP_SYS_NICE nothing is possible"),
            Err(RemoteError::NotAllowed { lacking, .. }) => assert!(lacking.contains("CAP_SYS_NICE")),
            Err(error) => assert!(matches!(error, RemoteError::Unseen), "{error}"),
        }
    }

    #[test]
    fn what_was_passed_over_is_what_remains() {
        let outcome = DemoteOutcome {
            asked: 10,
            huge_before: 8,
            demoted: 4,
            not_splittable: 1,
            unmapped: 1,
            not_tried: 1,
            ..DemoteOutcome::default()
        };
        assert_eq!(outcome.passed_over(), 1);
    }

    /// Our own memory: 300 of the 512 pages of each region written, promoted, demoted again.
    #[test]
    fn what_was_promoted_is_demoted_and_its_zeros_go_back() {
        const WRITTEN: usize = 300;
        if !is_root() {
            return skip("needs CAP_SYS_NICE to promote and demote memory");
        }
        let root = KernelRoot::live();
        let mut memory = vec![0u8; 16 << 20];
        let start = memory.as_ptr().addr();
        let inside = VirtRange::new(start as u64, (start + memory.len()) as u64)
            .and_then(|range| range.aligned_interior(HUGE_2M as u64))
            .unwrap();
        let offset = inside.start() as usize - start;
        let pages = || (0..inside.len().0 as usize / BASE_PAGE).filter(|page| page % 512 < WRITTEN);
        for page in pages() {
            memory[offset + page * BASE_PAGE] = 7;
        }
        let mut regions = candidates(&root, own(), 256, 10_000).unwrap().regions;
        regions.retain(|region| region.intersection(inside) == Some(*region));
        if regions.is_empty() {
            return skip("this system gives huge pages unasked: nothing is left to promote");
        }
        let bounds = Bounds::default();
        let promoted = Promotion { pid: own(), regions: regions.clone(), bounds }.apply(&root).unwrap();
        let demotion = Demotion { pid: own(), regions: regions.clone(), bounds };
        assert_eq!(demotion.dry_run().len(), regions.len());
        assert_eq!(demotion.bytes(), Bytes(regions.len() as u64 * HUGE_2M as u64));
        let outcome = demotion.apply(&root).unwrap();
        let huge = promoted.obtained_bytes / HUGE_2M as u64;
        assert!(huge > 0, "{promoted:?}");
        assert_eq!((outcome.asked, outcome.huge_before), (regions.len() as u64, huge), "{outcome:?}");
        // A page that something else holds for a moment is passed over; not all of them.
        assert!(outcome.demoted >= huge.div_ceil(2), "{outcome:?}");
        assert_eq!((outcome.not_splittable, outcome.unmapped, outcome.not_tried), (0, 0, 0), "{outcome:?}");
        assert!(pages().all(|page| memory[offset + page * BASE_PAGE] == 7), "a byte was lost");
        // Since Linux 6.12 a split gives zeros back; earlier it frees nothing.
        let most = outcome.demoted * ((512 - WRITTEN) * BASE_PAGE) as u64;
        assert!(outcome.freed_bytes == 0 || outcome.freed_bytes == most, "{outcome:?} of {most}");
        let again = demotion.apply(&root).unwrap();
        assert_eq!(again.demoted + again.passed_over(), huge - outcome.demoted, "{again:?}");
    }

    #[test]
    fn regions_that_are_not_huge_are_left_alone() {
        if !is_root() {
            return skip("needs CAP_SYS_NICE to demote memory");
        }
        let memory = vec![1u8; 8 << 20];
        let start = memory.as_ptr().addr() as u64;
        let inside = VirtRange::new(start, start + memory.len() as u64)
            .and_then(|range| range.aligned_interior(HUGE_2M as u64))
            .unwrap();
        let outcome = Demotion { pid: own(), regions: vec![inside], bounds: Bounds::default() }
            .apply(&KernelRoot::live())
            .unwrap();
        if outcome.huge_before > 0 {
            return skip("this system gives huge pages unasked");
        }
        assert_eq!((outcome.calls, outcome.demoted, outcome.gone), (0, 0, false));
    }
}
