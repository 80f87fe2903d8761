//! Page sizes, byte counts and address ranges as distinct types.
//!
//! Architecture invariant: no I/O, no clock, no threads, no dependencies. Everything here is a
//! value.

#![forbid(unsafe_code)]

mod bytes;
mod huge;
mod named;
mod page;
mod range;
pub mod shown;

pub use bytes::{Bytes, ParseBytesError};
pub use huge::{HugeCount, HugePage, HugeRange};
pub use page::{BASE_PAGE, HUGE_1G, HUGE_2M, PageSize, ParsePageSizeError};
pub use range::VirtRange;

/// A process identifier, as in `/proc/PID`. Always positive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub i32);

impl std::fmt::Display for Pid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
