//! Memory that can be spared for timing what accesses take.

use megapage_kernel::cgroup::Cgroups;
use megapage_kernel::pressure::memory_pressure;
use megapage_kernel::{KernelError, KernelRoot, meminfo};
use megapage_units::Bytes;

/// Less is not worth timing: most of it is in the caches.
pub(super) const LEAST_MEMORY: u64 = 64 << 20;
/// The share of the available memory that both halves of a timing take, at most.
const SHARE_OF_AVAILABLE: u64 = 8;
/// The share of what the caller's own control group leaves room for.
const SHARE_OF_GROUP: u64 = 2;
/// The share of the free memory beyond which no more than the least is timed: the page cache is of more use to others.
const SHARE_OF_FREE: u64 = 2;
/// What the own control group leaves, and what is available, at least while a timing takes memory: less is for others. The
/// kernel does not refuse memory that it lacks, it kills for it.
const LEAST_ROOM: Bytes = Bytes(64 << 20);
const LEAST_AVAILABLE: Bytes = Bytes(256 << 20);
/// Tasks wait for memory for more than this share of 10 s: nothing is timed, in per cent.
const PRESSED_PERCENT: f64 = 1.0;
/// Tasks have waited for memory for so long since a timing began: it ends. That share is brought up to date every two
/// seconds only. In microseconds; compaction for our own huge pages counts.
const STALLED: u64 = 100_000;

/// What memory there is to spare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    pub(super) available: Bytes,
    free: Bytes,
    /// What the own control group leaves; `None`: it has no limit.
    group: Option<Bytes>,
    /// Tasks wait for memory.
    pub(super) pressed: bool,
    /// For how long some did since boot, in microseconds; 0 where the kernel does not report it.
    stalled: u64,
}

impl Spare {
    pub(super) fn read(root: &KernelRoot) -> Result<Spare, KernelError> {
        let memory = meminfo(root)?;
        let available = memory.available.unwrap_or_default();
        let group = Cgroups::read(root, None).ok().and_then(|groups| groups.memory_room());
        let pressure = memory_pressure(root).ok().flatten();
        let pressed = pressure.is_some_and(|pressure| pressure.some_10s > PRESSED_PERCENT);
        let stalled = pressure.map_or(0, |pressure| pressure.some_total_us);
        Ok(Spare { available, free: memory.free.unwrap_or_default(), group, pressed, stalled })
    }

    /// How much memory each of the two may be.
    pub(super) fn room(&self) -> u64 {
        let group = self.group.map_or(u64::MAX, |room| room.0 / SHARE_OF_GROUP);
        let most = (self.available.0 / SHARE_OF_AVAILABLE).min(group) / 2;
        most.min((self.free.0 / SHARE_OF_FREE / 2).max(LEAST_MEMORY))
    }

    /// Whether, with `taken` bytes of it taken by ourselves, there still is at least half as much as there was at the
    /// beginning, and enough besides.
    pub(super) fn holds(&self, beginning: &Spare, taken: u64) -> bool {
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
    fn what_is_timed_fits_the_machine_and_the_own_group() {
        let mib = |available: Bytes, free: Bytes, group| spare(available, free, group).room() >> 20;
        let all_free = |available: Bytes, group| mib(available, available, group);
        assert_eq!(all_free(Bytes::gib(16), None), 1024);
        // A daemon with the limit of its unit, and one that has too little to time anything.
        assert_eq!(all_free(Bytes::gib(16), Some(Bytes::gib(2))), 512);
        assert!(all_free(Bytes::gib(16), Some(Bytes::mib(200))) << 20 < LEAST_MEMORY);
        assert!(all_free(Bytes::mib(512), Some(Bytes::gib(2))) << 20 < LEAST_MEMORY);
        // The page cache of others is taken for the least alone.
        assert_eq!(mib(Bytes::gib(16), Bytes::gib(1), None), 256);
        assert_eq!(mib(Bytes::gib(16), Bytes::mib(90), None), LEAST_MEMORY >> 20);
        assert_eq!(
            mib(Bytes::mib(640), Bytes::mib(90), None),
            40,
            "an eighth of what is available holds as well"
        );
    }

    #[test]
    fn memory_that_others_take_meanwhile_is_left_to_them() {
        let then = spare(Bytes::gib(8), Bytes::gib(8), Some(Bytes::gib(2)));
        let gib = 1 << 30;
        // What we have taken ourselves is no shortage.
        assert!(spare(Bytes::gib(7), Bytes::gib(7), Some(Bytes::gib(1))).holds(&then, gib));
        assert!(!spare(Bytes::gib(2), Bytes::gib(2), Some(Bytes::gib(1))).holds(&then, gib));
        assert!(!spare(Bytes::gib(7), Bytes::gib(7), Some(Bytes::mib(100))).holds(&then, gib / 2));
        // Half of the beginning is there with ours, but hardly any besides.
        assert!(!spare(Bytes::gib(7), Bytes::gib(7), Some(Bytes::mib(63))).holds(&then, gib));
        assert!(!spare(Bytes::mib(255), Bytes::mib(255), Some(Bytes::gib(1))).holds(&then, 5 * gib));
        assert!(!Spare { pressed: true, ..then }.holds(&then, 0));
        let stalled = |more: u64| Spare { stalled: then.stalled + more, ..then };
        assert!(stalled(STALLED).holds(&then, 0) && !stalled(STALLED + 1).holds(&then, 0));
        let unlimited = Spare { group: None, ..then };
        assert!(unlimited.holds(&unlimited, 0) && unlimited.holds(&then, 0) && !then.holds(&unlimited, 0));
    }
}
