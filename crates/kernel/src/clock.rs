//! Clocks that the standard library does not offer.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The processor time, user and system, that all threads of the calling process have taken so far
/// (`CLOCK_PROCESS_CPUTIME_ID` of clock_gettime(2)). Unlike the time on the wall it does not grow while the
/// process waits for a processor.
pub fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // The kernel never reports a negative time here, nor a second of 10^9 nanoseconds or more.
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// The time since boot, suspension included (`CLOCK_BOOTTIME` of clock_gettime(2)). Never falls.
pub fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn time_since_boot_passes() {
        let start = boot_time();
        std::thread::sleep(Duration::from_millis(1));
        assert!(boot_time() >= start + Duration::from_millis(1));
    }

    #[test]
    fn a_busy_thread_is_charged_for_its_work() {
        let (start, wall) = (process_cpu_time(), Instant::now());
        let mut value = 1u64;
        while wall.elapsed() < Duration::from_millis(50) {
            value = std::hint::black_box(value.wrapping_mul(3));
        }
        // Even on a machine shared by many, some of the 50 ms were ours.
        assert!(process_cpu_time() > start);
    }
}
