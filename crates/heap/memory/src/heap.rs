//! The backing chain: pages of a broker if one was named, 1 GiB hugetlb, 2 MiB hugetlb, THP, base
//! pages. The choice is made once per chunk, counted, and never fatal.
//!
//! The allocator above reserves ranges and commits and decommits parts of them in slices of 64 KiB.
//! This module maps whole chunks of 2 MiB behind those slices:
//!
//! - The first `SMALL_HEAP` bytes, and a little for each thread, are base pages, so that small
//!   programs stay small. So is a heap below `YOUNG` whose user has not asked for huge pages.
//!   Chunks that have filled up are collapsed behind the program: [`behind`].
//! - A further huge page is taken only while most of the heap's huge pages are in use: [`density`].
//! - hugetlb pages are reserved by mmap and then populated before any program byte goes there. So a
//!   pool that runs dry, or a cgroup limit, is an error code here and never a SIGBUS in the
//!   program.
//! - A chunk whose last slice is decommitted goes back to the kernel whole. While memory is short,
//!   the decommitted slices of a chunk in use go back too, at the price of splitting its huge page.

mod behind;
mod broker;
mod density;
mod fork;
mod give_back;
mod group;
pub(crate) mod hugetlb;
mod repair;
mod room;
mod slices;
#[cfg(test)]
pub(crate) mod tests;

pub use repair::{Repair, Repaired};

use self::broker::Stock;
use self::density::InUse;
use self::group::Group;
use self::hugetlb::{Dry, Fit};
use self::room::{Chain, Fresh, Headroom};
use crate::chunk::{BASE, Chunk, Mapping, masks, slice_mask};
use crate::config::{Config, Fork, Heap};
use crate::ledger::{Backing, FallBack, Ledger};
use crate::prim::{Kernel, Prim};
use crate::span::{Span, Spans};
use megapage_inside::{Borrowed, Errno, ErrnoGuard, Guarded, Lock, Locked, Owned, Reservation, SharedWords};
use megapage_units::{BASE_PAGE, HUGE_1G, HUGE_2M, HugePage, PageSize};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Shortest range that has chunks: 4 MiB in bytes. Shorter ranges hold the allocator's own tables,
/// the longest of which is just over 2 MiB, and stay on base pages.
const MIN_SPAN: usize = 4 << 20;
/// Held bytes from which on hugetlb pages are reserved a group at a time. This keeps the number of
/// mappings (vm.max_map_count) in bounds.
const GROUP_AT: u64 = 256 << 20;
/// Chunks of a group, which one lock covers and one mapping may span.
const GROUP: usize = 16;
/// Bytes from which on a commit is one large object. It is populated at first touch where that is
/// safe, because a program may never touch all of it.
pub const LARGE_BLOCK: usize = 32 << 20;
const LOCKS: usize = 64;
/// Requests to the broker for one chunk after which another backing is used: other threads took the
/// pages each time.
const MOST_ASKS: usize = 16;

/// The heap of one process.
#[derive(Debug)]
pub struct HugeHeap<K = Kernel> {
    pub(crate) kernel: K,
    config: Locked<Config>,
    spans: Locked<Spans>,
    stock: Locked<Stock>,
    /// Held while the broker is asked; its holder has no other lock of the heap.
    asking: Lock,
    groups: [Lock; LOCKS],
    /// Held during a walk over a span that its owner might release meanwhile, and during a release.
    walks: Lock,
    private: Ledger,
    shared: OnceLock<Ledger>,
    /// True if the shared ledger is in use: not before one is attached, nor in a forked child.
    attached: AtomicBool,
    dry: Dry,
    fit: Fit,
    thp_off: AtomicBool,
    /// True if the kernel may give huge pages without advice.
    given_unasked: AtomicBool,
    /// True once the program has forked while it held hugetlb pages: the heap takes no new ones.
    forked: AtomicBool,
    /// True if slices on base pages are accessible only while they are committed.
    by_slices: AtomicBool,
    /// True once the program has asked for all of its memory to be locked (mlockall(2)). Then
    /// `by_slices` is true, too.
    locked: AtomicBool,
    /// True if the program has forked since the heap was last seen to be whole: writes may have
    /// split its huge pages.
    split: AtomicBool,
    /// True if the process was forked while other threads closed slices: slices that their chunk
    /// counts as used may be inaccessible.
    unsure: AtomicBool,
    /// Chunks that are accessible though nothing is mapped there.
    open: AtomicU64,
    in_use: InUse,
    room: Headroom,
}

/// Part of an arena that is being committed.
#[derive(Clone, Copy, Debug)]
struct Commit {
    /// Length in bytes.
    len: usize,
    /// First chunk after the part.
    end: usize,
}

impl Commit {
    /// Returns true for a large object.
    fn is_bulk(self) -> bool {
        self.len >= LARGE_BLOCK
    }
}

/// Result of [`HugeHeap::reserve`]. The memory is zero.
#[derive(Debug)]
pub struct Reserved {
    /// Addresses that are reserved so far, for [`HugeHeap::release`].
    pub range: Reservation,
    /// Addresses that may be committed: as many bytes as [`HugeHeap::reserved_len`] says.
    pub all: Guarded,
}

impl HugeHeap {
    /// Makes an empty heap.
    pub const fn new() -> HugeHeap {
        HugeHeap::on(Kernel)
    }

    /// Returns the bytes of addresses that [`HugeHeap::reserve`] takes for `len`.
    pub const fn reserved_len(len: usize) -> usize {
        if len < MIN_SPAN { len } else { len.next_multiple_of(HUGE_2M) }
    }
}

impl<K: Prim> HugeHeap<K> {
    /// Makes an empty heap on memory of `kernel`.
    pub const fn on(kernel: K) -> HugeHeap<K> {
        HugeHeap {
            kernel,
            config: Locked::new(Config::DEFAULT),
            spans: Locked::new(Spans::new()),
            stock: Locked::new(Stock::new()),
            asking: Lock::new(),
            groups: [const { Lock::new() }; LOCKS],
            walks: Lock::new(),
            private: Ledger::private(),
            shared: OnceLock::new(),
            attached: AtomicBool::new(false),
            dry: Dry::new(),
            fit: Fit::new(),
            thp_off: AtomicBool::new(false),
            given_unasked: AtomicBool::new(true),
            forked: AtomicBool::new(false),
            by_slices: AtomicBool::new(false),
            locked: AtomicBool::new(false),
            split: AtomicBool::new(false),
            unsure: AtomicBool::new(false),
            open: AtomicU64::new(0),
            in_use: InUse::new(),
            room: Headroom::new(),
        }
    }

    /// Sets the configuration. Chunks that are mapped already stay as they are.
    pub fn configure(&self, config: Config) {
        let _errno = ErrnoGuard::save();
        self.config.with(|current| *current = config);
        self.thp_off.store(!self.kernel.thp_is_possible(), Relaxed);
        self.given_unasked.store(!self.kernel.thp_only_on_advice(), Relaxed);
        self.measure();
    }

    /// Returns the configuration.
    pub fn config(&self) -> Config {
        self.config.with(|config| *config)
    }

    /// Continues the account in a page that the launcher reads.
    pub fn attach_ledger(&self, words: SharedWords, pid: u32) {
        let Some(ledger) = Ledger::claim(words, pid) else { return };
        ledger.continue_from(&self.private);
        if self.shared.set(ledger).is_ok() {
            self.attached.store(true, Relaxed);
        }
    }

    /// Returns the account in use.
    pub fn ledger(&self) -> &Ledger {
        match self.shared.get() {
            Some(shared) if self.attached.load(Relaxed) => shared,
            _ => &self.private,
        }
    }

    fn now_ms(&self) -> u64 {
        self.kernel.now().as_millis() as u64
    }

    fn held(&self) -> u64 {
        self.ledger().total_held()
    }

    // ---- reserving and releasing ranges -------------------------------------------------------

    /// Reserves `len` bytes (a multiple of the base page) at a multiple of `alignment`, ready for
    /// use if `commit` is set. Fails with ENOMEM if there is no room.
    pub fn reserve(&self, len: usize, alignment: usize, commit: bool) -> Result<Reserved, Errno> {
        let _errno = ErrnoGuard::save();
        let alignment = alignment.max(BASE_PAGE);
        if len < MIN_SPAN {
            return self.reserve_untracked(len, alignment, commit);
        }
        if commit && len >= LARGE_BLOCK && !self.kernel.is_plausible(len) {
            return Err(Errno::ENOMEM);
        }
        let span_alignment = if len >= HUGE_1G { HUGE_1G } else { HUGE_2M };
        let whole = HugeHeap::reserved_len(len);
        // If addresses are short or locked, an arena takes the addresses of a chunk only when a
        // part of it is claimed. The kernel then has room for other mappings above:
        // `Reservation::beginning`.
        let is_short = || self.limits().of_addresses() && !self.kernel.has_addresses(2 * whole);
        let first = if !commit && (self.locked.load(Relaxed) || is_short()) { HUGE_2M } else { whole };
        // If a limit on addresses rules out 1 GiB alignment, 2 MiB alignment is enough.
        let reserve = |first, least| self.find_addresses(whole, first, alignment.max(least));
        let Reserved { range: owner, all: range } =
            reserve(first, span_alignment).or_else(|_| reserve(first, HUGE_2M)).or_else(|errno| {
                if commit || !self.addresses_are_few() { Err(errno) } else { reserve(HUGE_2M, HUGE_2M) }
            })?;
        let span = Span::new(range, owner.len())?;
        if self.locked.load(Relaxed) {
            self.kernel.unlock(*span.range);
        }
        self.map_gigantic(Fresh::Arena { commit }, &span, 0, span.chunks());
        if commit && self.commit_all(&span, 0, whole).is_none() {
            let _ = self.release_span(span, owner);
            return Err(Errno::ENOMEM);
        }
        self.ledger().spans(span.range.start() as u64, span.range.end() as u64);
        match self.spans.with(|spans| spans.insert(span)) {
            Ok(()) => Ok(Reserved { range: owner, all: range }),
            Err(span) => {
                let _ = self.release_span(span, owner);
                self.reserve_untracked(whole, alignment, commit)
            }
        }
    }

    /// Returns true if [`HugeHeap::reserve_apart`] is the place of a large object that is to be
    /// zero (calloc(3)), of which the program may touch a few pages. Returns false if the user has
    /// asked for huge pages or for repairs after forks, if a broker or a pool has pages, or if the
    /// object could not become huge later. Opens files.
    pub fn puts_zeros_apart(&self) -> bool {
        let none_in = |size| self.kernel.hugetlb_available(size).unwrap_or(0) == 0;
        let no_pool = || none_in(PageSize::HUGE_2M) && none_in(PageSize::HUGE_1G);
        let is_plain = self.spares() && self.config().fork == Fork::Auto && !self.has_broker();
        let becomes_huge = || !self.kernel.is_confined() && self.kernel.scans_pagemap();
        is_plain && becomes_huge() && (self.config().heap != Heap::Auto || no_pool())
    }

    /// Does [`HugeHeap::reserve`] as the C library does for large objects: the range has no chunks.
    /// It becomes huge as the program's own mappings do.
    pub fn reserve_apart(&self, len: usize, alignment: usize, commit: bool) -> Result<Reserved, Errno> {
        let _errno = ErrnoGuard::save();
        self.reserve_untracked(HugeHeap::reserved_len(len), alignment.max(HUGE_2M), commit)
    }

    /// Reserves a range without chunks: an object apart, one of the allocator's own tables, or one
    /// more than the table of spans holds.
    fn reserve_untracked(&self, len: usize, alignment: usize, commit: bool) -> Result<Reserved, Errno> {
        let reserved = self.find_addresses(len, len, alignment)?;
        if commit {
            self.kernel.open(&reserved.range)?;
        }
        Ok(reserved)
    }

    /// Reserves the first `first` of `len` bytes. None of the `len` bytes belongs to a span, even
    /// if the span has given them up: it may take them again.
    fn find_addresses(&self, len: usize, first: usize, alignment: usize) -> Result<Reserved, Errno> {
        let find = |alignment| {
            let (range, all) = self.kernel.reserve_beginning(len, first, alignment)?;
            let is_given_up = self.spans.with(|spans| spans.find_any(range.start(), len)).is_some();
            if is_given_up { Err(Errno::ENOMEM) } else { Ok(Reserved { range, all }) }
        };
        // The second place lies apart from all other mappings, also from those of the program and
        // its C library.
        find(alignment).or_else(|_| find(alignment.max(HUGE_1G)))
    }

    /// Releases as a whole what [`HugeHeap::reserve`] returned.
    pub fn release(&self, range: Reservation) -> Result<(), Errno> {
        let _errno = ErrnoGuard::save();
        let (address, len) = (range.start(), range.len());
        match self.spans.with(|spans| spans.remove(address, len)) {
            Some(span) => self.walks.with(|| self.release_span(span, range)),
            None => self.kernel.release(range),
        }
    }

    fn release_span(&self, span: Span, owner: Reservation) -> Result<(), Errno> {
        for index in 0..span.chunks() {
            self.take_open(span.chunk(index));
            let mapping = span.chunk(index).mapping();
            self.in_use.sub(span.chunk(index), span.chunk(index).committed());
            if let Mapping::Mapped(Backing::Broker) | Mapping::Reserved(Backing::Broker) = mapping {
                self.remove_from_broker(&self.hold(&span, index), index);
            }
            if let Mapping::Mapped(backing) = mapping {
                self.ledger().returned(backing, HugePage::SIZE);
            }
        }
        self.ledger().span_released(span.range.start() as u64);
        span.release(owner, |part| self.kernel.release(part))
    }

    // ---- committing -----------------------------------------------------------------------------

    /// Makes a part of a range of [`HugeHeap::reserve`] usable. Returns `Ok(true)` if all of it is
    /// known to be zero.
    pub fn commit(&self, part: Owned) -> Result<bool, Errno> {
        let _errno = ErrnoGuard::save();
        let Some(span) = self.spans.with(|spans| spans.find_any(part.start(), 1)) else {
            let open = || self.kernel.open(&part);
            open().or_else(|errno| if self.close_unused() { open() } else { Err(errno) })?;
            return Ok(false);
        };
        let (start, end) = (part.start() - span.range.start(), part.end() - span.range.start());
        if Self::is_committed(&span, start, end) {
            return Ok(false);
        }
        let clean = self.commit_all(&span, start, end);
        self.close_if_many_are_open();
        self.sweep_if_due();
        clean.ok_or(Errno::ENOMEM)
    }

    /// Returns true if all of `[start, end)` of a span is committed. This happens when a page of
    /// the allocator takes the place of another. Takes no lock: slices that the caller has
    /// committed stay committed.
    fn is_committed(span: &Span, start: usize, end: usize) -> bool {
        masks(start, end, false).all(|(index, mask)| {
            let chunk = span.chunk(index);
            mask & !chunk.committed() == 0 && matches!(chunk.mapping(), Mapping::Mapped(_))
        })
    }

    /// Commits `[start, end)` of a span. If that is refused, closes unused slices, which may count
    /// towards the limit, and tries again.
    fn commit_all(&self, span: &Span, start: usize, end: usize) -> Option<bool> {
        let commit = || self.commit_in(span, start, end);
        commit().or_else(|| self.close_unused().then(commit).flatten())
    }

    /// Tries to commit `[start, end)` of a span. Returns `None` if a chunk could not be mapped at
    /// all: the address space or the overcommit limit is spent. Then takes back what it has
    /// committed.
    fn commit_in(&self, span: &Span, start: usize, end: usize) -> Option<bool> {
        let of = Commit { len: end - start, end: end.div_ceil(HUGE_2M) };
        if of.len >= HUGE_1G {
            self.map_gigantic(Fresh::Commit, span, start.div_ceil(HUGE_2M), end / HUGE_2M);
        }
        let mut clean = true;
        let first = start / HUGE_2M;
        let mut index = first;
        let mut asked = 0;
        // Other threads may commit slices of the first chunk meanwhile. The chunks between it and a
        // failing one are this caller's alone: each notes what was added to it.
        let mut added_first = 0;
        while index * HUGE_2M < end {
            // Pages that another thread has asked for may be gone before this thread comes to its
            // chunk.
            let asks = |index, asked| asked < MOST_ASKS && self.wants_stock(span, index, of.is_bulk());
            if asks(index, asked) {
                self.ask_broker(if of.is_bulk() { of.end - index } else { 1 });
            }
            let group_end = ((index / GROUP + 1) * GROUP).min(of.end);
            let group = self.hold(span, index);
            let mut done = true;
            while index < group_end && done {
                if asks(index, asked) {
                    asked += 1;
                    break;
                }
                let base = index * HUGE_2M;
                let mask = slice_mask(start.saturating_sub(base), (end - base).min(HUGE_2M), false);
                done =
                    self.prepare(&group, index, group_end, of, mask) && self.open_slices(&group, index, mask);
                if done {
                    clean &= span.chunk(index).commit(mask);
                    self.in_use.add(span.chunk(index), span.chunk(index).added());
                    if index == first {
                        added_first = span.chunk(index).added();
                    }
                    (index, asked) = (index + 1, 0);
                }
            }
            drop(group);
            if !done {
                self.take_back(span, first, index, added_first);
                return None;
            }
        }
        Some(clean)
    }

    /// Takes back the slices that a commit has added before it failed at chunk `end`. It began at
    /// chunk `first`, and added `added_first` there.
    fn take_back(&self, span: &Span, first: usize, end: usize, added_first: u32) {
        for index in first..end {
            let group = self.hold(span, index);
            let added = if index == first { added_first } else { span.chunk(index).added() };
            self.drop_slices(&group, index, added);
        }
    }

    /// Makes sure that chunk `index` is mapped and ready for its slices of `mask`, which are a part
    /// of the commit `of`. Returns false if that fails.
    fn prepare(&self, span: &Group, index: usize, group_end: usize, of: Commit, mask: u32) -> bool {
        let chunk = span.chunk(index);
        match chunk.mapping() {
            Mapping::Mapped(_) => return true,
            Mapping::Reserved(Backing::Broker) => {
                self.accept_from_broker(span, index);
                return true;
            }
            Mapping::Reserved(backing) if self.populate_reserved(span, index, backing) => return true,
            Mapping::GivenUp if self.take_chunk(span, index).is_err() => return false,
            Mapping::None | Mapping::Reserved(_) | Mapping::GivenUp => {}
        }
        self.map_fresh(span, index, group_end, of, mask)
    }

    /// Maps chunk `index` with a backing of its chain, the best first. Maps untouched neighbours up
    /// to `group_end` as well where that pays. Returns false on failure.
    fn map_fresh(&self, span: &Group, index: usize, group_end: usize, of: Commit, mask: u32) -> bool {
        let Some(Chain::Chunk { broker, hugetlb, thp }) = self.chain(Fresh::Chunk(of, mask)) else {
            return self.map_base(span, index);
        };
        if broker && self.map_from_pools(span, index, group_end, of, hugetlb) {
            return true;
        }
        match thp.and_then(|()| self.take_free(HUGE_2M)) {
            _ if span.chunk(index).mapping() != Mapping::None => false,
            Ok(()) => self.map_thp(span, index, mask),
            Err(why) => {
                self.ledger().fell_back(why, HugePage::SIZE, 0);
                self.map_base(span, index)
            }
        }
    }

    /// Maps pages of a broker, or else of the pool if `hugetlb` is set, behind chunk `index`. May
    /// map neighbours in its group. Returns true if the chunk has its page.
    fn map_from_pools(
        &self,
        span: &Group,
        index: usize,
        group_end: usize,
        of: Commit,
        hugetlb: bool,
    ) -> bool {
        let config = self.config();
        let bulk = of.is_bulk();
        let end = if bulk {
            group_end
        } else if self.held() >= GROUP_AT {
            ((index / GROUP + 1) * GROUP).min(span.chunks())
        } else {
            index + 1
        };
        let fresh = (index..end).take_while(|&i| span.chunk(i).mapping() == Mapping::None).count();
        (fresh > 0 && self.map_from_broker(span, index, fresh, bulk.then(|| of.end - index)))
            || hugetlb
                && self.reserve_hugetlb(span, index, fresh)
                && (if bulk && !config.populate {
                    self.accept_reserved(span, index, fresh)
                } else {
                    self.populate_reserved(span, index, Backing::Hugetlb2M)
                })
    }

    fn populate(&self, range: Borrowed) -> Result<(), Errno> {
        let start = self.kernel.now();
        let took = || self.kernel.now().saturating_sub(start).as_nanos() as u64;
        self.kernel.populate(range).inspect(|()| self.ledger().populated(range.len() as u64, took()))
    }

    /// Maps a chunk as a transparent huge page, for a commit of its slices of `mask`. Advises
    /// before it opens: opening locked memory faults it in.
    fn map_thp(&self, span: &Group, index: usize, mask: u32) -> bool {
        let range = span.chunk_at(index);
        let closed = if self.by_slices.load(Relaxed) { self.kernel.close(&range) } else { Ok(()) };
        if let Err(errno) = closed.and_then(|()| self.kernel.advise_thp(*range)) {
            self.ledger().fell_back(FallBack::ThpOff, HugePage::SIZE, errno.0);
            return self.map_base(span, index);
        }
        if !self.take_open(span.chunk(index)) && self.kernel.open(&range).is_err() {
            return false;
        }
        // Small objects are about to be touched: populating is as cheap as the fault, and its time
        // is known. If it fails (a memory cgroup at its limit), faults do what they can. A large
        // object may never be touched all over.
        if mask != u32::MAX {
            let _ = self.populate(*range);
        }
        span.chunk(index).set_mapping(Mapping::Mapped(Backing::Thp));
        span.chunk(index).set_advised();
        self.ledger().obtained(Backing::Thp, HugePage::SIZE);
        true
    }

    fn map_base(&self, span: &Group, index: usize) -> bool {
        let chunk = span.chunk(index);
        if !self.take_open(chunk) && !self.by_slices.load(Relaxed) && !self.open(span, index) {
            return false;
        }
        chunk.set_mapping(BASE);
        self.ledger().obtained(Backing::Base, HugePage::SIZE);
        true
    }

    /// Returns the state of the chunk that holds `address`; `None` if it is no address of the heap.
    pub fn chunk_at(&self, address: usize) -> Option<Chunk<'static>> {
        let span = self.spans.with(|spans| spans.find(address))?;
        Some(span.chunk((address - span.range.start()) / HUGE_2M))
    }
}
