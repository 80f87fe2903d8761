//! The only crate that makes a system call, maps memory, or names a path under /proc or /sys.
//!
//! Readers take a [`KernelRoot`], so that every one of them also runs on a captured tree
//! (see `fixtures/`). Unsafe code is opt-in per file, under a header that states the file's obligations.
//!
//! Architecture invariant: nothing here decides anything. A function either reports what the kernel
//! says or asks the kernel for one thing and reports what it answered.

#![deny(unsafe_code)]

pub mod ability;
pub mod background;
mod base_pages;
pub mod buddyinfo;
pub mod cgroup;
pub mod clear_refs;
mod clock;
mod cpu_time;
mod cpuid;
pub mod damon;
pub mod descriptors;
pub mod directory;
mod environment;
pub mod exec;
mod exit_handshake;
pub mod file_cache;
pub mod file_locks;
pub mod first_touch;
mod futex;
pub mod glibc;
pub mod guard;
mod heap;
pub mod helper;
pub mod hugetlb;
pub mod hugetlb_users;
pub mod identity;
pub mod json_path;
pub mod known_child;
pub mod kpageflags;
pub mod limits;
mod lock;
pub mod lru;
mod machine;
mod mapped_vec;
pub mod maps;
mod meminfo;
pub mod memory_group;
pub mod memory_nodes;
pub mod mounts;
mod moving;
mod no_links;
pub mod numa;
pub mod own_advice;
mod own_code;
mod own_figures;
mod own_hugetlb;
pub mod own_mappings;
mod own_memory;
mod own_region;
pub mod own_segments;
pub mod own_touched;
pub mod page_idle;
#[cfg(feature = "bpf")]
pub mod page_tables;
pub mod pageblocks;
pub mod pagemap;
pub mod parcel;
pub mod perf;
pub mod pressure;
pub mod primer;
pub mod probe;
pub mod process;
mod process_clock;
pub mod process_madvise;
pub mod program_memory;
pub mod program_shared;
mod raw_syscall;
pub mod reclaim;
pub mod refusable;
pub mod remote_read;
mod root;
pub mod runtime_directory;
mod shared;
mod shared_mapping;
pub mod shared_memory;
pub mod smaps;
pub mod socket;
pub mod spawn;
pub mod thp;
pub mod thp_change;
mod timed_launch;
mod timed_memory;
mod touched_heap;
pub mod tree;
pub mod trusted;
mod user;
pub mod vmstat;
pub mod zram;

pub use base_pages::{OtherBasePages, base_page_size, has_supported_base_pages, require_base_pages};
pub use clock::{boot_id, boot_time, monotonic_time, process_cpu_time};
pub use cpu_time::cpu_time_of;
pub use cpuid::processor_of_tlbs;
pub use environment::{
    MAX_VALUE, environment_is_ready, environment_list_item, environment_variable,
    remove_environment_variable, remove_from_environment_list,
};
pub use exit_handshake::ExitHandshake;
pub use heap::{
    Errno, ErrnoGuard, NoCancel, OwnedRange, allocate_words, is_plausible, release_words, set_errno,
    without_signals,
};
pub use lock::{Lock, Locked};
pub use machine::{Machine, Processor, kernel_release, machine, processor};
pub use mapped_vec::MappedVec;
pub use meminfo::{MemInfo, meminfo, node_meminfo};
pub use moving::NoHugetlb;
pub use own_code::unmap_own_code;
pub use own_figures::{
    default_hugetlb_size, hugetlb_available, main_has_ended, memory_available_and_total, own_resident,
    thp_is_possible, thp_only_on_advice, thread_count,
};
pub use own_hugetlb::{FreeByNode, HugetlbRoom, hugetlb_free_by_node, hugetlb_room};
pub use own_memory::own_memory;
pub use own_region::{OwnRegion, leave_descriptors};
pub use process_clock::ProcessClock;
pub use root::{KernelError, KernelRoot};
pub use shared::{SHARED_WORDS, SharedWords};
pub use shared_mapping::SharedMapping;
pub use timed_launch::{HeldChild, Launch, Launched, launch};
pub use timed_memory::{AccessOrder, TimedMemory, TimedPages};
pub use touched_heap::{HeapPages, TouchedHeap};
pub use user::{effective_gid, effective_uid, umask};
