//! The integration tests of this crate, as one program: it is linked once.

mod chain;
mod limits;
mod refused;
