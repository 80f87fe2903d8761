//! The only crate that makes a system call, maps memory, or names a path under /proc or /sys.
//!
//! Readers take a [`KernelRoot`], so that every one of them also runs on a captured tree
//! (see `fixtures/`). Unsafe code is opt-in per file, under a header that states the file's obligations.
//!
//! Architecture invariant: nothing here decides anything. A function either reports what the kernel
//! says or asks the kernel for one thing and reports what it answered.

#![deny(unsafe_code)]

pub mod hugetlb;
mod meminfo;
mod root;
mod shared;
mod user;

pub use meminfo::{MemInfo, meminfo, node_meminfo};
pub use root::{KernelError, KernelRoot};
pub use shared::{SHARED_WORDS, SharedWords};
pub use user::effective_uid;
