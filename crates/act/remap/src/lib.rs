//! Code and data of executables and libraries on huge pages.
//!
//! The kernel maps a file's pages by 2 MiB entries where they lie in folios of that size, and where the file offset
//! and the address agree modulo 2 MiB. [`prime`] brings a file's page cache into such folios; [`check`] says what a
//! file would gain by that, and what only its linker could win. [`own`] moves the segments of the calling process onto
//! huge pages.
//!
//! Architecture invariant: no program is executed to be looked at, and a layout ([`layout`]) is
//! a pure function of the file's headers. What was obtained is what a page table shows.

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
