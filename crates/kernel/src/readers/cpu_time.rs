//! Processor time of another process, to the nanosecond: `/proc/PID/stat` counts in ticks of 10 ms.

use crate::raw_syscall::read_clock;
use megapage_units::Pid;
use std::io;
use std::time::Duration;

/// Returns the processor time, user and system, that all threads of `pid` have taken so far
/// (clock_getcpuclockid(3)). Any process may be asked about. Fails with ESRCH if there is none.
pub fn cpu_time_of(pid: Pid) -> io::Result<Duration> {
    // The number of a process's clock, CPUCLOCK_SCHED of the kernel's include/linux/posix-timers.h.
    const SCHED: i32 = 2;
    match read_clock(!pid.0 << 3 | SCHED) {
        Ok(time) => Ok(Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)),
        // The clock of a process that does not exist is invalid.
        Err(error) if error.0 == libc::EINVAL => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        Err(error) => Err(error.into()),
    }
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
