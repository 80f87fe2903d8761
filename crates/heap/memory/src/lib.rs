//! Huge memory that a program owns: the backing chain behind the preloaded allocator.
//!
//! Architecture invariant: nothing here allocates or prints, and the program's errno stays as it
//! was. It runs inside `malloc`.

#![forbid(unsafe_code)]

mod chunk;
mod collapse;
mod config;
mod exit;
mod heap;
mod ledger;
pub mod mapped;
mod prim;
pub mod shared;
mod span;
pub mod stock;
mod sync;

pub use chunk::{Chunk, Mapping, SLICE};
pub use collapse::{Collapser, LEAST_PRESENT, Look};
pub use config::{Config, Fork, Heap};
pub use heap::{HugeHeap, LARGE_BLOCK, Repair, Repaired, Reserved};
pub use ledger::{
    Backing, CHILDREN_VARIABLE, FORK_VARIABLE, FORMAT, FallBack, HEAP_VARIABLE, LEDGER_VARIABLE, Ledger,
    MOST_RANGES, POPULATE_VARIABLE, RETURN_AFTER_VARIABLE, SHORT_BELOW_VARIABLE, SPARES_VARIABLE,
    SharedBacking,
};
pub use prim::{Kernel, Prim};
