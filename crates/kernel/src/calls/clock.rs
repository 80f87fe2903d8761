//! Clocks that the standard library does not offer.

use crate::{KernelError, KernelRoot};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the processor time, user and system, of all threads of the calling process so far
/// (`CLOCK_PROCESS_CPUTIME_ID` of clock_gettime(2)). Includes the time of its helper processes
/// ([`crate::helper`]). Unlike the time on the wall, it does not grow while the process waits for a
/// processor.
pub fn process_cpu_time() -> Duration {
    own_cpu_time() + crate::helper_time::cpu_time()
}

/// Returns the same without the helpers' time.
pub(crate) fn own_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // The kernel never reports a negative time here, or 10^9 nanoseconds and more in a second.
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Returns the time since boot, suspension included (`CLOCK_BOOTTIME` of clock_gettime(2)). It
/// never falls.
pub fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Returns the time of `CLOCK_MONOTONIC` of clock_gettime(2), suspension excluded. A service
/// manager compares with this clock.
pub fn monotonic_time() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Returns the identifier of this boot, different for each boot (`boot_id`, proc_sys_kernel(5)).
/// Counts since boot are comparable only within one.
pub fn boot_id(root: &KernelRoot) -> Result<String, KernelError> {
    Ok(root.read("proc/sys/kernel/random/boot_id")?.trim().to_string())
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
    fn a_boot_has_one_name() {
        let root = KernelRoot::live();
        let name = boot_id(&root).unwrap();
        assert_eq!(name.len(), 36, "a UUID: {name}");
        assert_eq!(boot_id(&root).unwrap(), name);
    }

    #[test]
    fn a_busy_thread_is_charged_for_its_work() {
        let (start, wall) = (process_cpu_time(), Instant::now());
        let mut value = 1u64;
        while wall.elapsed() < Duration::from_millis(50) {
            value = std::hint::black_box(value.wrapping_mul(3));
        }
        // Even on a machine shared by many, this process got some of the 50 ms.
        assert!(process_cpu_time() > start);
    }
}
