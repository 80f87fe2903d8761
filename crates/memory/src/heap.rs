//! The backing chain: pages of a broker where one was named, 1 GiB hugetlb, 2 MiB hugetlb, THP, base pages; decided once
//! per chunk, counted, and never fatal.
//!
//! The allocator above reserves ranges and commits and decommits parts of them in slices of 64 KiB. This
//! module maps whole chunks of 2 MiB behind those slices:
//!
//! - The first [`SMALL_HEAP`] bytes are base pages, so that small programs stay small; once the heap has
//!   outgrown [`COLLAPSE_AT`] they are collapsed too.
//! - hugetlb pages are reserved by mmap and then populated before any program byte goes there, so that a
//!   pool that runs dry or a cgroup limit is an error code here and never a SIGBUS in the program.
//! - A chunk whose last slice is decommitted goes back to the kernel whole. While memory is short, the
//!   decommitted slices of a chunk in use go back too, at the price of splitting its huge page.

mod broker;
mod fork;
mod give_back;
mod mend;

pub use mend::{Mend, Mended};

use self::broker::Stock;
use crate::chunk::{Chunk, Mapping, slice_mask};
use crate::config::{Config, Heap};
use crate::ledger::{Backing, FallBack, Ledger};
use crate::span::{Span, Spans};
use megapage_kernel::{
    Errno, ErrnoGuard, Lock, Locked, OwnedRange, SharedWords, hugetlb_available, is_plausible,
    thp_is_possible,
};
use megapage_units::{BASE_PAGE, HUGE_1G, HUGE_2M, PageSize};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Ranges shorter than this hold the allocator's own tables, the longest of which is just over 2 MiB, and are
/// left on base pages. 4 MiB in bytes.
const MIN_SPAN: usize = 4 << 20;
/// The heap starts on base pages until it holds this many bytes.
const SMALL_HEAP: u64 = 4 << 20;
/// Once the heap holds this many bytes, its first chunks are collapsed as well.
const COLLAPSE_AT: u64 = 32 << 20;
/// Once the heap holds this many bytes, hugetlb pages are reserved a group at a time, which keeps the
/// number of mappings (vm.max_map_count) in bounds.
const GROUP_AT: u64 = 256 << 20;
/// With `Heap::Auto`, arenas come from 1 GiB pages once the heap holds this many bytes.
const ARENA_1G_AT: u64 = 2 << 30;
/// A group: the chunks that one lock covers and one mapping may span.
const GROUP: usize = 16;
/// Commits of at least this many bytes are one large object: it is populated at first touch where that is
/// safe, for a program may never touch all of it.
const BULK: usize = 32 << 20;
/// After a pool was found dry it is left alone for this long, in milliseconds.
const DRY_MS: u64 = 1000;
/// How often, in milliseconds, the available memory is looked at.
const SHORT_MS: u64 = 100;
const LOCKS: usize = 64;
/// How many times the broker is asked for one chunk, whose pages other threads took each time, before another backing is.
const MOST_ASKS: usize = 16;

/// The heap of one process.
#[derive(Debug)]
pub struct HugeHeap {
    config: Locked<Config>,
    spans: Locked<Spans>,
    stock: Locked<Stock>,
    /// Held while the broker is asked, with no other lock of the heap.
    asking: Lock,
    groups: [Lock; LOCKS],
    /// Held while a span is walked that its owner might release meanwhile, and while one is released.
    walks: Lock,
    private: Ledger,
    shared: OnceLock<Ledger>,
    /// Whether the shared ledger is in use: not before one was attached, nor in a forked child.
    attached: AtomicBool,
    start: OnceLock<Instant>,
    dry_until: AtomicU64,
    thp_off: AtomicBool,
    /// The program has forked while it held hugetlb pages: no new ones.
    forked: AtomicBool,
    /// The program has forked since the heap was last seen to be whole: writes may have split its huge pages.
    split: AtomicBool,
    /// Addresses of the first chunks, on base pages until collapsed; 0 where there is none.
    first_chunks: [AtomicUsize; (SMALL_HEAP as usize / HUGE_2M) + 1],
    collapsed: AtomicBool,
    short_checked: AtomicU64,
    short: AtomicBool,
}

/// What [`HugeHeap::reserve`] obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The first address.
    pub address: usize,
    /// Whether the memory is known to be zero.
    pub clean: bool,
}

impl Default for HugeHeap {
    fn default() -> Self {
        HugeHeap::new()
    }
}

impl HugeHeap {
    /// An empty heap.
    pub const fn new() -> HugeHeap {
        HugeHeap {
            config: Locked::new(Config::DEFAULT),
            spans: Locked::new(Spans::new()),
            stock: Locked::new(Stock::new()),
            asking: Lock::new(),
            groups: [const { Lock::new() }; LOCKS],
            walks: Lock::new(),
            private: Ledger::private(),
            shared: OnceLock::new(),
            attached: AtomicBool::new(false),
            start: OnceLock::new(),
            dry_until: AtomicU64::new(0),
            thp_off: AtomicBool::new(false),
            forked: AtomicBool::new(false),
            split: AtomicBool::new(false),
            first_chunks: [const { AtomicUsize::new(0) }; (SMALL_HEAP as usize / HUGE_2M) + 1],
            collapsed: AtomicBool::new(false),
            short_checked: AtomicU64::new(0),
            short: AtomicBool::new(false),
        }
    }

    /// Sets what was asked for. Chunks that are mapped already stay as they are.
    pub fn configure(&self, config: Config) {
        let _errno = ErrnoGuard::save();
        self.config.with(|current| *current = config);
        self.thp_off.store(!thp_is_possible(), Relaxed);
    }

    /// What was asked for.
    pub fn config(&self) -> Config {
        self.config.with(|config| *config)
    }

    /// Continues the account in a page that the launcher reads.
    pub fn attach_ledger(&self, words: SharedWords, pid: u32) {
        if let Some(ledger) = Ledger::claim(words, pid) {
            ledger.continue_from(&self.private);
            if self.shared.set(ledger).is_ok() {
                self.attached.store(true, Relaxed);
            }
        }
    }

    /// The account in use.
    pub fn ledger(&self) -> &Ledger {
        match self.shared.get() {
            Some(shared) if self.attached.load(Relaxed) => shared,
            _ => &self.private,
        }
    }

    fn now_ms(&self) -> u64 {
        self.start.get_or_init(Instant::now).elapsed().as_millis() as u64
    }

    fn held(&self) -> u64 {
        self.ledger().total_held()
    }

    // ---- reserving and releasing ranges -----------------------------------------------------------

    /// Reserves `len` bytes (a multiple of the base page) at a multiple of `alignment`, ready for use when
    /// `commit` is set. ENOMEM when there is none.
    pub fn reserve(&self, len: usize, alignment: usize, commit: bool) -> Result<Reserved, Errno> {
        let _errno = ErrnoGuard::save();
        let alignment = alignment.max(BASE_PAGE);
        if len < MIN_SPAN {
            return self.reserve_untracked(len, alignment, commit);
        }
        if commit && len >= BULK && !is_plausible(len) {
            return Err(Errno::ENOMEM);
        }
        let span_alignment = if len >= HUGE_1G { HUGE_1G } else { HUGE_2M };
        let whole = len.next_multiple_of(HUGE_2M);
        // Where 1 GiB alignment cannot be had (a limit on addresses), 2 MiB will do.
        let span = Span::reserve(whole, alignment.max(span_alignment))
            .or_else(|_| Span::reserve(whole, alignment.max(HUGE_2M)))?;
        if self.config().heap == Heap::Hugetlb1G || (!commit && self.held() >= ARENA_1G_AT) {
            self.map_gigantic(&span, 0, span.chunks());
        }
        if commit && self.commit_in(&span, 0, whole).is_none() {
            let _ = self.release_span(span);
            return Err(Errno::ENOMEM);
        }
        self.ledger().spans(span.range.start() as u64, span.range.end() as u64);
        match self.spans.with(|spans| spans.insert(span)) {
            Ok(()) => Ok(Reserved { address: span.range.start(), clean: true }),
            Err(span) => {
                let _ = self.release_span(span);
                self.reserve_untracked(len, alignment, commit)
            }
        }
    }

    /// A range without chunks: the allocator's own tables, or what the table of spans cannot hold.
    fn reserve_untracked(&self, len: usize, alignment: usize, commit: bool) -> Result<Reserved, Errno> {
        let range = OwnedRange::reserve(len, alignment)?;
        if commit && let Err(errno) = range.open() {
            let _ = range.release();
            return Err(errno);
        }
        Ok(Reserved { address: range.start(), clean: true })
    }

    /// Gives `[address, address + len)`, which [`HugeHeap::reserve`] returned, back whole.
    pub fn release(&self, address: usize, len: usize) -> Result<(), Errno> {
        let _errno = ErrnoGuard::save();
        let whole = len.next_multiple_of(HUGE_2M);
        match self.spans.with(|spans| spans.remove(address, whole)) {
            Some(span) => self.walks.with(|| self.release_span(span)),
            None => OwnedRange::of_allocator(address, len).release(),
        }
    }

    fn release_span(&self, span: Span) -> Result<(), Errno> {
        for index in 0..span.chunks() {
            let mapping = span.chunk(index).mapping();
            if let Mapping::Mapped(Backing::Broker) | Mapping::Reserved(Backing::Broker) = mapping {
                self.remove_from_broker(&span, index);
            }
            if let Mapping::Mapped(backing) = mapping {
                self.ledger().returned(backing, HUGE_2M as u64);
            }
        }
        span.release()
    }

    // ---- committing -------------------------------------------------------------------------------

    /// Makes `[address, address + len)` usable. `Ok(true)` when all of it is known to be zero.
    pub fn commit(&self, address: usize, len: usize) -> Result<bool, Errno> {
        let _errno = ErrnoGuard::save();
        let Some(span) = self.spans.with(|spans| spans.find(address)) else {
            OwnedRange::of_allocator(address, len).open()?;
            return Ok(false);
        };
        let start = address - span.range.start();
        let clean = self.commit_in(&span, start, start + len);
        self.collapse_first_chunks();
        clean.ok_or(Errno::ENOMEM)
    }

    /// `None` when a chunk could not be mapped at all: the address space or the overcommit limit is spent.
    fn commit_in(&self, span: &Span, start: usize, end: usize) -> Option<bool> {
        let bulk = (end - start >= BULK).then(|| end.div_ceil(HUGE_2M));
        if end - start >= HUGE_1G {
            self.map_gigantic(span, start.div_ceil(HUGE_2M), end / HUGE_2M);
        }
        let mut clean = true;
        let mut index = start / HUGE_2M;
        let mut asked = 0;
        while index * HUGE_2M < end {
            // What another thread has asked for may be gone before this one comes to it.
            let asks = |index, asked| asked < MOST_ASKS && self.wants_stock(span, index, bulk.is_some());
            if asks(index, asked) {
                self.ask_broker(bulk.map_or(1, |end| end - index));
            }
            let group_end = ((index / GROUP + 1) * GROUP).min(end.div_ceil(HUGE_2M));
            let lock = self.group_lock(span, index);
            lock.lock();
            let mut done = true;
            while index < group_end && done {
                if asks(index, asked) {
                    asked += 1;
                    break;
                }
                done = self.prepare(span, index, group_end, bulk);
                if done {
                    let base = index * HUGE_2M;
                    let mask = slice_mask(start.saturating_sub(base), (end - base).min(HUGE_2M), false);
                    clean &= span.chunk(index).commit(mask);
                    (index, asked) = (index + 1, 0);
                }
            }
            lock.unlock();
            if !done {
                return None;
            }
        }
        Some(clean)
    }

    fn group_lock(&self, span: &Span, index: usize) -> &Lock {
        let group = span.range.start() / HUGE_2M / GROUP + index / GROUP;
        &self.groups[group % LOCKS]
    }

    /// Makes sure that chunk `index` is mapped and ready; `bulk` is where a large object ends, of which it is a part. With
    /// its group locked.
    fn prepare(&self, span: &Span, index: usize, group_end: usize, bulk: Option<usize>) -> bool {
        let chunk = span.chunk(index);
        match chunk.mapping() {
            Mapping::Mapped(_) => return true,
            Mapping::Reserved(Backing::Broker) => {
                self.accept_from_broker(span, index);
                return true;
            }
            Mapping::Reserved(backing) => {
                if self.populate_reserved(span, index, backing) {
                    return true;
                }
            }
            Mapping::None => {}
        }
        self.map_fresh(span, index, group_end, bulk)
    }

    /// Maps chunk `index`, and its untouched neighbours up to `group_end` where that pays.
    fn map_fresh(&self, span: &Span, index: usize, group_end: usize, bulk: Option<usize>) -> bool {
        let (ahead, bulk) = (bulk.map(|end| end - index), bulk.is_some());
        let config = self.config();
        let held = self.held();
        if config.heap == Heap::None {
            return self.map_base(span, index);
        }
        if !bulk && held + (HUGE_2M as u64) <= SMALL_HEAP {
            self.ledger().fell_back(FallBack::TooSmall, HUGE_2M as u64, 0);
            if let Some(slot) = self.first_chunks.iter().find(|slot| slot.load(Relaxed) == 0) {
                slot.store(span.chunk_range(index, 1).start(), Relaxed);
            }
            return self.map_base(span, index);
        }
        if self.forked.load(Relaxed) {
            return self.map_thp(span, index, bulk);
        }
        let end = if bulk {
            group_end
        } else if held >= GROUP_AT {
            ((index / GROUP + 1) * GROUP).min(span.chunks())
        } else {
            index + 1
        };
        let fresh = (index..end).take_while(|&i| span.chunk(i).mapping() == Mapping::None).count();
        if fresh > 0 && self.map_from_broker(span, index, fresh, ahead) {
            return true;
        }
        if config.heap != Heap::Thp
            && self.reserve_hugetlb(span, index, fresh)
            && (if bulk && !config.populate {
                self.accept_reserved(span, index, fresh)
            } else {
                self.populate_reserved(span, index, Backing::Hugetlb2M)
            })
        {
            return true;
        }
        self.map_thp(span, index, bulk)
    }

    /// Reserves up to `count` 2 MiB pages for the chunks from `index` on; halves the request while the
    /// pool is too short for it. Whether at least the first chunk has its page reserved.
    fn reserve_hugetlb(&self, span: &Span, index: usize, count: usize) -> bool {
        let now = self.now_ms();
        if now < self.dry_until.load(Relaxed) {
            self.ledger().fell_back(FallBack::PoolShort2M, HUGE_2M as u64, 0);
            return false;
        }
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
        self.dry_until.store(now + DRY_MS, Relaxed);
        let reason = if last == Errno::ENOMEM { FallBack::PoolShort2M } else { FallBack::Other };
        self.ledger().fell_back(reason, HUGE_2M as u64, last.0);
        false
    }

    /// Takes reserved pages as they are: nothing can refuse the fault, so first touch may make it.
    fn accept_reserved(&self, span: &Span, index: usize, count: usize) -> bool {
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
    fn populate_reserved(&self, span: &Span, index: usize, backing: Backing) -> bool {
        let range = span.chunk_range(index, 1);
        match self.populate(range) {
            Ok(()) => {
                span.chunk(index).set_mapping(Mapping::Mapped(backing));
                self.ledger().obtained(backing, HUGE_2M as u64);
                true
            }
            Err(errno) => {
                self.ledger().fell_back(FallBack::CgroupLimit, HUGE_2M as u64, errno.0);
                if backing == Backing::Hugetlb2M {
                    self.dry_until.store(self.now_ms() + DRY_MS, Relaxed);
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

    fn populate(&self, range: OwnedRange) -> Result<(), Errno> {
        let start = Instant::now();
        let result = range.populate();
        if result.is_ok() {
            self.ledger().populated(range.len() as u64, start.elapsed().as_nanos() as u64);
        }
        result
    }

    /// Unmaps the chunks of `index`'s group that are reserved and untouched.
    fn return_reserved(&self, span: &Span, index: usize) {
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

    fn map_thp(&self, span: &Span, index: usize, bulk: bool) -> bool {
        if span.chunk(index).mapping() != Mapping::None {
            return false;
        }
        let range = span.chunk_range(index, 1);
        if self.thp_off.load(Relaxed) {
            self.ledger().fell_back(FallBack::ThpOff, HUGE_2M as u64, 0);
            return self.map_base(span, index);
        }
        if range.open().is_err() {
            return false;
        }
        if let Err(errno) = range.advise_thp() {
            self.ledger().fell_back(FallBack::ThpOff, HUGE_2M as u64, errno.0);
            return self.map_base(span, index);
        }
        // A chunk of small objects will be touched all over: one populate is cheaper than the faults, and
        // its time is known. Where it fails (a memory cgroup at its limit), faults will do what they can.
        if !bulk {
            let _ = self.populate(range);
        }
        span.chunk(index).set_mapping(Mapping::Mapped(Backing::Thp));
        self.ledger().obtained(Backing::Thp, HUGE_2M as u64);
        true
    }

    fn map_base(&self, span: &Span, index: usize) -> bool {
        if span.chunk_range(index, 1).open().is_err() {
            return false;
        }
        span.chunk(index).set_mapping(Mapping::Mapped(Backing::Base));
        self.ledger().obtained(Backing::Base, HUGE_2M as u64);
        true
    }

    /// Puts 1 GiB pages behind the chunks from `first` up to `end`, as far as whole ones fit between, nothing
    /// is mapped there yet and the pool goes. They are populated at once: later there is no way back.
    fn map_gigantic(&self, span: &Span, first: usize, end: usize) {
        let heap = self.config().heap;
        if !matches!(heap, Heap::Auto | Heap::Hugetlb1G) || self.forked.load(Relaxed) {
            return;
        }
        // Who has named a broker wants its pages first.
        if heap == Heap::Auto && self.has_broker() {
            return;
        }
        // A machine without such a pool, as most are, has not fallen back from one.
        if heap == Heap::Auto && hugetlb_available(PageSize::HUGE_1G).unwrap_or(0) == 0 {
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
        let range = span.chunk_range(index, chunks);
        let obtained = range.map_hugetlb(PageSize::HUGE_1G).and_then(|()| {
            self.populate(range).inspect_err(|_| {
                let _ = range.close();
            })
        });
        if let Err(errno) = obtained {
            let reason = if errno == Errno::ENOMEM { FallBack::PoolShort1G } else { FallBack::CgroupLimit };
            self.ledger().fell_back(reason, HUGE_1G as u64, errno.0);
            return false;
        }
        for i in index..index + chunks {
            span.chunk(i).set_mapping(Mapping::Mapped(Backing::Hugetlb1G));
        }
        self.ledger().obtained(Backing::Hugetlb1G, HUGE_1G as u64);
        true
    }

    /// Collapses the chunks that the heap started with, once, when it has outgrown them.
    fn collapse_first_chunks(&self) {
        if self.collapsed.load(Relaxed) || self.held() < COLLAPSE_AT || self.collapsed.swap(true, Relaxed) {
            return;
        }
        if self.thp_off.load(Relaxed) {
            return;
        }
        for slot in &self.first_chunks {
            self.walks.with(|| self.collapse_chunk_at(slot.load(Relaxed)));
        }
    }

    /// Collapses the chunk at `address`, if it is still one on base pages. With `walks` held.
    fn collapse_chunk_at(&self, address: usize) {
        let Some(span) = self.spans.with(|spans| spans.find(address)) else { return };
        let index = (address - span.range.start()) / HUGE_2M;
        self.group_lock(&span, index).with(|| {
            let chunk = span.chunk(index);
            let range = span.chunk_range(index, 1);
            if chunk.mapping() == Mapping::Mapped(Backing::Base)
                && range.advise_thp().is_ok()
                && range.collapse().is_ok()
            {
                chunk.set_mapping(Mapping::Mapped(Backing::Thp));
                self.ledger().converted(Backing::Base, Backing::Thp, HUGE_2M as u64);
            }
        });
    }

    /// The state of the chunk that holds `address`, for tests and reports.
    pub fn chunk_at(&self, address: usize) -> Option<Chunk<'static>> {
        let span = self.spans.with(|spans| spans.find(address))?;
        Some(span.chunk((address - span.range.start()) / HUGE_2M))
    }
}
