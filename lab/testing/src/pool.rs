//! A pool of hugetlb pages for the length of a test.

mod record;

pub(crate) use self::record::recover;
use self::record::{Record, restore};
use crate::{MachineLock, skip, skip_scarce};
use megapage_kernel::hugetlb::{self, PoolCounts, PoolFile, PoolScope};
use megapage_kernel::{KernelRoot, meminfo, reclaim};
use megapage_units::{Bytes, PageSize};

/// Memory that stays available, for any number of pages that a test asks for.
pub const LEAST_AVAILABLE: Bytes = Bytes::gib(2);

/// Attempts to get the pages from the kernel, which may be scattered.
const ATTEMPTS: u32 = 5;

/// Pages added to a pool, and the machine lock. Dropping it, also by a panic, restores the pool's
/// size and its overcommit after any change by the test. Nested guards of one size are dropped in
/// the reverse order, as local variables are. If the process is killed, the test that takes the
/// machine lock next restores the pool.
#[derive(Debug)]
pub struct PoolGuard {
    size: PageSize,
    former: PoolCounts,
    record: Record,
    _lock: MachineLock,
}

impl PoolGuard {
    /// Adds `pages` to the machine's pool of `size`. With 0 pages the pool is only restored at the
    /// end. A skip for lack of pages of 1 GiB fails no test.
    ///
    /// Returns `None`, after a loud skip, if tests may not change the machine, if there is no pool
    /// of that size, if less than [`LEAST_AVAILABLE`] would stay available, or if the kernel does
    /// not find the pages.
    pub fn reserve(size: PageSize, pages: u64) -> Option<PoolGuard> {
        PoolGuard::try_reserve(size, pages)
            .map_err(|why| {
                let why = format!("needs {pages} hugetlb pages of {size}: {why}");
                let is_scarce = size == PageSize::HUGE_1G && crate::may_change_machine().is_ok();
                if is_scarce { skip_scarce(&why) } else { skip(&why) }
            })
            .ok()
    }

    fn try_reserve(size: PageSize, pages: u64) -> Result<PoolGuard, String> {
        crate::may_change_machine()?;
        let lock = MachineLock::take();
        let root = KernelRoot::live();
        let former = hugetlb::counts(&root, size, PoolScope::Machine).map_err(|error| error.to_string())?;
        let available = meminfo(&root).map_err(|error| error.to_string())?.available.unwrap_or(Bytes::ZERO);
        let needed = Bytes(size.bytes().0.saturating_mul(pages));
        if available < LEAST_AVAILABLE.max(Bytes(needed.0.saturating_add(LEAST_AVAILABLE.0))) {
            return Err(format!("{available} available, of which {LEAST_AVAILABLE} are to stay"));
        }
        let record = Record::of(&root, size, former).map_err(|error| error.to_string())?;
        // From here on the guard restores all changes, on every way out.
        let guard = PoolGuard { size, former, record, _lock: lock };
        let wanted = former.persistent() + pages;
        let mut obtained = former.persistent();
        // The caches of a build may lie scattered over all memory: another attempt finds the
        // remaining pages.
        for attempt in 0..ATTEMPTS {
            if obtained >= wanted {
                break;
            }
            if attempt > 0 {
                // Either may be refused, or be of no use; the values show it.
                let _ = reclaim::drop_caches(&root);
                let _ = reclaim::compact(&root, PoolScope::Machine);
            }
            hugetlb::write(&root, size, PoolScope::Machine, PoolFile::Pages, wanted)
                .map_err(|error| error.to_string())?;
            obtained = guard.counts().persistent();
        }
        if obtained < wanted {
            return Err(format!("the kernel found {} of them", obtained.saturating_sub(former.persistent())));
        }
        Ok(guard)
    }

    /// Returns the pool's present state.
    ///
    /// # Panics
    /// If the kernel's files cannot be read.
    pub fn counts(&self) -> PoolCounts {
        hugetlb::counts(&KernelRoot::live(), self.size, PoolScope::Machine).expect("read a moment ago")
    }

    /// Returns the pool's former state.
    pub fn former(&self) -> PoolCounts {
        self.former
    }
}

impl Drop for PoolGuard {
    fn drop(&mut self) {
        let (persistent, overcommit) = (self.former.persistent(), self.former.overcommit);
        restore(&KernelRoot::live(), self.size, persistent, overcommit);
        self.record.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_and_go() {
        let Some(guard) = PoolGuard::reserve(PageSize::HUGE_2M, 3) else { return };
        let former = guard.former();
        assert_eq!(guard.counts().persistent(), former.persistent() + 3);
        let inner = PoolGuard::reserve(PageSize::HUGE_2M, 2).unwrap();
        assert_eq!(inner.counts().persistent(), former.persistent() + 5);
        drop(inner);
        assert_eq!(guard.counts().persistent(), former.persistent() + 3);
        let lock = MachineLock::take();
        drop(guard);
        let now = hugetlb::counts(&KernelRoot::live(), PageSize::HUGE_2M, PoolScope::Machine).unwrap();
        assert_eq!(now.persistent(), former.persistent());
        drop(lock);
    }

    #[test]
    fn a_panic_puts_the_pool_back() {
        let _lock = MachineLock::take();
        let before = || hugetlb::counts(&KernelRoot::live(), PageSize::HUGE_2M, PoolScope::Machine).unwrap();
        let former = before().persistent();
        let result = std::panic::catch_unwind(|| {
            let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 1) else { return };
            assert_eq!(before().persistent(), former + 1);
            panic!("as a failing test does");
        });
        assert_eq!(result.is_err(), crate::may_change_machine().is_ok());
        assert_eq!(before().persistent(), former);
    }

    /// The variable that makes [`a_killed_test_leaves_nothing`] the process that is killed.
    const VICTIM: &str = "MEGAPAGE_TEST_POOL_VICTIM";

    #[test]
    fn a_killed_test_leaves_nothing() {
        if std::env::var_os(VICTIM).is_some() {
            let _guard = PoolGuard::reserve(PageSize::HUGE_2M, 2).unwrap();
            let _inner = PoolGuard::reserve(PageSize::HUGE_2M, 1).unwrap();
            // No destructor runs, as after SIGKILL.
            std::process::abort();
        }
        if !crate::require_machine() {
            return;
        }
        let persistent = || {
            hugetlb::counts(&KernelRoot::live(), PageSize::HUGE_2M, PoolScope::Machine).unwrap().persistent()
        };
        let former = {
            let _lock = MachineLock::take();
            persistent()
        };
        let victim = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "pool::tests::a_killed_test_leaves_nothing"])
            .env(VICTIM, "1")
            .stderr(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(!victim.success());
        let _lock = MachineLock::take();
        assert_eq!(persistent(), former);
    }

    #[test]
    fn memory_that_is_needed_stays() {
        if !crate::require_machine() {
            return;
        }
        let total = meminfo(&KernelRoot::live()).unwrap().total.unwrap();
        let pages = total.0 / PageSize::HUGE_2M.bytes().0;
        let why = PoolGuard::try_reserve(PageSize::HUGE_2M, pages).unwrap_err();
        assert!(why.contains("are to stay"), "{why}");
        assert!(PoolGuard::try_reserve(PageSize::HUGE_2M, u64::MAX / 2).is_err());
    }
}
