//! Holders of memory that the kernel can neither move nor reclaim: it keeps free memory from
//! becoming free huge pages.
//!
//! A process holds its long-term pinned memory (VmPin), its page tables (VmPTE) and the kernel
//! stacks of its threads. Its locked memory (VmLck) counts if compaction may not touch it. The sum
//! is a lower bound: slab, per-CPU data and buffers of drivers and sockets belong to no process.
//! The sums in `/proc/meminfo` for the machine are reported beside it. One such base page keeps a
//! whole 2 MiB block from becoming a huge page. So the bytes show the processes involved, not the
//! number of lost blocks.

use megapage_kernel::{KernelError, KernelRoot, meminfo, process, reclaim};
use megapage_snapshot::wire;
use megapage_units::{Bytes, Pid};
use serde::Serialize;

/// Kernel stack of one thread on x86-64 (THREAD_SIZE, without KASAN).
const KERNEL_STACK: Bytes = Bytes::kib(16);

/// One process, with its unmovable memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Process.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// Command name.
    pub command: String,
    /// Sum of the four values below.
    #[serde(serialize_with = "wire::bytes", rename = "bytes")]
    pub sum: Bytes,
    /// Long-term pinned memory.
    #[serde(serialize_with = "wire::bytes")]
    pub pinned: Bytes,
    /// Page tables.
    #[serde(serialize_with = "wire::bytes")]
    pub page_tables: Bytes,
    /// Kernel stacks, 16 KiB for each thread.
    #[serde(serialize_with = "wire::bytes")]
    pub kernel_stacks: Bytes,
    /// Locked memory; zero where compaction may move it (vm.compact_unevictable_allowed=1, the
    /// default).
    #[serde(serialize_with = "wire::bytes")]
    pub locked: Bytes,
}

/// Unmovable memory: of the largest holders, and of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unmovable {
    /// Processes with the most unmovable memory, the largest first.
    pub holders: Vec<Holder>,
    /// Slab that can be neither moved nor reclaimed.
    #[serde(serialize_with = "wire::some_bytes")]
    pub slab_unreclaimable: Option<Bytes>,
    /// Slab that can be reclaimed but not moved.
    #[serde(serialize_with = "wire::some_bytes")]
    pub slab_reclaimable: Option<Bytes>,
    /// Page tables of all processes.
    #[serde(serialize_with = "wire::some_bytes")]
    pub page_tables: Option<Bytes>,
    /// Kernel stacks of all threads.
    #[serde(serialize_with = "wire::some_bytes")]
    pub kernel_stacks: Option<Bytes>,
    /// Per-CPU data.
    #[serde(serialize_with = "wire::some_bytes")]
    pub percpu: Option<Bytes>,
}

/// Returns the machine's unmovable memory, and the `most` processes with the most of it. Leaves out
/// processes that end meanwhile.
pub fn unmovable(root: &KernelRoot, most: usize) -> Result<Unmovable, KernelError> {
    let locked_counts = !reclaim::compacts_unevictable(root);
    let mut holders: Vec<Holder> = process::list_processes(root)?
        .into_iter()
        .filter_map(|pid| {
            let status = process::read_status(root, pid).ok()?;
            // A kernel thread has no user memory, and cannot be ended.
            if status.page_tables == Bytes::ZERO {
                return None;
            }
            let kernel_stacks = KERNEL_STACK * status.threads;
            let locked = if locked_counts { status.locked } else { Bytes::ZERO };
            Some(Holder {
                pid,
                command: status.name,
                sum: status.pinned + status.page_tables + kernel_stacks + locked,
                pinned: status.pinned,
                page_tables: status.page_tables,
                kernel_stacks,
                locked,
            })
        })
        .collect();
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.sum), holder.pid));
    holders.truncate(most);
    let info = meminfo(root)?;
    Ok(Unmovable {
        holders,
        slab_unreclaimable: info.slab_unreclaimable,
        slab_reclaimable: info.slab_reclaimable,
        page_tables: info.page_tables,
        kernel_stacks: info.kernel_stacks,
        percpu: info.percpu,
    })
}
