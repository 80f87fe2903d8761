//! The integration tests of this crate, as one program: it is linked once.

mod examples;
mod installed;
mod python;
mod remap;
