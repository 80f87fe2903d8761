//! A page of counters that two processes share.
//!
//! File-level obligation: the only thing ever formed from the mapping is `&[AtomicU64]`, so that the other
//! process may write at any time; the mapping is never removed while the value lives.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

/// How many 64-bit words a [`SharedWords`] holds: one base page.
pub const SHARED_WORDS: usize = 512;

/// One base page of 64-bit words, mapped from a file that another process may have mapped too.
#[derive(Debug)]
pub struct SharedWords {
    words: &'static [AtomicU64; SHARED_WORDS],
}

impl SharedWords {
    /// Words of the process's own that live until it ends: after a fork, each side has its own.
    pub const fn own(words: &'static [AtomicU64; SHARED_WORDS]) -> SharedWords {
        SharedWords { words }
    }

    /// A new page of zeros in a memory file (memfd_create(2)) that is closed on exec.
    pub fn create(name: &std::ffi::CStr) -> io::Result<(File, SharedWords)> {
        // SAFETY: the name is a C string; the call has no other memory argument.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(8 * SHARED_WORDS as u64)?;
        let words = SharedWords::map(&file)?;
        Ok((file, words))
    }

    /// Maps the page of the memory file that `path` opens, such as `/proc/PID/fd/N`. Allocates nothing.
    pub fn open(path: &std::ffi::CStr) -> io::Result<SharedWords> {
        // SAFETY: the path is a C string.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        SharedWords::map(&unsafe { File::from_raw_fd(fd) })
    }

    /// Maps the first page of `file`, which must be at least a page long (a shorter one is refused:
    /// reading it would raise SIGBUS) and open for reading and writing.
    pub fn map(file: &File) -> io::Result<SharedWords> {
        // fstat(2) by hand rather than File::metadata, which may allocate: this runs inside an allocator.
        // SAFETY: all-zero bytes are a valid `stat`.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is writable and as large as the kernel's.
        if unsafe { libc::fstat(file.as_raw_fd(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if stat.st_size < 8 * SHARED_WORDS as i64 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                8 * SHARED_WORDS,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is page-aligned, a page long, readable and writable, and is never removed
        // (both sides keep it until they exit), hence 'static.
        Ok(SharedWords { words: unsafe { &*address.cast() } })
    }
}

impl std::ops::Deref for SharedWords {
    type Target = [AtomicU64; SHARED_WORDS];

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
        let (file, ours) = SharedWords::create(c"test").unwrap();
        let theirs = SharedWords::map(&file).unwrap();
        theirs[7].store(42, Relaxed);
        assert_eq!(ours[7].load(Relaxed), 42);
    }

    #[test]
    fn a_short_file_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(SharedWords::map(&file).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
