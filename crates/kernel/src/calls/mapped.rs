//! Mappings that one value owns, and removes when it is dropped.
//!
//! File-level obligation: a [`Mapped`] is made from a new mapping at an address of the kernel's
//! choice, which nothing else knows of. It stays mapped until the value is dropped. The only
//! references into it are those of [`Mapped::slice`], bound to a borrow of the value, whose types
//! allow others to change the same bytes.

#![allow(unsafe_code)]

use crate::own_advice::{self, Advice};
use libc::c_int;
use megapage_units::{BASE_PAGE, VirtRange};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

/// Type that several processes may access at the same time.
///
/// # Safety
/// All its parts are atomic, and any bytes are a valid value.
pub(crate) unsafe trait Shareable {}

// SAFETY: an atomic, for which any bytes are valid.
unsafe impl Shareable for AtomicU64 {}

/// Readable and writable memory, or a mapping of a file.
#[derive(Debug)]
pub(crate) struct Mapped {
    mapping: *mut u8,
    mapping_len: usize,
    /// First byte in use, at a multiple of the alignment.
    start: *mut u8,
    len: usize,
}

// SAFETY: the value owns its mapping, and no part of it is bound to a thread.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps `len` bytes of anonymous memory, readable and writable, at a multiple of `alignment`.
    /// `flags` are those of mmap(2), without MAP_ANONYMOUS. An alignment above the base page takes
    /// that many more bytes of addresses.
    pub fn anonymous(len: usize, alignment: usize, flags: c_int) -> io::Result<Mapped> {
        let mapping_len = if alignment > BASE_PAGE { len + alignment } else { len };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mut mapped = Mapped::map(mapping_len, access, flags | libc::MAP_ANONYMOUS, -1)?;
        mapped.start = mapped.mapping.map_addr(|address| address.next_multiple_of(alignment));
        mapped.len = len;
        Ok(mapped)
    }

    /// Maps the first `len` bytes of `file`. `flags` are those of mmap(2).
    pub fn file(file: BorrowedFd<'_>, len: usize, protection: c_int, flags: c_int) -> io::Result<Mapped> {
        Mapped::map(len, protection, flags, file.as_raw_fd())
    }

    fn map(len: usize, protection: c_int, flags: c_int, file: c_int) -> io::Result<Mapped> {
        let flags = flags & !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.cast();
        Ok(Mapped { mapping: start, mapping_len: len, start, len })
    }

    /// Returns the first address.
    pub fn address(&self) -> *mut u8 {
        self.start
    }

    /// Returns the addresses.
    pub fn range(&self) -> VirtRange {
        self.part(0, self.len)
    }

    /// Returns the addresses of `len` bytes at `offset`. Panics if that is not inside.
    pub fn part(&self, offset: usize, len: usize) -> VirtRange {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "outside the mapping");
        let start = (self.start.addr() + offset) as u64;
        VirtRange::new(start, start + len as u64).expect("a mapping")
    }

    /// Returns `count` values from byte `offset` on. Panics if they are not inside, or not aligned.
    pub fn slice<T: Shareable>(&self, offset: usize, count: usize) -> &[T] {
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        assert!(end.is_some_and(|end| end <= self.len), "outside the mapping");
        let start = self.start.wrapping_add(offset).cast::<T>();
        assert!(start.is_aligned());
        // SAFETY: the values are inside, aligned, and mapped as long as the borrow; any bytes are
        // valid for their type, and others may change them.
        unsafe { std::slice::from_raw_parts(start, count) }
    }

    /// Gives advice for `len` bytes at `offset`. Panics if that is not inside.
    pub fn advise(&self, offset: usize, len: usize, advice: Advice) -> io::Result<()> {
        own_advice::give(self.part(offset, len), advice)
    }

    /// Gives the first `len` bytes this access (mprotect(2)).
    ///
    /// # Safety
    /// No code makes an access that the call takes away.
    pub unsafe fn protect(&self, len: usize, protection: c_int) -> io::Result<()> {
        assert!(len <= self.len, "outside the mapping");
        // SAFETY: the caller's promise, for a part of the value's own mapping.
        match unsafe { libc::mprotect(self.start.cast(), len, protection) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is the value's own, and no reference outlives it.
        unsafe { libc::munmap(self.mapping.cast(), self.mapping_len) };
    }
}
