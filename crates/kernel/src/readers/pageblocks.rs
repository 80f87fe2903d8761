//! `/proc/pagetypeinfo`: page blocks (2 MiB on x86-64) by the kind of memory that they hold. Root
//! only.

use crate::{KernelError, KernelRoot};

const PAGETYPEINFO: &str = "proc/pagetypeinfo";

/// Page blocks of one zone, by the kind of memory that the allocator places in them. A block counts
/// as unmovable when one base page in it may be: the kernel groups such pages, but not perfectly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageBlocks {
    /// The NUMA node.
    pub node: u32,
    /// Blocks for memory that the kernel cannot move: page tables, slab, stacks, drivers' buffers.
    pub unmovable: u64,
    /// Blocks for memory that it can reclaim but not move: inodes, dentries.
    pub reclaimable: u64,
    /// All blocks.
    pub total: u64,
}

/// Reads the page blocks of every zone, in the kernel's order.
pub fn page_blocks(root: &KernelRoot) -> Result<Vec<PageBlocks>, KernelError> {
    let text = root.read(PAGETYPEINFO)?;
    // `Number of blocks type     Unmovable      Movable  Reclaimable   HighAtomic      Isolate`,
    // then a line for each zone: `Node 0, zone   Normal          134        11008  ...`.
    let mut lines =
        text.lines().enumerate().skip_while(|(_, line)| !line.starts_with("Number of blocks type"));
    let Some((_, header)) = lines.next() else { return Ok(Vec::new()) };
    let kinds: Vec<&str> = header.split_whitespace().skip(4).collect();
    lines
        .take_while(|(_, line)| line.starts_with("Node "))
        .filter(|(_, line)| line.contains(", zone"))
        .map(|(index, line)| {
            parse(line, &kinds).ok_or_else(|| KernelError::Parse {
                path: root.path(PAGETYPEINFO),
                line: index + 1,
                what: format!("expected a zone's page blocks, found '{line}'"),
            })
        })
        .collect()
}

fn parse(line: &str, kinds: &[&str]) -> Option<PageBlocks> {
    let (node, rest) = line.strip_prefix("Node ")?.split_once(", zone")?;
    let mut fields = rest.split_whitespace();
    let _zone = fields.next()?;
    let mut blocks = PageBlocks { node: node.parse().ok()?, ..PageBlocks::default() };
    for kind in kinds {
        let count: u64 = fields.next()?.parse().ok()?;
        blocks.total = blocks.total.saturating_add(count);
        match *kind {
            "Unmovable" => blocks.unmovable = count,
            "Reclaimable" => blocks.reclaimable = count,
            _ => {}
        }
    }
    Some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn read(text: &str) -> Result<Vec<PageBlocks>, KernelError> {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("proc")).unwrap();
        fs::write(tree.path().join(PAGETYPEINFO), text).unwrap();
        page_blocks(&KernelRoot::captured(tree.path()))
    }

    #[test]
    fn blocks_are_counted_by_kind() {
        let blocks = read(
            "Page block order: 9\nPages per block:  512\n\n\
             Free pages count per migrate type at order       0      1\n\
             Node    0, zone      DMA, type    Unmovable      0      0\n\n\
             Number of blocks type     Unmovable      Movable  Reclaimable   HighAtomic      Isolate \n\
             Node 0, zone      DMA            1            6            0            0            0 \n\
             Node 0, zone   Normal          134        11008           50            0            0 \n",
        )
        .unwrap();
        assert_eq!(blocks.len(), 2);
        let normal = &blocks[1];
        assert_eq!((normal.unmovable, normal.reclaimable, normal.total), (134, 50, 11192));
    }

    #[test]
    fn a_file_without_the_table_has_no_blocks() {
        assert!(read("Page block order: 9\n").unwrap().is_empty());
        let broken = "Number of blocks type Unmovable\nNode 0, zone DMA few\n";
        assert!(read(broken).unwrap_err().to_string().contains("line 2"));
    }

    #[test]
    fn counts_beyond_any_memory_do_not_wrap() {
        let most = u64::MAX;
        let text = format!("Number of blocks type Unmovable Movable\nNode 0, zone DMA {most} 2\n");
        let blocks = &read(&text).unwrap()[0];
        assert_eq!((blocks.unmovable, blocks.total), (most, most));
    }
}
