//! Examines a program, chooses a mechanism, starts it on huge pages, watches it and reports.
//!
//! Architecture invariant: the choice ([`mechanism`], [`runtimes`]) is pure; [`program`] and
//! [`machine`] gather its facts. A report takes the mapped memory from the kernel and the heap's
//! requests from the ledger, and shows the two side by side.

#![forbid(unsafe_code)]

pub mod applications;
pub mod attach;
mod backed;
pub mod broker;
#[doc(hidden)]
pub mod elf;
pub mod jvm;
pub mod kind;
pub mod kinds;
mod libraries;
pub mod machine;
pub mod mechanism;
mod memory;
pub mod messages;
pub mod program;
pub mod promoter;
mod proof;
mod regions;
pub mod relay;
pub mod report;
pub mod request;
pub mod run;
mod run_error;
mod runtime_log;
pub mod runtimes;
pub mod sample;
pub mod switched_off;
pub mod text;
pub mod verdict;
pub mod versions;
pub mod why;
