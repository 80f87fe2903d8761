//! Pages of counters that two processes share.
//!
//! File-level obligation: the only thing ever formed from the mapping is `&[AtomicU64]`, so that
//! the other process may write at any time. The mapping is never removed while the value lives, and
//! no page of it goes. A file that could become shorter (without F_SEAL_SHRINK of fcntl(2)) is not
//! mapped, for touching what is gone raises SIGBUS.

#![allow(unsafe_code)]

use crate::memory_file::memory_file;
use crate::own_values::Descriptor;
use crate::room::own_limit;
use crate::system::call;
use megapage_units::BASE_PAGE;
use rustix::fs::{SealFlags, fcntl_add_seals};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;

/// Number of 64-bit words in a base page.
pub const SHARED_WORDS: usize = 512;

/// 64-bit words, in whole base pages and at least one, mapped from a file that another process may
/// have mapped too. Pages that are never touched take no memory.
#[derive(Debug)]
pub struct SharedWords {
    words: &'static [AtomicU64],
}

impl SharedWords {
    /// Wraps words of the process's own, at least a base page of them, that live until it ends.
    /// After a fork, each side has its own.
    pub const fn own(words: &'static [AtomicU64]) -> SharedWords {
        assert!(words.len() >= SHARED_WORDS);
        SharedWords { words }
    }

    /// Makes `pages` new base pages of zeros in a memory file (memfd_create(2)) that is closed on
    /// exec. No process can change the file's length: one that may open it (a child by
    /// `/proc/PID/fd`) could otherwise end this process. Fails with `FileTooLarge` where the
    /// process may not write files of that size (RLIMIT_FSIZE), which would otherwise be a signal.
    pub fn create(name: &std::ffi::CStr, pages: usize) -> io::Result<(File, SharedWords)> {
        let bytes = (pages.max(1) * BASE_PAGE) as u64;
        if let Some(limit) = own_limit(libc::RLIMIT_FSIZE).filter(|limit| *limit < bytes) {
            let what = format!("files may have {limit} bytes (ulimit -f), and {bytes} are needed");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        let file = memory_file(name, None)?;
        file.set_len(bytes)?;
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SEAL)?;
        let words = SharedWords::map(&file)?;
        Ok((file, words))
    }

    /// Maps the pages of the memory file that `path` opens, such as `/proc/PID/fd/N`. Allocates
    /// nothing.
    pub fn open(path: &std::ffi::CStr) -> io::Result<SharedWords> {
        let file = Descriptor::open_for(path, libc::O_RDWR)?;
        SharedWords::map_number(file.number())
    }

    /// Maps the whole pages of `file`, which must be open for reading and writing. Fails with
    /// EINVAL where it is shorter than a page, or could become shorter: reading it would raise
    /// SIGBUS.
    pub fn map(file: &File) -> io::Result<SharedWords> {
        SharedWords::map_number(file.as_raw_fd())
    }

    fn map_number(fd: libc::c_int) -> io::Result<SharedWords> {
        // fstat(2) by hand rather than File::metadata, which may allocate: this runs inside an
        // allocator.
        // SAFETY: all-zero bytes are a valid `stat`.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is writable and as large as the kernel's.
        unsafe { call(libc::SYS_fstat, [fd as usize, (&raw mut stat) as usize]) }?;
        let pages = usize::try_from(stat.st_size).unwrap_or(0) / BASE_PAGE;
        // SAFETY: the descriptor is open; the call takes no memory. It is EINVAL for a file that
        // cannot be sealed.
        let seals = unsafe { call(libc::SYS_fcntl, [fd as usize, libc::F_GET_SEALS as usize, 0]) };
        if pages == 0 || seals.map_or(0, |seals| seals as libc::c_int) & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let arguments = [0, pages * BASE_PAGE, protection, libc::MAP_SHARED as usize, fd as usize, 0];
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe { call(libc::SYS_mmap, arguments) }?;
        // SAFETY: the mapping is page-aligned, as long as the words, readable and writable. It is
        // never removed (both sides keep it until they exit), hence 'static.
        let words = unsafe { std::slice::from_raw_parts(address as *const AtomicU64, pages * SHARED_WORDS) };
        Ok(SharedWords { words })
    }
}

impl std::ops::Deref for SharedWords {
    type Target = [AtomicU64];

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
        let (file, ours) = SharedWords::create(c"test", 1).unwrap();
        let theirs = SharedWords::map(&file).unwrap();
        theirs[7].store(42, Relaxed);
        assert_eq!((ours[7].load(Relaxed), ours.len()), (42, SHARED_WORDS));
        let (file, ours) = SharedWords::create(c"test", 3).unwrap();
        ours[3 * SHARED_WORDS - 1].store(1, Relaxed);
        assert_eq!(SharedWords::map(&file).unwrap()[3 * SHARED_WORDS - 1].load(Relaxed), 1);
    }

    #[test]
    fn the_file_cannot_shrink() {
        let (file, ours) = SharedWords::create(c"test", 2).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = File::options().write(true).open(&path).unwrap();
        for (length, file) in [(0, &file), (0, &again), (4096, &again), (1 << 20, &again)] {
            assert_eq!(file.set_len(length).unwrap_err().raw_os_error(), Some(libc::EPERM), "{length}");
        }
        // Truncated when it is opened, as the shell's `>` does.
        assert!(File::options().write(true).truncate(true).open(&path).is_err());
        ours[SHARED_WORDS].store(1, Relaxed);
    }

    #[test]
    fn a_file_that_is_short_or_could_become_so_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(SharedWords::map(&file).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        file.set_len(4096).unwrap();
        assert_eq!(SharedWords::map(&file).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let unsealed = rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        let file = File::from(unsealed);
        file.set_len(4096).unwrap();
        assert_eq!(SharedWords::map(&file).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
