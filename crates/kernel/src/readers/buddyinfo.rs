//! `/proc/buddyinfo`: the page allocator's free blocks by node, zone and order (proc_buddyinfo(5)).

use crate::{KernelError, KernelRoot};
use megapage_units::{BASE_PAGE, Bytes, PageSize};

const BUDDYINFO: &str = "proc/buddyinfo";

/// The free blocks of one zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeBlocks {
    /// The NUMA node.
    pub node: u32,
    /// Numbers of free blocks of 2^order base pages, by order, from 0.
    pub counts: Vec<u64>,
}

impl FreeBlocks {
    /// Returns all free memory.
    pub fn free(&self) -> Bytes {
        self.free_from(0)
    }

    /// Returns the memory that is free in blocks of at least 2^`order` base pages.
    pub fn free_from(&self, order: usize) -> Bytes {
        let bytes = |(order, count): (usize, &u64)| Bytes(*count) * (BASE_PAGE as u64) * (1 << order);
        self.counts.iter().enumerate().skip(order).map(bytes).sum()
    }

    /// Returns how many pages of `size` could be taken at once, without compaction. Always 0 for a
    /// size beyond the allocator's largest block, such as 1 GiB. A search of the zone may still
    /// find a free gigabyte.
    pub fn available(&self, size: PageSize) -> u64 {
        self.free_from(order(size)).0 / size.bytes().0
    }
}

/// Returns the order of a block that holds one page of `size`: 9 for 2 MiB.
pub fn order(size: PageSize) -> usize {
    (size.bytes().0 / BASE_PAGE as u64).ilog2() as usize
}

/// Reads the free blocks of every zone, in the kernel's order.
pub fn buddyinfo(root: &KernelRoot) -> Result<Vec<FreeBlocks>, KernelError> {
    let text = root.read(BUDDYINFO)?;
    text.lines()
        .enumerate()
        .map(|(index, line)| {
            parse(line).ok_or_else(|| KernelError::Parse {
                path: root.path(BUDDYINFO),
                line: index + 1,
                what: format!("expected a zone's free blocks, found '{line}'"),
            })
        })
        .collect()
}

/// Parses `Node 0, zone   Normal   2384   1579 ...`.
fn parse(line: &str) -> Option<FreeBlocks> {
    let (node, rest) = line.strip_prefix("Node ")?.split_once(", zone")?;
    let mut fields = rest.split_whitespace();
    let _zone = fields.next()?;
    let counts = fields.map(|count| count.parse().ok()).collect::<Option<Vec<u64>>>()?;
    (!counts.is_empty() && counts.len() <= 32).then_some(())?;
    Some(FreeBlocks { node: node.trim().parse().ok()?, counts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn read(text: &str) -> Result<Vec<FreeBlocks>, KernelError> {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("proc")).unwrap();
        fs::write(tree.path().join(BUDDYINFO), text).unwrap();
        buddyinfo(&KernelRoot::captured(tree.path()))
    }

    #[test]
    fn blocks_are_counted_by_order() {
        let zones = read(
            "Node 0, zone    DMA32      1      2      4      2      5      4      3      3      4      2    752\n\
             Node 1, zone   Normal      4      0      2      0      0      0      0      0      0      0      0\n",
        )
        .unwrap();
        assert_eq!(zones[0].node, 0);
        assert_eq!(zones[0].available(PageSize::HUGE_2M), 2 + 2 * 752);
        assert_eq!(zones[0].available(PageSize::HUGE_1G), 0);

        let scattered = &zones[1];
        assert_eq!(scattered.free(), Bytes::kib(4 * 4 + 2 * 16));
    }

    #[test]
    fn counts_beyond_any_memory_do_not_wrap() {
        let most = u64::MAX;
        let zone = &read(&format!("Node 0, zone Normal {most} {most} 9223372036854775808 1\n")).unwrap()[0];
        assert_eq!((zone.free(), zone.free_from(2)), (Bytes(most), Bytes(most)));
        assert_eq!(zone.free_from(3), Bytes::kib(32));
    }

    #[test]
    fn what_is_no_zone_is_named_by_its_line() {
        let error = read("Node 0, zone Normal 1 2\nNode 0, zone Normal one\n").unwrap_err().to_string();
        assert!(error.contains("buddyinfo: line 2: expected a zone's free blocks"), "{error}");
    }
}
