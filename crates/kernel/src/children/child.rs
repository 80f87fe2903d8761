//! Child process: forked, killed and collected in one place.
//!
//! File-level obligation: the forked child keeps the terms of [`Child::fork`]. Nothing else in this
//! process collects a child that a [`Child`] names.

#![allow(unsafe_code)]

use crate::c_library::_exit;
use megapage_units::Pid;
use rustix::io::Errno;
use rustix::process::{self, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use std::io;
use std::os::fd::RawFd;

/// Child that is collected only through this value. No other process can have its number until it
/// is collected. The child outlives this value unless [`Child::end`] is called.
#[derive(Debug)]
pub(super) struct Child {
    /// Number of the child; `None` once it was collected.
    number: Option<process::Pid>,
    status: Option<WaitStatus>,
}

impl Child {
    /// Forks a child that runs `life`, and ends with status 0 when that returns. The child closes
    /// all descriptors but `kept`, if these are given (Linux 5.9). Errors are those of fork(2).
    ///
    /// # Safety
    /// `life` uses no descriptor that is closed. It only makes system calls and touches memory that
    /// was mapped before the fork. It allocates nothing and takes no lock: other threads of the
    /// caller may have held any lock at the fork (fork(2)). A caller that has one thread may do
    /// anything in the child.
    pub unsafe fn fork(kept: Option<&[RawFd]>, life: impl FnOnce()) -> io::Result<Child> {
        // SAFETY: the caller's promise.
        match unsafe { libc::fork() } {
            ..0 => Err(io::Error::last_os_error()),
            0 => {
                if let Some(kept) = kept {
                    close_all_but(kept);
                }
                life();
                _exit(0)
            }
            number => Ok(Child::of(number)),
        }
    }

    /// Returns the child of this number, which the caller has started and not collected.
    pub fn of(number: i32) -> Child {
        Child { number: process::Pid::from_raw(number), status: None }
    }

    /// Returns its number, 0 once it was collected.
    pub fn pid(&self) -> Pid {
        Pid(self.number.map_or(0, |number| number.as_raw_nonzero().get()))
    }

    /// Kills it. It ends at once, unless it waits for an event that only another process can cause.
    pub fn kill(&self) {
        if let Some(number) = self.number {
            let _ = kill_process(number, Signal::KILL);
        }
    }

    /// Returns true if it has ended, and was collected.
    pub fn has_ended(&mut self) -> bool {
        self.wait(WaitOptions::NOHANG)
    }

    /// Waits for its end, and collects it.
    pub fn collect(&mut self) {
        self.wait(WaitOptions::empty());
    }

    /// Kills it, waits for its end, and collects it.
    pub fn end(&mut self) {
        self.kill();
        self.collect();
    }

    /// Returns the status with which it has ended, once it was collected. Returns `None` if the
    /// kernel did not report it: the caller ignores SIGCHLD.
    pub fn status(&self) -> Option<WaitStatus> {
        self.status
    }

    fn wait(&mut self, options: WaitOptions) -> bool {
        // Only `__WALL` finds a child that sends no signal at its end.
        let options = options | WaitOptions::from_bits_retain(libc::__WALL as u32);
        while let Some(number) = self.number {
            match waitpid(Some(number), options) {
                Ok(None) => return false,
                Err(Errno::INTR) => {}
                ended => {
                    self.status = ended.ok().flatten().map(|(_, status)| status);
                    self.number = None;
                }
            }
        }
        true
    }
}

/// Closes all descriptors of a child but `kept`. Before Linux 5.9 they stay open.
fn close_all_but(kept: &[RawFd]) {
    let mut first = 0;
    while first >= 0 {
        let next = kept.iter().copied().filter(|kept| *kept >= first).min();
        let last = next.map_or(RawFd::MAX, |next| next - 1);
        if first <= last {
            // SAFETY: the child uses only descriptors that it keeps, as the caller of `fork`
            // promises.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        first = next.map_or(-1, |next| next + 1);
    }
}
