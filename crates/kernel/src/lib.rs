//! The only crate that makes a system call, maps memory, or names a path under /proc or /sys.
//!
//! Readers take a [`KernelRoot`], so that every one of them also runs on a captured tree
//! (see `fixtures/`). Unsafe code is opt-in per file, under a header that states the file's obligations.
//!
//! Architecture invariant: nothing here decides anything. A function either reports what the kernel
//! says or asks the kernel for one thing and reports what it answered.

#![deny(unsafe_code)]

pub mod buddyinfo;
pub mod cgroup;
mod clock;
mod environment;
pub mod exec;
pub mod glibc;
mod heap;
pub mod hugetlb;
pub mod hugetlb_users;
pub mod identity;
pub mod limits;
mod lock;
mod machine;
mod meminfo;
pub mod mounts;
mod own_memory;
pub mod pageblocks;
pub mod pagemap;
pub mod probe;
pub mod process;
pub mod promote;
pub mod reclaim;
mod root;
mod shared;
pub mod smaps;
pub mod spawn;
pub mod thp;
mod user;

pub use clock::process_cpu_time;
pub use environment::{
    MAX_VALUE, environment_is_ready, environment_list_item, environment_variable,
    remove_environment_variable, remove_from_environment_list,
};
pub use heap::{
    Errno, ErrnoGuard, OwnedRange, allocate_words, hugetlb_available, is_plausible, main_has_ended,
    memory_available_and_total, release_words, set_errno, thp_is_possible, thread_count,
};
pub use lock::{Lock, Locked};
pub use machine::{Machine, machine};
pub use meminfo::{MemInfo, meminfo, node_meminfo};
pub use own_memory::own_memory;
pub use root::{KernelError, KernelRoot};
pub use shared::{SHARED_WORDS, SharedWords};
pub use user::{effective_gid, effective_uid};
