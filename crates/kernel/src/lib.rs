//! The only crate that makes a system call, maps memory, or names a path under /proc or /sys.
//!
//! Readers take a [`KernelRoot`], so that every one of them also runs on a captured tree
//! (see `fixtures/`). Unsafe code is opt-in per file, under a header that states the file's obligations.
//!
//! Architecture invariant: nothing here decides anything. A function either reports what the kernel
//! says or asks the kernel for one thing and reports what it answered.

#![deny(unsafe_code)]

pub mod ability;
pub mod accounting;
pub mod background;
mod base_pages;
#[cfg(feature = "bpf")]
mod bpf;
pub mod buddyinfo;
#[cfg(feature = "bpf")]
pub mod calls;
pub mod canary;
pub mod cgroup;
pub mod clear_refs;
mod clock;
mod cpu_time;
mod cpuid;
pub mod descriptors;
pub mod directory;
pub mod exec;
pub mod file_cache;
pub mod file_locks;
pub mod glibc;
pub mod guard;
pub mod helper;
mod helper_time;
pub mod hugetlb;
pub mod hugetlb_users;
pub mod identity;
pub mod json_path;
pub mod kpageflags;
pub mod ksm;
pub mod limits;
pub mod lru;
mod machine;
mod mapped_vec;
pub mod maps;
mod meminfo;
pub mod memory_nodes;
pub mod mounts;
mod no_links;
pub mod numa;
pub mod object;
pub mod off;
pub mod own_advice;
mod own_memory;
pub mod own_segments;
mod own_thp;
pub mod page_idle;
pub mod page_reporting;
#[cfg(feature = "bpf")]
pub mod page_tables;
pub mod pageblocks;
pub mod pagemap;
pub mod perf;
pub mod pressure;
pub mod probe;
pub mod process;
mod process_clock;
pub mod process_madvise;
pub mod processors;
pub mod program_file;
mod raw_syscall;
pub mod reclaim;
pub mod remote_read;
mod root;
pub mod runtime_directory;
pub mod service;
mod settings_change;
mod shared_mapping;
pub mod shared_memory;
pub mod smaps;
pub mod socket;
pub mod spare;
pub mod spawn;
pub mod thp;
pub mod thp_change;
mod timed_memory;
pub mod tree;
pub mod trusted;
pub mod vmstat;
mod word_runs;

pub use base_pages::{OtherBasePages, require_base_pages};
pub use clock::{boot_id, boot_time, monotonic_time, process_cpu_time};
pub use cpu_time::cpu_time_of;
pub use cpuid::processor_of_tlbs;
pub use machine::{Machine, Processor, kernel_release, machine, processor};
pub use mapped_vec::MappedVec;
pub use megapage_inside::{
    ANY_FILTERS, Errno, ErrnoGuard, ExitHandshake, FILTERS_VARIABLE, Locked, MAX_VALUE, NoHugetlb,
    OwnedRange, Reservation, SHARED_WORDS, SharedWords, base_page_size, effective_gid, effective_uid,
    environment_is_ready, environment_variable, extent, find_clock, has_supported_base_pages,
    hugetlb_available, is_plausible, own_mappings, own_names, program_memory, remove_environment_variable,
    remove_from_environment_list, thp_is_possible, thread_count, usual_own_names, without_signals,
};
pub use meminfo::{MemInfo, meminfo, node_meminfo};
pub use off::why_off;
pub use own_memory::own_memory;
pub use own_thp::{disable_own_thp, enable_own_thp};
pub use process_clock::ProcessClock;
pub use root::{KernelError, KernelRoot};
pub use shared_mapping::{Populate, SharedMapping};
pub use timed_memory::{AccessOrder, TimedMemory, TimedPages};
pub use word_runs::{clear_words, fill_words};
