//! Functions of the next library in the loader's order: the C library's, or another interposer's.
//!
//! File-level obligation: the loader is given a C string. An address is called by its owner, which knows the function's type.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A function by its name; null until it was looked up.
pub struct Next {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicUsize::new(0) }
    }

    /// Its address, looked up where that was not done yet. `None`: there is none.
    pub fn find(&self) -> Option<usize> {
        self.get().or_else(|| {
            // SAFETY: the name is a C string.
            self.address.store(unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize, Relaxed);
            self.get()
        })
    }

    /// Its address, as far as it was looked up: dlsym(3) allocates, which is not possible everywhere.
    pub fn get(&self) -> Option<usize> {
        Some(self.address.load(Relaxed)).filter(|address| *address != 0)
    }
}
