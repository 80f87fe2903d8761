//! Code and data of executables and libraries on huge pages.
//!
//! The kernel maps a file's pages by 2 MiB entries where they lie in folios of that size, and where the file offset
//! and the address agree modulo 2 MiB. [`prime`] brings a file's page cache into such folios; [`align`] lays an
//! executable out anew, so that offsets and addresses agree; [`check`] says what a file would gain by either, and
//! what only its linker could win. [`own`] moves the segments of the process that calls it onto huge pages of its own.
//!
//! Architecture invariant: no program is executed to be looked at, and what is planned ([`align::plan`],
//! [`layout`]) is a pure function of the file's headers. What was obtained is what a page table shows.

#![forbid(unsafe_code)]

pub mod align;
pub mod check;
mod elf;
mod error;
pub mod layout;
pub mod ledger;
pub mod own;
pub mod prime;
mod users;

pub use elf::{Binary, Placement, Section, Segment, read_binary};
pub use error::RemapError;
pub use users::{MappedFile, User, mapped_files};
