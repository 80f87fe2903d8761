//! The trackers for a kernel without BPF. The features that this kernel lacks are tested on
//! captured trees, the others on this process.

use megapage_kernel::{KernelRoot, Reservation, own_memory};
use megapage_observe::tracker::idle_pages::IdlePages;
use megapage_observe::tracker::pagemap::PagemapTracker;
use megapage_observe::tracker::{RegionBits, TrackError, Tracker};
use megapage_observe::{Leaf, MissedWhy};
use megapage_units::{BASE_PAGE, HUGE_2M, Pid, VirtRange};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

const PID: Pid = Pid(4711);
const MIB: u64 = 1 << 20;
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

fn range(start: u64, end: u64) -> VirtRange {
    VirtRange::new(start * MIB, end * MIB).unwrap()
}

/// Captured tree that a test may write.
struct Tree {
    directory: tempfile::TempDir,
}

impl Tree {
    fn new() -> Tree {
        Tree { directory: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> KernelRoot {
        KernelRoot::captured(self.directory.path())
    }

    /// Writes 64-bit words of a kernel file at places counted in words. Words in between read as
    /// zero.
    fn words(&self, path: &str, words: impl IntoIterator<Item = (u64, u64)>) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
        for (at, word) in words {
            file.write_all_at(&word.to_ne_bytes(), 8 * at).unwrap();
        }
    }

    fn word(&self, path: &str, at: usize) -> u64 {
        let bytes = fs::read(self.directory.path().join(path)).unwrap();
        bytes.get(8 * at..8 * at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().unwrap()))
    }
}

const BITMAP: &str = "sys/kernel/mm/page_idle/bitmap";
const LRU: u64 = 1 << 5;
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
const HUGETLB: u64 = 1 << 17;
const THP: u64 = 1 << 22;
const ZERO_PAGE: u64 = 1 << 24;

/// Returns a kernel with the bitmap: the page map of [`PID`] from 2 MiB to 10 MiB, and the flags of
/// 4096 frames.
///
/// | region | what it holds |
/// |---|---|
/// | 2-4 MiB | base pages at frames 70, 71, 130, 3 (twice); page of zeros at 9; one page in swap |
/// | 4-6 MiB | a folio of four pages at frames 200 to 203 |
/// | 6-8 MiB | a transparent huge page at frame 512 |
/// | 8-10 MiB | a hugetlb page at frame 1024 |
fn idle_tree() -> Tree {
    let tree = Tree::new();
    let page = |megabytes: u64, index: u64| megabytes * 256 + index;
    let mut entries: Vec<(u64, u64)> = vec![
        (page(2, 0), PRESENT | 70),
        (page(2, 1), PRESENT | 71),
        (page(2, 64), PRESENT | 130),
        (page(2, 65), PRESENT | 3),
        (page(2, 66), PRESENT | 3),
        (page(2, 67), PRESENT | 9),
        (page(2, 68), SWAPPED | 5),
    ];
    entries.extend((0..4).map(|n| (page(4, 16 + n), PRESENT | (200 + n))));
    entries.extend((0..512).map(|n| (page(6, n), PRESENT | (512 + n))));
    entries.extend((0..512).map(|n| (page(8, n), PRESENT | (1024 + n))));
    entries.push((page(12, 0) - 1, 0));
    tree.words(&format!("proc/{PID}/pagemap"), entries);
    let mut flags: Vec<(u64, u64)> = vec![(9, ZERO_PAGE), (70, LRU), (71, LRU), (130, LRU), (3, LRU)];
    let folio = |first: u64, pages: u64, kind: u64| {
        (first..first + pages).map(move |n| (n, kind | if n == first { HEAD } else { TAIL }))
    };
    flags.extend(folio(200, 4, LRU).chain(folio(512, 512, LRU | THP)).chain(folio(1024, 512, HUGETLB)));
    flags.push((4095, 0));
    tree.words("proc/kpageflags", flags);
    tree.words(BITMAP, [(63, 0)]);
    tree
}

fn summary(regions: &[RegionBits]) -> Vec<(u64, Leaf, u16, Option<u16>)> {
    regions.iter().map(|r| (r.page.start() / MIB, r.leaf, r.present, r.accessed)).collect()
}

#[test]
fn idle_pages_marks_the_frames_of_the_process_and_no_others() {
    let tree = idle_tree();
    // Frames of other processes lie in the same words. In a real kernel these bits would stay as
    // they are.
    tree.words(BITMAP, [(0, 1 << 40), (1, 1 << 1), (5, u64::MAX)]);
    IdlePages::new(&tree.root()).unwrap().clear(PID, &[range(2, 4)]).unwrap();
    // Only the process's own frames are written; the kernel takes a zero as "no change".
    assert_eq!(tree.word(BITMAP, 0), 1 << 3 | 1 << 9);
    assert_eq!(tree.word(BITMAP, 1), 1 << 6 | 1 << 7);
    assert_eq!(tree.word(BITMAP, 2), 1 << 2);
    assert_eq!(tree.word(BITMAP, 5), u64::MAX, "a word without a frame of ours is not written");
}

#[test]
fn idle_pages_counts_what_is_no_longer_idle() {
    let tree = idle_tree();
    let mut tracker = IdlePages::new(&tree.root()).unwrap();
    let all = [range(2, 12)];
    // Without a mark every reported page counts as accessed. The page of zeros never does. A
    // swapped page has no frame, and a frame mapped twice counts at both places.
    let regions = tracker.read(PID, &all).unwrap();
    assert_eq!(
        summary(&regions),
        [
            (2, Leaf::Base, 6, Some(5)),
            (4, Leaf::Base, 4, Some(4)),
            (6, Leaf::Huge2m, 512, Some(512)),
            (8, Leaf::Hugetlb2m, 512, None),
        ]
    );
    assert_eq!(regions[0].swapped, 1);
    assert_eq!(regions[0].bits.unwrap()[..2], [0b11, 0b111]);
    // The bitmap as the kernel gives it after an access to frame 71 only. It has one bit for a
    // folio, that of the first page.
    tree.words(BITMAP, [(0, 1 << 3), (1, 1 << 6), (2, 1 << 2), (3, 1 << 8), (8, 1)]);
    let regions = tracker.read(PID, &all).unwrap();
    let accessed: Vec<Option<u16>> = regions.iter().map(|region| region.accessed).collect();
    assert_eq!(accessed, [Some(1), Some(0), Some(0), None]);
    assert_eq!(regions[0].bits.unwrap()[..2], [0b10, 0]);
    assert_eq!(regions[2].bits.unwrap(), [0; 8]);
}

#[test]
fn idle_pages_says_what_it_lacks() {
    let error = IdlePages::new(&Tree::new().root()).unwrap_err();
    assert!(error.to_string().contains("CONFIG_IDLE_PAGE_TRACKING"), "{error}");
    // Present pages have no frame: the kernel hides frames from other users than root.
    let tree = idle_tree();
    tree.words(&format!("proc/{PID}/pagemap"), (0..512 * 5).map(|n| (512 + n, PRESENT)));
    let mut tracker = IdlePages::new(&tree.root()).unwrap();
    for error in [
        tracker.clear(PID, &[range(2, 4)]).unwrap_err(),
        tracker.read(PID, &[range(2, 4)]).map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, TrackError::Denied { pid: PID, .. }), "{error}");
        assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
    }
    let error = tracker.clear(Pid(1), &[range(2, 4)]).unwrap_err();
    assert_eq!(error.why(), MissedWhy::Gone);
    // The page map ends: the address space has gone between two reads.
    assert_eq!(tracker.clear(PID, &[range(100, 102)]).unwrap_err().why(), MissedWhy::Gone);
}

/// Three regions of this process between inaccessible pages, so that they form a separate mapping.
struct Own {
    _all: Reservation,
    first: u64,
}

impl Own {
    const REGIONS: usize = 3;

    fn new() -> Own {
        let all = Reservation::new((Own::REGIONS + 2) * HUGE_2M, HUGE_2M).unwrap();
        let middle = all.part(HUGE_2M, Own::REGIONS * HUGE_2M);
        middle.open().unwrap();
        Own { first: middle.start() as u64, _all: all }
    }

    fn range(&self) -> VirtRange {
        VirtRange::new(self.first, self.first + (Own::REGIONS * HUGE_2M) as u64).unwrap()
    }

    fn write(&self, region: usize, page: usize) {
        let at = self.first + (region * HUGE_2M + page * BASE_PAGE) as u64;
        own_memory().unwrap().write_all_at(b"x", at).unwrap();
    }
}

fn own_pid() -> Pid {
    Pid(std::process::id() as i32)
}

#[test]
fn pagemap_tells_utilisation_and_nothing_of_accesses() {
    let own = Own::new();
    for page in [0, 7, 511] {
        own.write(0, page);
    }
    own.write(2, 100);
    // A read maps the page of zeros.
    own_memory().unwrap().read_exact_at(&mut [0], own.first + 5 * BASE_PAGE as u64).unwrap();
    let mut tracker = PagemapTracker::new(&KernelRoot::live()).unwrap();
    tracker.clear(own_pid(), &[own.range()]).unwrap();
    let regions = tracker.read(own_pid(), &[own.range()]).unwrap();
    let start = |region: &RegionBits| (region.page.start() - own.first) / HUGE_2M as u64;
    let found: Vec<_> = regions.iter().map(|r| (start(r), r.leaf, r.present, r.accessed)).collect();
    if regions[0].leaf == Leaf::Huge2m {
        return megapage_testing::skip("needs THP that are not given unasked");
    }
    assert_eq!(found, [(0, Leaf::Base, 3, None), (2, Leaf::Base, 1, None)]);
    let gone = tracker.clear(Pid(i32::MAX), &[own.range()]).unwrap_err();
    assert_eq!((gone.why(), gone.to_string()), (MissedWhy::Gone, "process 2147483647 has ended".into()));
}
