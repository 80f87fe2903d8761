//! Memory from a broker of pre-zeroed pages: the first backing of the chain, if a broker was named.
//!
//! The library asks when the heap grows; the launcher does not ask before the start. A broker's
//! pages belong to a process until it ends, and a program outlives a launcher that is killed. So a
//! program also takes no more than it uses.
//!
//! An extent is larger than a chunk. It is mapped beside the heap and populated, which fills page
//! tables only. Its pages are then moved behind chunks, one after the other (mremap(2)). It is
//! mapped shared, because a private mapping would copy each page that is written to. So a child of
//! fork(2) must not have it: see `before_fork`.

use super::HugeHeap;
use super::group::Group;
use crate::chunk::Mapping;
use crate::config::Heap;
use crate::ledger::{Backing, FallBack};
use crate::prim::Prim;
use crate::span::Span;
use crate::stock::wire::Verdict;
use crate::stock::{Granted, TakeError};
use megapage_inside::{Errno, ErrnoGuard, NotMoved, Reservation, without_signals};
use megapage_units::{HUGE_2M, HugePage, PageSize};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest path of a socket (`sun_path` of unix(7)), in bytes.
const MOST_PATH: usize = 108;
/// First back-off after a broker had nothing, in milliseconds; each further one is twice as long.
const PAUSE_MS: u64 = 1000;
/// Longest back-off, in milliseconds: a broker that hangs takes half a second each time.
const LONGEST_PAUSE_MS: u64 = 64_000;
/// Back-off after pages came that could not be used: the heap never asks again. Granted pages count
/// in the quota until the program ends.
const FOR_EVER_MS: u64 = u64::MAX;

/// The heap's broker, and the pages that the heap has from it.
#[derive(Debug)]
pub(super) struct Stock {
    path: [u8; MOST_PATH],
    /// Length of the path; 0 if no broker was named.
    path_len: usize,
    /// Process that may ask. A child that shares this memory (vfork(2)) would get extents that end
    /// with the child.
    pid: u32,
    /// True until this program sends a request: the pages that its process had before an execve(2)
    /// are no longer in use.
    fresh: bool,
    /// Pages that are mapped and populated, but behind no chunk yet.
    rest: Option<Reservation>,
    /// Bytes of an extent. `rest` ends where an extent ends, and no move may cross a border.
    extent: usize,
    /// Pages that are behind chunks.
    out: usize,
    not_before: u64,
    pause: u64,
    why: (FallBack, Errno),
    /// True while a fork is under way: it would miss pages that are taken now.
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

    /// Takes up to `count` pages, of one extent, from the beginning of the remainder.
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

    /// Returns true if the remainder is empty and the broker may be asked at `now`.
    fn is_dry(&self, now: u64) -> bool {
        self.path_len > 0
            && !self.forking
            && self.rest.is_none()
            && now >= self.not_before
            && self.pid == std::process::id()
    }

    /// Asks for nothing during `pause` milliseconds from `now` on, for the reason `why`.
    fn leave_alone(&mut self, now: u64, pause: u64, why: (FallBack, Errno)) {
        self.why = why;
        self.not_before = now.saturating_add(pause);
    }

    /// Forgets all pages, in a forked child: it has none of the mappings.
    pub(super) fn forget_in_child(&mut self) {
        // Nothing is mapped at these addresses, or a mapping that others have made since.
        self.rest.take().map(Reservation::keep);
        self.out = 0;
        // The child has taken nothing, so that a broker has nothing of it to end.
        (self.pid, self.fresh) = (std::process::id(), false);
    }

    /// Releases the pages that are behind no chunk.
    fn release_remainder(&mut self, kernel: &impl Prim) {
        while let Some(part) = self.next(usize::MAX / HUGE_2M) {
            let _ = kernel.remove(&part);
        }
    }
}

/// Reason why a request yielded no pages.
#[derive(Debug)]
struct Failure {
    why: (FallBack, Errno),
    /// True if pages came and went back because they could not be mapped.
    unusable: bool,
}

/// Asks for `count` pages, and maps all that come. Returns them, and the bytes of one extent. Sets
/// `fresh` to false once the request is sent.
fn obtain(
    kernel: &impl Prim,
    path: &[u8],
    count: usize,
    fresh: &mut bool,
) -> Result<(Reservation, usize), Failure> {
    let path = Path::new(OsStr::from_bytes(path));
    let granted = kernel
        .take_extents(path, PageSize::HUGE_2M, count as u64, fresh)
        .map_err(|error| Failure { why: reason(&error), unusable: false })?;
    let mapped = usize::try_from(granted.bytes)
        .ok()
        .and_then(|extent| Some((extent, extent.checked_mul(granted.count)?)))
        .ok_or(Errno::EINVAL)
        .and_then(|(extent, bytes)| {
            let all = kernel.reserve(bytes, HUGE_2M)?;
            map(kernel, &granted, &all, extent)?;
            Ok((all, extent))
        });
    mapped.map_err(|errno| {
        // Otherwise they would stay until the process ends.
        kernel.give_back(&granted, PageSize::HUGE_2M);
        Failure { why: (FallBack::Other, errno), unusable: true }
    })
}

/// Maps the extents one behind the other, and has page tables filled: a missing page is an error
/// here, and would be a signal later.
fn map(kernel: &impl Prim, granted: &Granted, all: &Reservation, extent: usize) -> Result<(), Errno> {
    for (at, file) in granted.extents.iter().flatten().enumerate() {
        kernel.map_extent(&all.part(at * extent, extent), file.as_fd())?;
    }
    kernel.populate(all.view())
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

impl<K: Prim> HugeHeap<K> {
    /// Names the broker whose pages come first, by its socket; `pid` is the calling process.
    /// Ignores a path that is too long for a socket.
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

    /// Returns true if the heap has the path of a broker.
    pub(super) fn has_broker(&self) -> bool {
        self.stock.with(|stock| stock.path_len > 0)
    }

    /// Returns true if a page of the broker is wanted for a chunk, and the broker has to be asked
    /// for it.
    pub(super) fn wants_stock(&self, span: &Span, index: usize, bulk: bool) -> bool {
        span.chunk(index).mapping() == Mapping::None
            && self.stock.with(|stock| stock.is_dry(self.now_ms()))
            && self.config().heap != Heap::None
            && self.may_be_of_pools(bulk)
            // An unfit kernel could not move the pages behind a chunk.
            && self.unfit().is_none()
    }

    /// Asks for `count` pages. If another thread is asking, waits for it first, and asks only if
    /// there are still none. The caller holds neither a group's lock nor the stock's. So a broker
    /// that hangs delays only threads that need its pages, for the time that it is given. No signal
    /// handler runs meanwhile, because it may fork.
    pub(super) fn ask_broker(&self, count: usize) {
        without_signals(|| {
            self.asking.with(|| {
                let ask = self.stock.with(|stock| {
                    stock.is_dry(self.now_ms()).then_some((stock.path, stock.path_len, stock.fresh))
                });
                let Some((path, path_len, mut fresh)) = ask else { return };
                let obtained = obtain(&self.kernel, &path[..path_len], count, &mut fresh);
                self.stock.with(|stock| {
                    stock.fresh = fresh;
                    match obtained {
                        Ok((all, extent)) => {
                            (stock.rest, stock.extent, stock.pause) = (Some(all), extent, PAUSE_MS);
                        }
                        Err(Failure { why, unusable: true }) => stock.leave_alone(0, FOR_EVER_MS, why),
                        Err(Failure { why, unusable: false }) => {
                            // The back-off begins now: half a second has gone without an answer.
                            stock.leave_alone(self.now_ms(), stock.pause, why);
                            stock.pause = (stock.pause * 2).min(LONGEST_PAUSE_MS);
                        }
                    }
                });
            });
        });
    }

    /// Puts pages of the stock behind up to `count` chunks from `index` on, which are not mapped.
    /// Returns true if the first chunk has one. The others are ready if `ahead` is given (that many
    /// chunks are about to be used), else reserved.
    pub(super) fn map_from_broker(
        &self,
        span: &Group,
        index: usize,
        count: usize,
        ahead: Option<usize>,
    ) -> bool {
        self.stock.with(|stock| {
            if stock.path_len == 0 || !self.is_fit(HugePage::SIZE) {
                return false;
            }
            let refused = stock.forking || (stock.rest.is_none() && stock.pid != std::process::id());
            if refused || stock.rest.is_none() {
                let (why, errno) = if refused { (FallBack::BrokerRefused, Errno(0)) } else { stock.why };
                self.ledger().fell_back(why, HugePage::SIZE, errno.0);
                return false;
            }
            let Some(pages) = stock.next(count) else { return false };
            let chunks = pages.len() / HUGE_2M;
            self.take_all_open(span, index, chunks);
            let moved = self.kernel.move_over(pages, &span.chunks_at(index, chunks));
            if let Err(NotMoved { pages, errno, .. }) = moved {
                let len = pages.len() as u64;
                let _ = self.kernel.remove(&pages);
                drop(pages);
                // A move that was refused once (no room for mappings) is refused for the remainder,
                // too.
                stock.release_remainder(&self.kernel);
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

    /// Takes a chunk that has its page already into use.
    pub(super) fn accept_from_broker(&self, span: &Group, index: usize) {
        span.chunk(index).set_mapping(Mapping::Mapped(Backing::Broker));
        self.ledger().obtained(Backing::Broker, HugePage::SIZE);
    }

    /// Releases the page behind a chunk. Otherwise it would stay until the process ends, because
    /// the broker has the file. The caller closes, releases or maps over the chunk next.
    pub(super) fn remove_from_broker(&self, span: &Group, index: usize) {
        // If this fails, the page goes when the process ends.
        let _ = self.kernel.remove(&span.chunk_at(index));
        self.gone_from_broker();
    }

    /// Notes that a page of the broker is no longer behind a chunk.
    pub(super) fn gone_from_broker(&self) {
        self.stock.with(|stock| stock.out = stock.out.saturating_sub(1));
    }

    /// Stops taking pages until the fork is over. Returns the number of pages that are behind
    /// chunks.
    pub(super) fn stop_taking(&self) -> usize {
        self.stock.with(|stock| {
            stock.forking = true;
            stock.out
        })
    }

    /// Notes that the fork is over. `child` is true in the child, which has none of the mappings.
    pub(super) fn take_again(&self, child: bool) {
        self.stock.with(|stock| {
            stock.forking = false;
            if child {
                stock.forget_in_child();
            }
        });
        if child {
            // A thread that was asking belongs to the parent; the child does not have it.
            self.asking.reset();
        }
    }

    /// Notes that a call that forks has failed, perhaps before it forked.
    pub fn fork_failed(&self) {
        let _errno = ErrnoGuard::save();
        self.take_again(false);
    }

    /// Releases the pages that are behind no chunk.
    pub(super) fn return_remainder(&self) {
        self.stock.with(|stock| stock.release_remainder(&self.kernel));
    }
}
