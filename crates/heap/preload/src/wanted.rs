//! The threads that code within the allocator has found wanted, started where the caller holds none of its locks.

use crate::{collapser, returner, threads};
use std::sync::atomic::Ordering::Relaxed;

/// Starts the threads that are wanted. Called from malloc, where the caller holds no lock of the allocator; whatever
/// pthread_create allocates comes back here and finds nothing wanted any more.
#[cold]
pub fn start_wanted() {
    if threads::thread_wanted().swap(false, Relaxed) {
        returner::start();
        collapser::start();
    }
}
