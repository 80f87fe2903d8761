//! The integration tests of this crate, as one program, so that it is linked once.

mod examples;
mod installed;
mod python;
mod remap;
