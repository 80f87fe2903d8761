//! Pages of the pools behind chunks. First the kernel must let a heap have any safely. Then pages
//! are reserved by mmap, and populated before any program byte goes there. A refusal gets its
//! reason.

use super::group::Group;
use super::room::{Chain, Fresh};
use super::{GROUP, HugeHeap};
use crate::chunk::Mapping;
use crate::ledger::{Backing, FallBack};
use crate::prim::Prim;
use crate::span::Span;
use megapage_inside::{Errno, NoHugetlb};
use megapage_units::{HUGE_1G, HUGE_2M, HugePage, PageSize};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Back-off after a pool was found dry, in milliseconds.
const DRY_MS: u64 = 1000;

/// Back-off of the pool of 2 MiB pages after it was found dry.
#[derive(Debug)]
pub(super) struct Dry {
    until: AtomicU64,
    /// Index of the reason in [`FallBack::ALL`].
    why: AtomicU8,
}

impl Dry {
    pub(super) const fn new() -> Dry {
        Dry { until: AtomicU64::new(0), why: AtomicU8::new(FallBack::PoolShort2M as u8) }
    }

    /// Returns the reason of the back-off at `now`; `None` if there is no back-off.
    fn why(&self, now: u64) -> Option<FallBack> {
        if now >= self.until.load(Relaxed) {
            return None;
        }
        FallBack::ALL.get(usize::from(self.why.load(Relaxed))).copied()
    }

    fn begin(&self, now: u64, why: FallBack) {
        self.why.store(why as u8, Relaxed);
        self.until.store(now + DRY_MS, Relaxed);
    }
}

/// The kernel's ability to let a heap have hugetlb pages safely: tried once, and then known.
#[derive(Debug)]
pub(super) struct Fit(AtomicU32);

/// Values of [`Fit`]: not tried yet, and able.
const UNKNOWN: u32 = 0;
const ABLE: u32 = 1;
/// Not able: the kernel is too old, or answers the errno that is added to `REFUSED`.
const TOO_OLD: u32 = 2;
const REFUSED: u32 = 3;

impl Fit {
    pub(super) const fn new() -> Fit {
        Fit(AtomicU32::new(UNKNOWN))
    }

    /// Returns the reason why the kernel is not able; `None` if it is.
    fn lacks(&self, kernel: &impl Prim) -> Option<(FallBack, Errno)> {
        let mut known = self.0.load(Relaxed);
        if known == UNKNOWN {
            known = match kernel.try_hugetlb(PageSize::HUGE_2M) {
                Ok(()) => ABLE,
                Err(NoHugetlb::Move(Errno::EINVAL) | NoHugetlb::Populate(Errno::EINVAL)) => TOO_OLD,
                Err(NoHugetlb::Move(errno) | NoHugetlb::Populate(errno)) => REFUSED + errno.0.unsigned_abs(),
            };
            self.0.store(known, Relaxed);
        }
        match known {
            ABLE => None,
            TOO_OLD => Some((FallBack::KernelTooOld, Errno::EINVAL)),
            refused => Some((FallBack::Other, Errno((refused - REFUSED) as i32))),
        }
    }
}

/// Returns the reason why the kernel did not map a page of `size` and answered `errno`.
pub(crate) fn why_not_mapped(kernel: &impl Prim, size: PageSize, errno: Errno) -> FallBack {
    let short = if size == PageSize::HUGE_1G { FallBack::PoolShort1G } else { FallBack::PoolShort2M };
    // A program's own filter of system calls may forbid to read files.
    if kernel.is_confined() && errno == Errno::ENOMEM {
        short
    } else if errno != Errno::ENOMEM {
        FallBack::Other
    } else if is_less(kernel.hugetlb_room(size).reservation, size) {
        FallBack::CgroupLimit
    } else if kernel.hugetlb_available(size).unwrap_or(0) == 0 {
        short
    } else {
        why_not_here(kernel, size).unwrap_or(FallBack::Unexplained)
    }
}

/// Returns the reason why the kernel did not populate a page of `size` that it had reserved.
pub(crate) fn why_not_populated(kernel: &impl Prim, size: PageSize) -> FallBack {
    if kernel.is_confined() {
        return FallBack::Unexplained;
    }
    if is_less(kernel.hugetlb_room(size).fault, size) {
        return FallBack::CgroupLimit;
    }
    why_not_here(kernel, size).unwrap_or(FallBack::Unexplained)
}

fn is_less(room: Option<u64>, size: PageSize) -> bool {
    room.is_some_and(|room| room < size.bytes().0)
}

/// Returns the reason why the calling thread cannot have the free pages of `size`: they lie on
/// nodes that it may not use. `None` if they do not, or the kernel does not say.
fn why_not_here(kernel: &impl Prim, size: PageSize) -> Option<FallBack> {
    let free = kernel.hugetlb_free_by_node(size)?;
    match (free.policy, free.cpuset, free.all) {
        (1.., _, _) | (_, _, 0) => None,
        (_, 1.., _) => Some(FallBack::MemoryPolicy),
        _ => Some(FallBack::Cpuset),
    }
}

impl<K: Prim> HugeHeap<K> {
    /// Returns the reason why the kernel must not be asked for hugetlb pages; `None` if it may. If
    /// a kernel cannot move such pages, the failing move takes the heap's own addresses along.
    pub(super) fn unfit(&self) -> Option<(FallBack, Errno)> {
        self.fit.lacks(&self.kernel)
    }

    /// Returns true if the heap may ask the kernel for hugetlb pages. Otherwise counts `bytes` as
    /// fallen back to smaller pages.
    pub(super) fn is_fit(&self, bytes: u64) -> bool {
        self.unfit().inspect(|(why, errno)| self.ledger().fell_back(*why, bytes, errno.0)).is_none()
    }

    /// Reserves up to `count` 2 MiB pages for the chunks from `index` on, and halves the request
    /// while the pool is too short for it. Returns true if at least the first chunk has its page
    /// reserved.
    pub(super) fn reserve_hugetlb(&self, span: &Group, index: usize, count: usize) -> bool {
        if !self.is_fit(HugePage::SIZE) {
            return false;
        }
        if let Some(why) = self.dry.why(self.now_ms()) {
            self.ledger().fell_back(why, HugePage::SIZE, 0);
            return false;
        }
        self.take_all_open(span, index, count);
        let mut count = count;
        let mut last = Errno::ENOMEM;
        while count > 0 {
            match self.kernel.map_hugetlb(&span.chunks_at(index, count), PageSize::HUGE_2M) {
                Ok(()) => {
                    for i in index..index + count {
                        span.chunk(i).set_mapping(Mapping::Reserved(Backing::Hugetlb2M));
                    }
                    return true;
                }
                Err(errno) => last = errno,
            }
            count /= 2;
        }
        let why = why_not_mapped(&self.kernel, PageSize::HUGE_2M, last);
        self.dry.begin(self.now_ms(), why);
        self.ledger().fell_back(why, HugePage::SIZE, last.0);
        false
    }

    /// Takes reserved pages into use as they are: nothing can refuse the fault, so that it may come
    /// at first touch. Returns true if the first chunk has such a page.
    pub(super) fn accept_reserved(&self, span: &Group, index: usize, count: usize) -> bool {
        let mut accepted = 0;
        for i in index..index + count {
            if span.chunk(i).mapping() != Mapping::Reserved(Backing::Hugetlb2M) {
                break;
            }
            span.chunk(i).set_mapping(Mapping::Mapped(Backing::Hugetlb2M));
            accepted += 1;
        }
        self.ledger().obtained(Backing::Hugetlb2M, (accepted * HUGE_2M) as u64);
        accepted > 0
    }

    /// Faults a reserved chunk in. If that is refused, the chunk and its reserved neighbours go
    /// back.
    pub(super) fn populate_reserved(&self, span: &Group, index: usize, backing: Backing) -> bool {
        let range = span.chunk_at(index);
        match self.populate(*range) {
            Ok(()) => {
                span.chunk(index).set_mapping(Mapping::Mapped(backing));
                self.ledger().obtained(backing, HugePage::SIZE);
                true
            }
            Err(errno) => {
                let why = why_not_populated(&self.kernel, PageSize::HUGE_2M);
                self.ledger().fell_back(why, HugePage::SIZE, errno.0);
                if backing == Backing::Hugetlb2M {
                    self.dry.begin(self.now_ms(), why);
                    // If even that fails, the chunk stays reserved, and is not used.
                    if self.kernel.close(&range).is_ok() {
                        span.chunk(index).set_mapping(Mapping::None);
                    }
                    self.return_reserved(span, index);
                }
                false
            }
        }
    }

    /// Unmaps the chunks of `index`'s group that are reserved and untouched.
    pub(super) fn return_reserved(&self, span: &Group, index: usize) {
        let first = index / GROUP * GROUP;
        for i in first..(first + GROUP).min(span.chunks()) {
            let mapping = span.chunk(i).mapping();
            if mapping == Mapping::Reserved(Backing::Broker) {
                self.remove_from_broker(span, i);
                // If it cannot be closed, it has to be populated before it is used.
                span.chunk(i).set_mapping(Mapping::Reserved(Backing::Hugetlb2M));
            }
            if let Mapping::Reserved(Backing::Hugetlb2M | Backing::Broker) = mapping
                && self.kernel.close(&span.chunk_at(i)).is_ok()
            {
                span.chunk(i).set_mapping(Mapping::None);
            }
        }
    }

    /// Maps 1 GiB pages for the chunks from `first` up to `end` if [`HugeHeap::chain`] says so.
    /// Skips pages that hold a mapped chunk, and stops at the first refusal. Populates each page at
    /// once: a later page fault could not fall back to another backing.
    pub(super) fn map_gigantic(&self, of: Fresh, span: &Span, first: usize, end: usize) {
        let Some(Chain::Gigantic) = self.chain(of) else { return };
        const CHUNKS: usize = HUGE_1G / HUGE_2M;
        let start = span.range.start();
        let mut index =
            first + (start + first * HUGE_2M).next_multiple_of(HUGE_1G) / HUGE_2M - (start / HUGE_2M + first);
        while index + CHUNKS <= end {
            if !self.with_all_held(span, |span| self.map_gigantic_page(span, index, CHUNKS)) {
                return;
            }
            index += CHUNKS;
        }
    }

    /// Maps one 1 GiB page for the `chunks` chunks from `index` on. Returns true if the caller may
    /// try the next ones.
    fn map_gigantic_page(&self, span: &Group, index: usize, chunks: usize) -> bool {
        if (index..index + chunks).any(|i| span.chunk(i).mapping() != Mapping::None) {
            return true;
        }
        // After a refusal the chunks may be inaccessible.
        self.take_all_open(span, index, chunks);
        let range = span.chunks_at(index, chunks);
        let refused = match self.kernel.map_hugetlb(&range, PageSize::HUGE_1G) {
            Err(errno) => Some((why_not_mapped(&self.kernel, PageSize::HUGE_1G, errno), errno)),
            Ok(()) => self.populate(*range).err().map(|errno| {
                let why = why_not_populated(&self.kernel, PageSize::HUGE_1G);
                let _ = self.kernel.close(&range);
                (why, errno)
            }),
        };
        if let Some((why, errno)) = refused {
            self.ledger().fell_back(why, HUGE_1G as u64, errno.0);
            return false;
        }
        for i in index..index + chunks {
            span.chunk(i).set_mapping(Mapping::Mapped(Backing::Hugetlb1G));
        }
        self.ledger().obtained(Backing::Hugetlb1G, HUGE_1G as u64);
        true
    }
}
