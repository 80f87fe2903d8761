//! Process beside the caller's that is no child of it. The caller executes a program that knows
//! nothing of it.
//!
//! File-level obligation: the calling process has one thread, so that its copy finds no lock held,
//! and all memory whole.

#![allow(unsafe_code)]

use super::child::Child;
use crate::c_library::_exit;
use crate::thread_count;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::AsRawFd;

/// Forks twice, and runs `work` in the grandchild: in a new session and in the root directory, with
/// `/dev/null` for its standard files. Closes the caller's other files there (Linux 5.9), so that
/// the grandchild keeps no lock and no pipe open. The process ends with `work`. Its parent is the
/// process that adopts orphans. Errors are those of fork(2). `ResourceBusy` if the caller has other
/// threads, or nothing shows whether it has.
pub fn in_background(work: impl FnOnce()) -> io::Result<()> {
    if thread_count() != Some(1) {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the process has other threads"));
    }
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let grandchild = || {
        let _ = rustix::process::setsid();
        let _ = rustix::process::chdir(c"/");
        work();
    };
    let between = || {
        for standard in 0..3 {
            // SAFETY: no file that is open now is used later.
            unsafe { libc::dup2(null.as_raw_fd(), standard) };
        }
        // SAFETY: there is one thread, and `work` gets the standard files only.
        let started = unsafe { Child::fork(Some(&[0, 1, 2]), grandchild) };
        _exit(i32::from(started.is_err()))
    };
    // SAFETY: there is one thread, in the child as well.
    let mut child = unsafe { Child::fork(None, between) }?;
    child.collect();
    // A caller that ignores SIGCHLD gets no status.
    let is_sound = child.status().is_none_or(|status| status.exit_status() == Some(0));
    if is_sound { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Tests have threads: the tests of `megapage run` cover the function
    // (crates/cli/tests/it/run_in_place.rs).
    #[test]
    fn a_process_with_threads_is_refused() {
        let (keep, waits) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || waits.recv());
        let refused = in_background(|| unreachable!()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        drop(keep);
        let _ = other.join();
    }
}
