//! Memory from a broker of pre-zeroed pages: the first backing of the chain, where one was named.
//!
//! The library asks, when the heap grows, and not the launcher before the start: what a broker gives is its process's until
//! that ends, and a program outlives a launcher that is killed. So a program also takes no more than it uses.
//!
//! An extent is larger than a chunk. It is mapped beside the heap and populated, which fills page tables only; its pages are
//! then moved behind chunks, one after the other (mremap(2)). It is mapped shared, for a private mapping would copy each
//! page that is written to, and so a child of fork(2) must not have it: see `before_fork`.

use super::HugeHeap;
use crate::chunk::Mapping;
use crate::config::Heap;
use crate::ledger::{Backing, FallBack};
use crate::span::Span;
use crate::stock::wire::Verdict;
use crate::stock::{Granted, TakeError, take_noting};
use megapage_inside::{Errno, ErrnoGuard, NotMoved, OwnedRange, Reservation, without_signals};
use megapage_units::{HUGE_2M, PageSize};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

/// The longest path of a socket (`sun_path` of unix(7)), in bytes.
const MOST_PATH: usize = 108;
/// After a broker had nothing it is left alone for this long, in milliseconds, and twice as long each further time,
const PAUSE_MS: u64 = 1000;
/// up to this: one that hangs takes half a second each time.
const LONGEST_PAUSE_MS: u64 = 64_000;
/// After pages came that could not be used: never again, for what was granted counts in the quota until the program ends.
const FOR_EVER_MS: u64 = u64::MAX;

/// What the heap knows of its broker, and has of it.
#[derive(Debug)]
pub(super) struct Stock {
    path: [u8; MOST_PATH],
    /// 0: none was named.
    pub(super) path_len: usize,
    /// The process that may ask: a child that shares this memory (vfork(2)) would get extents that end with it.
    pid: u32,
    /// This program has not asked for anything yet: what its process had before an execve(2) is no longer in use.
    fresh: bool,
    /// Pages that are mapped and populated, and behind no chunk yet.
    rest: Option<Reservation>,
    /// Bytes of an extent: `rest` ends where one ends, and no move may go across a border.
    extent: usize,
    /// Pages that are behind chunks.
    out: usize,
    not_before: u64,
    pause: u64,
    why: (FallBack, Errno),
    /// A fork is under way, which what is taken now would be missing from.
    forking: bool,
}

impl Stock {
    pub(super) const fn new() -> Stock {
        Stock {
            path: [0; MOST_PATH],
            path_len: 0,
            pid: 0,
            fresh: true,
            rest: None,
            extent: 0,
            out: 0,
            not_before: 0,
            pause: PAUSE_MS,
            why: (FallBack::BrokerEmpty, Errno(0)),
            forking: false,
        }
    }

    /// Up to `count` pages at the beginning of the remainder, of one extent.
    fn next(&mut self, count: usize) -> Option<Reservation> {
        let mut rest = self.rest.take()?;
        let within = match rest.len() % self.extent {
            0 => self.extent,
            begun => begun,
        };
        let len = (count * HUGE_2M).min(within);
        self.rest = (len < rest.len()).then(|| rest.split_off(len));
        Some(rest)
    }

    /// Whether the broker is to be asked before a chunk can have a page of it.
    fn is_dry(&self, now: u64) -> bool {
        self.path_len > 0
            && !self.forking
            && self.rest.is_none()
            && now >= self.not_before
            && self.pid == std::process::id()
    }

    /// Nothing is asked for `pause` milliseconds from `now` on, and this is why.
    fn leave_alone(&mut self, now: u64, pause: u64, why: (FallBack, Errno)) {
        self.why = why;
        self.not_before = now.saturating_add(pause);
    }

    /// In a forked child, which has nothing of what was mapped.
    pub(super) fn forget_in_child(&mut self) {
        // Nothing is mapped there, or what others have mapped since.
        self.rest.take().map(Reservation::keep);
        self.out = 0;
        // Nothing was taken for it, so that there is nothing to end.
        (self.pid, self.fresh) = (std::process::id(), false);
    }

    /// Releases what is behind no chunk.
    fn release_remainder(&mut self) {
        while let Some(part) = self.next(usize::MAX / HUGE_2M) {
            let _ = part.remove();
        }
    }
}

/// Why nothing came of asking.
#[derive(Debug)]
struct Failure {
    why: (FallBack, Errno),
    /// Pages came, and went back, for they could not be mapped.
    unusable: bool,
}

/// Asks for `count` pages, and maps what comes: all of it, and the bytes of one extent. `fresh` is over once it was sent.
fn obtain(path: &[u8], count: usize, fresh: &mut bool) -> Result<(Reservation, usize), Failure> {
    let path = Path::new(OsStr::from_bytes(path));
    let granted = take_noting(path, PageSize::HUGE_2M, count as u64, fresh)
        .map_err(|error| Failure { why: reason(&error), unusable: false })?;
    let mapped = usize::try_from(granted.bytes)
        .ok()
        .and_then(|extent| Some((extent, extent.checked_mul(granted.count)?)))
        .ok_or(Errno::EINVAL)
        .and_then(|(extent, bytes)| {
            let all = Reservation::new(bytes, HUGE_2M)?;
            map(&granted, *all, extent)?;
            Ok((all, extent))
        });
    mapped.map_err(|errno| {
        // They would stay until the process ends.
        granted.give_back(PageSize::HUGE_2M);
        Failure { why: (FallBack::Other, errno), unusable: true }
    })
}

/// Maps each extent behind the other, and has page tables filled: a page that is missing is an error here, and would be a
/// signal later.
fn map(granted: &Granted, all: OwnedRange, extent: usize) -> Result<(), Errno> {
    for (at, file) in granted.extents.iter().flatten().enumerate() {
        all.part(at * extent, extent).map_extent(file.as_fd())?;
    }
    all.populate()
}

fn reason(error: &TakeError) -> (FallBack, Errno) {
    match error {
        TakeError::Io(error) => (FallBack::BrokerGone, Errno(error.raw_os_error().unwrap_or(0))),
        TakeError::Stranger(_) => (FallBack::BrokerGone, Errno(0)),
        TakeError::Refused(answer) => {
            let reason = match answer.verdict {
                Verdict::Empty => FallBack::BrokerEmpty,
                Verdict::Quota | Verdict::Full => FallBack::BrokerQuota,
                _ => FallBack::BrokerRefused,
            };
            (reason, Errno(0))
        }
    }
}

impl HugeHeap {
    /// Names the broker whose pages come first, by its socket; `pid` is the calling process. A path that is too long for
    /// a socket names none.
    pub fn use_broker(&self, path: &[u8], pid: u32) {
        if path.len() > MOST_PATH {
            return;
        }
        self.stock.with(|stock| {
            stock.path[..path.len()].copy_from_slice(path);
            stock.path_len = path.len();
            stock.pid = pid;
        });
    }

    /// Whether a page of the broker is wanted for a chunk, and the broker has to be asked for it.
    pub(super) fn wants_stock(&self, span: &Span, index: usize, bulk: bool) -> bool {
        span.chunk(index).mapping() == Mapping::None
            && self.config().heap != Heap::None
            && self.stock.with(|stock| stock.is_dry(self.now_ms()))
            && (bulk || !self.is_small(self.held()))
            && !self.forked.load(Relaxed)
            // What came could not be moved behind a chunk.
            && self.unfit().is_none()
    }

    /// Asks for `count` pages, unless another thread has just done so, which is waited for. With no group locked, nor the
    /// stock: one that hangs holds up those that need its pages, for the time that it is given, and no other thread. No signal's
    /// handler runs meanwhile: it may fork.
    pub(super) fn ask_broker(&self, count: usize) {
        without_signals(|| {
            self.asking.with(|| {
                let ask = self.stock.with(|stock| {
                    stock.is_dry(self.now_ms()).then_some((stock.path, stock.path_len, stock.fresh))
                });
                let Some((path, path_len, mut fresh)) = ask else { return };
                let obtained = obtain(&path[..path_len], count, &mut fresh);
                self.stock.with(|stock| {
                    stock.fresh = fresh;
                    match obtained {
                        Ok((all, extent)) => {
                            (stock.rest, stock.extent, stock.pause) = (Some(all), extent, PAUSE_MS);
                        }
                        Err(Failure { why, unusable: true }) => stock.leave_alone(0, FOR_EVER_MS, why),
                        Err(Failure { why, unusable: false }) => {
                            // From now on: half a second has gone without an answer.
                            stock.leave_alone(self.now_ms(), stock.pause, why);
                            stock.pause = (stock.pause * 2).min(LONGEST_PAUSE_MS);
                        }
                    }
                });
            });
        });
    }

    /// Puts pages of the stock behind up to `count` chunks from `index` on, which are not mapped. Whether the first has
    /// one; the others are ready where all of `ahead` chunks are about to be used, and else reserved. With its group locked.
    pub(super) fn map_from_broker(
        &self,
        span: &Span,
        index: usize,
        count: usize,
        ahead: Option<usize>,
    ) -> bool {
        self.stock.with(|stock| {
            if stock.path_len == 0 {
                return false;
            }
            if let Some((why, errno)) = self.unfit() {
                self.ledger().fell_back(why, HUGE_2M as u64, errno.0);
                return false;
            }
            let refused = stock.forking || (stock.rest.is_none() && stock.pid != std::process::id());
            if refused || stock.rest.is_none() {
                let (why, errno) = if refused { (FallBack::BrokerRefused, Errno(0)) } else { stock.why };
                self.ledger().fell_back(why, HUGE_2M as u64, errno.0);
                return false;
            }
            let Some(pages) = stock.next(count) else { return false };
            let chunks = pages.len() / HUGE_2M;
            self.take_all_open(span, index, chunks);
            if let Err(NotMoved { pages, errno, .. }) = pages.move_over(span.chunk_range(index, chunks)) {
                let len = pages.len() as u64;
                let _ = pages.remove();
                drop(pages);
                // What is refused once (no room for mappings) is so for the remainder.
                stock.release_remainder();
                stock.leave_alone(0, FOR_EVER_MS, (FallBack::Other, errno));
                self.ledger().fell_back(FallBack::Other, len, errno.0);
                return false;
            }
            stock.out += chunks;
            let ready = if ahead.is_some() { chunks } else { 1 };
            for chunk in index..index + chunks {
                span.chunk(chunk).set_mapping(Mapping::Reserved(Backing::Broker));
            }
            for chunk in index..index + ready {
                self.accept_from_broker(span, chunk);
            }
            true
        })
    }

    /// A chunk that has its page already is in use from now on. With its group locked.
    pub(super) fn accept_from_broker(&self, span: &Span, index: usize) {
        span.chunk(index).set_mapping(Mapping::Mapped(Backing::Broker));
        self.ledger().obtained(Backing::Broker, HUGE_2M as u64);
    }

    /// Releases the page behind a chunk: it would stay until the process ends, for the broker has the file. With its
    /// group locked, and the chunk is to be closed, released or mapped over next.
    pub(super) fn remove_from_broker(&self, span: &Span, index: usize) {
        // Where it fails it goes when the process ends.
        let _ = span.chunk_range(index, 1).remove();
        self.gone_from_broker();
    }

    /// A page of the broker is behind a chunk no longer.
    pub(super) fn gone_from_broker(&self) {
        self.stock.with(|stock| stock.out = stock.out.saturating_sub(1));
    }

    /// From here on nothing is taken, until the fork is over; how many pages are behind chunks.
    pub(super) fn stop_taking(&self) -> usize {
        self.stock.with(|stock| {
            stock.forking = true;
            stock.out
        })
    }

    /// The fork is over; `child`: this is the child, which has nothing of what was mapped.
    pub(super) fn take_again(&self, child: bool) {
        self.stock.with(|stock| {
            stock.forking = false;
            if child {
                stock.forget_in_child();
            }
        });
        if child {
            // The requesting thread is of the parent, which the child does not have.
            self.asking.reset();
        }
    }

    /// What forks has failed, perhaps before it came to fork.
    pub fn fork_failed(&self) {
        let _errno = ErrnoGuard::save();
        self.take_again(false);
    }

    /// Releases what is behind no chunk.
    pub(super) fn return_remainder(&self) {
        self.stock.with(Stock::release_remainder);
    }
}
