//! Requirements of tests on the machine: loud skips, the machine lock, and pools, settings, swap
//! and control groups that are restored.
//!
//! A test that needs root or hugetlb pages reads
//! ```no_run
//! # use megapage_testing::PoolGuard;
//! # use megapage_units::PageSize;
//! let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 16) else { return };
//! ```
//! and either has the pages until the guard is dropped, or has been reported as skipped.
//!
//! Architecture invariant: for `dev-dependencies` and the laboratory; no crate that ships depends
//! on this one.

#![deny(unsafe_code)]

mod built;
mod command;
mod held_lock;
pub mod ksm;
mod lock;
mod memory_group;
mod mount;
mod pool;
pub mod processors;
mod refuse;
mod settings_change;
mod skip;
pub mod thp_change;
mod thp_setting;
mod undo;
mod zram;

pub use built::build_programs;
pub use command::{PATIENCE, assert_refused, copied, script, until, until_within, wait_for};
pub use held_lock::HeldLock;
pub use lock::MachineLock;
pub use memory_group::{GroupUsage, MemoryGroup};
pub use mount::unmount;
pub use pool::{LEAST_AVAILABLE, PoolGuard};
pub use refuse::{Call, in_child, refuse, with_data_limited};
pub use skip::{
    MACHINE_VARIABLE, NO_SKIP_VARIABLE, SKIPPED_VARIABLE, is_root, may_change_machine, require_machine,
    require_root, skip, skip_scarce,
};
pub use thp_setting::ThpSetting;
pub use zram::ZramSwap;
