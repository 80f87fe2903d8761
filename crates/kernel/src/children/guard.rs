//! A guard: a child process that puts back what its owner has changed, should the owner end without having done so.
//!
//! File-level obligation: between fork and its end the child only makes system calls and reads memory that was
//! allocated before the fork; it allocates nothing, takes no lock, and ends by _exit(2) or a signal. Other threads of
//! the owner may have held any lock at the fork. Structures handed to the kernel are initialised and outlive the call.

#![allow(unsafe_code)]

use super::child::Child;
use crate::spawn::{open_pidfd, wait_readable};
use megapage_inside::without_signals;
use megapage_units::{Pid, VirtRange};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::ptr;
use std::time::{Duration, Instant};

/// How often a guard of huge pages advises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// How many times all ranges are advised: pages that were collapsed just now are skipped until they have
    /// left the queues to the LRU lists. At least 1.
    pub count: u32,
    /// The pause between two of them, under a second.
    pub pause: Duration,
}

/// What the child does in the end. All of it was allocated before the fork.
enum Last {
    /// MADV_COLD on ranges of the process behind this descriptor.
    Cool { target: i32, vector: Vec<libc::iovec>, rounds: u32, pause: libc::timespec },
    /// A text into each of these files; then the file `record` is removed, and the lock on the
    /// descriptor ends.
    WriteLocked { files: Vec<(CString, Vec<u8>)>, record: CString, lock: i32 },
}

impl Last {
    /// See [`Guard::patience`].
    fn patience(&self) -> Duration {
        match self {
            Last::Cool { rounds, pause, .. } => {
                PATIENCE + Duration::from_nanos(pause.tv_nsec as u64) * *rounds
            }
            Last::WriteLocked { .. } => PATIENCE,
        }
    }
}

/// The guard. Dropping it, like the end of the owner however it comes about (a panic, SIGKILL), has the child put
/// things back; [`Guard::release`] has it end without. In a session of its own and with all signals blocked, nothing
/// that ends the owner ends the child but SIGKILL to the child itself, as of a whole control group.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    /// The child reads the end of this pipe as the end of its owner.
    owner: Option<OwnedFd>,
    /// How long the child's end is waited for: what it does may wait for another process without end. It then ends later,
    /// and by itself.
    patience: Duration,
}

/// For files, which are written at once unless something else is wrong.
const PATIENCE: Duration = Duration::from_secs(10);

impl Guard {
    /// Starts a guard that advises MADV_COLD on `ranges` of the process behind `pidfd`. What that does: see
    /// [`crate::process_madvise::cold`]; one base page inside a huge page splits it. A range that the kernel refuses
    /// is skipped. Errors are those of pipe(2) and fork(2).
    pub fn of_huge_pages(pidfd: BorrowedFd<'_>, ranges: &[VirtRange], rounds: Rounds) -> io::Result<Guard> {
        let iovec = |range: &VirtRange| libc::iovec {
            iov_base: ptr::without_provenance_mut(range.start() as usize),
            iov_len: range.len().0 as usize,
        };
        Guard::start(&Last::Cool {
            target: pidfd.as_raw_fd(),
            vector: ranges.iter().map(iovec).collect(),
            rounds: rounds.count.max(1),
            pause: libc::timespec { tv_sec: 0, tv_nsec: i64::from(rounds.pause.subsec_nanos()) },
        })
    }

    /// Starts a guard that writes to each of these files its text, in this order, and then removes
    /// the file `record` that lists them. It skips a file that is not there. A flock(2) on `lock`
    /// stays until that is done, should the owner be killed: the next owner finds everything put
    /// back.
    ///
    /// # Errors
    /// Those of pipe(2) and fork(2); EINVAL for a path with a NUL.
    pub fn of_locked_files(
        files: Vec<(PathBuf, String)>,
        record: PathBuf,
        lock: BorrowedFd<'_>,
    ) -> io::Result<Guard> {
        let (files, record) = (texts(files)?, terminated(record)?);
        Guard::start(&Last::WriteLocked { files, record, lock: lock.as_raw_fd() })
    }

    fn start(last: &Last) -> io::Result<Guard> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let from = reader.as_raw_fd();
        // Blocked from its first moment on: the child inherits the mask.
        let child = without_signals(|| {
            // SAFETY: the child runs `child` alone, which keeps the file-level obligation; the descriptors are open, and
            // `last` was allocated before the fork.
            unsafe { Child::fork(|| child(from, last)) }
        })?;
        Ok(Guard { child, owner: Some(writer), patience: last.patience() })
    }

    /// There is nothing left to do: the child ends, and is collected. The error says that it had ended already.
    pub fn release(mut self) -> io::Result<()> {
        let Some(owner) = self.owner.take() else { return Ok(()) };
        // SIGPIPE is ignored in Rust programs: a child that has ended is an error here.
        let sent = rustix::io::write(owner.as_fd(), &[RELEASED]);
        drop(owner);
        self.collect();
        sent.map(|_| ()).map_err(io::Error::from)
    }

    /// The child.
    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    fn collect(&mut self) {
        let until = Instant::now() + self.patience;
        let Ok(pidfd) = open_pidfd(self.child.pid()) else { return };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match wait_readable(pidfd.as_fd(), left) {
                Ok(true) => break,
                _ if left.is_zero() => return,
                _ => {}
            }
        }
        self.child.collect();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // After a release the child has been collected.
        let Some(owner) = self.owner.take() else { return };
        // A child of another thread may hold the pipe open until it executes its program: the end is not waited for.
        // A guard that was killed cannot be notified, and is collected.
        let _ = rustix::io::write(owner.as_fd(), &[ENDED]);
        drop(owner);
        self.collect();
    }
}

/// The byte of a release,
const RELEASED: u8 = 1;
/// and of an owner that has been dropped. One that was killed says nothing: the pipe ends.
const ENDED: u8 = 2;

/// The child's life.
///
/// # Safety
/// `from` and the descriptor in `last` are open; the process has one thread, with all signals blocked.
unsafe fn child(from: i32, last: &Last) -> ! {
    // SAFETY: no memory is passed.
    unsafe { libc::setsid() };
    // Of the owner's descriptors only these are kept: with the pipe's other end open its end would never be read.
    let (Last::Cool { target, .. } | Last::WriteLocked { lock: target, .. }) = last;
    let target = *target;
    let (low, high) = (from.min(target), from.max(target));
    for (first, last) in [(0, low - 1), (low + 1, high - 1), (high + 1, i32::MAX)] {
        if first <= last {
            // SAFETY: the process has one thread, and nothing in it uses these descriptors any more.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
    let mut byte = 0u8;
    loop {
        // SAFETY: the byte is writable.
        match unsafe { libc::read(from, (&raw mut byte).cast(), 1) } {
            // SAFETY: the process ends.
            1 if byte == RELEASED => unsafe { libc::_exit(0) },
            0 | 1 => break,
            // Stopped and continued; no other error befalls a pipe.
            _ => continue,
        }
    }
    match last {
        Last::Cool { target, vector, rounds, pause } => {
            for round in 0..*rounds {
                if round > 0 {
                    // SAFETY: the time is initialised, and nothing is written.
                    unsafe { libc::nanosleep(pause, ptr::null_mut()) };
                }
                cool(*target, vector);
            }
        }
        Last::WriteLocked { files, record, .. } => {
            write(files);
            // SAFETY: the path ends in a NUL.
            unsafe { libc::unlink(record.as_ptr()) };
        }
    }
    // SAFETY: the process ends.
    unsafe { libc::_exit(0) }
}

fn write(files: &[(CString, Vec<u8>)]) {
    for (path, text) in files {
        // SAFETY: the path ends in a NUL, and the text is as long as is passed. A file that was not opened is not written
        // to.
        unsafe {
            let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_TRUNC);
            if file >= 0 {
                libc::write(file, text.as_ptr().cast(), text.len());
                libc::close(file);
            }
        }
    }
}

/// Files and texts as the child needs them.
fn texts(files: Vec<(PathBuf, String)>) -> io::Result<Vec<(CString, Vec<u8>)>> {
    files.into_iter().map(|(path, text)| Ok((terminated(path)?, text.into_bytes()))).collect()
}

fn terminated(path: PathBuf) -> io::Result<CString> {
    CString::new(path.into_os_string().into_vec()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Ranges that one call of a guard names: for so many splits the process may wait for its mmap lock.
const MOST_RANGES: usize = 8;

/// Advises on all ranges once.
fn cool(target: i32, mut left: &[libc::iovec]) {
    while !left.is_empty() {
        let count = left.len().min(MOST_RANGES);
        // SAFETY: the array is initialised and `count` long; the addresses in it are the other process's.
        let advised = unsafe {
            libc::syscall(libc::SYS_process_madvise, target, left.as_ptr(), count, libc::MADV_COLD, 0)
        };
        // The first range failed, or as many went well as the bytes show.
        let mut bytes = advised.max(0) as usize;
        let mut done = usize::from(advised <= 0);
        while bytes > 0 && done < count {
            bytes = bytes.saturating_sub(left[done].iov_len);
            done += 1;
        }
        left = &left[done..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KernelRoot;
    use crate::canary::Canary;
    use crate::pagemap::Pagemap;
    use crate::spawn::{send_signal, signal};
    use megapage_testing::{is_root, skip};
    use megapage_units::{BASE_PAGE, HUGE_2M};

    const ROUNDS: Rounds = Rounds { count: 10, pause: Duration::from_millis(20) };

    /// A child with huge pages, how many, and a guard of the first page of each region; `None` with the skip reported.
    fn guarded(rounds: Rounds) -> Option<(Canary, usize, Guard)> {
        if !is_root() {
            skip("needs CAP_SYS_NICE to advise on memory of another process");
            return None;
        }
        let child = Canary::start(0, 4, true).unwrap();
        // Where faults give no huge pages (transparent_hugepage/enabled is 'never') a collapse still does.
        let _ = crate::process_madvise::collapse(open_pidfd(child.pid()).unwrap().as_fd(), &[child.huge()]);
        let before = huge(&child);
        if before == 0 {
            skip("this machine has no huge page to give, or its page map does not tell");
            return None;
        }
        // Pages that were just allocated wait in queues of their processor; there they cannot be split.
        crate::lru::LruDrain::new().and_then(|drain| drain.drain()).unwrap();
        let pages: Vec<VirtRange> = (child.huge().start()..child.huge().end())
            .step_by(HUGE_2M)
            .map(|start| VirtRange::new(start, start + BASE_PAGE as u64).unwrap())
            .collect();
        // One that is not mapped, before the others: it must not keep them from being advised.
        let pages = [&[VirtRange::new(BASE_PAGE as u64, 2 * BASE_PAGE as u64).unwrap()], &pages[..]].concat();
        let pidfd = open_pidfd(child.pid()).unwrap();
        let guard = Guard::of_huge_pages(pidfd.as_fd(), &pages, rounds).unwrap();
        Some((child, before, guard))
    }

    fn huge(child: &Canary) -> usize {
        let mut pagemap = Pagemap::open(&KernelRoot::live(), child.pid()).unwrap();
        let regions = pagemap.regions(child.huge()).unwrap();
        regions.iter().filter(|region| region.huge == Some(true)).count()
    }

    #[test]
    fn one_that_is_released_leaves_everything_huge() {
        let Some((child, before, guard)) = guarded(ROUNDS) else { return };
        let pid = guard.pid();
        guard.release().unwrap();
        assert_eq!(huge(&child), before);
        assert!(crate::process::read_status(&KernelRoot::live(), pid).unwrap_err().is_gone(), "collected");
    }

    #[test]
    fn one_that_is_dropped_splits_whatever_signals_came() {
        let Some((mut child, _, guard)) = guarded(ROUNDS) else { return };
        for number in [signal::SIGTERM, signal::SIGINT, signal::SIGHUP] {
            send_signal(guard.pid(), number).unwrap();
        }
        drop(guard);
        assert_eq!(huge(&child), 0);
        assert_eq!(child.touch(0..4 * HUGE_2M / BASE_PAGE).unwrap().wrong, 0, "its bytes are as they were");
    }

    #[test]
    fn one_that_was_killed_is_reported() {
        let Some((_child, _, guard)) = guarded(ROUNDS) else { return };
        send_signal(guard.pid(), signal::SIGKILL).unwrap();
        let pidfd = open_pidfd(guard.pid()).unwrap();
        assert!(crate::spawn::wait_readable(pidfd.as_fd(), Duration::from_secs(20)).unwrap());
        assert!(guard.release().is_err());
    }

    #[test]
    fn files_are_written_to_when_it_is_dropped_and_not_when_it_is_released() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let (file, missing, record) = (path("state"), path("missing"), path("record"));
        std::fs::write(&file, "on").unwrap();
        let lock = std::fs::File::open(&file).unwrap();
        let files = [(missing.clone(), "0".into()), (file.clone(), "off".into())];
        let guard = || Guard::of_locked_files(files.to_vec(), record.clone(), lock.as_fd()).unwrap();
        guard().release().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "on");
        drop(guard());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "off");
        assert!(!missing.exists());
    }

    #[test]
    fn a_lock_stays_until_all_is_put_back() {
        use rustix::fs::{FlockOperation, flock};
        let directory = tempfile::tempdir().unwrap();
        let (file, record) = (directory.path().join("state"), directory.path().join("record"));
        std::fs::write(&file, "on").unwrap();
        std::fs::write(&record, "it was off").unwrap();
        let lock = std::fs::File::open(&file).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let mut guard =
            Guard::of_locked_files(vec![(file.clone(), "off".into())], record.clone(), lock.as_fd()).unwrap();
        // What is left of an owner that is killed: nothing but the guard holds the lock.
        drop(lock);
        let other = std::fs::File::open(&file).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        drop(guard.owner.take());
        // Another test may start a process just now, which has the descriptor until it executes its program.
        flock(&other, FlockOperation::LockExclusive).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "off");
        assert!(!record.exists());
        guard.collect();
    }
}
