//! Pages of the pools behind chunks: whether the kernel lets a heap have any safely, reserved by mmap, populated before any
//! program byte goes there, and why not where it refuses.

use super::{GROUP, HugeHeap};
use crate::chunk::Mapping;
use crate::config::Heap;
use crate::ledger::{Backing, FallBack};
use crate::span::Span;
use megapage_inside::program_memory::is_confined;
use megapage_inside::{
    Errno, Lock, NoHugetlb, OwnedRange, hugetlb_available, hugetlb_free_by_node, hugetlb_room,
};
use megapage_units::{HUGE_1G, HUGE_2M, PageSize};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// After a pool was found dry it is left alone for this long, in milliseconds.
const DRY_MS: u64 = 1000;

/// The pool of 2 MiB pages, after it was found dry.
#[derive(Debug)]
pub(super) struct Dry {
    until: AtomicU64,
    /// A place in [`FallBack::ALL`].
    why: AtomicU8,
}

impl Dry {
    pub(super) const fn new() -> Dry {
        Dry { until: AtomicU64::new(0), why: AtomicU8::new(FallBack::PoolShort2M as u8) }
    }

    /// Why it is left alone at `now`; `None` where it is not.
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

/// Whether the kernel lets a heap have hugetlb pages safely: tried once, and then known.
#[derive(Debug)]
pub(super) struct Fit(AtomicU32);

/// Not tried yet, and able.
const UNKNOWN: u32 = 0;
const ABLE: u32 = 1;
/// Not able, for it is too old, or because of this errno.
const TOO_OLD: u32 = 2;
const REFUSED: u32 = 3;

impl Fit {
    pub(super) const fn new() -> Fit {
        Fit(AtomicU32::new(UNKNOWN))
    }

    /// Why not; `None` where it is able.
    fn lacks(&self) -> Option<(FallBack, Errno)> {
        let mut known = self.0.load(Relaxed);
        if known == UNKNOWN {
            known = match OwnedRange::try_hugetlb(PageSize::HUGE_2M) {
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

/// Why the kernel did not map a page of `size`, and answered `errno`.
pub(crate) fn why_not_mapped(size: PageSize, errno: Errno) -> FallBack {
    let short = if size == PageSize::HUGE_1G { FallBack::PoolShort1G } else { FallBack::PoolShort2M };
    // A filter of the program's own may not let files be read.
    if is_confined() && errno == Errno::ENOMEM {
        short
    } else if errno != Errno::ENOMEM {
        FallBack::Other
    } else if is_less(hugetlb_room(size).reservation, size) {
        FallBack::CgroupLimit
    } else if hugetlb_available(size).unwrap_or(0) == 0 {
        short
    } else {
        why_not_here(size).unwrap_or(FallBack::Unexplained)
    }
}

/// Why the kernel did not populate a page of `size` that it had reserved.
pub(crate) fn why_not_populated(size: PageSize) -> FallBack {
    if is_confined() {
        return FallBack::Unexplained;
    }
    if is_less(hugetlb_room(size).fault, size) {
        return FallBack::CgroupLimit;
    }
    why_not_here(size).unwrap_or(FallBack::Unexplained)
}

fn is_less(room: Option<u64>, size: PageSize) -> bool {
    room.is_some_and(|room| room < size.bytes().0)
}

/// What keeps the calling thread from the free pages of `size`, where they lie on other nodes than it may use.
fn why_not_here(size: PageSize) -> Option<FallBack> {
    let free = hugetlb_free_by_node(size)?;
    match (free.policy, free.cpuset, free.all) {
        (1.., _, _) | (_, _, 0) => None,
        (_, 1.., _) => Some(FallBack::MemoryPolicy),
        _ => Some(FallBack::Cpuset),
    }
}

impl HugeHeap {
    /// Why the kernel must not be asked for hugetlb pages; `None` where it may. On a kernel that moves none the move that
    /// fails takes the heap's own addresses along.
    pub(super) fn unfit(&self) -> Option<(FallBack, Errno)> {
        self.fit.lacks()
    }

    /// Reserves up to `count` 2 MiB pages for the chunks from `index` on; halves the request while the
    /// pool is too short for it. Whether at least the first chunk has its page reserved.
    pub(super) fn reserve_hugetlb(&self, span: &Span, index: usize, count: usize) -> bool {
        if let Some((why, errno)) = self.unfit() {
            self.ledger().fell_back(why, HUGE_2M as u64, errno.0);
            return false;
        }
        if let Some(why) = self.dry.why(self.now_ms()) {
            self.ledger().fell_back(why, HUGE_2M as u64, 0);
            return false;
        }
        self.take_all_open(span, index, count);
        let mut count = count;
        let mut last = Errno::ENOMEM;
        while count > 0 {
            match span.chunk_range(index, count).map_hugetlb(PageSize::HUGE_2M) {
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
        let why = why_not_mapped(PageSize::HUGE_2M, last);
        self.dry.begin(self.now_ms(), why);
        self.ledger().fell_back(why, HUGE_2M as u64, last.0);
        false
    }

    /// Takes reserved pages as they are: nothing can refuse the fault, so first touch may make it.
    pub(super) fn accept_reserved(&self, span: &Span, index: usize, count: usize) -> bool {
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

    /// Faults a reserved chunk in. When that is refused, the chunk and its reserved neighbours go back.
    pub(super) fn populate_reserved(&self, span: &Span, index: usize, backing: Backing) -> bool {
        let range = span.chunk_range(index, 1);
        match self.populate(range) {
            Ok(()) => {
                span.chunk(index).set_mapping(Mapping::Mapped(backing));
                self.ledger().obtained(backing, HUGE_2M as u64);
                true
            }
            Err(errno) => {
                let why = why_not_populated(PageSize::HUGE_2M);
                self.ledger().fell_back(why, HUGE_2M as u64, errno.0);
                if backing == Backing::Hugetlb2M {
                    self.dry.begin(self.now_ms(), why);
                    // Where even that fails the chunk stays reserved, and is not used.
                    if range.close().is_ok() {
                        span.chunk(index).set_mapping(Mapping::None);
                    }
                    self.return_reserved(span, index);
                }
                false
            }
        }
    }

    /// Unmaps the chunks of `index`'s group that are reserved and untouched.
    pub(super) fn return_reserved(&self, span: &Span, index: usize) {
        let first = index / GROUP * GROUP;
        for i in first..(first + GROUP).min(span.chunks()) {
            let mapping = span.chunk(i).mapping();
            if mapping == Mapping::Reserved(Backing::Broker) {
                self.remove_from_broker(span, i);
                // Where it cannot be closed, it has to be populated before it is used.
                span.chunk(i).set_mapping(Mapping::Reserved(Backing::Hugetlb2M));
            }
            if let Mapping::Reserved(Backing::Hugetlb2M | Backing::Broker) = mapping
                && span.chunk_range(i, 1).close().is_ok()
            {
                span.chunk(i).set_mapping(Mapping::None);
            }
        }
    }

    /// Puts 1 GiB pages behind the chunks from `first` up to `end`, as far as whole ones fit between, nothing
    /// is mapped there yet and the pool goes. They are populated at once: later there is no way back.
    pub(super) fn map_gigantic(&self, span: &Span, first: usize, end: usize) {
        let heap = self.config().heap;
        if !matches!(heap, Heap::Auto | Heap::Hugetlb1G) || self.forked.load(Relaxed) {
            return;
        }
        // With a named broker its pages come first.
        if heap == Heap::Auto && self.stock.with(|stock| stock.path_len > 0) {
            return;
        }
        // A machine without such a pool, as most are, has not fallen back from one.
        let has_any = || !is_confined() && hugetlb_available(PageSize::HUGE_1G).unwrap_or(0) > 0;
        if heap == Heap::Auto && !has_any() {
            return;
        }
        if let Some((why, errno)) = self.unfit() {
            self.ledger().fell_back(why, HUGE_1G as u64, errno.0);
            return;
        }
        const CHUNKS: usize = HUGE_1G / HUGE_2M;
        let start = span.range.start();
        let mut index =
            first + (start + first * HUGE_2M).next_multiple_of(HUGE_1G) / HUGE_2M - (start / HUGE_2M + first);
        while index + CHUNKS <= end {
            if !self.with_chunks_locked(|| self.map_gigantic_page(span, index, CHUNKS)) {
                return;
            }
            index += CHUNKS;
        }
    }

    /// Runs `work` with every group locked, in the one order in which more than one is ever taken.
    fn with_chunks_locked<R>(&self, work: impl FnOnce() -> R) -> R {
        self.groups.iter().for_each(Lock::lock);
        let result = work();
        self.groups.iter().for_each(Lock::unlock);
        result
    }

    /// One 1 GiB page for the `chunks` chunks from `index` on. Whether to go on.
    fn map_gigantic_page(&self, span: &Span, index: usize, chunks: usize) -> bool {
        if (index..index + chunks).any(|i| span.chunk(i).mapping() != Mapping::None) {
            return true;
        }
        // After a refusal they may be inaccessible.
        for i in index..index + chunks {
            self.take_open(span.chunk(i));
        }
        let range = span.chunk_range(index, chunks);
        let refused = match range.map_hugetlb(PageSize::HUGE_1G) {
            Err(errno) => Some((why_not_mapped(PageSize::HUGE_1G, errno), errno)),
            Ok(()) => self.populate(range).err().map(|errno| {
                let why = why_not_populated(PageSize::HUGE_1G);
                let _ = range.close();
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
