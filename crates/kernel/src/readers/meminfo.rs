//! `/proc/meminfo`, and the same values of one NUMA node.

use crate::{KernelError, KernelRoot};
use megapage_units::{Bytes, PageSize};

/// Lines of `/proc/meminfo` that megapage uses (proc_meminfo(5)). A line that the kernel does not
/// print is `None`: an old kernel, or one built without the feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// `MemTotal`: usable memory.
    pub total: Option<Bytes>,
    /// `MemFree`.
    pub free: Option<Bytes>,
    /// `MemAvailable`: the kernel's estimate of the memory that new programs can have without
    /// swapping. Free hugetlb pages are not part of it. `None` for a node.
    pub available: Option<Bytes>,
    /// `SwapTotal`.
    pub swap_total: Option<Bytes>,
    /// `SwapFree`.
    pub swap_free: Option<Bytes>,
    /// `SReclaimable`: slab that can be released under pressure; it cannot be moved.
    pub slab_reclaimable: Option<Bytes>,
    /// `SUnreclaim`: slab that can be neither released nor moved.
    pub slab_unreclaimable: Option<Bytes>,
    /// `KernelStack`.
    pub kernel_stacks: Option<Bytes>,
    /// `PageTables`.
    pub page_tables: Option<Bytes>,
    /// `Percpu`.
    pub percpu: Option<Bytes>,
    /// `CmaTotal`: printed only by a kernel that is built with CMA.
    pub cma_total: Option<Bytes>,
    /// `AnonHugePages`.
    pub anon_huge: Option<Bytes>,
    /// `Hugepagesize`: the default size of hugetlb pages.
    pub default_huge_size: Option<PageSize>,
    /// `Hugetlb`: the pools of all sizes together.
    pub hugetlb: Option<Bytes>,
}

impl MemInfo {
    fn set(&mut self, name: &str, value: Bytes) {
        let field = match name {
            "MemTotal" => &mut self.total,
            "MemFree" => &mut self.free,
            "MemAvailable" => &mut self.available,
            "SwapTotal" => &mut self.swap_total,
            "SwapFree" => &mut self.swap_free,
            "SReclaimable" => &mut self.slab_reclaimable,
            "SUnreclaim" => &mut self.slab_unreclaimable,
            "KernelStack" => &mut self.kernel_stacks,
            "PageTables" => &mut self.page_tables,
            "Percpu" => &mut self.percpu,
            "CmaTotal" => &mut self.cma_total,
            "AnonHugePages" => &mut self.anon_huge,
            "Hugetlb" => &mut self.hugetlb,
            "Hugepagesize" => {
                self.default_huge_size = PageSize::new(value.0);
                return;
            }
            _ => return,
        };
        *field = Some(value);
    }
}

/// Reads `/proc/meminfo`.
pub fn meminfo(root: &KernelRoot) -> Result<MemInfo, KernelError> {
    parse(root, "proc/meminfo")
}

/// Reads `/sys/devices/system/node/nodeN/meminfo`. Fails with ENOENT for a node that is not there.
pub fn node_meminfo(root: &KernelRoot, node: u32) -> Result<MemInfo, KernelError> {
    parse(root, &format!("sys/devices/system/node/node{node}/meminfo"))
}

/// Parses lines `Name:  value kB`, for a node with `Node N ` before them. Lines without a unit
/// count pages of a pool and are skipped: they are read from the pool itself.
fn parse(root: &KernelRoot, path: &str) -> Result<MemInfo, KernelError> {
    let mut info = MemInfo::default();
    for (index, line) in root.read(path)?.lines().enumerate() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let Some(number) = value.trim().strip_suffix(" kB") else { continue };
        let kib: u64 = number.trim().parse().map_err(|_| KernelError::Parse {
            path: root.path(path),
            line: index + 1,
            what: format!("expected a number in kB, found '{}'", value.trim()),
        })?;
        info.set(name.rsplit(' ').next().unwrap_or(name), Bytes::kib(kib));
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn lines_of_the_machine_and_of_a_node() {
        let tree = tempfile::tempdir().unwrap();
        let node = tree.path().join("sys/devices/system/node/node0");
        fs::create_dir_all(&node).unwrap();
        fs::create_dir_all(tree.path().join("proc")).unwrap();
        fs::write(
            tree.path().join("proc/meminfo"),
            "MemTotal:       24731708 kB\nHugePages_Total:      12\nHugepagesize:       2048 kB\n",
        )
        .unwrap();
        fs::write(node.join("meminfo"), "Node 0 MemTotal:       1024 kB\nNode 0 MemFree:  512 kB\n").unwrap();
        let root = KernelRoot::captured(tree.path());
        let machine = meminfo(&root).unwrap();
        assert_eq!(machine.total, Some(Bytes::kib(24731708)));
        assert_eq!(machine.default_huge_size, Some(PageSize::HUGE_2M));
        assert_eq!(machine.available, None);
        assert_eq!(node_meminfo(&root, 0).unwrap().free, Some(Bytes::kib(512)));

        fs::write(tree.path().join("proc/meminfo"), "MemTotal: 1 kB\nMemFree: some kB\n").unwrap();
        let error = meminfo(&root).unwrap_err().to_string();
        assert!(error.contains("meminfo: line 2: expected a number in kB, found 'some kB'"), "{error}");
    }
}
