//! Start of the threads that code within the allocator has found wanted: the caller here holds none
//! of its locks.

use crate::{collapser, returner, threads};
use std::sync::atomic::Ordering::Relaxed;

/// Starts the threads that are wanted. Called from malloc, where the caller holds no lock of the
/// allocator. When pthread_create allocates, it comes back here and finds nothing wanted any more.
#[cold]
pub fn start_wanted() {
    if threads::thread_wanted().swap(false, Relaxed) {
        returner::start();
        collapser::start();
    }
}
