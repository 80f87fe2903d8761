//! What the parts that threads share are made of. `tests/loom.rs` compiles the same parts with other ones, which try every
//! order of their accesses.

pub use megapage_inside::{Errno, OwnedRange, Reservation, SharedWords, allocate_words, release_words};
pub use std::sync::atomic::AtomicU64;

/// How many ranges the heap can hold at once; further ones are served without tracking. The allocator's
/// arenas double in size every eight, so that this is far beyond any machine's memory.
pub const MAX_SPANS: usize = 512;
