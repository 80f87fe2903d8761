//! What the parts that threads share are made of. `tests/loom.rs` compiles the same parts with other ones, which try every
//! order of their accesses.

pub use megapage_kernel::SharedWords;
pub use std::sync::atomic::AtomicU64;
