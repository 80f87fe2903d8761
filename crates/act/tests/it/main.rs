//! The integration tests of this crate, as one program: it is linked once.

mod excluded;
mod forked;
mod own_memory;
mod pool;
mod soak;
