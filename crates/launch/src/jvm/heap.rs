//! Where in a process's memory the Java heap lies.

use crate::sample::Memory;
use megapage_kernel::smaps::Mapping;
use megapage_units::{Bytes, VirtRange};

/// ZGC's heap is a memory file of this name, mapped once or three times.
const Z_HEAP: &str = "/memfd:java_heap";
/// Its own alignment, and room that a collector adds, at most: a region of G1's.
const ROUNDING: Bytes = Bytes::mib(32);

/// How the Java heap is backed, with a heap of at most `largest`; zero where none is found.
///
/// The JVM reserves all of the heap at the start as one piece of address space, of which it makes readable what it uses:
/// it is the first run of anonymous mappings without a gap between them that is as long as the largest heap and holds
/// memory. The compressed class space may lie right behind it, which does not count.
pub fn java_heap(mappings: &[Mapping], largest: Bytes) -> Memory {
    let z_views: Vec<&Mapping> = mappings.iter().filter(|it| it.name.starts_with(Z_HEAP)).collect();
    if !z_views.is_empty() {
        return z_heap(&z_views, largest);
    }
    let Some(range) = range(mappings, largest) else { return Memory::default() };
    Memory::of(mappings.iter().filter(|it| it.is_heap_like() && range.intersection(it.range).is_some()))
}

/// The same pages are seen through each view: the fullest counts. Views lie far from each other.
fn z_heap(views: &[&Mapping], largest: Bytes) -> Memory {
    let mut best = Memory::default();
    let mut rest = views;
    while let Some(first) = rest.first() {
        let end = first.range.start().saturating_add(16 * largest.0 + ROUNDING.0);
        let length = rest.iter().take_while(|it| it.range.start() < end).count();
        let (view, others) = rest.split_at(length);
        let backed = Memory::of(view.iter().copied());
        if backed.total() > best.total() {
            best = backed;
        }
        rest = others;
    }
    best
}

fn range(mappings: &[Mapping], largest: Bytes) -> Option<VirtRange> {
    let anonymous = |it: &&Mapping| {
        let nameless = it.name.is_empty()
            || it.name.starts_with("[anon:Java Heap")
            || it.name.starts_with("/anon_hugepage");
        nameless && it.permissions.ends_with('p') && !it.permissions.contains('x')
    };
    let mut run: Option<(VirtRange, Bytes)> = None;
    let long_enough = |run: Option<(VirtRange, Bytes)>| {
        let (range, present) = run?;
        let reserved = range.len().0 >= largest.0 && present > Bytes::ZERO;
        let end = range.start().saturating_add(largest.0 + ROUNDING.0).min(range.end());
        reserved.then(|| VirtRange::new(range.start(), end)).flatten()
    };
    for mapping in mappings.iter().filter(anonymous) {
        let present = mapping.backing().total();
        run = match run {
            Some((range, before)) if range.end() == mapping.range.start() => {
                VirtRange::new(range.start(), mapping.range.end()).map(|range| (range, before + present))
            }
            _ => {
                if let Some(found) = long_enough(run) {
                    return Some(found);
                }
                Some((mapping.range, present))
            }
        };
    }
    long_enough(run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::PageSize;

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

    const HUGETLB: &str = "/anon_hugepage (deleted)";

    #[test]
    fn large_pages_hold_it_in_one_piece() {
        let maps = [
            mapping(0x1000, 0x2000, "rw-p", "", 0),
            mapping(0xf000_0000, 0x1_0000_0000, "rw-p", HUGETLB, 64),
            mapping(0x7fc9_cd20_0000, 0x7fc9_dc20_0000, "rwxp", HUGETLB, 8),
        ];
        let found = java_heap(&maps, Bytes::mib(256));
        assert_eq!(
            (found.present.hugetlb_2m, found.present.base),
            (Bytes::mib(64), Bytes::ZERO),
            "without the code cache"
        );
        assert_eq!(java_heap(&maps, Bytes::mib(300)).total(), Bytes::ZERO, "none is that long");
    }

    #[test]
    fn without_them_it_is_a_run_of_pieces() {
        // G1: what it uses, what it does not, and the class space right behind.
        let maps = [
            mapping(0x7000_0000, 0x7800_0000, "rw-p", "", 3),
            mapping(0xf000_0000, 0xf400_0000, "rw-p", "", 60),
            mapping(0xf400_0000, 0xfc00_0000, "---p", "", 0),
            mapping(0xfc00_0000, 0x1_0000_0000, "rw-p", "", 10),
            mapping(0x1_0000_0000, 0x1_4000_0000, "---p", "", 0),
            mapping(0x1_4000_0000, 0x1_4010_0000, "rw-p", "", 1),
        ];
        assert_eq!(java_heap(&maps, Bytes::mib(256)).present.base, Bytes::mib(70));
    }

    #[test]
    fn zgc_maps_it_several_times() {
        let name = "/memfd:java_heap.hugetlb (deleted)";
        let maps = [
            mapping(0x400_0000_0000, 0x400_1000_0000, "rw-s", name, 12),
            mapping(0x800_0000_0000, 0x800_1000_0000, "rw-s", name, 40),
            mapping(0x1000_0000_0000, 0x1000_1000_0000, "rw-s", name, 0),
        ];
        assert_eq!(java_heap(&maps, Bytes::mib(256)).present.hugetlb_2m, Bytes::mib(40));
    }
}
