//! System calls from inside a program: its malloc, its loader, its calls of mmap(2) and fork(2).
//!
//! All that libmegapage.so asks of the kernel is here. So an audit of a preloaded library has to
//! read this crate and `preload`. Calls are instructions of this crate ([`call`]), and go by no
//! name that a program may define. Unsafe code is opt-in per file, under a header that states the
//! file's obligations.
//!
//! Architecture invariant: nothing here allocates, except functions that say so. Nothing here takes
//! a lock of the C library's, and nothing decides. A function asks the kernel for one thing, and
//! reports the answer.

#![deny(unsafe_code)]

mod base_pages;
mod clock;
pub mod connect;
#[cfg(test)]
mod counted_tests;
mod environment;
mod errno;
mod exit_handshake;
pub mod extent;
mod futex;
mod held;
mod lock;
pub mod memory_file;
mod moving;
pub mod names;
pub mod off;
mod own_hugetlb;
pub mod own_mappings;
mod own_region;
mod own_values;
pub mod pagemap_scan;
pub mod passing;
pub mod program_memory;
pub mod program_shared;
mod range;
pub mod room;
pub mod runtime_file;
mod shared;
mod system;
mod user;

pub use base_pages::{base_page_size, has_supported_base_pages};
pub use clock::{find_clock, monotonic};
pub use environment::{
    MAX_VALUE, environment_is_ready, environment_list_item, environment_variable, is_secure,
    remove_environment_variable, remove_from_environment_list,
};
pub use errno::{Errno, ErrnoGuard, NoCancel, set_errno};
pub use exit_handshake::ExitHandshake;
pub use futex::{sleep, sleep_while, wake_all};
pub use held::{fork_state, holds_locks, set_fork_state};
pub use lock::{Held, Lock, Locked};
pub use moving::{Alone, NoHugetlb, NotMoved, try_hugetlb, try_move};
pub use own_hugetlb::{FreeByNode, HugetlbRoom, hugetlb_free_by_node, hugetlb_room};
pub use own_region::{OwnRegion, leave_descriptors};
pub use own_values::{
    Descriptor, default_hugetlb_size, hugetlb_available, main_has_ended, memory_available_and_total,
    own_resident, thp_is_possible, thp_only_on_advice, thread_count,
};
pub use range::{
    Borrowed, Guarded, Owned, Reservation, allocate_words, has_addresses, is_plausible, lock_all_memory,
    release_words, without_signals,
};
pub use shared::{SHARED_WORDS, SharedWords};
pub use system::{
    ANY_FILTERS, FILTERS_VARIABLE, call, call_for_program, exit_process, own_pid, own_thread,
    set_thread_name, thread_exists,
};
pub use user::{effective_gid, effective_uid};
