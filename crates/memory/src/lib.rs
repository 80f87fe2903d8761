//! Huge memory that a program owns: the backing chain behind the preloaded allocator.
//!
//! Architecture invariant: nothing here allocates, prints, or keeps the program's errno changed. It runs
//! inside `malloc`.

#![forbid(unsafe_code)]

mod ledger;

pub use ledger::{
    Backing, FORMAT, FallBack, HEAP_VARIABLE, LEDGER_VARIABLE, Ledger, POPULATE_VARIABLE,
    RETURN_AFTER_VARIABLE,
};
