//! The integration tests of this crate, as one program: it is linked once.

mod exec;
mod guest;
mod limits;
mod mapped;
mod preloaded;
mod secure;
mod sizes;
mod symbols;
mod thp_disable;
mod thread_cache;
mod waiting;
