//! Finds the Java heap in a process's memory.

use crate::memory::Memory;
use megapage_kernel::smaps::{BackingBytes, Mapping};
use megapage_units::{Bytes, VirtRange};

/// Name of the memory file with ZGC's heap, which is mapped once or three times.
const Z_HEAP: &str = "/memfd:java_heap";
/// Returns the most that a collector adds to the largest heap by alignment: a region of G1 or
/// Shenandoah. A region has 1 to 32 MiB; it has more than 1 MiB if the heap would otherwise have
/// more than 2,048 regions.
fn rounding(largest: Bytes) -> Bytes {
    Bytes(largest.0 / 1024).clamp(Bytes::mib(4), Bytes::mib(32))
}

/// End of the addresses that compressed pointers reach (32 GiB). A heap lies below it, unless it is
/// larger; arenas of malloc, which may be as long, lie above it.
const COMPRESSED: u64 = 32 << 30;
/// Most by which the heap may be shorter than estimated, if no option gives its size. The JVM and
/// we count the machine's memory separately.
const SHORTER: Bytes = Bytes::mib(2);

/// Place of the Java heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JavaHeap {
    /// A series of mappings.
    At(VirtRange),
    /// ZGC's memory file, at any address.
    Z,
}

impl JavaHeap {
    /// Returns true if a mapping is a part of it.
    pub fn holds(&self, mapping: &Mapping) -> bool {
        match self {
            JavaHeap::At(range) => range.intersection(mapping.range).is_some(),
            JavaHeap::Z => mapping.name.starts_with(Z_HEAP),
        }
    }

    /// Returns its memory by the pages that back it.
    pub fn memory(&self, mappings: &[Mapping]) -> Memory {
        let own: Vec<&Mapping> = mappings.iter().filter(|it| self.holds(it)).collect();
        match self {
            JavaHeap::At(_) => Memory::of(own),
            JavaHeap::Z => z_heap(&own),
        }
    }
}

/// Finds the Java heap, which has a size of at most `largest`; `None` if there is none.
///
/// The JVM reserves the whole heap at the start as one piece of address space, and makes the used
/// parts readable. Classes of an archive (CDS, `.jsa`) are mapped from their file into it. The
/// piece is a series of such mappings without a gap, as long as the largest heap.
///
/// Several series may fit. The space of compressed classes is one, often behind its archive, or
/// right behind the heap. The heap is the series without an archive before it, then the one below
/// 32 GiB, then the one with the most memory.
pub fn java_heap(mappings: &[Mapping], largest: Bytes) -> Option<JavaHeap> {
    if mappings.iter().any(|it| it.name.starts_with(Z_HEAP)) {
        return Some(JavaHeap::Z);
    }
    let may_be: Vec<&Mapping> = mappings.iter().filter(|it| is_of_heap(it) || is_archive(it)).collect();
    let runs: Vec<&[&Mapping]> = may_be.chunk_by(|one, next| one.range.end() == next.range.start()).collect();
    let fullest =
        |exact| runs.iter().flat_map(|run| pieces(run, largest, exact)).max_by_key(|piece| piece.rank);
    let found = fullest(true).or_else(|| fullest(false))?;
    let (first, last) = (found.mappings.first()?, found.mappings.last()?);
    VirtRange::new(first.range.start(), last.range.end()).map(JavaHeap::At)
}

/// A series of mappings that may be the heap.
struct Piece<'a> {
    mappings: &'a [&'a Mapping],
    /// Order of preference. First true if no archive lies before it in its run, as before the space
    /// of classes. Then true if it lies below 32 GiB; then its memory.
    rank: (bool, bool, Bytes),
}

/// Returns the pieces of a run that are as long as the heap and hold memory. `exact`: those that
/// also end with a mapping; otherwise only the piece at the start of the run.
fn pieces<'a>(run: &'a [&'a Mapping], largest: Bytes, exact: bool) -> Vec<Piece<'a>> {
    let total = |mapping: &&Mapping| mapping.backing().total() + mapping.swap;
    let mut before = vec![Bytes::ZERO];
    before.extend(run.iter().scan(Bytes::ZERO, |sum, mapping| {
        *sum += total(mapping);
        Some(*sum)
    }));
    let archive = run.iter().position(|mapping| is_archive(mapping)).unwrap_or(run.len());
    let piece = |(first, mapping): (usize, &&Mapping)| {
        let ends_at = |length: Bytes| {
            let end = mapping.range.start().saturating_add(length.0);
            let at = run.partition_point(|it| it.range.end() < end);
            (at < run.len()).then_some(at)
        };
        let fits = |at: &usize| {
            let length = run[*at].range.end() - mapping.range.start();
            !exact || length <= largest.0.saturating_add(rounding(largest).0)
        };
        let end = ends_at(largest)
            .filter(fits)
            .or_else(|| ends_at(largest.saturating_sub(SHORTER)).filter(fits))?;
        let memory = before[end + 1].saturating_sub(before[first]);
        let found = Piece {
            mappings: &run[first..=end],
            rank: (first < archive, mapping.range.start() < COMPRESSED, memory),
        };
        (is_of_heap(mapping) && memory > Bytes::ZERO).then_some(found)
    };
    let most = if exact { run.len() } else { 1 };
    run.iter().enumerate().take(most).filter_map(piece).collect()
}

/// Returns true for memory that the JVM has reserved itself.
fn is_of_heap(mapping: &Mapping) -> bool {
    let name = &mapping.name;
    let nameless =
        name.is_empty() || name.starts_with("[anon:Java Heap") || name.starts_with("/anon_hugepage");
    nameless && mapping.permissions.ends_with('p') && !mapping.permissions.contains('x')
}

/// Returns true for objects of a class data archive, which the program may write to.
fn is_archive(mapping: &Mapping) -> bool {
    mapping.permissions == "rw-p" && mapping.name.ends_with(".jsa")
}

/// Sums up ZGC's views. Each view maps some of the pages, and several may map the same page. A view
/// counts with its share of those (`Pss`). For hugetlb pages no shares are known: the fullest view
/// counts.
fn z_heap(views: &[&Mapping]) -> Memory {
    let mut heap = Memory::default();
    for view in views {
        let of_all = view.backing();
        let share = |bytes: Bytes| {
            let share = bytes.0 as u128 * u128::from(view.pss.0) / u128::from(view.rss.0.max(1));
            Bytes(u64::try_from(share).unwrap_or(bytes.0))
        };
        let shared = BackingBytes {
            shmem_pmd: share(of_all.shmem_pmd),
            base: share(of_all.base),
            ..BackingBytes::default()
        };
        heap.present += shared;
        // Each view that has not mapped a swapped page again shows it: the largest value counts.
        heap.swapped = heap.swapped.max(view.swap);
    }
    let hugetlb =
        views.iter().map(|view| view.backing()).max_by_key(BackingBytes::hugetlb).unwrap_or_default();
    heap.present.hugetlb_1g = hugetlb.hugetlb_1g;
    heap.present.hugetlb_2m = hugetlb.hugetlb_2m;
    heap.present.hugetlb_other = hugetlb.hugetlb_other;
    heap
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::KernelRoot;
    use megapage_kernel::smaps::read_smaps;
    use megapage_units::{PageSize, Pid, VirtRange};
    use std::path::Path;

    fn mapping(start: u64, end: u64, permissions: &str, name: &str, mib: u64) -> Mapping {
        let hugetlb = name.starts_with("/anon_hugepage") || name.ends_with(".hugetlb (deleted)");
        let bytes = Bytes::mib(mib);
        let inode = u64::from(!name.is_empty());
        let plain = Mapping::untouched(VirtRange::new(start, end).unwrap(), permissions, name);
        match hugetlb {
            true => Mapping { inode, kernel_page_size: PageSize::HUGE_2M, hugetlb: bytes, ..plain },
            false => Mapping { inode, rss: bytes, ..plain },
        }
    }

    fn backed(mappings: &[Mapping], largest: Bytes) -> Memory {
        java_heap(mappings, largest).map_or_else(Memory::default, |heap| heap.memory(mappings))
    }

    const HUGETLB: &str = "/anon_hugepage (deleted)";

    #[test]
    fn large_pages_hold_it_in_one_piece() {
        let maps = [
            mapping(0x1000, 0x2000, "rw-p", "", 0),
            mapping(0xf000_0000, 0x1_0000_0000, "rw-p", HUGETLB, 64),
            mapping(0x7fc9_cd20_0000, 0x7fc9_dc20_0000, "rwxp", HUGETLB, 8),
        ];
        let found = backed(&maps, Bytes::mib(256));
        assert_eq!(
            (found.present.hugetlb_2m, found.present.base),
            (Bytes::mib(64), Bytes::ZERO),
            "without the code cache"
        );
        assert_eq!(backed(&maps, Bytes::mib(300)).total(), Bytes::ZERO, "none is that long");
    }

    #[test]
    fn without_them_it_is_a_run_of_pieces() {
        // G1: its used part, its unused part, and the class space right behind.
        let maps = [
            mapping(0x7000_0000, 0x7800_0000, "rw-p", "", 3),
            mapping(0xf000_0000, 0xf400_0000, "rw-p", "", 60),
            mapping(0xf400_0000, 0xfc00_0000, "---p", "", 0),
            mapping(0xfc00_0000, 0x1_0000_0000, "rw-p", "", 10),
            mapping(0x1_0000_0000, 0x1_4000_0000, "---p", "", 0),
            mapping(0x1_4000_0000, 0x1_4010_0000, "rw-p", "", 1),
        ];
        assert_eq!(backed(&maps, Bytes::mib(256)).present.base, Bytes::mib(70));
    }

    #[test]
    fn zgc_maps_it_several_times() {
        let name = "/memfd:java_heap.hugetlb (deleted)";
        let maps = [
            mapping(0x400_0000_0000, 0x400_1000_0000, "rw-s", name, 12),
            mapping(0x800_0000_0000, 0x800_1000_0000, "rw-s", name, 40),
            mapping(0x1000_0000_0000, 0x1000_1000_0000, "rw-s", name, 0),
        ];
        assert_eq!(backed(&maps, Bytes::mib(256)).present.hugetlb_2m, Bytes::mib(40));
    }

    /// Reads a captured smaps of a JVM. The programs fill 100 blocks of 1 MiB in heaps of 256 MiB,
    /// or are empty with other heaps. Lines of zeros and mappings of libraries were removed.
    fn captured(name: &str) -> Vec<Mapping> {
        let tree = tempfile::tempdir().unwrap();
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/jvm").join(name);
        std::fs::create_dir_all(tree.path().join("proc/9")).unwrap();
        std::fs::copy(file, tree.path().join("proc/9/smaps")).unwrap();
        read_smaps(&KernelRoot::captured(tree.path()), Pid(9)).unwrap()
    }

    #[test]
    fn the_heap_is_found_with_every_collector_with_and_without_an_archive() {
        // The largest heap in MiB; KiB resident and KiB on THP. The JVM logged the addresses itself
        // (-Xlog:gc+heap+coops=debug).
        let cases = [
            ("17-g1-cds-1g", 1024, 2_996, 2_048),
            ("17-g1-cds", 256, 148_404, 147_456),
            ("17-g1", 256, 208_896, 208_896),
            ("17-parallel-cds", 256, 131_072, 131_072),
            ("17-serial-cds-32m", 32, 2_048, 2_048),
            ("17-serial-cds", 256, 139_204, 137_216),
            ("25-g1-cds-32m", 32, 4_096, 4_096),
            ("25-g1-cds", 256, 208_896, 208_896),
            ("25-g1", 256, 210_944, 210_944),
            ("25-parallel-cds", 256, 133_120, 133_120),
            ("25-serial-cds-1g", 1024, 6_848, 6_144),
            ("25-serial-cds", 256, 140_880, 139_264),
            ("25-shenandoah-cds", 256, 208_896, 208_896),
        ];
        for (name, largest, resident, thp) in cases {
            let heap = backed(&captured(&format!("{name}.smaps")), Bytes::mib(largest)).present;
            assert_eq!((heap.total(), heap.thp), (Bytes::kib(resident), Bytes::kib(thp)), "{name}");
        }
        // A quarter of the machine's memory, as the JVM and as we count it.
        for largest in [6026, 6029] {
            let heap = backed(&captured("25-parallel-cds-6g.smaps"), Bytes::mib(largest)).present;
            assert_eq!((heap.total(), heap.thp), (Bytes::kib(4_096), Bytes::kib(4_096)), "{largest}");
        }
    }

    #[test]
    fn views_of_zgcs_pages_are_not_counted_twice() {
        // In Java 25 one view holds all pages. In Java 17 three views hold some pages each: 119,784
        // KiB with pages that several show.
        let heap = |name| backed(&captured(name), Bytes::mib(256)).present;
        assert_eq!(heap("25-z-cds.smaps").base, Bytes::kib(103_484));
        let three = heap("17-z-cds.smaps");
        assert!((Bytes::kib(100 << 10)..Bytes::kib(119_784)).contains(&three.base), "{three:?}");
    }
}
