//! libmegapage.so: malloc for unmodified programs, on huge pages.
//!
//! mimalloc allocates; the `memory` crate puts huge pages behind it. This crate joins the two:
//! their C entry points, a constructor that reads the configuration, and the fork handlers.
//!
//! Architecture invariants: nothing here prints. The program's errno changes only as the C standard
//! says. The program's children get no trace of the library unless asked. A setuid program never
//! loads it (ld.so(8), secure-execution mode).

#![deny(unsafe_code)]

mod collapser;
mod entry;
mod interpose;
mod jump;
mod lifecycle;
mod limits;
mod mappings;
mod next;
mod primitives;
mod returner;
mod segments;
mod thp_disable;
mod threads;
mod wanted;

use megapage_memory::HugeHeap;
use megapage_memory::mapped::Mapped;
use megapage_memory::shared::Shared;

/// The heap of this process.
static HEAP: HugeHeap = HugeHeap::new();

/// The program's own mappings.
static MAPPED: Mapped = Mapped::new();

/// The shared memory that the program asks for.
static SHARED: Shared = Shared::new();
