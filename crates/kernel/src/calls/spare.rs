//! Memory that a probe, a calibration or a trial may take. It is a part of the memory that the
//! machine, and the control groups of this process, have left.
//!
//! The kernel does not refuse memory that it lacks: it kills a process for it, and rarely the one
//! that has asked. Code that fills memory for a trial asks here first, and skips the trial if the
//! memory is not there.

use crate::cgroup::Cgroups;
use crate::pressure::memory_pressure;
use crate::{KernelError, KernelRoot, meminfo};
use megapage_units::Bytes;
use std::io;

/// Divisor that gives the part of the available memory that may be taken, at most.
const SHARE_OF_AVAILABLE: u64 = 8;
/// Divisor that gives the part of the room in the own control group and its ancestors that may be
/// taken, at most.
const SHARE_OF_GROUP: u64 = 4;
/// Least room in the own control group, and least available memory, during a long trial that takes
/// much memory.
const LEAST_ROOM: Bytes = Bytes::mib(64);
const LEAST_AVAILABLE: Bytes = Bytes::mib(256);
/// Share of 10 s, in per cent. If tasks wait for memory for longer, memory is short.
const PRESSED_PERCENT: f64 = 1.0;
/// Wait of tasks for memory, in microseconds, that ends a long trial. It is counted from the
/// trial's beginning. It is needed because the kernel updates the share above only every two
/// seconds. Compaction for our own huge pages counts.
const STALLED: u64 = 100_000;

/// Memory to spare.
#[derive(Clone, Copy, Debug)]
pub struct Spare {
    /// Memory that programs can have without swapping, by the kernel's estimate.
    pub available: Bytes,
    /// Memory that nothing uses.
    pub free: Bytes,
    /// Least room in the own control group and its ancestors; `None`: no limit.
    group: Option<Bytes>,
    /// True if tasks wait for memory.
    pub pressed: bool,
    /// Time since boot in which some tasks waited, in microseconds; 0 if the kernel does not report
    /// it.
    stalled: u64,
}

impl Spare {
    /// Reads the memory that is left. A machine that does not show its available memory has none to
    /// spare.
    pub fn read(root: &KernelRoot) -> Result<Spare, KernelError> {
        let memory = meminfo(root)?;
        let available = memory.available.unwrap_or_default();
        let group = Cgroups::read(root, None).ok().and_then(|groups| groups.memory_room());
        let pressure = memory_pressure(root).ok().flatten();
        let pressed = pressure.is_some_and(|pressure| pressure.some_10s > PRESSED_PERCENT);
        let stalled = pressure.map_or(0, |pressure| pressure.some_total_us);
        Ok(Spare { available, free: memory.free.unwrap_or_default(), group, pressed, stalled })
    }

    /// Returns the bytes that may be taken: at most an eighth of the available memory, and at most
    /// a quarter of the room in the control groups.
    pub fn budget(&self) -> Bytes {
        let group = self.group.map_or(u64::MAX, |room| room.0 / SHARE_OF_GROUP);
        Bytes((self.available.0 / SHARE_OF_AVAILABLE).min(group))
    }

    /// Returns an error of kind OutOfMemory, which gives the reason in one line, if `bytes` may not
    /// be taken.
    pub fn allows(&self, bytes: Bytes) -> io::Result<()> {
        if bytes <= self.budget() {
            return Ok(());
        }
        let is_tight = |room: &Bytes| room.0 / SHARE_OF_GROUP < self.available.0 / SHARE_OF_AVAILABLE;
        let left = match self.group.filter(is_tight) {
            Some(room) => format!("its control group leaves {room} (at most a quarter)"),
            None => format!("{} is available (at most an eighth)", self.available),
        };
        let what = format!("it takes {bytes} of memory, too much while {left}");
        Err(io::Error::new(io::ErrorKind::OutOfMemory, what))
    }

    /// Returns true if a long trial may go on. At least half as much memory as at its `beginning`
    /// must be left, with the `taken` bytes counted that it has itself. A least amount must be left
    /// besides, and tasks must not wait for memory.
    pub fn holds(&self, beginning: &Spare, taken: u64) -> bool {
        let left = |now: Bytes, then: Bytes| now.0.saturating_add(taken) >= then.0 / 2;
        let group = match (self.group, beginning.group) {
            (Some(now), Some(then)) => now >= LEAST_ROOM && left(now, then),
            (Some(_), None) => false,
            (None, _) => true,
        };
        let available = self.available >= LEAST_AVAILABLE && left(self.available, beginning.available);
        let stalled = self.stalled.saturating_sub(beginning.stalled) > STALLED;
        !self.pressed && !stalled && group && available
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spare(available: Bytes, free: Bytes, group: Option<Bytes>) -> Spare {
        Spare { available, free, group, pressed: false, stalled: 7_000_000 }
    }

    #[test]
    fn what_is_taken_fits_the_machine_and_the_own_group() {
        let mib = |available: Bytes, group| spare(available, available, group).budget().0 >> 20;
        assert_eq!(mib(Bytes::gib(16), None), 2048);
        // A daemon with the limit of its unit, then with hardly any room.
        assert_eq!(mib(Bytes::gib(16), Some(Bytes::gib(2))), 512);
        assert_eq!(mib(Bytes::gib(16), Some(Bytes::mib(48))), 12);
        assert_eq!(mib(Bytes::mib(512), Some(Bytes::gib(2))), 64);
        let little = spare(Bytes::mib(79), Bytes::mib(79), None);
        assert!(little.allows(Bytes::mib(9)).is_ok());
        let why = little.allows(Bytes::mib(10)).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::OutOfMemory);
        let why = why.to_string();
        assert!(why.contains("takes 10 MiB") && why.contains("79 MiB is available"), "{why}");
        let full = spare(Bytes::gib(16), Bytes::gib(16), Some(Bytes::mib(39)));
        assert!(full.allows(Bytes::mib(10)).unwrap_err().to_string().contains("group leaves 39 MiB"));
    }

    #[test]
    fn the_limits_of_ancestors_count() {
        let (_keep, root) = crate::root::captured_tree(&[
            ("proc/meminfo", "MemTotal: 16000000 kB\nMemFree: 8388608 kB\nMemAvailable: 8388608 kB\n"),
            ("proc/self/cgroup", "0::/app.slice/top.scope\n"),
            ("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
            ("sys/fs/cgroup/app.slice/memory.max", "67108864\n"),
            ("sys/fs/cgroup/app.slice/memory.current", "50331648\n"),
            ("sys/fs/cgroup/app.slice/top.scope/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/app.slice/top.scope/memory.current", "4096\n"),
        ]);
        assert_eq!(Spare::read(&root).unwrap().budget(), Bytes::mib(4));
        let (_keep, root) = crate::root::captured_tree(&[("proc/meminfo", "MemTotal: 16000000 kB\n")]);
        assert_eq!(Spare::read(&root).unwrap().budget(), Bytes::ZERO, "unknown is nothing");
    }

    #[test]
    fn memory_that_others_take_meanwhile_is_left_to_them() {
        let then = spare(Bytes::gib(8), Bytes::gib(8), Some(Bytes::gib(2)));
        let gib = 1 << 30;
        // Memory of the caller is no shortage.
        assert!(spare(Bytes::gib(7), Bytes::gib(7), Some(Bytes::gib(1))).holds(&then, gib));
        assert!(!spare(Bytes::gib(2), Bytes::gib(2), Some(Bytes::gib(1))).holds(&then, gib));
        assert!(!spare(Bytes::gib(7), Bytes::gib(7), Some(Bytes::mib(100))).holds(&then, gib / 2));
        // Half of the memory of the beginning is there with that of the caller, but hardly any
        // besides.
        assert!(!spare(Bytes::gib(7), Bytes::gib(7), Some(Bytes::mib(63))).holds(&then, gib));
        assert!(!spare(Bytes::mib(255), Bytes::mib(255), Some(Bytes::gib(1))).holds(&then, 5 * gib));
        assert!(!Spare { pressed: true, ..then }.holds(&then, 0));
        let stalled = |more: u64| Spare { stalled: then.stalled + more, ..then };
        assert!(stalled(STALLED).holds(&then, 0) && !stalled(STALLED + 1).holds(&then, 0));
        let unlimited = Spare { group: None, ..then };
        assert!(unlimited.holds(&unlimited, 0) && unlimited.holds(&then, 0) && !then.holds(&unlimited, 0));
    }
}
