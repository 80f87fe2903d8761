//! Kernel files to immutable snapshots: the owners of memory, its mapping, its heat and the cost of
//! its translation.

#![forbid(unsafe_code)]

mod cached;
pub mod cost;
mod machine;
mod mappings;
mod observer;
pub mod outline;
mod owners;
mod page_tables;
pub mod pools;
mod process;
mod regions;
mod select;
pub mod tracker;
pub mod unmovable;
pub mod watch;

pub use machine::machine;
pub use megapage_snapshot::*;
pub use observer::{
    BootClock, Clock, NEW_WEIGHT, ObserveError, Observer, Options, Thoroughness, ZeroScanned, count_zeros,
};
pub use page_tables::PageTables;
pub use process::{process_id, shares_stack, sharing_child};
pub use regions::on_larger_folios;
pub use select::{SelectError, select_processes};
