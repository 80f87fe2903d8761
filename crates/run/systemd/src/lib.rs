//! Puts services of systemd on huge pages. It reads a unit as systemd merges it, decides how to
//! reach the program, and writes or removes one drop-in.
//!
//! Architecture invariant: one file is written for a unit, `50-megapage.conf` in its drop-in
//! directory below /etc, and no other unit file is changed. A file with that name that megapage has
//! not written stays. Removing ours leaves the tree as it was.

#![forbid(unsafe_code)]

mod command;
mod decide;
mod drop_in;
mod enable;
mod error;
mod files;
mod journal;
mod manager;
mod name;
mod plain;
mod reach;
mod sandbox;
mod service;
mod specifier;
mod status;
mod syntax;

pub use command::{ExecCommand, commands, rewritten};
pub use decide::{Decision, decide};
pub use drop_in::{DROP_IN, DropIn, MARKER};
pub use enable::{Change, disable, enable, find};
pub use error::SystemdError;
pub use journal::journal;
pub use manager::{Manager, State};
pub use name::UnitName;
pub use plain::{ended, starting, why_plain};
pub use reach::{Addition, Asked, Way};
pub use service::{Entry, Service};
pub use status::{Enabled, Running, enabled, processes, status};
pub use syntax::{Assignment, parse};
