//! Mappings of a heap moved over one another (mremap(2)), in a way that never leaves a hole: a
//! reserved address stays reserved, whatever the kernel refuses. Nothing here allocates.
//!
//! File-level obligation: as in `range.rs`, a moved or replaced range is [`Owned`]. mremap and mmap
//! with MAP_FIXED unmap their target before some of their failures. Another thread's mapping may
//! take the place at once. So a range is mapped again with MAP_FIXED_NOREPLACE alone.

#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::own_values::thread_count;
use crate::range::{Owned, Reservation, hugetlb_flags, map_anywhere, without_signals};
use crate::system::call;
use megapage_units::{BASE_PAGE, HUGE_2M, PageSize};

/// A move that the kernel has refused. The pages are where they were, and still their owner's.
#[derive(Debug)]
pub struct NotMoved {
    /// The pages that were to be moved.
    pub pages: Reservation,
    /// The kernel's error.
    pub errno: Errno,
    /// True if the target has lost its mapping: it is reserved and inaccessible. Else it is as it
    /// was, or another thread has mapped something there.
    pub target_emptied: bool,
}

/// Same as [`NotMoved`], without the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MoveError {
    errno: Errno,
    target_emptied: bool,
}

/// An ability that the kernel lacks for putting hugetlb pages behind a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHugetlb {
    /// mremap(2) of hugetlb pages. EINVAL: Linux before 5.16; else a filter of system calls.
    Move(Errno),
    /// MADV_POPULATE_WRITE of madvise(2). EINVAL: Linux before 5.14; else a filter of system calls.
    Populate(Errno),
}

/// Proof that only the calling thread of the process writes to memory meanwhile.
#[derive(Debug)]
pub struct Alone(());

impl Alone {
    /// Returns the proof if the process has exactly `threads` threads. These are the calling one,
    /// and the library's threads that its caller knows to be idle. Returns `None` otherwise, or if
    /// the kernel does not show the number.
    pub fn among(threads: u64) -> Option<Alone> {
        (thread_count() == Some(threads)).then_some(Alone(()))
    }
}

impl Reservation {
    /// Moves these pages, with their contents, over `target`, which is as long (mremap(2)).
    /// Afterwards nothing is mapped where they were, and those addresses are not even reserved. On
    /// an error the pages are as they were, and the target is as it was or inaccessible.
    pub fn move_over(self, target: &Owned<'_>) -> Result<(), NotMoved> {
        match remap(&self, target) {
            Ok(()) => {
                self.keep();
                Ok(())
            }
            Err(MoveError { errno, target_emptied }) => Err(NotMoved { pages: self, errno, target_emptied }),
        }
    }
}

/// Moves as [`Reservation::move_over`] does. Private to this file, since it leaves `pages` without
/// a mapping.
fn remap(pages: &Owned<'_>, target: &Owned<'_>) -> Result<(), MoveError> {
    assert_eq!(pages.len(), target.len());
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    let arguments = [pages.start(), pages.len(), pages.len(), flags, target.start()];
    // SAFETY: mremap(2), MREMAP_FIXED: both ranges are owned, including the replaced one.
    let moved = unsafe { call(libc::SYS_mremap, arguments) };
    moved.map(drop).map_err(|errno| MoveError { errno, target_emptied: target.reserve_hole().is_ok() })
}

/// Maps addresses for one hugetlb page of `size`, moves them by mremap(2), and returns the result.
/// Takes no page from the pool. Returns `None` if the kernel refuses to map the page or to reserve
/// the target.
pub fn try_move(size: PageSize) -> Option<Result<(), Errno>> {
    let bytes = size.bytes().0 as usize;
    // With PROT_NONE and MAP_NORESERVE the kernel neither takes nor reserves a page of the pool.
    let flags = hugetlb_flags(size) | libc::MAP_NORESERVE;
    let pages = map_anywhere(bytes, libc::PROT_NONE, flags).ok()?;
    let target = Reservation::new(bytes, bytes).ok()?;
    Some(pages.move_over(&target).map_err(|refused| {
        // An emptied target was reserved again, and EPERM leaves the target as it was. After
        // another error another thread may have mapped memory there. Then the target is not
        // unmapped, and its addresses are lost.
        if !refused.target_emptied && refused.errno != Errno::EPERM {
            target.keep();
        }
        refused.errno
    }))
}

/// Tests that a heap can use hugetlb pages of `size` safely: the kernel can move them, and populate
/// memory without a signal. Uses scratch ranges, and takes no page from the pool. Also returns `Ok`
/// if the trial cannot be made.
pub fn try_hugetlb(size: PageSize) -> Result<(), NoHugetlb> {
    match try_move(size) {
        None => return Ok(()),
        Some(moved) => moved.map_err(NoHugetlb::Move)?,
    }
    let Ok(page) = Reservation::new(BASE_PAGE, BASE_PAGE) else { return Ok(()) };
    match page.open().and_then(|()| page.populate()) {
        // Short of memory, for the moment.
        Ok(()) | Err(Errno::ENOMEM) => Ok(()),
        Err(errno) => Err(NoHugetlb::Populate(errno)),
    }
}

impl Owned<'_> {
    /// Moves the contents of the range onto transparent huge pages at the same addresses. Another
    /// thread's write between copy and switch would be lost. Signals wait meanwhile, because their
    /// handlers may write. On an error nothing has changed.
    pub fn move_to_thp(&self, alone: &Alone) -> Result<(), Errno> {
        self.move_to_private(None, alone)
    }

    /// Does the same for a range that [`Owned::map_extent`] mapped, whose pages go back to the
    /// pool.
    pub fn move_extent_to_thp(&self, alone: &Alone) -> Result<(), Errno> {
        let aside = self.reserve_alike()?;
        self.move_to_private(Some(&aside), alone)?;
        // Only now: the pages were needed to move back. If this fails they go when the process
        // ends.
        let _ = aside.remove();
        Ok(())
    }

    fn reserve_alike(&self) -> Result<Reservation, Errno> {
        Reservation::new(self.len(), HUGE_2M.min(self.len().next_power_of_two()))
    }

    /// Moves the contents onto private memory. The former mapping is put `aside` if there is such a
    /// range, and else dropped.
    fn move_to_private(&self, aside: Option<&Owned<'_>>, _alone: &Alone) -> Result<(), Errno> {
        let copy = self.reserve_alike()?;
        copy.open()?;
        let _ = copy.advise_thp();
        copy.populate()?;
        without_signals(|| {
            // SAFETY: the copy is open, and the moved range is in use. No other thread writes: the
            // caller has the proof.
            unsafe { copy.copy_from(self.view()) };
            if let Some(aside) = aside {
                remap(self, aside).map_err(|error| error.errno)?;
            }
            copy.move_over(self).or_else(|NotMoved { pages, errno, target_emptied }| {
                self.recover(&pages, aside, MoveError { errno, target_emptied })
            })
        })
    }

    /// Recovers after `copy`, which holds the bytes of this range, could not be moved here: the
    /// bytes are here again, or still. `Ok` if they are on private memory, as wanted, though not on
    /// huge pages.
    fn recover(&self, copy: &Owned<'_>, aside: Option<&Owned<'_>>, error: MoveError) -> Result<(), Errno> {
        if !error.target_emptied || aside.is_some_and(|aside| remap(aside, self).is_ok()) {
            return Err(error.errno);
        }
        self.open().or_else(|_| self.map_over(libc::PROT_READ | libc::PROT_WRITE, 0))?;
        // SAFETY: this range was opened, and the copy before it. No other code knows the copy.
        unsafe { self.copy_from(copy.view()) };
        Ok(())
    }
}

/// Returns true if every page of the range is mapped, for tests (msync(2)).
#[cfg(test)]
pub(crate) fn is_mapped(range: &crate::range::Borrowed) -> bool {
    // SAFETY: MS_ASYNC writes nothing; the kernel checks the range.
    unsafe {
        crate::system::call_for_program(
            libc::SYS_msync,
            [range.start(), range.len(), libc::MS_ASYNC as usize],
        )
    }
    .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::set_errno;
    use crate::range::{Borrowed, tests};
    use megapage_testing::{Call, PoolGuard, in_child, refuse};

    const SIZE: PageSize = PageSize::HUGE_2M;

    fn poke(range: &Borrowed, byte: u8) {
        tests::poke(range, 9, byte);
    }

    fn peek(range: &Borrowed) -> u8 {
        tests::peek(range, 9)
    }

    /// Takes over a range that no code of these tests uses.
    fn owned(range: Borrowed) -> Owned<'static> {
        // SAFETY: in these tests nothing else owns the range.
        unsafe { Owned::of_allocator(range.start(), range.len()) }
    }

    /// Unmaps a range, as a kernel does that refuses a move too late.
    fn unmap(range: &Borrowed) {
        // SAFETY: in these tests nothing else owns the range, nor uses it afterwards.
        unsafe { Reservation::of_allocator(range.start(), range.len()) }.release().unwrap();
    }

    // In a separate process: another test's mapping may come to lie in a hole at any time.
    #[test]
    fn a_hole_is_reserved_again_and_what_lies_there_is_left_alone() {
        in_child("moving::tests::a_hole_is_reserved_again_and_what_lies_there_is_left_alone", || {
            // An older kernel unmaps the target of a move before it refuses to move hugetlb pages.
            let mut range = Reservation::new(2 * HUGE_2M, HUGE_2M).unwrap();
            assert!(range.reserve_hole().is_err() && is_mapped(&range), "nothing was lost");
            let _behind = range.split_off(HUGE_2M);
            let hole = range.view();
            range.release().unwrap();
            assert!(!is_mapped(&hole));
            assert!(hole.reserve_hole().is_ok() && is_mapped(&hole));
            assert!(owned(hole.part(0, BASE_PAGE)).open().is_ok(), "it is reserved, and ours");
            // Another thread's mapping has come to lie in the hole.
            unmap(&hole);
            let theirs = owned(hole.part(BASE_PAGE, BASE_PAGE));
            assert_eq!(theirs.reserve_hole(), Ok(()));
            theirs.open().unwrap();
            poke(&theirs, 7);
            assert_eq!(hole.reserve_hole(), Err(Errno::EEXIST));
            assert_eq!(peek(&theirs), 7);
        });
    }

    #[test]
    fn this_kernel_is_tried() {
        let sizes = [PageSize::HUGE_2M, PageSize::HUGE_1G];
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
        let since = (numbers.next().unwrap(), numbers.next().unwrap());
        for size in sizes {
            let able = try_hugetlb(size);
            if since >= (5, 16) {
                assert_eq!(able, Ok(()), "Linux {release}");
            } else {
                assert!(
                    matches!(able, Err(NoHugetlb::Move(Errno::EINVAL)) | Ok(())),
                    "Linux {release}: {able:?}"
                );
            }
        }
    }

    #[test]
    fn a_trial_takes_nothing_from_the_pool() {
        let Some(pool) = PoolGuard::reserve(SIZE, 1) else { return };
        let before = pool.counts();
        try_hugetlb(SIZE).unwrap();
        assert_eq!(pool.counts(), before);
    }

    #[test]
    fn a_kernel_that_moves_no_hugetlb_pages_is_found_out() {
        in_child("moving::tests::a_kernel_that_moves_no_hugetlb_pages_is_found_out", || {
            refuse(Call::MOVE, libc::EINVAL);
            assert_eq!(try_hugetlb(SIZE), Err(NoHugetlb::Move(Errno::EINVAL)));
        });
    }

    #[test]
    fn a_trial_whose_move_is_forbidden_leaves_nothing_mapped() {
        in_child("moving::tests::a_trial_whose_move_is_forbidden_leaves_nothing_mapped", || {
            refuse(Call::MOVE, libc::EPERM);
            let mapped = || {
                let text = std::fs::read_to_string("/proc/self/statm").unwrap();
                text.split(' ').next().unwrap().parse::<usize>().unwrap()
            };
            let before = mapped();
            assert_eq!(try_move(SIZE), Some(Err(Errno::EPERM)));
            assert_eq!(mapped(), before, "the trial leaves addresses mapped, in base pages");
        });
    }

    #[test]
    fn a_kernel_that_cannot_populate_is_found_out() {
        in_child("moving::tests::a_kernel_that_cannot_populate_is_found_out", || {
            refuse(Call::POPULATE, libc::EINVAL);
            assert_eq!(try_hugetlb(SIZE), Err(NoHugetlb::Populate(Errno::EINVAL)));
        });
    }

    #[test]
    fn a_refused_move_leaves_both_ends_as_they_were() {
        in_child("moving::tests::a_refused_move_leaves_both_ends_as_they_were", || {
            let [one, other] = [1, 2].map(|byte| {
                let range = Reservation::new(HUGE_2M, HUGE_2M).unwrap();
                range.open().unwrap();
                poke(&range, byte);
                range
            });
            refuse(Call::MOVE, libc::EPERM);
            let NotMoved { pages: one, errno, target_emptied } = one.move_over(&other).unwrap_err();
            assert_eq!((errno, target_emptied), (Errno(libc::EPERM), false));
            assert_eq!((peek(&one), peek(&other)), (1, 2));
            // Nor does only a part of it become other memory.
            assert_eq!(one.move_to_thp(&Alone(())), Err(Errno(libc::EPERM)));
            assert_eq!(peek(&one), 1);
            set_errno(0);
        });
    }

    #[test]
    fn bytes_whose_place_was_unmapped_come_back() {
        in_child("moving::tests::bytes_whose_place_was_unmapped_come_back", || {
            let [copy, place, aside] = [3, 4, 5].map(|byte| {
                let range = Reservation::new(HUGE_2M, HUGE_2M).unwrap().keep();
                range.open().unwrap();
                poke(&range, byte);
                range
            });
            let lost = MoveError { errno: Errno::EINVAL, target_emptied: true };
            // The state in which a kernel leaves it that has unmapped the target.
            unmap(&place);
            assert_eq!(place.reserve_hole(), Ok(()));
            assert_eq!(place.recover(&copy, None, lost), Ok(()), "on other pages");
            assert_eq!(peek(&place), 3);
            assert_eq!(
                place.recover(&copy, Some(&aside), lost),
                Err(Errno::EINVAL),
                "what was put aside is back"
            );
            assert_eq!((peek(&place), is_mapped(&aside)), (5, false));
            let kept = MoveError { target_emptied: false, ..lost };
            assert_eq!(place.recover(&copy, None, kept), Err(Errno::EINVAL));
            assert_eq!(peek(&place), 5, "nothing was lost");
        });
    }
}
