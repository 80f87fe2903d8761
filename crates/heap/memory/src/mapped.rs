//! Memory that the program maps by itself: placed so that huge pages back it, while that pays.
//!
//! Allocators other than malloc (interpreters' object arenas, engines with their own allocator)
//! take their memory by `mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS)`. This
//! module handles these mappings only.
//!
//! - A program gets the kernel's own answers until it has mapped [`Kind::START`] bytes this way.
//!   Its next mappings are *probes*: also the kernel's own answers, on base pages.
//! - While probes turn out dense (mincore(2)), further requests are served huge. Small ones come
//!   from the top of whole 2 MiB chunks, large ones at 2 MiB boundaries. Both are advised
//!   (MADV_HUGEPAGE) before their first touch. In a large probe, only the regions of 2 MiB count in
//!   which anything is present.
//! - After some bytes the next requests are probes again, so that a program that has become sparse
//!   gets base pages. `stretch` bounds the bytes that it can bloat by.
//!
//! The module only chooses an address and gives advice. munmap(2), mprotect(2) and madvise(2) need
//! no help. Advice makes mappings differ from their neighbours, and mremap(2) works across mappings
//! only where they are alike. So memory that the program maps at a named address, inside or beside
//! advised memory, is advised as well ([`Mapped::named`], [`Mapped::keeps_advice`]).

mod advised;
mod probes;
mod scattered;

use crate::prim::Prim;
use advised::{Advised, Range};
use megapage_inside::{Borrowed, ErrnoGuard, Locked};
use megapage_units::{BASE_PAGE, HUGE_2M};
use probes::Kind;
#[cfg(test)]
use probes::stretch;
use scattered::Scattered;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Smallest request that is handled, in bytes.
pub const SMALLEST: usize = 64 << 10;
/// Bytes from which on a request is no arena: it may never be touched all over, and is left to the
/// collapser.
pub const LARGEST: usize = 32 << 20;
/// Tries for the lock of the table of advised memory. Another thread holds it for well below a
/// microsecond.
const TRIES: usize = 100;

#[derive(Debug)]
struct State {
    /// Requests below 2 MiB, and the others.
    kinds: [Kind; 2],
    /// Parts of chunks that are mapped and not handed out yet. Indexed by `reserve`: 1 if the
    /// kernel accounts for the memory (without MAP_NORESERVE), else 0.
    spares: [Range; 2],
    /// True once the kernel has refused advice: nothing is tried any more.
    off: bool,
    scattered: Scattered,
}

/// The program's own mappings.
#[derive(Debug)]
pub struct Mapped {
    state: Locked<State>,
    /// Held for look-ups alone, never during a system call.
    advised: Locked<Advised>,
    /// True once anything was advised.
    any: AtomicBool,
}

impl Mapped {
    /// Makes the state of a program that has mapped nothing yet.
    pub const fn new() -> Mapped {
        Mapped {
            state: Locked::new(State {
                // From 2 MiB on, fewer sixteenths are enough: the last region may still be filling
                // at the look.
                kinds: [Kind::new(15, 1 << 20), Kind::new(13, 8 << 20)],
                spares: [(0, 0); 2],
                off: false,
                scattered: Scattered::new(),
            }),
            advised: Locked::new(Advised::new()),
            any: AtomicBool::new(false),
        }
    }

    /// Serves a request for `len` bytes at any address. Returns `None` if the kernel is to be asked
    /// as the program asks; its answer then goes to [`Mapped::probe`]. Never waits, so that a
    /// signal handler may call it.
    pub fn place(&self, calls: &impl Prim, len: usize, reserve: bool) -> Option<usize> {
        if !(SMALLEST..LARGEST).contains(&len) {
            return None;
        }
        let len = len.next_multiple_of(BASE_PAGE);
        let _errno = ErrnoGuard::save();
        self.state.try_with(|state| self.serve(state, calls, len, reserve))?
    }

    /// Remembers what the kernel answered to a request that [`Mapped::place`] did not serve.
    pub fn probe(&self, start: usize, len: usize) {
        let end = start + len.next_multiple_of(BASE_PAGE);
        if (SMALLEST..LARGEST).contains(&len) {
            self.state.try_with(|state| state.kind(len).note_probe((start, end)));
        }
    }

    /// Returns true if the kernel may choose the place of a small reservation without access,
    /// though the program names one. Such a program names many, far from each other. Never waits.
    pub fn may_pass_over(&self, calls: &impl Prim, hint: usize, len: usize) -> bool {
        let _errno = ErrnoGuard::save();
        self.state.try_with(|state| state.scattered.may_pass_over(calls, hint, len)).unwrap_or(false)
    }

    /// Advises private anonymous memory that the program has mapped at an address that it named, if
    /// the memory around it is advised.
    pub fn named(&self, calls: &impl Prim, start: usize, len: usize) {
        let range = (start, start + len.next_multiple_of(BASE_PAGE));
        // Large memory beside advised memory is a separate reservation, which may stay sparse.
        let beside = usize::from(len < LARGEST);
        let around = (range.0.saturating_sub(beside), range.1 + beside);
        if self.look_up(|advised| advised.overlaps(around)) == Some(true) {
            let _errno = ErrnoGuard::save();
            self.advise(calls, range.0, range.1);
        }
    }

    /// Notes that the program is about to unmap a range. Returns true if any of it was advised.
    pub fn unmapping(&self, start: usize, len: usize) -> bool {
        let Some(end) = len.checked_next_multiple_of(BASE_PAGE).and_then(|len| start.checked_add(len)) else {
            return false;
        };
        self.look_up(|advised| advised.remove((start, end))).unwrap_or(false)
    }

    /// Notes that memory announced by [`Mapped::unmapping`] is still there, or somewhere else
    /// (mremap(2)): its advice went with it.
    pub fn keeps_advice(&self, start: usize, len: usize) {
        let range = (start, start.saturating_add(len).next_multiple_of(BASE_PAGE));
        self.look_up(|advised| advised.insert(range));
    }

    /// Advises a whole mapping. Returns true if that worked.
    pub fn advise(&self, calls: &impl Prim, start: usize, end: usize) -> bool {
        self.has_room()
            && calls.advise_thp(Borrowed::new(start, end - start)).is_ok()
            && self.insert((start, end))
    }

    /// Returns true if the memory at `address` was advised here, or if that cannot be determined at
    /// the moment.
    pub fn is_advised(&self, address: usize) -> bool {
        self.look_up(|advised| advised.overlaps((address, address + 1))).unwrap_or(self.any.load(Relaxed))
    }

    /// Releases memory that was mapped ahead: the program's own request was refused for lack of
    /// addresses or memory. Returns true if there was any.
    pub fn return_spares(&self, calls: &impl Prim) -> bool {
        let spares = self.state.try_with(|state| std::mem::take(&mut state.spares)).unwrap_or_default();
        let _errno = ErrnoGuard::save();
        let held = spares.into_iter().filter(|spare| spare.0 < spare.1);
        held.map(|spare| self.unmap(calls, spare)).count() > 0
    }

    /// Takes the locks for a fork handler; [`Mapped::unlock_after_fork`] must follow.
    pub fn lock_for_fork(&self) {
        self.state.lock_for_fork();
        self.advised.lock_for_fork();
    }

    /// Releases the locks of [`Mapped::lock_for_fork`]; in the parent and in the child.
    pub fn unlock_after_fork(&self) {
        self.advised.unlock_after_fork();
        self.state.unlock_after_fork();
    }

    /// Frees the locks in a child whose fork took none: see [`megapage_inside::Lock::reset`].
    pub fn free_locks_in_child(&self) {
        self.state.reset();
        self.advised.reset();
    }

    /// Runs `work` on the table of advised memory. Returns `None` if nothing was ever advised, or
    /// if the table stays locked: a signal handler has interrupted its holder.
    fn look_up<R>(&self, work: impl FnOnce(&mut Advised) -> R) -> Option<R> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let mut work = Some(work);
        for attempt in 0..TRIES {
            let answer = self.advised.try_with(|advised| work.take().map(|work| work(advised)));
            if let Some(answer) = answer {
                return answer;
            }
            if attempt > TRIES / 2 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        None
    }

    fn has_room(&self) -> bool {
        self.look_up(|advised| advised.has_room()).unwrap_or(!self.any.load(Relaxed))
    }

    fn insert(&self, range: Range) -> bool {
        self.any.store(true, Relaxed);
        self.look_up(|advised| advised.insert(range)).is_some()
    }

    fn unmap(&self, calls: &impl Prim, (start, end): Range) {
        self.unmapping(start, end - start);
        calls.unmap(start, end - start);
    }

    fn serve(&self, state: &mut State, calls: &impl Prim, len: usize, reserve: bool) -> Option<usize> {
        let kind = state.kind(len);
        kind.mapped += len as u64;
        kind.judge(calls);
        if kind.left == 0 || state.off || !self.has_room() {
            return None;
        }
        let placed = if len < HUGE_2M {
            self.take_small(state, calls, len, reserve)
        } else {
            self.map_advised(state, calls, len, reserve)
        };
        let kind = state.kind(len);
        // If the kernel refuses, the program's own request decides, and the next one starts over.
        kind.left = if placed.is_some() { kind.left.saturating_sub(len) } else { 0 };
        placed
    }

    /// Serves a small request from the top of a chunk down, as the kernel itself places. A new
    /// chunk comes to lie below the one before, so that the rest of the older one is not lost.
    fn take_small(&self, state: &mut State, calls: &impl Prim, len: usize, reserve: bool) -> Option<usize> {
        let mut spare = state.spares[usize::from(reserve)];
        if spare.1 - spare.0 < len {
            let start = self.map_advised(state, calls, HUGE_2M, reserve)?;
            let is_joined = start + HUGE_2M == spare.0;
            if spare.0 < spare.1 && !is_joined {
                self.unmap(calls, spare);
            }
            spare = (start, if is_joined { spare.1 } else { start + HUGE_2M });
        }
        spare.1 -= len;
        state.spares[usize::from(reserve)] = spare;
        Some(spare.1)
    }

    fn map_advised(&self, state: &mut State, calls: &impl Prim, len: usize, reserve: bool) -> Option<usize> {
        let start = calls.map_aligned(len, reserve).ok()?;
        if calls.advise_thp(Borrowed::new(start, len)).is_err() {
            calls.unmap(start, len);
            state.off = true;
            return None;
        }
        self.insert((start, start + len));
        Some(start)
    }
}

impl State {
    fn kind(&mut self, len: usize) -> &mut Kind {
        &mut self.kinds[usize::from(len >= HUGE_2M)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_inside::Errno;
    use std::cell::{Cell, RefCell};

    /// Kernel that maps top-down and reports this share of all memory as present.
    pub(super) struct Fake {
        next: Cell<usize>,
        present_percent: Cell<usize>,
        unmapped: RefCell<Vec<Range>>,
        advised: RefCell<Vec<Range>>,
        refuses_advice: bool,
        refuses_maps: Cell<bool>,
        confined: Cell<bool>,
        mapped: bool,
        striped: bool,
    }

    impl Fake {
        pub(super) fn new(present_percent: usize) -> Fake {
            Fake {
                next: Cell::new(1 << 40),
                present_percent: Cell::new(present_percent),
                unmapped: RefCell::default(),
                advised: RefCell::default(),
                refuses_advice: false,
                refuses_maps: Cell::new(false),
                confined: Cell::new(false),
                mapped: true,
                striped: false,
            }
        }

        /// Makes a kernel with every other region of 2 MiB empty.
        pub(super) fn striped(present_percent: usize) -> Fake {
            Fake { striped: true, ..Fake::new(present_percent) }
        }

        /// Makes a kernel with all addresses free.
        pub(super) fn with_nothing_mapped() -> Fake {
            Fake { mapped: false, ..Fake::new(0) }
        }

        pub(super) fn confine(&self) {
            self.confined.set(true);
        }

        fn map(&self, len: usize) -> usize {
            self.next.set(self.next.get() - len);
            self.next.get()
        }

        /// Makes a request of the program. Returns the address, and true if it was served here.
        pub(super) fn request(&self, mapped: &Mapped, len: usize) -> (usize, bool) {
            match mapped.place(self, len, true) {
                Some(address) => (address, true),
                None => {
                    let address = self.map(len.next_multiple_of(BASE_PAGE));
                    mapped.probe(address, len);
                    (address, false)
                }
            }
        }
    }

    impl Prim for Fake {
        fn map_aligned(&self, len: usize, _reserve: bool) -> Result<usize, Errno> {
            if self.refuses_maps.get() {
                return Err(Errno::ENOMEM);
            }
            let start = (self.next.get() - len) & !(HUGE_2M - 1);
            self.next.set(start);
            Ok(start)
        }

        fn unmap(&self, start: usize, len: usize) {
            self.unmapped.borrow_mut().push((start, start + len));
        }

        fn advise_thp(&self, part: Borrowed) -> Result<(), Errno> {
            if self.refuses_advice {
                return Err(Errno::EINVAL);
            }
            self.advised.borrow_mut().push((part.start(), part.end()));
            Ok(())
        }

        fn resident(&self, start: usize, len: usize) -> Option<usize> {
            assert!(start.is_multiple_of(BASE_PAGE) && len > 0);
            assert!(!self.confined.get(), "no call is made then");
            let touched = !self.striped || (start / HUGE_2M).is_multiple_of(2);
            self.mapped.then(|| if touched { len * self.present_percent.get() / 100 } else { 0 })
        }

        fn is_confined(&self) -> bool {
            self.confined.get()
        }
    }

    pub(super) const MIB: usize = 1 << 20;

    #[test]
    fn dense_arenas_become_huge_and_probes_go_on() {
        let (calls, mapped) = (Fake::new(100), Mapped::new());
        let served: Vec<bool> = (0..200).map(|_| calls.request(&mapped, MIB).1).collect();
        assert!(served[..3].iter().all(|huge| !huge), "a small program stays on base pages");
        let share = served.iter().filter(|huge| **huge).count();
        assert!((160..198).contains(&share), "{share} of 200, the rest are probes");
        assert!(!served[50..].iter().all(|huge| *huge));
    }

    #[test]
    fn sparse_arenas_stay_the_kernels() {
        let (calls, mapped) = (Fake::new(50), Mapped::new());
        assert!((0..500).all(|_| !calls.request(&mapped, MIB).1));
        assert!(calls.advised.borrow().is_empty());
        // If a program becomes sparse, no more than a stretch is served huge.
        let (calls, mapped) = (Fake::new(100), Mapped::new());
        for _ in 0..400 {
            calls.request(&mapped, MIB);
        }
        calls.present_percent.set(10);
        let late = (0..400).filter(|_| calls.request(&mapped, MIB).1).count();
        assert!(late * MIB <= stretch(400 << 20), "{late} MiB");
    }

    #[test]
    fn pieces_do_not_overlap_and_lie_in_advised_memory() {
        for len in [SMALLEST, 256 << 10, 700 << 10, MIB + 4096, 3 * MIB / 2, 2 * MIB, 5 * MIB + 1, 16 * MIB] {
            let (calls, mapped) = (Fake::new(100), Mapped::new());
            let mut pieces = Vec::new();
            let rounded = len.next_multiple_of(BASE_PAGE);
            while pieces.len() < 20_000 && calls.next.get() > (1 << 40) - (1 << 30) {
                let (start, huge) = calls.request(&mapped, len);
                pieces.push((start, start + rounded));
                let within = |range: &Range| range.0 <= start && start < range.1;
                assert_eq!(huge, calls.advised.borrow().iter().any(within), "{len}");
            }
            pieces.extend(calls.unmapped.borrow().iter());
            pieces.sort_unstable();
            assert!(pieces.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{len}: pieces overlap");
        }
    }

    #[test]
    fn a_kernel_that_refuses_is_asked_no_more() {
        let (calls, mapped) = (Fake { refuses_advice: true, ..Fake::new(100) }, Mapped::new());
        assert!((0..100).all(|_| !calls.request(&mapped, MIB).1));
        assert_eq!(calls.unmapped.borrow().len(), 1, "what could not be advised is not stored");
        let (calls, mapped) = (Fake::new(100), Mapped::new());
        calls.refuses_maps.set(true);
        assert!((0..100).all(|_| !calls.request(&mapped, MIB).1), "the program's own request decides");
        calls.refuses_maps.set(false);
        assert!((0..20).any(|_| calls.request(&mapped, MIB).1), "later again");
    }

    #[test]
    fn a_program_that_confines_itself_is_left_alone() {
        let (calls, mapped) = (Fake::new(100), Mapped::new());
        while !calls.request(&mapped, MIB).1 {}
        calls.confined.set(true);
        let late = (0..200).filter(|_| calls.request(&mapped, MIB).1).count();
        assert!(late * MIB <= stretch(0), "{late} MiB");
    }

    #[test]
    fn what_was_mapped_ahead_goes_back_when_it_is_wanted() {
        let (calls, mapped) = (Fake::new(100), Mapped::new());
        while !calls.request(&mapped, MIB).1 {}
        assert!(mapped.return_spares(&calls));
        let [(start, end)] = calls.unmapped.borrow()[..] else { panic!("one spare") };
        assert_eq!(end - start, MIB);
        assert!(!mapped.return_spares(&calls));
        assert!(calls.request(&mapped, MIB).0 != start, "it is gone");
    }

    #[test]
    fn memory_beside_advised_memory_is_advised() {
        let (calls, mapped) = (Fake::new(100), Mapped::new());
        assert!(mapped.advise(&calls, 10 * HUGE_2M, 12 * HUGE_2M));
        let before = calls.advised.borrow().len();
        mapped.named(&calls, 14 * HUGE_2M, HUGE_2M);
        mapped.named(&calls, 12 * HUGE_2M, 1 << 30);
        assert_eq!(calls.advised.borrow().len(), before, "elsewhere");
        mapped.named(&calls, 12 * HUGE_2M, BASE_PAGE);
        mapped.named(&calls, 11 * HUGE_2M, BASE_PAGE);
        assert_eq!(calls.advised.borrow().len(), before + 2);
        assert!(mapped.unmapping(10 * HUGE_2M, HUGE_2M));
        mapped.keeps_advice(20 * HUGE_2M, HUGE_2M);
        assert!(mapped.is_advised(20 * HUGE_2M) && !mapped.is_advised(10 * HUGE_2M));
        assert!(!mapped.unmapping(30 * HUGE_2M, HUGE_2M));
    }
}
