//! Guard: a child process that puts back its owner's changes if the owner ends without doing so.
//!
//! File-level obligation: between fork and its end the child only makes system calls and reads
//! memory that was allocated before the fork. It allocates nothing, takes no lock, and ends by
//! _exit(2) or a signal. Other threads of the owner may have held any lock at the fork.

#![allow(unsafe_code)]

use super::child::Child;
use crate::c_library::_exit;
use crate::process_madvise::advise_directly;
use crate::spawn::{open_pidfd, wait_readable};
use megapage_inside::without_signals;
use megapage_units::{Pid, VirtRange};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::Timespec;
use std::io;
use std::ptr;
use std::time::{Duration, Instant};

/// Repetition of a huge-page guard's advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// Number of rounds of advice on all ranges, at least 1. Pages that were collapsed just now are
    /// skipped until they have left the queues to the LRU lists.
    pub count: u32,
    /// Pause between two rounds, under a second.
    pub pause: Duration,
}

/// Last actions of the child: rounds of MADV_COLD on ranges of the process behind `target`. The
/// parent allocates all fields before the fork.
struct Last<'a> {
    target: BorrowedFd<'a>,
    vector: Vec<libc::iovec>,
    rounds: u32,
    pause: Timespec,
}

/// Guard of changes. The child puts them back if this value is dropped, or if the owner ends in any
/// way (a panic, SIGKILL). [`Guard::release`] ends the child without that. The child has a separate
/// session, and all signals blocked. So only a SIGKILL to the child itself ends it, such as one to
/// a whole control group.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    /// Pipe whose end means to the child that its owner has ended.
    owner: Option<OwnedFd>,
    /// Longest wait for the child's end. The child's actions may wait for another process without
    /// end. The child then ends later, and by itself.
    patience: Duration,
}

/// Longest wait for the child. The pauses between its rounds are added.
const PATIENCE: Duration = Duration::from_secs(10);

impl Guard {
    /// Starts a guard that advises MADV_COLD on `ranges` of the process behind `pidfd`. For the
    /// effect see [`crate::process_madvise::cold`]; one base page inside a huge page splits it.
    /// Skips a range that the kernel refuses. Errors are those of pipe(2) and fork(2).
    pub fn of_huge_pages(pidfd: BorrowedFd<'_>, ranges: &[VirtRange], rounds: Rounds) -> io::Result<Guard> {
        let iovec = |range: &VirtRange| libc::iovec {
            iov_base: ptr::without_provenance_mut(range.start() as usize),
            iov_len: range.len().0 as usize,
        };
        let last = Last {
            target: pidfd,
            vector: ranges.iter().map(iovec).collect(),
            rounds: rounds.count.max(1),
            pause: Timespec { tv_sec: 0, tv_nsec: i64::from(rounds.pause.subsec_nanos()) },
        };
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        // With the pipe's other end open, the child would never read the pipe's end.
        let kept = [reader.as_raw_fd(), pidfd.as_raw_fd()];
        // Signals are blocked from the child's first moment on: it inherits the mask.
        let child = without_signals(|| {
            // SAFETY: the child runs `child` alone, which keeps the file-level obligation; `last`
            // was allocated before the fork, and only these descriptors are used.
            unsafe { Child::fork(Some(&kept), || child(reader.as_fd(), &last)) }
        })?;
        let pauses = Duration::from_nanos(last.pause.tv_nsec as u64) * last.rounds;
        Ok(Guard { child, owner: Some(writer), patience: PATIENCE + pauses })
    }

    /// Ends the child without its last actions, and collects it. Returns an error if it had ended
    /// already.
    pub fn release(mut self) -> io::Result<()> {
        let Some(owner) = self.owner.take() else { return Ok(()) };
        // SIGPIPE is ignored in Rust programs: if the child has ended, the write returns an error.
        let sent = rustix::io::write(owner.as_fd(), &[RELEASED]);
        drop(owner);
        self.collect();
        sent.map(|_| ()).map_err(io::Error::from)
    }

    /// Returns the child's number.
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
        // After a release, the child has been collected already.
        let Some(owner) = self.owner.take() else { return };
        // A child of another thread may hold the pipe open until it executes its program. So a byte
        // is sent, and the end of the pipe is not waited for. A guard that was killed gets no byte,
        // and is collected.
        let _ = rustix::io::write(owner.as_fd(), &[ENDED]);
        drop(owner);
        self.collect();
    }
}

/// Byte that a release sends.
const RELEASED: u8 = 1;
/// Byte that a dropped guard sends. A killed owner sends none: the pipe ends.
const ENDED: u8 = 2;

/// Waits for the owner, and then carries out `last` unless the guard was released.
fn child(from: BorrowedFd<'_>, last: &Last<'_>) {
    let _ = rustix::process::setsid();
    let mut byte = [0u8];
    loop {
        match rustix::io::read(from, &mut byte) {
            Ok(1) if byte == [RELEASED] => _exit(0),
            Ok(_) => break,
            // The child was stopped and continued; a pipe has no other error.
            Err(_) => {}
        }
    }
    for round in 0..last.rounds {
        if round > 0 {
            let _ = rustix::thread::nanosleep(&last.pause);
        }
        cool(last.target, &last.vector);
    }
}

/// Most ranges in one call of a guard. For their splits the process may have to wait for its mmap
/// lock.
const MOST_RANGES: usize = 8;

/// Advises on all ranges once.
fn cool(target: BorrowedFd<'_>, mut left: &[libc::iovec]) {
    while !left.is_empty() {
        let count = left.len().min(MOST_RANGES);
        // Either the first range failed, or the ranges that the number of bytes covers were
        // advised.
        let mut bytes = advise_directly(target, &left[..count], libc::MADV_COLD).unwrap_or(0);
        let mut done = usize::from(bytes == 0);
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

    /// Returns a child with huge pages, their number, and a guard of the first page of each region.
    /// Returns `None` after it has reported the skip.
    fn guarded(rounds: Rounds) -> Option<(Canary, usize, Guard)> {
        if !is_root() {
            skip("needs CAP_SYS_NICE to advise on memory of another process");
            return None;
        }
        let child = Canary::start(0, 4, true).unwrap();
        // A collapse gives huge pages even if page faults give none (transparent_hugepage/enabled
        // is 'never').
        let _ = crate::process_madvise::collapse(open_pidfd(child.pid()).unwrap().as_fd(), &[child.huge()]);
        let before = huge(&child);
        if before == 0 {
            skip("this machine has no huge page to give, or its page map does not tell");
            return None;
        }
        // Pages that were just allocated wait in queues of their processor; there they cannot be
        // split.
        crate::lru::LruDrain::new().and_then(|drain| drain.drain()).unwrap();
        let pages: Vec<VirtRange> = (child.huge().start()..child.huge().end())
            .step_by(HUGE_2M)
            .map(|start| VirtRange::new(start, start + BASE_PAGE as u64).unwrap())
            .collect();
        // One range that is not mapped, before the others: the others must still be advised.
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
}
