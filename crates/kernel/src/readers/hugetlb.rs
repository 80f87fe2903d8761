//! The pools of hugetlb pages, of the machine and of each NUMA node.
//!
//! Source: Documentation/admin-guide/mm/hugetlbpage.rst and mm/hugetlb.c. The machine's pools lie
//! in `/sys/kernel/mm/hugepages`, a node's in `/sys/devices/system/node/nodeN/hugepages`.
//! `/proc/meminfo` and `vm.nr_hugepages` show the default size only and are not used here.

use crate::{KernelError, KernelRoot, optional};
use megapage_units::PageSize;
use std::collections::BTreeSet;
use std::fmt;

const MACHINE: &str = "sys/kernel/mm/hugepages";
const NODES: &str = "sys/devices/system/node";

/// A pool of one page size: the machine's, or one node's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolScope {
    /// The sum over all nodes. The kernel spreads new pages over them evenly.
    Machine,
    /// One NUMA node, by its number.
    Node(u32),
}

/// Formats as `the machine` or `node 1`.
impl fmt::Display for PoolScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolScope::Machine => f.pad("the machine"),
            PoolScope::Node(node) => f.pad(&format!("node {node}")),
        }
    }
}

megapage_units::named! {
    /// A value of a pool that can be written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum PoolFile {
        /// `nr_hugepages`. Read: all pages of the pool, surplus ones included. Written: the wanted
        /// number of persistent pages. The write succeeds even where fewer are obtained: read back.
        Pages = "nr_hugepages",
        /// `nr_overcommit_hugepages`: surplus pages that may be taken on demand. Machine only.
        /// EINVAL for sizes that the page allocator does not hand out (1 GiB).
        Overcommit = "nr_overcommit_hugepages",
    }
}

/// The kernel's counts of one pool, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// All pages, surplus ones included.
    pub total: u64,
    /// Pages that no mapping or file holds. Some of them may be reserved.
    pub free: u64,
    /// Free pages reserved for mappings that have not touched them yet. The kernel counts these for
    /// the machine only: `None` for a node.
    pub reserved: Option<u64>,
    /// Pages beyond the persistent ones, released to the kernel when they are freed.
    pub surplus: u64,
    /// Surplus pages that may be taken on demand. `None` for a node.
    pub overcommit: Option<u64>,
}

impl PoolCounts {
    /// Returns the pages that the pool keeps when they are free: a write to `nr_hugepages` sets
    /// this number.
    pub fn persistent(&self) -> u64 {
        self.total.saturating_sub(self.surplus)
    }

    /// Returns the pages that a mapping or a file holds.
    pub fn in_use(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }

    /// Returns the free pages that no process has reserved: a new mapping can have them. `None` for
    /// a node, where the kernel does not count reservations.
    pub fn available(&self) -> Option<u64> {
        Some(self.free.saturating_sub(self.reserved?))
    }
}

/// Returns the path of a pool's value, relative to the root, such as
/// `sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages`.
pub fn path(size: PageSize, scope: PoolScope, file: PoolFile) -> String {
    format!("{}/{}", directory(size, scope), file.name())
}

fn directory(size: PageSize, scope: PoolScope) -> String {
    match scope {
        PoolScope::Machine => format!("{MACHINE}/hugepages-{}kB", size.kib()),
        PoolScope::Node(node) => format!("{NODES}/node{node}/hugepages/hugepages-{}kB", size.kib()),
    }
}

/// Returns the page sizes that the kernel keeps a pool of, ascending. Empty where it was built
/// without hugetlb.
pub fn page_sizes(root: &KernelRoot) -> Result<Vec<PageSize>, KernelError> {
    let names = optional(root.list(MACHINE))?.unwrap_or_default();
    let size_of = |name: &String| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        PageSize::new(kib.checked_mul(1024)?)
    };
    let sizes: BTreeSet<PageSize> = names.iter().filter_map(size_of).collect();
    Ok(sizes.into_iter().collect())
}

/// Returns the NUMA nodes, ascending. Empty where the kernel was built without NUMA.
pub fn nodes(root: &KernelRoot) -> Result<Vec<u32>, KernelError> {
    let names = optional(root.list(NODES))?.unwrap_or_default();
    let nodes: BTreeSet<u32> =
        names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    Ok(nodes.into_iter().collect())
}

/// Reads the values of one pool. Fails with ENOENT ([`KernelError::is_gone`]) for a size or node
/// that is not there.
pub fn counts(root: &KernelRoot, size: PageSize, scope: PoolScope) -> Result<PoolCounts, KernelError> {
    let directory = directory(size, scope);
    let read = |name: &str| root.read_u64(format!("{directory}/{name}"));
    let machine_only = |name: &str| match scope {
        PoolScope::Machine => read(name).map(Some),
        PoolScope::Node(_) => Ok(None),
    };
    settled(|| {
        Ok(PoolCounts {
            total: read("nr_hugepages")?,
            free: read("free_hugepages")?,
            reserved: machine_only("resv_hugepages")?,
            surplus: read("surplus_hugepages")?,
            overcommit: machine_only("nr_overcommit_hugepages")?,
        })
    })
}

/// Reads until two readings agree in total and surplus, ten times at most. Each value is a file:
/// when a program ends between two of them, its surplus pages would count as persistent.
fn settled(mut read: impl FnMut() -> Result<PoolCounts, KernelError>) -> Result<PoolCounts, KernelError> {
    let mut last = read()?;
    for _ in 1..10 {
        let former = std::mem::replace(&mut last, read()?);
        if (former.total, former.surplus) == (last.total, last.surplus) {
            break;
        }
    }
    Ok(last)
}

/// Asks the kernel for a value. A shortfall of pages is not an error here: read back.
pub fn write(
    root: &KernelRoot,
    size: PageSize,
    scope: PoolScope,
    file: PoolFile,
    pages: u64,
) -> Result<(), KernelError> {
    root.write(path(size, scope, file), &pages.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_program_that_ends_between_two_values_leaves_no_persistent_page() {
        let counts = |total, surplus| PoolCounts { total, surplus, ..PoolCounts::default() };
        let mut readings = [counts(3, 0), counts(0, 0), counts(0, 0), counts(9, 0)].into_iter();
        assert_eq!(settled(|| Ok(readings.next().unwrap())).unwrap(), counts(0, 0));
        assert_eq!(readings.len(), 1);
        let mut pages = 0;
        let mut busy = || {
            pages += 1;
            Ok(counts(pages, 0))
        };
        assert_eq!(settled(&mut busy).unwrap(), counts(10, 0));
    }

    fn tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (directory, files) in [
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB",
                &[
                    ("nr_hugepages", 12),
                    ("free_hugepages", 7),
                    ("resv_hugepages", 3),
                    ("surplus_hugepages", 2),
                    ("nr_overcommit_hugepages", 5),
                ][..],
            ),
            ("sys/kernel/mm/hugepages/hugepages-1048576kB", &[]),
            (
                "sys/devices/system/node/node1/hugepages/hugepages-2048kB",
                &[("nr_hugepages", 12), ("free_hugepages", 7), ("surplus_hugepages", 2)],
            ),
            ("sys/devices/system/node/power", &[]),
        ] {
            fs::create_dir_all(tree.path().join(directory)).unwrap();
            for (name, value) in files {
                fs::write(tree.path().join(directory).join(name), format!("{value}\n")).unwrap();
            }
        }
        tree
    }

    #[test]
    fn pools_are_read_for_the_machine_and_a_node() {
        let tree = tree();
        let root = KernelRoot::captured(tree.path());
        assert_eq!(page_sizes(&root).unwrap(), [PageSize::HUGE_2M, PageSize::HUGE_1G]);
        assert_eq!(nodes(&root).unwrap(), [1]);
        let machine = counts(&root, PageSize::HUGE_2M, PoolScope::Machine).unwrap();
        assert_eq!((machine.persistent(), machine.in_use(), machine.available()), (10, 5, Some(4)));
        let node = counts(&root, PageSize::HUGE_2M, PoolScope::Node(1)).unwrap();
        assert_eq!((node.in_use(), node.available(), node.overcommit), (5, None, None));
        assert!(counts(&root, PageSize::HUGE_2M, PoolScope::Node(0)).unwrap_err().is_gone());
    }

    #[test]
    fn a_write_goes_to_the_file_that_is_named() {
        let tree = tree();
        let root = KernelRoot::captured(tree.path());
        write(&root, PageSize::HUGE_2M, PoolScope::Node(1), PoolFile::Pages, 99).unwrap();
        assert_eq!(counts(&root, PageSize::HUGE_2M, PoolScope::Node(1)).unwrap().total, 99);
        assert_eq!(counts(&root, PageSize::HUGE_2M, PoolScope::Machine).unwrap().total, 12);
    }

    #[test]
    fn a_kernel_without_hugetlb_has_no_sizes() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        assert!(page_sizes(&root).unwrap().is_empty());
        assert!(nodes(&root).unwrap().is_empty());
    }
}
