//! Process that is acted on, and its page tables.

use super::answer::{Advice, Refusal};
use super::batches::{Advisable, Timed};
use super::floor;
use crate::remote::{RemoteError, identify, lacking_right, refusal};
use crate::sharing::Sharing;
use megapage_kernel::canary::Canary;
use megapage_kernel::maps::read_maps;
use megapage_kernel::pagemap::Region;
use megapage_kernel::process::own_thread_time;
use megapage_kernel::{KernelRoot, meminfo, process, process_madvise, spawn};
use megapage_observe::PageTables;
use megapage_snapshot::ProcessId;
use megapage_units::{HugePage, VirtRange};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// Process that is acted on, by a descriptor, so that it cannot become another one meanwhile.
#[derive(Debug)]
pub(crate) struct Target {
    root: KernelRoot,
    id: ProcessId,
    pidfd: OwnedFd,
    tables: PageTables,
    /// True if a look right before each collapse also leaves out regions that are huge, hold
    /// nothing, or cannot be read. For a caller whose own look may be old.
    pub(crate) strict: bool,
}

impl Advisable for Target {
    fn id(&self) -> ProcessId {
        self.id
    }

    fn call(&self, advice: Advice, parts: &[VirtRange]) -> Timed {
        let call = match advice {
            Advice::Collapse => process_madvise::collapse,
            Advice::ColdSplit => process_madvise::cold,
            Advice::PageOut => process_madvise::page_out,
        };
        let (started, busy) = (Instant::now(), own_thread_time());
        let answer = call(self.pidfd.as_fd(), parts);
        Timed { answer, took: started.elapsed(), busy: own_thread_time().saturating_sub(busy) }
    }

    fn huge(&mut self, regions: &[HugePage]) -> Vec<bool> {
        let seen = self.look(regions).unwrap_or_default();
        let is_huge = |page: &HugePage| seen.get(page).is_some_and(|region| region.huge == Some(true));
        regions.iter().map(is_huge).collect()
    }

    fn unfit(&mut self, regions: &[HugePage]) -> Vec<Option<Refusal>> {
        let (mut unfit, mut doubtful) = (vec![None; regions.len()], Vec::new());
        for (unfit, region) in unfit.iter_mut().zip(regions) {
            let strict = self.strict.then_some(&mut doubtful);
            *unfit = match Sharing::FewPages.unfit(&mut self.tables, *region, strict) {
                Ok(unfit) => unfit,
                Err(_) if !self.strict => None,
                Err(error) if error.is_gone() => Some(Refusal::Gone),
                Err(error) if error.is_locked() => Some(Refusal::Locked),
                Err(_) => Some(Refusal::Unread),
            };
            // No other region of the process would be read, and each try may take long.
            if unfit.is_some_and(Refusal::is_final) {
                doubtful.clear();
                break;
            }
        }
        // One reading of smaps serves all of them.
        let huge = self.huge(&doubtful);
        for (page, _) in doubtful.iter().zip(huge).filter(|(_, is_huge)| *is_huge) {
            let place = regions.iter().position(|region| region == page);
            place.into_iter().for_each(|place| unfit[place] = Some(Refusal::Huge));
        }
        unfit
    }

    fn is_mapped(&self, region: HugePage) -> Option<bool> {
        is_mapped(&self.root, self.id, region)
    }

    fn is_below_floor(&self) -> bool {
        let Ok(memory) = meminfo(&self.root) else { return false };
        memory.total.zip(memory.available).is_some_and(|(total, available)| available < floor(total))
    }
}

impl Target {
    /// Opens a process and its page tables. The descriptors are opened first, and the process is
    /// checked after that: if it is the right one, they are its own.
    ///
    /// # Errors
    /// [`RemoteError::Gone`] also if another process has its number now, or it runs another
    /// program.
    pub(crate) fn open(root: &KernelRoot, id: ProcessId) -> Result<Target, RemoteError> {
        if !root.is_live() {
            return Err(RemoteError::NotLive);
        }
        let pid = id.pid;
        let pidfd = spawn::open_pidfd(pid).map_err(|_| RemoteError::Gone(pid))?;
        let tables = PageTables::open(root, pid);
        if !is_same(root, id) {
            return Err(RemoteError::Gone(pid));
        }
        let tables = tables.map_err(|error| refusal(root, pid, error))?;
        Ok(Target { root: root.clone(), id, pidfd, tables, strict: false })
    }

    /// Does the same for a caller that may lack the right to act on it.
    ///
    /// # Errors
    /// [`RemoteError::NotAllowed`] if it lacks that right.
    pub(crate) fn open_permitted(root: &KernelRoot, id: ProcessId) -> Result<Target, RemoteError> {
        if !root.is_live() {
            return Err(RemoteError::NotLive);
        }
        let pid = id.pid;
        match lacking_right(root, Some(pid)).map_err(|error| refusal(root, pid, error))? {
            Some(lacking) => Err(RemoteError::NotAllowed { pid, lacking }),
            None => Target::open(root, id),
        }
    }

    /// Checks that huge entries can be distinguished from others.
    pub(crate) fn require_leaves(&mut self) -> Result<(), RemoteError> {
        match self.tables.distinguishes_leaves() {
            Ok(true) => Ok(()),
            Ok(false) => Err(RemoteError::Unseen),
            Err(error) => Err(refusal(&self.root, self.id.pid, error)),
        }
    }

    /// Returns the regions as the page tables show them.
    pub(crate) fn look(&mut self, regions: &[HugePage]) -> Result<BTreeMap<HugePage, Region>, RemoteError> {
        let mut ascending = regions.to_vec();
        ascending.sort_unstable();
        ascending.dedup();
        let seen = self.tables.regions(&VirtRange::joined(ascending.iter().map(|page| page.range())));
        let seen = seen.map_err(|error| refusal(&self.root, self.id.pid, error))?;
        Ok(seen.into_iter().map(|region| (region.page, region)).collect())
    }
}

/// Child of our own that nothing waits for: the kernel's abilities are tried on it, without the
/// guard.
#[derive(Debug)]
pub(crate) struct CanaryTarget {
    pub canary: Canary,
    pub target: Target,
}

impl CanaryTarget {
    /// Opens the child.
    pub(crate) fn open(root: &KernelRoot, canary: Canary) -> Result<CanaryTarget, RemoteError> {
        let target = Target::open(root, identify(root, canary.pid())?)?;
        Ok(CanaryTarget { canary, target })
    }

    /// Makes one call for one region. Returns the refusal, if it was one.
    pub(crate) fn call(&self, advice: Advice, region: HugePage) -> Option<Refusal> {
        let answer = self.target.call(advice, &[advice.part(region)]).answer;
        answer.err().map(|error| Refusal::of(&error))
    }
}

/// Returns true if one mapping of the process holds the whole region; `None` if that cannot be
/// read.
pub(crate) fn is_mapped(root: &KernelRoot, id: ProcessId, region: HugePage) -> Option<bool> {
    let mappings = read_maps(root, id.pid).ok()?;
    Some(mappings.iter().any(|mapping| mapping.range.intersection(region.range()) == Some(region.range())))
}

/// Returns true if the process exists and is the one that was meant: not another one with its
/// number, and not another program.
pub(crate) fn is_same(root: &KernelRoot, id: ProcessId) -> bool {
    process::read_stat(root, id.pid).is_ok_and(|stat| {
        !stat.is_zombie()
            && stat.start_ticks == id.start_ticks
            // 0 if the kernel does not show it.
            && (stat.start_stack == id.start_stack || stat.start_stack == 0 || id.start_stack == 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::{Reservation, own_advice};
    use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugeRange, Pid};

    /// Returns a target with this tree's files, and a descriptor of ours.
    fn target(tree: &tempfile::TempDir) -> Target {
        let directory = tree.path().join("proc/9");
        std::fs::create_dir_all(&directory).unwrap();
        // A page map as before Linux 6.7: entries alone.
        std::fs::write(directory.join("pagemap"), vec![0u8; 8 * HUGE_2M / BASE_PAGE]).unwrap();
        std::fs::create_dir_all(tree.path().join("proc/sys/kernel")).unwrap();
        std::fs::write(tree.path().join("proc/sys/kernel/osrelease"), "6.6.0\n").unwrap();
        let root = KernelRoot::captured(tree.path());
        let pidfd = spawn::open_pidfd(Pid(std::process::id().cast_signed())).unwrap();
        let tables = PageTables::open(&root, Pid(9)).unwrap();
        let id = ProcessId { pid: Pid(9), start_ticks: 1, start_stack: 1 };
        Target { root, id, pidfd, tables, strict: false }
    }

    #[test]
    fn a_page_map_without_huge_entries_is_not_enough() {
        let tree = tempfile::tempdir().unwrap();
        let mut target = target(&tree);
        assert!(matches!(target.require_leaves(), Err(RemoteError::Unseen)));
        assert!(matches!(Target::open(&target.root, target.id), Err(RemoteError::NotLive)));
    }

    #[test]
    fn a_region_is_read_once_right_before_its_collapse_and_once_after_it() {
        let memory = Reservation::new(4 * HUGE_2M, HUGE_2M).unwrap();
        memory.open().unwrap();
        let range = VirtRange::new(memory.start() as u64, memory.end() as u64).unwrap();
        let pages: Vec<HugePage> = HugeRange::within(range).unwrap().pages().collect();
        own_advice::give(range, own_advice::Advice::NoHuge).unwrap();
        for number in 0..3 {
            memory.part(number * HUGE_2M, 300 * BASE_PAGE).populate().unwrap();
        }
        let root = KernelRoot::live();
        let own = identify(&root, Pid(std::process::id().cast_signed())).unwrap();
        let mut target = Target { strict: true, ..Target::open(&root, own).unwrap() };
        // The decision on it may be old: its page tables are read now, and once.
        assert_eq!(target.unfit(&pages[..3]), [None; 3]);
        assert_eq!(target.tables.reads(), 3);
        target.look(&pages[..3]).unwrap();
        assert_eq!(target.tables.reads(), 3 + 3);
        // Nothing is present there, or only pages of zeros: its entries alone do not tell which.
        assert_eq!(target.unfit(&pages[3..]), [Some(Refusal::Empty)]);
        assert_eq!(target.tables.reads(), 6 + 2);
        // Memory that was given back since the decision is not collapsed.
        memory.part(HUGE_2M, HUGE_2M).discard().unwrap();
        assert_eq!(target.unfit(&pages[..3]), [None, Some(Refusal::Empty), None]);
        let mut lenient = Target { strict: false, ..target };
        assert_eq!(lenient.unfit(&pages), [None; 4], "another process may have filled shared memory");
        memory.release().unwrap();
    }

    #[test]
    fn a_page_map_that_cannot_be_read_ends_the_work_of_a_strict_caller() {
        let tree = tempfile::tempdir().unwrap();
        let target = target(&tree);
        // A directory can be opened, but not be read.
        let path = tree.path().join("proc/9/pagemap");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let tables = PageTables::open(&target.root, Pid(9)).unwrap();
        let pages = [0, 1].map(HugePage::nth);
        let mut strict = Target { strict: true, tables, ..target };
        assert_eq!(strict.unfit(&pages), [Some(Refusal::Unread), None]);
        // Without root, an old kernel shows no sharing to any other caller, which reads nothing.
        let mut lenient = Target { strict: false, ..strict };
        assert_eq!(lenient.unfit(&pages), [None, None]);
        assert_eq!(lenient.tables.reads(), 1);
    }

    #[test]
    fn before_linux_6_7_smaps_shows_which_full_regions_are_huge() {
        let tree = tempfile::tempdir().unwrap();
        let directory = tree.path().join("proc/9");
        let target = target(&tree);
        let exclusive = (1u64 << 63 | 1 << 56).to_ne_bytes();
        std::fs::write(directory.join("pagemap"), exclusive.repeat(2 * 512)).unwrap();
        let pages = [0, 1].map(HugePage::nth);
        let mut strict = Target { strict: true, ..target };
        for (huge, unfit) in [(4096, Some(Refusal::Huge)), (2048, None), (0, None)] {
            let mapping = "00000000-00400000 rw-p 00000000 00:00 0 \n";
            let smaps = format!("{mapping}Rss: 4096 kB\nAnonHugePages: {huge} kB\nVmFlags: rd wr\n");
            std::fs::write(directory.join("smaps"), smaps).unwrap();
            assert_eq!(strict.unfit(&pages), [unfit; 2], "{huge}");
        }
    }

    #[test]
    fn another_process_with_the_number_is_gone() {
        let root = KernelRoot::live();
        let own = identify(&root, Pid(std::process::id().cast_signed())).unwrap();
        assert!(Target::open(&root, own).is_ok());
        for other in [
            ProcessId { start_ticks: own.start_ticks + 1, ..own },
            ProcessId { start_stack: own.start_stack ^ 0x1000, ..own },
        ] {
            assert!(matches!(Target::open(&root, other), Err(RemoteError::Gone(_))));
        }
    }

    #[test]
    fn the_machine_is_short_below_a_twentieth_of_its_memory() {
        let tree = tempfile::tempdir().unwrap();
        let target = target(&tree);
        assert!(!target.is_below_floor(), "unknown");
        let total = Bytes::gib(10);
        for (available, is_below) in [(floor(total), false), (Bytes(floor(total).0 - 1024), true)] {
            let text = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", total.0 >> 10, available.0 >> 10);
            std::fs::write(tree.path().join("proc/meminfo"), text).unwrap();
            assert_eq!(target.is_below_floor(), is_below, "{available}");
        }
        assert_eq!(floor(total), Bytes::mib(512));
    }
}
