//! Who holds memory that the kernel can neither move nor reclaim: what stands between free memory and free huge
//! pages.
//!
//! The measure, for a process: memory pinned for it in the long term (VmPin), its page tables (VmPTE), the kernel
//! stacks of its threads, and, where compaction may not touch it, its locked memory (VmLck). It is a lower bound:
//! slab, per-CPU data and buffers of drivers and sockets belong to no process; the machine's sums of those that
//! `/proc/meminfo` counts stand beside. One such base page in a 2 MiB block is enough to keep it from becoming a
//! huge page, so that the bytes say who is involved, not how many blocks are lost.

use megapage_kernel::{KernelError, KernelRoot, meminfo, process, reclaim};
use megapage_snapshot::wire;
use megapage_units::{Bytes, Pid};
use serde::Serialize;

/// The kernel's stack of one thread on x86-64 (THREAD_SIZE, without KASAN).
const KERNEL_STACK: Bytes = Bytes::kib(16);

/// One process and the unmovable memory that is held for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The process.
    #[serde(serialize_with = "wire::pid")]
    pub pid: Pid,
    /// Its command name.
    pub command: String,
    /// The sum of the four below.
    #[serde(serialize_with = "wire::bytes", rename = "bytes")]
    pub sum: Bytes,
    /// Pinned in the long term.
    #[serde(serialize_with = "wire::bytes")]
    pub pinned: Bytes,
    /// Page tables.
    #[serde(serialize_with = "wire::bytes")]
    pub page_tables: Bytes,
    /// Kernel stacks, 16 KiB for each thread.
    #[serde(serialize_with = "wire::bytes")]
    pub kernel_stacks: Bytes,
    /// Locked memory; zero where compaction may move it (vm.compact_unevictable_allowed=1, the default).
    #[serde(serialize_with = "wire::bytes")]
    pub locked: Bytes,
}

/// Unmovable memory: of the processes that hold most, and of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unmovable {
    /// The processes that hold most, the largest first.
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

/// The machine's unmovable memory and the `most` processes that hold most of it. Processes that end meanwhile
/// are left out.
pub fn unmovable(root: &KernelRoot, most: usize) -> Result<Unmovable, KernelError> {
    let locked_counts = !reclaim::compacts_unevictable(root);
    let mut holders: Vec<Holder> = process::list_processes(root)?
        .into_iter()
        .filter_map(|pid| {
            let status = process::read_status(root, pid).ok()?;
            // A kernel thread has no memory of its own, and cannot be ended.
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
