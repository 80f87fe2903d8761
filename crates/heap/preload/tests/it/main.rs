//! The integration tests of this crate, as one program: it is linked once.

mod exec;
mod mapped;
mod preloaded;
mod secure;
mod sizes;
mod thp_disable;
mod thread_cache;
mod waiting;
