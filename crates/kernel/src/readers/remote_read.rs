//! Another process's memory, read through `/proc/PID/mem` (proc_pid_mem(5)).
//!
//! process_vm_readv(2) is not used: it is no faster, and it *pins* the pages. For a pin to stay
//! true, the kernel first gives the process separate copies of all that it shares by fork(2), and
//! splits huge pages for it. Reading a database that has forked to save would double its memory. A
//! read of this file takes a plain reference.

use crate::helper::{self, Session, Wait};
use crate::{KernelError, KernelRoot, effective_uid};
use megapage_units::Pid;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// Most bytes that one request reads from another process.
pub const MOST_BYTES: usize = helper::MOST_DATA;
/// Most parts that one request reads from another process.
pub const MOST_PARTS: usize = helper::MOST_PARTS;

/// Memory that a process had when this was opened: after execve(2) nothing more can be read.
#[derive(Debug)]
pub struct RemoteMemory {
    file: File,
    /// The process, if it is another one: waiting for it may take long.
    foreign: Option<Pid>,
}

impl RemoteMemory {
    /// Opens the memory of `pid` for reading.
    ///
    /// EACCES, EPERM: the right to trace is missing. ENOENT, ESRCH: the process has gone.
    pub fn open(root: &KernelRoot, pid: Pid) -> Result<RemoteMemory, KernelError> {
        let path = root.path(format!("proc/{pid}/mem"));
        let foreign = helper::is_foreign(root, pid).then_some(pid);
        let opened = match foreign {
            // Without privilege, a security module may let us read only the processes that we have
            // started ("Yama" of the kernel's documentation). A helper could not read them, so that
            // we open the file ourselves. Only processes of our own user can be opened this way.
            Some(pid) if effective_uid() == 0 => Session::begin(pid, Wait::Killable)
                .and_then(|mut session| session.open(&path, libc::O_RDONLY).map(File::from)),
            _ => File::open(&path),
        };
        match opened {
            Ok(file) => Ok(RemoteMemory { file, foreign }),
            Err(source) => Err(KernelError::Io { path, source }),
        }
    }

    /// Fills `bytes` with the memory from address `start` on, and returns how many bytes were read.
    /// Fewer are read where a page is not mapped, none once the process has ended. Never writes
    /// there. But it marks the pages as accessed, and makes untouched pages present, as if the
    /// process itself had read them.
    ///
    /// EIO: nothing is mapped at `start`. TimedOut: the process does not answer
    /// ([`helper::Locked`]).
    pub fn read(&self, start: u64, bytes: &mut [u8]) -> io::Result<usize> {
        // A page of a FUSE file may be mapped there: no signal ends the wait for it.
        let mut session = match self.foreign {
            Some(pid) => Some(Session::begin(pid, Wait::Uninterruptible)?),
            None => None,
        };
        let mut read = 0;
        while read < bytes.len() {
            let place = start + read as u64;
            let result = match &mut session {
                Some(session) => session.read_at(self.file.as_fd(), &mut bytes[read..], place),
                None => self.file.read_at(&mut bytes[read..], place),
            };
            match result {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The memory before the hole has been read.
                Err(error) if read > 0 && error.kind() != io::ErrorKind::TimedOut => break,
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Fills `bytes` with parts of the memory, one from each of these places, all as large. Returns
    /// `false` where one of them is not there in full. Parts of another process are read at one
    /// request: at most [`MOST_PARTS`], and [`MOST_BYTES`]. Errors and effects are those of
    /// [`RemoteMemory::read`].
    pub fn read_parts(&self, places: &[u64], bytes: &mut [u8]) -> io::Result<bool> {
        let length = bytes.len() / places.len().max(1);
        if length == 0 || length * places.len() != bytes.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let Some(pid) = self.foreign {
            let mut session = Session::begin(pid, Wait::Uninterruptible)?;
            return Ok(session.read_parts(self.file.as_fd(), bytes, places)? == bytes.len());
        }
        for (part, place) in bytes.chunks_exact_mut(length).zip(places) {
            if self.read(*place, part)? < length {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canary::Canary;
    use crate::pagemap::Pagemap;
    use megapage_units::{BASE_PAGE, VirtRange};

    fn own() -> Pid {
        Pid(std::process::id().cast_signed())
    }

    #[test]
    fn our_own_memory_is_read_as_another_process_would() {
        let memory: Vec<u8> = (0..100_000).map(|n| n as u8).collect();
        let mut copy = vec![7u8; memory.len()];
        let reader = RemoteMemory::open(&KernelRoot::live(), own()).unwrap();
        assert_eq!(reader.read(memory.as_ptr().addr() as u64, &mut copy).unwrap(), memory.len());
        assert_eq!(copy, memory);
        assert!(reader.read(0, &mut copy).is_err(), "nothing is mapped there");
        assert!(RemoteMemory::open(&KernelRoot::live(), Pid(i32::MAX)).unwrap_err().is_gone());
    }

    /// Reading must not make the kernel copy what a fork shares.
    #[test]
    fn what_a_fork_shares_stays_shared() {
        const PAGES: usize = 64;
        let mut memory = vec![0u8; (PAGES + 1) * BASE_PAGE];
        memory.fill(std::hint::black_box(3));
        let start = (memory.as_ptr().addr() as u64).next_multiple_of(BASE_PAGE as u64);
        let range = VirtRange::new(start, start + (PAGES * BASE_PAGE) as u64).unwrap();
        let pagemap = Pagemap::open(&KernelRoot::live(), own()).unwrap();
        let shared = || pagemap.entries(range).unwrap().iter().filter(|page| !page.is_exclusive()).count();
        let child = Canary::start(1, 0, true).unwrap();
        assert_eq!(shared(), PAGES, "the child was forked from us");
        let reader = RemoteMemory::open(&KernelRoot::live(), own()).unwrap();
        let mut copy = vec![0u8; PAGES * BASE_PAGE];
        assert_eq!(reader.read(start, &mut copy).unwrap(), copy.len());
        assert_eq!(shared(), PAGES, "reading has un-shared them");
        assert!(copy.iter().all(|&byte| byte == 3));
        drop(child);
    }
    #[test]
    fn parts_of_our_own_and_of_another_processs_memory_come_one_behind_the_other() {
        let memory: Vec<u8> = (0..MOST_PARTS * 5000).map(|at| (at / 5000) as u8 + 1).collect();
        let start = memory.as_ptr().addr() as u64;
        // The child was forked from us, and has the same memory.
        let child = Canary::start(1, 0, true).unwrap();
        for pid in [own(), child.pid()] {
            let reader = RemoteMemory::open(&KernelRoot::live(), pid).unwrap();
            // The last ones first.
            let places: Vec<u64> = (0..MOST_PARTS as u64).rev().map(|part| start + part * 5000).collect();
            let mut bytes = vec![0; MOST_PARTS * 1000];
            assert!(reader.read_parts(&places, &mut bytes).unwrap());
            for (part, bytes) in bytes.chunks(1000).enumerate() {
                assert!(bytes.iter().all(|byte| *byte == (MOST_PARTS - part) as u8), "part {part} of {pid}");
            }
            let mut two = [0; 2000];
            assert!(!matches!(reader.read_parts(&[start, 0], &mut two), Ok(true)), "nothing is mapped there");
            assert!(reader.read_parts(&[0, start], &mut two).is_err());
            assert!(
                reader.read_parts(&[], &mut two).is_err()
                    && reader.read_parts(&[start; 3], &mut two).is_err()
            );
        }
        let reader = RemoteMemory::open(&KernelRoot::live(), child.pid()).unwrap();
        let mut more = vec![0; MOST_PARTS + 1];
        assert!(
            reader.read_parts(&[start; MOST_PARTS + 1], &mut more).is_err(),
            "more than one request takes"
        );
        let mut larger = vec![0; 2 * MOST_BYTES];
        assert!(reader.read_parts(&[start; 2], &mut larger).is_err(), "more bytes than one request takes");
    }
}
