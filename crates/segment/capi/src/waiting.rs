//! A process that waits for its successor.

use crate::failure::Failure;
use megapage_segment::upgrade::{Listener, Successor};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A listener, and the successor that has connected.
pub(crate) struct Waiting {
    listener: Listener,
    successor: Mutex<Option<Successor>>,
}

impl Waiting {
    pub fn on(path: &Path) -> Result<Waiting, Failure> {
        Ok(Waiting::with(Listener::bind(path)?))
    }

    pub fn with(listener: Listener) -> Waiting {
        Waiting { listener, successor: Mutex::default() }
    }

    pub fn into_parts(self) -> (Listener, Option<Successor>) {
        (self.listener, self.successor.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn has_successor(&self) -> bool {
        self.successor().is_some()
    }

    pub fn descriptor(&self) -> i32 {
        self.listener.as_fd().as_raw_fd()
    }

    /// Waits at most `patience` for a successor. Returns true if there is one.
    pub fn wait(&self, patience: Duration) -> Result<bool, Failure> {
        if self.has_successor() {
            return Ok(true);
        }
        // Wait without the lock, for other threads may ask meanwhile.
        let Some(found) = self.listener.wait(patience)? else { return Ok(false) };
        *self.successor() = Some(found);
        Ok(true)
    }

    fn successor(&self) -> MutexGuard<'_, Option<Successor>> {
        self.successor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
