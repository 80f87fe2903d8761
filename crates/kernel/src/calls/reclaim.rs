//! Requests to the kernel to release its caches and to bring free memory together
//! (Documentation/admin-guide/sysctl/vm.rst). Both need root, do no harm to the memory that they
//! touch, and can take seconds on a large machine. The caller can interrupt neither.

use crate::hugetlb::PoolScope;
use crate::{KernelError, KernelRoot};

/// `vm.drop_caches`, relative to the root.
pub const DROP_CACHES: &str = "proc/sys/vm/drop_caches";
/// Text to write there: 1 (page cache) + 2 (reclaimable slab). Dirty pages stay.
pub const DROP_ALL: &str = "3";

/// Drops clean page cache and reclaimable slab.
pub fn drop_caches(root: &KernelRoot) -> Result<(), KernelError> {
    root.write(DROP_CACHES, DROP_ALL)
}

/// Returns the file that starts compaction when 1 is written, relative to the root:
/// `vm.compact_memory` for the machine, `nodeN/compact` for a node.
pub fn compact_path(scope: PoolScope) -> String {
    match scope {
        PoolScope::Machine => "proc/sys/vm/compact_memory".to_string(),
        PoolScope::Node(node) => format!("sys/devices/system/node/node{node}/compact"),
    }
}

/// Compacts all zones of the machine or of a node. ENOENT if the kernel was built without
/// compaction.
pub fn compact(root: &KernelRoot, scope: PoolScope) -> Result<(), KernelError> {
    root.write(compact_path(scope), "1")
}

/// Returns true if compaction may move mlocked pages (`vm.compact_unevictable_allowed`; 1 unless
/// PREEMPT_RT).
pub fn compacts_unevictable(root: &KernelRoot) -> bool {
    root.read_u64("proc/sys/vm/compact_unevictable_allowed").is_ok_and(|allowed| allowed != 0)
}
