//! The only crate that makes a system call, maps memory, or names a path under /proc or /sys.
//!
//! Readers take a [`KernelRoot`], so that every one of them also runs on a captured tree (see
//! `fixtures/`). Unsafe code is opt-in per file, under a header that states the file's obligations.
//!
//! Architecture invariant: nothing here decides anything. A function either reports what the kernel
//! says, or asks the kernel for one thing and reports the answer.

#![deny(unsafe_code)]

#[cfg(feature = "bpf")]
mod bpf;
mod calls;
mod children;
mod readers;
mod root;

/// Error numbers of errno(3).
pub mod errno {
    pub use libc::{EACCES, EINVAL, EMFILE, ENFILE, ENODEV, ENOENT, ENOSYS, EOPNOTSUPP, EPERM, EROFS, ESRCH};
}

#[cfg(feature = "bpf")]
pub use bpf::{function_calls, page_tables};
pub use calls::{
    ability, clear_refs, descriptors, directory, exec, file_cache, lru, own_advice, own_segments, page_idle,
    perf, process_madvise, reclaim, runtime_directory, service, shared_memory, socket, spare, tree, trusted,
};
pub use children::{background, canary, guard, helper, probe, spawn};
pub use readers::{
    accounting, buddyinfo, cgroup, file_locks, glibc, hugetlb, hugetlb_users, identity, json_path,
    kpageflags, limits, maps, memory_nodes, mounts, numa, object, off, page_reporting, pageblocks, pagemap,
    pressure, process, program_file, remote_read, smaps, thp, vmstat,
};

use calls::{
    c_library, clock, mapped, mapped_vec, no_links, own_memory, own_thp, process_clock, raw_syscall,
    shared_mapping, timed_memory, word_runs,
};
use children::helper_time;
use readers::{base_pages, cpu_time, cpuid, machine, meminfo};

pub use base_pages::{OtherBasePages, require_base_pages};
pub use clock::{boot_id, boot_time, monotonic_time, process_cpu_time};
pub use cpu_time::cpu_time_of;
pub use cpuid::processor_of_tlbs;
pub use machine::{Machine, Processor, kernel_release, machine, processor};
pub use mapped_vec::MappedVec;
pub use megapage_inside::{
    ANY_FILTERS, Borrowed, Errno, ErrnoGuard, ExitHandshake, FILTERS_VARIABLE, Locked, MAX_VALUE, NoHugetlb,
    Reservation, SHARED_WORDS, SharedWords, base_page_size, effective_gid, effective_uid,
    environment_is_ready, environment_variable, extent, find_clock, has_supported_base_pages,
    hugetlb_available, is_plausible, own_mappings, own_names, program_memory, remove_environment_variable,
    remove_from_environment_list, thp_is_possible, thread_count, usual_own_names, without_signals,
};
pub use meminfo::{MemInfo, meminfo, node_meminfo};
pub use off::why_off;
pub use own_memory::own_memory;
pub use own_thp::{disable_own_thp, enable_own_thp};
pub use process_clock::ProcessClock;
pub use root::{KernelError, KernelRoot, optional};
pub use shared_mapping::{Populate, SharedMapping};
pub use timed_memory::{AccessOrder, TimedMemory, TimedPages};
pub use word_runs::{clear_words, fill_words};
