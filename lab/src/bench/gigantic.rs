//! The pool of 1 GiB pages. It has pages only while a peer runs that uses them. Any other heap that
//! finds some, `megapage` and mimalloc's among them, would take them. They would also take memory
//! from the pool of 2 MiB pages and from peers without a pool.

use super::Pool;
use super::cases::Case;
use super::warm;
use megapage_kernel::hugetlb_available;
use megapage_units::{Bytes, PageSize};
use std::collections::BTreeMap;

const SIZE: PageSize = PageSize::HUGE_1G;

fn bytes(pages: u64) -> Bytes {
    Bytes(SIZE.bytes().0.saturating_mul(pages))
}

/// Pages of 1 GiB for one run after the other. Dropping it takes out the pages that it added.
#[derive(Debug, Default)]
pub(super) struct GiganticPool {
    /// The pages that were added, if there are any.
    pool: Option<Pool>,
    /// The reasons for which cases could not have their pages when they were probed, by case name.
    /// They are not tried again: the kernel looks for pages for seconds, and drops caches.
    refused: BTreeMap<&'static str, String>,
}

impl GiganticPool {
    /// Makes the pages of `case` available. Pages that are in the pool already, reserved at boot,
    /// count. If there are not enough, the error has the reason, and the pool is as it was.
    pub(super) fn give(&mut self, case: &Case) -> Result<(), String> {
        if let Some(why) = self.refused.get(case.name) {
            return Err(why.clone());
        }
        let given = self.obtain(case);
        if given.is_err() {
            self.release();
        }
        given
    }

    /// Tests if `case` can have its pages, and releases them. If it cannot have them now, it does
    /// not get them later.
    pub(super) fn probe(&mut self, case: &Case) -> Result<(), String> {
        let given = self.give(case);
        self.release();
        if let Err(why) = &given {
            self.refused.insert(case.name, why.clone());
        }
        given
    }

    fn obtain(&mut self, case: &Case) -> Result<(), String> {
        self.release();
        let Some(gigantic) = case.gigantic else { return Err("nothing to show on 1 GiB pages".into()) };
        let pages = gigantic.pages;
        let Some(present) = hugetlb_available(SIZE) else {
            return Err("this kernel has no pool of 1 GiB pages: the processor lacks them (pdpe1gb), or the kernel does".into());
        };
        if present < pages {
            let pool = Pool::take_of(SIZE).and_then(|mut pool| {
                pool.set(bytes(pages - present))?;
                Ok(pool)
            });
            self.pool =
                Some(pool.map_err(|why| format!("{pages} GiB in pages of 1 GiB cannot be had: {why:#}"))?);
        }
        // Another process may have taken some.
        let found = hugetlb_available(SIZE).unwrap_or(0);
        if found < pages {
            return Err(format!("{pages} GiB in pages of 1 GiB cannot be had: {found} GiB are available"));
        }
        Ok(())
    }

    /// Touches the pages of `case`: a virtual machine's host has to find them first, which the run
    /// does not measure.
    pub(super) fn touch(&self, case: &Case) {
        let pages = case.gigantic.map_or(0, |gigantic| gigantic.pages);
        warm::touch(bytes(pages), Some(SIZE));
    }

    /// Takes out the pages that were added.
    pub(super) fn release(&mut self) {
        self.pool = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::Gigantic;
    use super::*;
    use megapage_testing::PoolGuard;
    use std::time::Duration;

    fn case(pages: u64) -> Case {
        Case {
            name: "x",
            title: "x".into(),
            arguments: Vec::new(),
            repeats: 1,
            memory: Bytes::ZERO,
            pool: Bytes::ZERO,
            gigantic: Some(Gigantic { pages, beside: Bytes::ZERO }),
            longest: Duration::MAX,
        }
    }

    #[test]
    fn what_a_probe_cannot_have_is_a_reason_and_is_not_tried_again() {
        let mut pool = GiganticPool::default();
        // 1 EiB.
        assert!(pool.give(&case(1 << 30)).is_err());
        assert!(pool.refused.is_empty(), "a later round may have them");
        let why = pool.probe(&case(1 << 30)).unwrap_err();
        assert!(why.contains("1 GiB"), "{why}");
        assert!(pool.pool.is_none(), "nothing was added");
        // The case is known by its name: its request is not looked at again.
        assert_eq!(pool.give(&case(0)).unwrap_err(), why);
        let without = Case { gigantic: None, name: "y", ..case(0) };
        assert!(pool.give(&without).is_err());
    }

    #[test]
    fn pages_that_the_pool_has_are_used_as_they_are() {
        let Some(guard) = PoolGuard::reserve(SIZE, 1) else { return };
        let before = guard.counts();
        let mut pool = GiganticPool::default();
        assert_eq!(pool.give(&case(1)), Ok(()));
        assert!(pool.pool.is_none());
        pool.touch(&case(1));
        pool.release();
        assert_eq!(guard.counts(), before);
    }
}
