//! The machine as a whole: memory, fragmentation, pools, settings, counters, pressure.

use megapage_kernel::buddyinfo::{self, FreeBlocks, buddyinfo};
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_kernel::pressure::memory_pressure;
use megapage_kernel::{KernelError, KernelRoot, meminfo, optional, thp, vmstat};
use megapage_snapshot::{Counters, Machine, Memory, Node, Pool};
use megapage_units::{Bytes, PageSize};
use std::collections::BTreeMap;

/// Counters besides those of [`COUNTER_FAMILIES`]: page faults, swapping, out-of-memory kills,
/// allocation stalls, and huge pages allocated for the hugetlb pools.
const COUNTERS: [&str; 8] = [
    "pgfault",
    "pgmajfault",
    "pswpin",
    "pswpout",
    "oom_kill",
    "allocstall_normal",
    "allocstall_movable",
    "htlb_buddy_alloc_success",
];

/// Prefixes of the counters that are read.
const COUNTER_FAMILIES: [&str; 3] = ["thp_", "compact_", "pgmigrate_"];

/// Reads the state of the machine, in about 0.2 ms.
pub fn machine(root: &KernelRoot) -> Result<Machine, KernelError> {
    let info = meminfo(root)?;
    let bytes = |value: Option<Bytes>| value.unwrap_or(Bytes::ZERO);
    Ok(Machine {
        memory: Memory {
            total: bytes(info.total),
            free: bytes(info.free),
            // Linux before 3.14 has no estimate; free memory is its lower bound.
            available: bytes(info.available.or(info.free)),
            swap_total: bytes(info.swap_total),
            swap_free: bytes(info.swap_free),
            anon_huge: bytes(info.anon_huge),
        },
        nodes: nodes(&buddyinfo(root)?),
        pools: pools(root)?,
        thp: thp::settings(root)?,
        counters: counters(root)?,
        pressure: memory_pressure(root)?,
    })
}

/// Adds up the zones of each node.
fn nodes(zones: &[FreeBlocks]) -> Vec<Node> {
    let order = buddyinfo::order(PageSize::HUGE_2M);
    let mut nodes: BTreeMap<u32, (Bytes, Bytes)> = BTreeMap::new();
    for zone in zones {
        let (free, usable) = nodes.entry(zone.node).or_default();
        *free += zone.free();
        *usable += zone.free_from(order);
    }
    nodes
        .into_iter()
        .map(|(node, (free, usable))| Node {
            node,
            free,
            huge_available: usable.0 / PageSize::HUGE_2M.bytes().0,
            fragmentation: (free.0 > 0).then(|| (free - usable).0 as f64 / free.0 as f64),
        })
        .collect()
}

fn pools(root: &KernelRoot) -> Result<Vec<Pool>, KernelError> {
    hugetlb::page_sizes(root)?
        .into_iter()
        .map(|page_size| {
            let counts = hugetlb::counts(root, page_size, PoolScope::Machine)?;
            Ok(Pool {
                page_size,
                total: counts.total,
                free: counts.free,
                reserved: counts.reserved.unwrap_or(0),
                surplus: counts.surplus,
            })
        })
        .collect()
}

fn counters(root: &KernelRoot) -> Result<Counters, KernelError> {
    let wanted = |name: &str| {
        COUNTERS.contains(&name) || COUNTER_FAMILIES.iter().any(|family| name.starts_with(family))
    };
    // A kernel without CONFIG_VM_EVENT_COUNTERS may have no such file.
    Ok(optional(vmstat::vmstat(root, wanted))?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zones_of_a_node_are_added_up() {
        let zone = |node, counts: &[u64]| FreeBlocks { node, counts: counts.to_vec() };
        let mut scattered = vec![0; 11];
        scattered[0] = 512;
        let mut whole = vec![0; 11];
        whole[9] = 1;
        whole[10] = 1;
        let nodes = nodes(&[zone(0, &scattered), zone(0, &whole), zone(1, &[0; 11])]);
        assert_eq!(nodes[0].free, Bytes::mib(2 + 2 + 4));
        assert_eq!((nodes[0].huge_available, nodes[0].fragmentation), (3, Some(0.25)));
        assert_eq!((nodes[1].huge_available, nodes[1].fragmentation), (0, None), "nothing is free");
    }

    #[test]
    fn this_machine_and_a_sparse_one_are_read() {
        let live = machine(&KernelRoot::live()).unwrap();
        assert!(live.memory.total > live.memory.free && !live.nodes.is_empty());
        assert!(live.counters.contains_key("pgfault"));
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("proc")).unwrap();
        std::fs::write(tree.path().join("proc/meminfo"), "MemTotal: 100 kB\nMemFree: 40 kB\n").unwrap();
        std::fs::write(tree.path().join("proc/buddyinfo"), "Node 0, zone Normal 10\n").unwrap();
        let sparse = machine(&KernelRoot::captured(tree.path())).unwrap();
        assert_eq!(sparse.memory.available, Bytes::kib(40));
        assert!(sparse.thp.is_none() && sparse.pressure.is_none() && sparse.pools.is_empty());
        assert_eq!(sparse.nodes[0].fragmentation, Some(1.0));
    }
}
