//! Pages of counters that two processes share.
//!
//! File-level obligation: the only thing ever formed from the mapping is `&[AtomicU64]`, so that the other
//! process may write at any time; the mapping is never removed while the value lives.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

/// How many 64-bit words a [`SharedWords`] holds where nothing else is said: one base page.
pub const SHARED_WORDS: usize = 512;

/// `COUNT` 64-bit words, whole base pages of them, mapped from a file that another process may have mapped too. Pages that
/// are never touched take no memory.
#[derive(Debug)]
pub struct SharedWords<const COUNT: usize = SHARED_WORDS> {
    words: &'static [AtomicU64; COUNT],
}

impl<const COUNT: usize> SharedWords<COUNT> {
    const BYTES: usize = {
        assert!(COUNT > 0 && COUNT.is_multiple_of(SHARED_WORDS), "whole base pages");
        8 * COUNT
    };

    /// Words of the process's own that live until it ends: after a fork, each side has its own.
    pub const fn own(words: &'static [AtomicU64; COUNT]) -> SharedWords<COUNT> {
        SharedWords { words }
    }

    /// New pages of zeros in a memory file (memfd_create(2)) that is closed on exec.
    pub fn create(name: &std::ffi::CStr) -> io::Result<(File, SharedWords<COUNT>)> {
        // SAFETY: the name is a C string; the call has no other memory argument.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(Self::BYTES as u64)?;
        let words = SharedWords::map(&file)?;
        Ok((file, words))
    }

    /// Maps the pages of the memory file that `path` opens, such as `/proc/PID/fd/N`. Allocates nothing.
    pub fn open(path: &std::ffi::CStr) -> io::Result<SharedWords<COUNT>> {
        // SAFETY: the path is a C string.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        SharedWords::map(&unsafe { File::from_raw_fd(fd) })
    }

    /// Maps the first words of `file`, which must be at least so long (a shorter one is refused: reading it would raise
    /// SIGBUS) and open for reading and writing.
    pub fn map(file: &File) -> io::Result<SharedWords<COUNT>> {
        // fstat(2) by hand rather than File::metadata, which may allocate: this runs inside an allocator.
        // SAFETY: all-zero bytes are a valid `stat`.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is writable and as large as the kernel's.
        if unsafe { libc::fstat(file.as_raw_fd(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if stat.st_size < Self::BYTES as i64 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                Self::BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is page-aligned, as long as the words, readable and writable, and is never removed (both
        // sides keep it until they exit), hence 'static.
        Ok(SharedWords { words: unsafe { &*address.cast() } })
    }
}

impl<const COUNT: usize> std::ops::Deref for SharedWords<COUNT> {
    type Target = [AtomicU64; COUNT];

    fn deref(&self) -> &Self::Target {
        self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_see_the_same_words() {
        let (file, ours) = SharedWords::<SHARED_WORDS>::create(c"test").unwrap();
        let theirs = SharedWords::<SHARED_WORDS>::map(&file).unwrap();
        theirs[7].store(42, Relaxed);
        assert_eq!(ours[7].load(Relaxed), 42);
        // More than one side made is refused by the other.
        assert!(SharedWords::<{ 2 * SHARED_WORDS }>::map(&file).is_err());
        let (_file, long) = SharedWords::<{ 2 * SHARED_WORDS }>::create(c"test").unwrap();
        long[2 * SHARED_WORDS - 1].store(1, Relaxed);
    }

    #[test]
    fn a_short_file_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(SharedWords::<SHARED_WORDS>::map(&file).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
