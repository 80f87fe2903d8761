//! Handles: numbers under which the library keeps the objects that a program has open.

use crate::failure::{Failure, errno};
use crate::waiting::Waiting;
use megapage_segment::{Heap, Pool, Segment};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The next handle. All kinds share one sequence, so that a handle of one kind is never valid for
/// another.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The open objects of one kind.
pub(crate) struct Table<T> {
    what: &'static str,
    entries: RwLock<BTreeMap<u64, Arc<T>>>,
}

pub static POOLS: Table<Pool> = Table::new("pool");
pub static SEGMENTS: Table<Segment> = Table::new("segment");
pub static HEAPS: Table<Heap> = Table::new("heap");
pub static LISTENERS: Table<Waiting> = Table::new("listener");

impl<T> Table<T> {
    const fn new(what: &'static str) -> Table<T> {
        Table { what, entries: RwLock::new(BTreeMap::new()) }
    }

    pub fn add(&self, value: T) -> u64 {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.entries.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::new(value));
        id
    }

    /// Returns the object that is open under this number. It lives until its last user is done,
    /// even if it is closed meanwhile.
    pub fn get(&self, id: u64) -> Result<Arc<T>, Failure> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(&id).cloned().ok_or_else(|| self.unknown(id))
    }

    pub fn close(&self, id: u64) -> Result<(), Failure> {
        let removed = self.entries.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        // Dropped outside the lock, for unmapping takes a while.
        removed.map(drop).ok_or_else(|| self.unknown(id))
    }

    pub fn holds(&self, id: u64) -> bool {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).contains_key(&id)
    }

    /// Closes this number, and returns its object. Refuses while another thread uses it.
    pub fn take(&self, id: u64) -> Result<T, Failure> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.remove(&id).ok_or_else(|| self.unknown(id))?;
        Arc::try_unwrap(entry).map_err(|used| {
            entries.insert(id, used);
            Failure::new(errno::EBUSY, format!("{} {id} is in use by another thread", self.what))
        })
    }

    /// Opens an object under the number again that it was taken from.
    pub fn put_back(&self, id: u64, value: T) {
        self.entries.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::new(value));
    }

    fn unknown(&self, id: u64) -> Failure {
        Failure::new(errno::EBADF, format!("{id} is no open {}", self.what))
    }
}
