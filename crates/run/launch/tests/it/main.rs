//! The integration tests of this crate, as one program: it is linked once.

mod jvm;
mod mechanism;
mod program;
mod synthetic;
mod text;
