//! Code and data of executables and libraries on huge pages.
//!
//! The kernel maps a file's pages by 2 MiB entries if they lie in folios of that size. File offset
//! and address must also agree modulo 2 MiB. [`prime`] brings a file's page cache into such folios.
//! [`check`] reports the gain of a file by that, and the gain that only its linker could give.
//! [`own`] moves the segments of the calling process onto huge pages.
//!
//! Architecture invariant: no program is executed to be looked at, and a layout ([`layout`]) is a
//! pure function of the file's headers. Only a page table proves what was obtained.

#![forbid(unsafe_code)]

pub mod check;
mod elf;
mod error;
pub mod layout;
pub mod ledger;
pub mod own;
pub mod prime;
mod users;

pub use elf::{Binary, Placement, Segment, read_binary};
pub use error::RemapError;
pub use users::{MappedFile, User, mapped_files};
