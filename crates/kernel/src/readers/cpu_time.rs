//! Processor time of another process, to the nanosecond: `/proc/PID/stat` counts in ticks of 10 ms.
//!
//! File-level obligation: the structures that the C library fills are writable and live through the
//! call.

#![allow(unsafe_code)]

use megapage_units::Pid;
use std::io;
use std::time::Duration;

/// Returns the processor time, user and system, that all threads of `pid` have taken so far
/// (clock_getcpuclockid(3)). Any process may be asked about. Fails with ESRCH if there is none.
pub fn cpu_time_of(pid: Pid) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is writable.
    let errno = unsafe { libc::clock_getcpuclockid(pid.0, &mut clock) };
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        let error = io::Error::last_os_error();
        // The clock of a process that has ended meanwhile is invalid.
        let ended = error.raw_os_error() == Some(libc::EINVAL);
        return Err(if ended { io::Error::from_raw_os_error(libc::ESRCH) } else { error });
    }
    Ok(Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::own_cpu_time;

    #[test]
    fn our_own_time_is_that_of_our_own_clock() {
        let own = Pid(std::process::id() as i32);
        let (before, asked, after) = (own_cpu_time(), cpu_time_of(own).unwrap(), own_cpu_time());
        assert!(before <= asked && asked <= after, "{before:?} {asked:?} {after:?}");
    }

    #[test]
    fn a_missing_process_has_no_time() {
        // Above the largest pid_max, within what the clock number of a process can hold.
        const MISSING: Pid = Pid(1 << 28);
        assert_eq!(cpu_time_of(MISSING).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
