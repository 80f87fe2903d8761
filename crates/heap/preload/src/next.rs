//! Functions of the next library in the loader's order: the C library's, or another interposer's.
//!
//! File-level obligation: the loader gets a C string. Each function has the type `F` that its
//! static names.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::transmute_copy;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A function of type `F`, by its name. Its address is null before the first look-up.
pub(crate) struct Next<F> {
    name: &'static CStr,
    address: AtomicUsize,
    function: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    pub const fn new(name: &'static CStr) -> Next<F> {
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        Next { name, address: AtomicUsize::new(0), function: PhantomData }
    }

    /// Returns the function; looks it up if that was not done yet. Returns `None` if there is none.
    pub fn find(&self) -> Option<F> {
        self.get().or_else(|| {
            // SAFETY: the name is a C string.
            self.address.store(unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize, Relaxed);
            self.get()
        })
    }

    /// Returns the function if it was looked up before, and otherwise `other`.
    pub fn get_or(&self, other: F) -> F {
        self.get().unwrap_or(other)
    }

    /// Returns the function if it was looked up before. A look-up allocates (dlsym(3)), which not
    /// every caller may.
    pub fn get(&self) -> Option<F> {
        let address = self.address.load(Relaxed);
        // SAFETY: `F` is the type of a function, and this is the address of one.
        (address != 0).then(|| unsafe { transmute_copy(&address) })
    }
}
