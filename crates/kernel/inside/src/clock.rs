//! The monotonic clock, read without a name of the C library's.
//!
//! File-level obligation: the kernel writes to a structure that is as large as it expects.

#![allow(unsafe_code)]

use crate::system::is_confined;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// True once the kernel's shared object was found. rustix reads the clock from it without a system
/// call.
static READY: AtomicBool = AtomicBool::new(false);

/// Finds the kernel's shared object (vdso(7)). May allocate: call it before threads exist, and not
/// within malloc.
pub fn find_clock() {
    // rustix finds the object by further system calls.
    if is_confined() {
        return;
    }
    let _ = clock_gettime(ClockId::Monotonic);
    READY.store(true, Relaxed);
}

/// Returns the time since some fixed point (CLOCK_MONOTONIC), without a system call once
/// [`find_clock`] was called.
///
/// The shared object makes a call where the machine's clock cannot be read without one. So a
/// program that forbids itself calls reads the coarse clock, which the kernel keeps in memory. That
/// clock is up to a tick of the kernel (1 to 10 ms) behind.
pub fn monotonic() -> Duration {
    if READY.load(Relaxed) {
        let clock = if is_confined() { ClockId::MonotonicCoarse } else { ClockId::Monotonic };
        let now = clock_gettime(clock);
        return Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
    }
    asked()
}

fn asked() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let clock = libc::CLOCK_MONOTONIC as usize;
    // SAFETY: the structure is writable.
    let _ = unsafe { crate::system::call(libc::SYS_clock_gettime, [clock, (&raw mut now) as usize]) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_the_clock_agree() {
        let first = monotonic();
        find_clock();
        let (second, third) = (monotonic(), asked());
        assert!(first <= second && second <= third && third - first < Duration::from_secs(60));
    }

    #[test]
    fn a_program_that_forbids_itself_calls_reads_the_coarse_clock() {
        megapage_testing::in_child(
            "clock::tests::a_program_that_forbids_itself_calls_reads_the_coarse_clock",
            || {
                find_clock();
                let before = monotonic();
                crate::system::program_confines();
                let coarse = clock_gettime(ClockId::MonotonicCoarse);
                let after = monotonic();
                let tick = Duration::from_millis(100);
                assert!(after.as_nanos() as i64 >= coarse.tv_sec * 1_000_000_000 + coarse.tv_nsec);
                assert!(after + tick >= before && after < before + Duration::from_secs(60));
                // It moves by ticks: most of many readings are equal.
                let readings: Vec<Duration> = (0..1000).map(|_| monotonic()).collect();
                let changes = readings.windows(2).filter(|pair| pair[0] != pair[1]).count();
                assert!(changes < 500, "{changes}");
            },
        );
    }
}
