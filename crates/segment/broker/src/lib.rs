//! A stock of pre-zeroed huge pages for the programs of this machine.
//!
//! The kernel clears a huge page when it is first touched, which is most of what touching it costs. The broker has it
//! done before: it keeps memory files whose pages are there ([`megapage_kernel::extent`]) and hands them over a socket.
//! Who may have how much is decided in [`leases`], which knows neither files nor sockets.
//!
//! Architecture invariant: an extent that was handed out is never handed out again, nor read or written here. Its pages
//! go back to the kernel's pool, which clears them for the next owner: so nothing of one user's reaches another,
//! whatever a client does and whenever the broker or a client is killed.

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
