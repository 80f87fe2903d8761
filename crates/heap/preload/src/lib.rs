//! libmegapage.so: malloc for unmodified programs, on huge pages.
//!
//! mimalloc allocates; the `memory` crate puts huge pages behind it. This crate is the seam: the C entry
//! points of both, a constructor that reads what was asked, and the fork handlers.
//!
//! Architecture invariants: nothing here prints; nothing changes the program's errno but what the C
//! standard says; the program's children get no trace of the library unless asked; a setuid program never
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

/// What the program maps by itself.
static MAPPED: Mapped = Mapped::new();

/// The shared memory that it asks for.
static SHARED: Shared = Shared::new();
