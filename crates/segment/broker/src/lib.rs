//! A stock of pre-zeroed huge pages for the programs of this machine.
//!
//! The kernel clears a huge page when it is first touched, which is most of the cost of that touch.
//! The broker lets it do so before: it keeps memory files whose pages are there
//! ([`megapage_kernel::extent`]) and hands them over a socket. The module [`leases`], which knows
//! neither files nor sockets, decides on the share of each client.
//!
//! Architecture invariant: an extent that was handed out is never handed out again, nor read or
//! written here. Its pages go back to the kernel's pool, which clears them for the next owner. So
//! no data of one user reaches another, for any client, and for any time at which the broker or a
//! client is killed.

#![forbid(unsafe_code)]

mod clients;
mod filler;
mod give_back;
pub mod leases;
mod options;
mod recovery;
mod serve;
mod status;

pub use options::{BrokerError, Options};
pub use serve::{dry_run, run};
pub use status::{AskError, Holder, SCHEMA, Status, ask, patience_from_environment};
