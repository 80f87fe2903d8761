//! Looks at a program, chooses a mechanism, starts it on huge pages, watches it and reports.

#![forbid(unsafe_code)]

mod elf;
mod libraries;
pub mod program;
