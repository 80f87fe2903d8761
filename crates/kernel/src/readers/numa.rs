//! Nodes on which a process's memory lies, and on which it runs: `/proc/PID/numa_maps`
//! (proc_pid_numa_maps(5)), `/proc/PID/task/TID/stat`, and the nodes' processors.
//!
//! Reading numa_maps walks the process's page tables as smaps does, at about the same cost.

use crate::{KernelError, KernelRoot};
use megapage_units::{Bytes, Pid};
use std::collections::{BTreeMap, BTreeSet};

/// Most threads whose processors are read.
const MOST_THREADS: usize = 64;

/// Memory of a process on one node, in present bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnNode {
    /// hugetlb pages, of all sizes.
    pub hugetlb: Bytes,
    /// Everything else that it maps, transparent huge pages and files among it.
    pub other: Bytes,
}

/// Returns the memory of `pid` by node, without nodes on which it has none. Fails with ENOENT on a
/// kernel without CONFIG_NUMA. Needs the right to trace the process.
pub fn memory_by_node(root: &KernelRoot, pid: Pid) -> Result<BTreeMap<u32, OnNode>, KernelError> {
    let text = root.read(format!("proc/{pid}/numa_maps"))?;
    let mut nodes: BTreeMap<u32, OnNode> = BTreeMap::new();
    for line in text.lines() {
        // ADDRESS POLICY [file=NAME] [huge] [anon=N] ... N0=PAGES N1=PAGES kernelpagesize_kB=4
        let words = || line.split(' ').skip(2);
        let value = |word: &str, name: &str| word.strip_prefix(name)?.parse::<u64>().ok();
        let page = Bytes::kib(words().find_map(|word| value(word, "kernelpagesize_kB=")).unwrap_or(4));
        let is_hugetlb = words().any(|word| word == "huge");
        for word in words() {
            let on_node = word.strip_prefix('N').and_then(|rest| rest.split_once('='));
            let Some((Ok(node), Ok(pages))) =
                on_node.map(|(node, pages)| (node.parse(), pages.parse::<u64>()))
            else {
                continue;
            };
            let bytes = Bytes(pages.saturating_mul(page.0));
            let sums = nodes.entry(node).or_default();
            *(if is_hugetlb { &mut sums.hugetlb } else { &mut sums.other }) += bytes;
        }
    }
    Ok(nodes)
}

/// Returns the nodes on whose processors threads of `pid` have run last. Only the first 64 threads
/// count.
pub fn nodes_run_on(root: &KernelRoot, pid: Pid) -> Result<BTreeSet<u32>, KernelError> {
    let nodes: BTreeMap<u32, u32> = crate::hugetlb::nodes(root)?
        .into_iter()
        .flat_map(|node| {
            let list = root.read(format!("sys/devices/system/node/node{node}/cpulist")).unwrap_or_default();
            cpus(&list).into_iter().map(move |cpu| (cpu, node))
        })
        .collect();
    let processor = |thread: &String| {
        let stat = root.read(format!("proc/{pid}/task/{thread}/stat")).ok()?;
        // The 39th field; the name, in parentheses, may hold anything.
        let cpu = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().nth(39 - 3)?.parse().ok()?;
        nodes.get(&cpu).copied()
    };
    Ok(root.list(format!("proc/{pid}/task"))?.iter().take(MOST_THREADS).filter_map(processor).collect())
}

/// Returns the processors of a list such as `0-3,8`.
fn cpus(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    // No more than the kernel can be built for.
    list.trim().split(',').filter_map(range).flatten().take(8192).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    /// Lines from a machine with two nodes, Linux 6.12: process 9 has hugetlb pages on both.
    const MAPS: &str = "\
55d1c7a00000 default file=/usr/bin/python3.11 mapped=100 active=0 N0=60 N1=40 kernelpagesize_kB=4\n\
7f0000000000 default anon=1024 dirty=1024 N1=1024 kernelpagesize_kB=4\n\
7f4000000000 bind:0 file=/anon_hugepage\\040(deleted) huge anon=5 dirty=5 N0=3 N1=2 kernelpagesize_kB=2048\n\
7f5000000000 default file=/N0=7\\040x huge dirty=1 N0=1 kernelpagesize_kB=1048576\n\
7ffc00000000 default stack\n";

    #[test]
    fn pages_are_summed_up_by_node_and_kind() {
        let (_keep, root) = captured_tree(&[("proc/9/numa_maps", MAPS)]);
        let nodes = memory_by_node(&root, Pid(9)).unwrap();
        assert_eq!(nodes.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(nodes[&0], OnNode { hugetlb: Bytes::mib(6) + Bytes::gib(1), other: Bytes::kib(240) });
        assert_eq!(nodes[&1], OnNode { hugetlb: Bytes::mib(4), other: Bytes::kib(160 + 4096) });
        assert!(memory_by_node(&root, Pid(10)).is_err());
    }

    #[test]
    fn its_threads_processors_show_where_it_runs() {
        let stat = |cpu: u32| format!("9 (a) b) S {}{cpu} 0 0\n", "0 ".repeat(35));
        let (_keep, root) = captured_tree(&[
            ("proc/9/task/9/stat", &stat(2)),
            ("proc/9/task/12/stat", &stat(8)),
            ("sys/devices/system/node/node0/cpulist", "0-3,8\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7\n"),
        ]);
        assert_eq!(nodes_run_on(&root, Pid(9)).unwrap(), BTreeSet::from([0]));
        assert_eq!(cpus("0-2,7,9-9\n"), [0, 1, 2, 7, 9]);
        assert_eq!(cpus("\n"), Vec::<u32>::new());
    }

    #[test]
    fn our_own_memory_lies_on_nodes() {
        let (root, own) = (KernelRoot::live(), Pid(std::process::id().cast_signed()));
        let Ok(nodes) = memory_by_node(&root, own) else {
            return megapage_testing::skip("needs a kernel with NUMA");
        };
        let sum: Bytes = nodes.values().map(|node| node.other).sum();
        assert!(sum > Bytes::kib(100), "{nodes:?}");
        assert!(nodes_run_on(&root, own).unwrap().iter().all(|node| *node < 4096));
    }
}
