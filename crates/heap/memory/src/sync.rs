//! Building blocks of the parts that threads share. `tests/loom.rs` compiles the same parts with
//! other blocks, which try every order of their accesses.

pub use megapage_inside::{Errno, Guarded, Reservation, SharedWords, allocate_words, release_words};
pub use std::sync::atomic::AtomicU64;

/// Ranges that the heap can hold at once; further ones are served without tracking. The allocator's
/// arenas double in size every eight, so that this many are far beyond any machine's memory.
pub const MAX_SPANS: usize = 512;
