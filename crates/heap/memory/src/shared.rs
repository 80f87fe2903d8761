//! Shared memory that the program asks for (`megapage run --shm`). It is put on hugetlb pages if
//! that is wanted and possible. Otherwise it is put where transparent huge pages can back it, and
//! collapsed once it has filled up. The latter is the default for large requests: no memory is
//! spent that was not touched.
//!
//! The program sees what it asked for. A segment keeps its size. A mapping keeps its length: only
//! whole huge pages of it come from the pool, and the remainder is base pages behind them. Files in
//! memory (memfd_create(2), shm_open(3)) are never made hugetlb files, because their sizes and
//! write(2) have other rules. They get an address at which their own pages can be huge.

use crate::collapse::{LEAST_PRESENT, MOST_FAILURES, pause};
use crate::heap::hugetlb::{why_not_mapped, why_not_populated};
use crate::ledger::{FallBack, Ledger, SharedBacking};
use crate::prim::{Kernel, Prim};
use crate::sync::AtomicU64;
use megapage_inside::program_shared as calls;
use megapage_inside::{Borrowed, Errno, default_hugetlb_size, hugetlb_available, program_memory};
use megapage_units::{BASE_PAGE, HUGE_2M, HugePage, PageSize};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicUsize};
use std::time::Duration;

/// Environment variable: the requested backing of shared memory, as `megapage run --shm` spells it.
pub const SHM_VARIABLE: &str = "MEGAPAGE_SHM";
/// Bytes below which a request is the kernel's, unchanged.
pub const SMALLEST: usize = HUGE_2M;
/// Bytes below which a request is the kernel's while nothing is asked for ([`Shm::Auto`]).
pub const SMALLEST_UNASKED: usize = 64 << 20;
/// Ranges that are watched until they are huge all over; further ones are not watched.
const MOST_WATCHED: usize = 32;
/// Regions of a range that are watched, in words of 64: 64 GiB. Regions behind them are at most
/// advised.
const WORDS: usize = 512;
/// Size of the pool's pages.
const PAGE: PageSize = PageSize::HUGE_2M;
/// Looks in a row that collapse none of a range's full regions, before the range is given up.
const MOST_VAIN: u8 = 16;

megapage_units::named! {
    /// Requested backing of shared memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Shm {
        /// 2 MiB hugetlb pages, else transparent ones.
        Hugetlb2M = "2m",
        /// Transparent huge pages.
        Thp = "thp",
        /// Nothing is asked for: large memory is collapsed once it has filled up.
        #[default]
        Auto = "auto",
        /// Nothing is done.
        None = "none",
    }
}

// The variants are in the order of the numbers that `Shared` keeps.
impl Shm {
    /// Returns true if the user asks for huge pages.
    pub const fn is_asked(self) -> bool {
        matches!(self, Shm::Hugetlb2M | Shm::Thp)
    }
}

/// Range that is watched. `start` is 0 if there is none; the other fields are written before it.
#[derive(Debug)]
struct Watched {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Regions that are huge, or given up.
    done: AtomicUsize,
    /// Regions that are huge, a bit each.
    huge: [AtomicU64; WORDS],
    vain: AtomicU8,
}

impl Watched {
    const fn new() -> Watched {
        Watched {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            huge: [const { AtomicU64::new(0) }; WORDS],
            vain: AtomicU8::new(0),
        }
    }

    fn regions(&self, start: usize) -> usize {
        (self.end.load(Relaxed).saturating_sub(start) / HUGE_2M).min(64 * WORDS)
    }

    fn is_open(&self, start: usize) -> bool {
        start > 1 && self.done.load(Relaxed) < self.regions(start)
    }

    fn is_huge(&self, region: usize) -> bool {
        self.huge[region / 64].load(Relaxed) & 1 << (region % 64) != 0
    }

    fn set_huge(&self, region: usize) {
        if self.huge[region / 64].fetch_or(1 << (region % 64), Relaxed) & 1 << (region % 64) == 0 {
            self.done.fetch_add(1, Relaxed);
        }
    }
}

/// Result of a look at the watched ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedLook {
    /// Bytes that were collapsed.
    pub collapsed: usize,
    /// Bytes that are present in regions that are not full yet.
    pub present: usize,
    /// True if some range is not huge all over yet.
    pub open: bool,
    /// Time that looking took. Collapsing is not counted: it pays for itself by pauses.
    pub cost: Duration,
}

/// The shared memory of this process.
#[derive(Debug)]
pub struct Shared {
    shm: AtomicU8,
    populate: AtomicU8,
    watched: [Watched; MOST_WATCHED],
}

impl Shared {
    /// Makes a state in which nothing is asked for until [`Shared::configure`].
    pub const fn new() -> Shared {
        Shared {
            shm: AtomicU8::new(Shm::None as u8),
            populate: AtomicU8::new(1),
            watched: [const { Watched::new() }; MOST_WATCHED],
        }
    }

    /// Sets the requested backing. `populate` says that pages are populated at once where a fault
    /// might be refused.
    pub fn configure(&self, shm: Shm, populate: bool) {
        self.populate.store(u8::from(populate), Relaxed);
        self.shm.store(shm as u8, Relaxed);
    }

    /// Returns the requested backing.
    pub fn asked(&self) -> Shm {
        Shm::ALL[usize::from(self.shm.load(Relaxed)) % Shm::ALL.len()]
    }

    /// Returns true if a request of this size is handled. Returns false for a program that has
    /// forbidden itself system calls.
    fn concerns(&self, len: usize) -> bool {
        let smallest = match self.asked() {
            Shm::None => return false,
            Shm::Auto => SMALLEST_UNASKED,
            Shm::Thp | Shm::Hugetlb2M => SMALLEST,
        };
        len >= smallest && !program_memory::is_confined()
    }

    fn populates(&self) -> bool {
        self.populate.load(Relaxed) != 0
    }

    /// Makes a segment on huge pages for shmget(2) with these arguments. Returns `None` if the
    /// program's own call is to be made.
    pub fn segment(&self, ledger: &Ledger, key: i32, size: usize, flags: i32) -> Option<i32> {
        const CREATE: i32 = 0o1000;
        const HUGETLB: i32 = 0o4000;
        let is_new = key == 0 || flags & CREATE != 0;
        let takes_pool = self.asked() == Shm::Hugetlb2M && self.concerns(size);
        if !takes_pool || flags & HUGETLB != 0 || !is_new {
            return None;
        }
        let id = match calls::huge_segment(key, size, flags, PAGE) {
            Ok(id) => id,
            Err(errno) => {
                // If a segment has that key, or the arguments are wrong, the program's own call
                // says so.
                if is_of_pages(errno) || hugetlb_available(PAGE).is_none() {
                    ledger.shared_fell_back(why_not(PAGE, errno), size as u64, errno.0);
                }
                return None;
            }
        };
        let populated = if self.populates() { calls::populate_segment(id, size) } else { Ok(()) };
        if let Err(errno) = populated {
            calls::remove_segment(id);
            ledger.shared_fell_back(why_not_filled(errno), size as u64, errno.0);
            return None;
        }
        ledger.shared_obtained(SharedBacking::Hugetlb2M, size.next_multiple_of(HUGE_2M) as u64);
        Some(id)
    }

    /// Attaches a segment where huge pages can map it, for shmat(2) at no particular address.
    /// Returns its address and size. Returns `None` if the program's own call is to be made.
    pub fn attach(&self, ledger: &Ledger, id: i32, flags: i32) -> Option<(usize, usize)> {
        let size = calls::segment_size(id).filter(|size| self.concerns(*size))?;
        let len = size.next_multiple_of(HUGE_2M);
        let start = calls::reserve(len, calls::ALIGNMENT, 0).ok()?;
        // If another thread takes the addresses in between, the kernel refuses. It also refuses a
        // segment on larger pages.
        calls::give_up(start, len);
        let at = calls::attach_at(id, start, flags).ok()?;
        self.watch(ledger, at, size);
        Some((at, size))
    }

    /// Maps shared anonymous memory for mmap(2) with these arguments. Returns `None` if the
    /// program's own call is to be made.
    pub fn map_anonymous(&self, ledger: &Ledger, len: usize, protection: i32, flags: i32) -> Option<usize> {
        if !self.concerns(len) {
            return None;
        }
        let all = len.checked_next_multiple_of(BASE_PAGE)?;
        // Whole pages come from the pool; the rest behind them is mapped as usual.
        let whole = all / HUGE_2M * HUGE_2M;
        if self.asked() == Shm::Hugetlb2M && whole > 0 {
            let mapped = calls::map_huge(whole, all - whole, protection, flags, PAGE);
            let mapped = mapped.map_err(|errno| (why_not(PAGE, errno), errno)).and_then(|start| {
                let populated = if self.populates() { calls::populate(start, whole) } else { Ok(()) };
                populated.map(|()| start).map_err(|errno| {
                    calls::give_up(start, all);
                    (why_not_filled(errno), errno)
                })
            });
            match mapped {
                Ok(start) => {
                    ledger.shared_obtained(SharedBacking::Hugetlb2M, whole as u64);
                    return Some(start);
                }
                Err((why, errno)) => ledger.shared_fell_back(why, whole as u64, errno.0),
            }
        }
        self.map_aligned(ledger, all, protection, flags, -1, 0)
    }

    /// Maps a file in memory, for mmap(2) with these arguments. Returns `None` if the program's own
    /// call is to be made.
    pub fn map_file(
        &self,
        ledger: &Ledger,
        len: usize,
        protection: i32,
        flags: i32,
        (fd, offset): (i32, i64),
    ) -> Option<usize> {
        let is_possible = offset >= 0 && offset % BASE_PAGE as i64 == 0;
        if !self.concerns(len) || !is_possible || !calls::is_memory_file(fd) {
            return None;
        }
        let all = len.checked_next_multiple_of(BASE_PAGE)?;
        self.map_aligned(ledger, all, protection, flags, fd, offset)
    }

    fn map_aligned(
        &self,
        ledger: &Ledger,
        len: usize,
        protection: i32,
        flags: i32,
        fd: i32,
        offset: i64,
    ) -> Option<usize> {
        let past = (offset as u64 % HugePage::SIZE) as usize;
        let start = calls::reserve(len, calls::ALIGNMENT, past).ok()?;
        calls::map_over(start, len, protection, flags, fd, offset).ok()?;
        self.watch(ledger, start, len);
        Some(start)
    }

    /// Watches a range from now on. Advises it to be huge if huge pages were asked for.
    fn watch(&self, ledger: &Ledger, start: usize, len: usize) {
        if self.asked() != Shm::Auto {
            let _ = Borrowed::new(start, len.next_multiple_of(BASE_PAGE)).advise_thp();
        }
        ledger.shared_obtained(SharedBacking::Aligned, len as u64);
        let first = start.next_multiple_of(HUGE_2M);
        let end = (start + len) / HUGE_2M * HUGE_2M;
        if first >= end {
            return;
        }
        // 1 stands for a place that is being written.
        let free = self.watched.iter().find(|it| it.start.compare_exchange(0, 1, Acquire, Relaxed).is_ok());
        let Some(place) = free else { return };
        place.end.store(end, Relaxed);
        place.done.store(0, Relaxed);
        place.huge.iter().for_each(|word| word.store(0, Relaxed));
        place.vain.store(0, Relaxed);
        place.start.store(first, Release);
    }

    /// Notes that the program unmaps a range, or detaches the segment that begins there (`len` of
    /// 0).
    pub fn unmapping(&self, start: usize, len: usize) {
        if self.asked() == Shm::None {
            return;
        }
        for it in &self.watched {
            let first = it.start.load(Acquire);
            let overlaps = first > 1 && start < it.end.load(Relaxed) && first < start.saturating_add(len);
            let begins = first > 1 && len == 0 && first.wrapping_sub(start) < HUGE_2M;
            if overlaps || begins {
                let _ = it.start.compare_exchange(first, 0, Relaxed, Relaxed);
            }
        }
    }

    /// Collapses the regions that have filled up. Takes no lock: the kernel refuses to collapse
    /// memory that the program unmaps meanwhile.
    pub fn look(&self, ledger: &Ledger) -> SharedLook {
        let mut look = SharedLook::default();
        let began = Kernel.now();
        let mut acted = Duration::ZERO;
        for it in &self.watched {
            let start = it.start.load(Acquire);
            if it.is_open(start) {
                let full = collapse_full(it, start);
                look.collapsed += full.collapsed;
                look.present += full.present;
                acted += full.took;
                look.open |= it.is_open(start);
            }
        }
        ledger.shared_collapsed(look.collapsed as u64);
        look.cost = Kernel.now().saturating_sub(began + acted);
        look
    }
}

/// Result for the regions of one range.
#[derive(Clone, Copy, Debug, Default)]
struct Full {
    /// Bytes that were collapsed.
    collapsed: usize,
    /// Bytes that are present in regions that are not full yet.
    present: usize,
    /// Time that collapsing took, with the pauses.
    took: Duration,
}

/// Collapses the regions of a range that are full and were not huge before.
fn collapse_full(it: &Watched, start: usize) -> Full {
    let (mut full, mut failures) = (Full::default(), 0);
    for region in 0..it.regions(start) {
        let at = start + region * HUGE_2M;
        if failures >= MOST_FAILURES || it.start.load(Relaxed) != start {
            break;
        }
        if it.is_huge(region) {
            continue;
        }
        let resident = program_memory::resident(at, HUGE_2M).unwrap_or(0);
        if resident < LEAST_PRESENT * BASE_PAGE {
            full.present += resident;
            continue;
        }
        let began = Kernel.now();
        if Borrowed::new(at, HUGE_2M).collapse().is_ok() {
            it.set_huge(region);
            full.collapsed += HUGE_2M;
        } else {
            failures += 1;
        }
        pause(&Kernel, began);
        full.took += Kernel.now().saturating_sub(began);
    }
    if failures == 0 || full.collapsed > 0 {
        it.vain.store(0, Relaxed);
    } else if it.vain.fetch_add(1, Relaxed) + 1 >= MOST_VAIN {
        it.done.store(it.regions(start), Relaxed);
    }
    full
}

/// Returns true if an error of shmget(2) is about huge pages, and not about the key, the size or
/// the limits of segments.
fn is_of_pages(errno: Errno) -> bool {
    matches!(errno, Errno::ENOMEM | Errno::EPERM)
}

fn why_not(page: PageSize, errno: Errno) -> FallBack {
    if errno == Errno::EPERM { FallBack::ShmNotPermitted } else { why_not_mapped(&Kernel, page, errno) }
}

/// Returns the reason why pages that were reserved could not be populated.
fn why_not_filled(errno: Errno) -> FallBack {
    // Kernels before Linux 5.14 do not know this request.
    if errno == Errno::EINVAL { FallBack::KernelTooOld } else { why_not_populated(&Kernel, PAGE) }
}

/// Notes that the kernel refused the program's own request for hugetlb pages. `flags` are those of
/// mmap(2) or shmget(2).
pub fn note_refused(ledger: &Ledger, len: usize, flags: i32, errno: Errno) {
    if is_of_pages(errno) {
        let page = calls::page_size_of(flags).or_else(default_hugetlb_size);
        let why = match page {
            _ if errno == Errno::EPERM => FallBack::ShmNotPermitted,
            Some(page) if page == PageSize::HUGE_1G || page == PageSize::HUGE_2M => why_not(page, errno),
            // The pools of other sizes are not looked at.
            _ => FallBack::Unexplained,
        };
        ledger.own_request_refused(why, len as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const RW: i32 = 3;
    /// MAP_SHARED | MAP_ANONYMOUS.
    const ANONYMOUS: i32 = 0x21;

    #[test]
    fn kinds_are_read() {
        for shm in ["none", "auto", "thp", "2m"] {
            assert!(Shm::parse(shm.as_bytes()).is_some(), "{shm}");
        }
        assert_eq!(Shm::parse(b"4k"), None);
    }

    #[test]
    fn nothing_is_done_unless_asked_or_for_small_requests() {
        let (shared, ledger) = (Shared::new(), Ledger::private());
        assert_eq!(shared.map_anonymous(&ledger, 64 * MIB, RW, ANONYMOUS), None);
        assert_eq!(shared.segment(&ledger, 0, 64 * MIB, 0o600), None);
        shared.configure(Shm::Thp, true);
        assert_eq!(shared.asked(), Shm::Thp);
        assert_eq!(shared.map_anonymous(&ledger, 2 * MIB - 1, RW, ANONYMOUS), None);
        assert_eq!(shared.segment(&ledger, 0, 64 * MIB, 0o600), None, "the program's own call does it");
        assert_eq!(shared.map_file(&ledger, 64 * MIB, RW, 1, (-1, 0)), None);
    }

    #[test]
    fn unrequested_memory_is_large() {
        let (shared, ledger) = (Shared::new(), Ledger::private());
        shared.configure(Shm::Auto, true);
        assert_eq!(shared.map_anonymous(&ledger, SMALLEST_UNASKED - 1, RW, ANONYMOUS), None);
        let at = shared.map_anonymous(&ledger, SMALLEST_UNASKED, RW, ANONYMOUS).unwrap();
        assert!(at.is_multiple_of(HUGE_2M) && shared.look(&ledger).open);
        assert_eq!(shared.segment(&ledger, 0, SMALLEST_UNASKED, 0o600), None, "no pages of the pool");
        calls::give_up(at, SMALLEST_UNASKED);
    }

    #[test]
    fn what_is_mapped_lies_right_and_is_watched_until_it_is_gone() {
        let (shared, ledger) = (Shared::new(), Ledger::private());
        shared.configure(Shm::Thp, true);
        let at = shared.map_anonymous(&ledger, 5 * MIB + 1, RW, ANONYMOUS).unwrap();
        assert!(at.is_multiple_of(HUGE_2M));
        assert_eq!(ledger.shared(SharedBacking::Aligned), (5 * MIB + BASE_PAGE) as u64);
        let watched = || shared.watched.iter().filter(|it| it.start.load(Relaxed) > 1).count();
        assert_eq!(watched(), 1);
        assert!(shared.look(&ledger).open && shared.look(&ledger).collapsed == 0, "nothing is touched");
        shared.unmapping(at + 16 * MIB, MIB);
        assert_eq!(watched(), 1, "something else");
        shared.unmapping(at + 2 * MIB, BASE_PAGE);
        assert_eq!((watched(), shared.look(&ledger).open), (0, false));
        calls::give_up(at, 5 * MIB + BASE_PAGE);
        for _ in 0..2 * MOST_WATCHED {
            shared.watch(&ledger, 1 << 40, 4 * MIB);
        }
        assert_eq!(watched(), MOST_WATCHED, "no more are");
    }

    #[test]
    fn a_region_is_huge_once() {
        let watched = Watched::new();
        watched.end.store(HUGE_2M * 130, Relaxed);
        assert_eq!(watched.regions(HUGE_2M), 129);
        (0..2).for_each(|_| watched.set_huge(128));
        assert!(watched.is_huge(128) && !watched.is_huge(127) && watched.done.load(Relaxed) == 1);
        assert!(watched.is_open(HUGE_2M) && !watched.is_open(0) && !watched.is_open(1));
        watched.end.store(usize::MAX, Relaxed);
        assert_eq!(watched.regions(HUGE_2M), 64 * WORDS);
    }

    #[test]
    fn only_errors_of_pages_are_reported() {
        let ledger = Ledger::private();
        note_refused(&ledger, 5, 0x4_0000, Errno::EINVAL);
        assert!(FallBack::ALL.iter().all(|reason| ledger.own_requests_refused(*reason) == (0, 0)));
        note_refused(&ledger, 5, 0o4000, Errno::EPERM);
        assert_eq!(ledger.own_requests_refused(FallBack::ShmNotPermitted), (1, 5));
        // Pages of 16 MiB: the pool is not looked at.
        note_refused(&ledger, 7, 0x4_0000 | 24 << 26, Errno::ENOMEM);
        assert_eq!(ledger.own_requests_refused(FallBack::Unexplained), (1, 7));
    }
}
