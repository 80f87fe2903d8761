//! A process beside the caller's that is no child of it: the caller executes a program that knows nothing of it.
//!
//! File-level obligation: the calling process has one thread, so that its copy finds no lock held, and all memory whole.

#![allow(unsafe_code)]

use crate::thread_count;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::AsRawFd;

/// Forks twice, and runs `work` in the grandchild, in a session of its own, in the root directory, with `/dev/null` for its
/// standard files and no other open file: it keeps no lock, pipe or mount of the caller's. The process ends with it. Its parent is the process that adopts orphans. Errors are those of fork(2); `ResourceBusy` where the caller has
/// other threads, or nothing shows whether it has.
pub fn in_background(work: impl FnOnce()) -> io::Result<()> {
    if thread_count() != Some(1) {
        return Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "the process has other threads, or /proc does not tell",
        ));
    }
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: there is one thread.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the child has one thread as well.
        0 => match unsafe { libc::fork() } {
            0 => {
                // SAFETY: these calls take numbers and a constant string; nothing in this process uses its files from now on.
                unsafe {
                    libc::setsid();
                    libc::chdir(c"/".as_ptr());
                    for standard in 0..3 {
                        libc::dup2(null.as_raw_fd(), standard);
                    }
                    // Before Linux 5.9 they stay open.
                    libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
                }
                work();
                // SAFETY: the process ends; what the caller has registered for its exit is the caller's.
                unsafe { libc::_exit(0) }
            }
            // SAFETY: as above.
            grandchild => unsafe { libc::_exit(i32::from(grandchild < 0)) },
        },
        child => {
            let mut status = 0;
            loop {
                // SAFETY: the status is writable; the child is ours and waited for here alone.
                if unsafe { libc::waitpid(child, &mut status, 0) } == child {
                    break;
                }
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            if status == 0 { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Tests have threads: what it does is tested by `megapage run` under a supervisor (crates/cli/tests/run_in_place.rs).
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
