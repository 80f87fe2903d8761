//! Memory of this process, on base pages or on huge ones, for timed accesses.
//!
//! File-level obligation: every address that is read lies in the mapping that the value owns. The
//! mapping is private, was populated when it was made, and is written by no process afterwards.

#![allow(unsafe_code)]

use crate::mapped::Mapped;
use crate::own_advice::Advice;
use megapage_units::{BASE_PAGE, HUGE_2M, VirtRange};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages that the kernel is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedPages {
    /// 4 KiB (MADV_NOHUGEPAGE), with neighbours that lie apart in physical memory, as in a program
    /// on a machine that has worked for a while. For pages side by side, processors fetch ahead,
    /// and some hold several in one entry of the TLB.
    Base,
    /// 2 MiB (MADV_HUGEPAGE, then MADV_COLLAPSE). The caller must check if the kernel gave them.
    Huge,
}

/// Order in which [`TimedMemory::read`] goes through the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessOrder {
    /// Random cache lines, in this number of chains side by side (1, 2, 4 or 8; others count as 8).
    /// In each chain, the next address depends on the value read last.
    Chains(u8),
    /// Random cache lines, at addresses known long before.
    Random,
    /// All words of one page after the other; an access is one page.
    Stream,
}

const LINE: u64 = 64;
/// Bytes that one step populates, in about 10 ms. A thread that needs the lock of this address
/// space waits for no longer than that. Before each step the caller is asked if there still is
/// memory to spare.
const BATCH: usize = 16 << 20;
/// Distance, in base pages, between pages that are populated one after the other. It is a prime
/// that divides no number of pages of a batch, so each page is populated once.
const STRIDE: usize = 1597;
/// Constants of the generator of addresses (Knuth's MMIX).
const FACTOR: u64 = 6_364_136_223_846_793_005;
const ADDEND: u64 = 1_442_695_040_888_963_407;

/// Private anonymous memory, populated with zeros.
#[derive(Debug)]
pub struct TimedMemory {
    memory: Mapped,
    bytes: usize,
}

impl TimedMemory {
    /// Maps `bytes`, rounded up to 2 MiB, and populates every page. Takes about 0.4 s of processor
    /// time for each GiB of base pages, more if the host has to find the memory first. Before each
    /// 16 MiB it passes the number of bytes present to `goes_on`. If that returns false, it
    /// releases all and returns `Ok(None)`. This check keeps a control group from being filled: the
    /// kernel would then kill, both for a touched page and for MADV_POPULATE_WRITE.
    pub fn map(
        bytes: usize,
        pages: TimedPages,
        goes_on: &mut dyn FnMut(usize) -> bool,
    ) -> io::Result<Option<TimedMemory>> {
        let bytes = bytes.max(1).next_multiple_of(HUGE_2M);
        let memory = Mapped::anonymous(bytes, HUGE_2M, libc::MAP_PRIVATE | libc::MAP_NORESERVE)?;
        let memory = TimedMemory { memory, bytes };
        let advice = if pages == TimedPages::Huge { Advice::Huge } else { Advice::NoHuge };
        // A kernel without transparent huge pages refuses the advice: then all pages are base
        // pages.
        let _ = memory.memory.advise(0, bytes, advice);
        for from in (0..bytes).step_by(BATCH) {
            if !goes_on(from) {
                return Ok(None);
            }
            memory.populate(from, BATCH.min(bytes - from), pages)?;
        }
        Ok(Some(memory))
    }

    /// Populates `len` bytes from offset `from` on.
    fn populate(&self, from: usize, len: usize, pages: TimedPages) -> io::Result<()> {
        if pages == TimedPages::Base {
            // The kernel takes page frames mostly in the order of their numbers, so neighbours are
            // populated at different times.
            let count = len / BASE_PAGE;
            return (0..count).try_for_each(|n| self.touch(from + n * STRIDE % count * BASE_PAGE, BASE_PAGE));
        }
        self.touch(from, len)?;
        // Huge pages stay; if the collapse fails, the others stay on base pages.
        let _ = self.memory.advise(from, len, Advice::Collapse);
        Ok(())
    }

    /// Makes these pages present.
    fn touch(&self, from: usize, len: usize) -> io::Result<()> {
        match self.memory.advise(from, len, Advice::Populate) {
            // The kernel is older than Linux 5.14.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let words: &[AtomicU64] = self.memory.slice(from, len / size_of::<u64>());
                words
                    .iter()
                    .step_by(BASE_PAGE / size_of::<u64>())
                    .for_each(|word| word.store(0, Ordering::Relaxed));
                Ok(())
            }
            populated => populated,
        }
    }

    /// Returns the addresses.
    pub fn range(&self) -> VirtRange {
        self.memory.part(0, self.bytes)
    }

    /// Makes `count` accesses in `order` within the first `within` bytes (at least one page of
    /// them). `seed` determines the first address.
    pub fn read(&self, order: AccessOrder, within: usize, count: u64, seed: u64) {
        let within = within.clamp(BASE_PAGE, self.bytes);
        match order {
            AccessOrder::Chains(1) => self.chains::<1>(within, count, seed),
            AccessOrder::Chains(2) => self.chains::<2>(within, count, seed),
            AccessOrder::Chains(4) => self.chains::<4>(within, count, seed),
            AccessOrder::Chains(_) => self.chains::<8>(within, count, seed),
            AccessOrder::Random => self.random(within, count, seed),
            AccessOrder::Stream => self.stream(within, count, seed),
        }
    }

    fn chains<const CHAINS: usize>(&self, within: usize, count: u64, seed: u64) {
        let lines = within as u64 / LINE;
        let mut states: [u64; CHAINS] = std::array::from_fn(|chain| {
            seed.wrapping_add(chain as u64 + 1).wrapping_mul(ADDEND | 1) ^ FACTOR
        });
        let mut values = [0u64; CHAINS];
        for _ in 0..count / CHAINS as u64 {
            for (state, value) in states.iter_mut().zip(&mut values) {
                // The value read is zero, which neither the compiler nor the processor knows.
                *state = state.wrapping_mul(FACTOR).wrapping_add(ADDEND + *value);
                *value = self.word(line_of(*state, lines) * LINE);
            }
        }
        std::hint::black_box(values);
    }

    fn random(&self, within: usize, count: u64, seed: u64) {
        let lines = within as u64 / LINE;
        let (mut state, mut sum) = (seed.wrapping_add(1).wrapping_mul(ADDEND | 1), 0u64);
        for _ in 0..count {
            state = state.wrapping_mul(FACTOR).wrapping_add(ADDEND);
            sum = sum.wrapping_add(self.word(line_of(state, lines) * LINE));
        }
        std::hint::black_box(sum);
    }

    fn stream(&self, within: usize, count: u64, seed: u64) {
        let pages = within / BASE_PAGE;
        let mut sum = 0u64;
        for step in 0..count {
            let page = (seed.wrapping_add(step) % pages as u64) as usize;
            // SAFETY: the page lies in the mapping, is present, aligned for words, and written by
            // nothing.
            let words = unsafe {
                std::slice::from_raw_parts(
                    self.memory.address().add(page * BASE_PAGE).cast::<u64>(),
                    BASE_PAGE / 8,
                )
            };
            sum = sum.wrapping_add(words.iter().fold(0, |sum, word| sum.wrapping_add(*word)));
        }
        std::hint::black_box(sum);
    }

    #[inline(always)]
    fn word(&self, offset: u64) -> u64 {
        debug_assert!((offset as usize) < self.bytes);
        // SAFETY: callers pass the offset of a whole cache line below `within`, which is at most
        // `bytes`.
        unsafe { ptr::read_volatile(self.memory.address().add(offset as usize).cast::<u64>()) }
    }
}

/// Returns a number below `lines`, from the upper bits of the state.
#[inline(always)]
fn line_of(state: u64, lines: u64) -> u64 {
    ((u128::from(state) * u128::from(lines)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KernelRoot;
    use crate::pagemap::Pagemap;
    use megapage_units::Pid;

    fn present(memory: &TimedMemory) -> (u64, u64) {
        let own = Pid(std::process::id().cast_signed());
        let regions = Pagemap::open(&KernelRoot::live(), own).unwrap().regions(memory.range()).unwrap();
        let pages = regions.iter().map(|region| u64::from(region.present)).sum();
        (pages, regions.iter().filter(|region| region.huge == Some(true)).count() as u64)
    }

    fn map(bytes: usize, pages: TimedPages) -> TimedMemory {
        TimedMemory::map(bytes, pages, &mut |_| true).unwrap().unwrap()
    }

    #[test]
    fn all_of_it_is_there_and_base_pages_are_base_pages() {
        let memory = map(3 * HUGE_2M - 5, TimedPages::Base);
        assert_eq!(memory.range().len().0, 3 * HUGE_2M as u64);
        assert_eq!(memory.range().start() % HUGE_2M as u64, 0);
        assert_eq!(present(&memory), (3 * 512, 0));
        let own = Pid(std::process::id().cast_signed());
        let pagemap = Pagemap::open(&KernelRoot::live(), own).unwrap();
        if let Some(share) = pagemap.contiguity(memory.range()).unwrap() {
            assert!(share < 0.1, "{share}");
        }
        let huge = map(HUGE_2M, TimedPages::Huge);
        assert_eq!(present(&huge).0, 512, "present, on whatever pages could be had");
    }

    #[test]
    fn it_is_had_piece_by_piece_and_released_on_request() {
        let mut asked = Vec::new();
        let memory = TimedMemory::map(2 * BATCH + HUGE_2M, TimedPages::Base, &mut |present| {
            asked.push(present);
            true
        });
        assert_eq!(present(&memory.unwrap().unwrap()).0, (2 * BATCH + HUGE_2M) as u64 / BASE_PAGE as u64);
        assert_eq!(asked, [0, BATCH, 2 * BATCH]);
        let stopped = TimedMemory::map(4 * BATCH, TimedPages::Base, &mut |present| present < BATCH);
        assert!(stopped.unwrap().is_none(), "and all is unmapped: the value is gone");
    }

    #[test]
    fn every_order_reads_within_what_is_mapped() {
        let memory = map(HUGE_2M, TimedPages::Base);
        let orders = [1, 2, 4, 8].map(AccessOrder::Chains);
        for order in orders.into_iter().chain([AccessOrder::Random, AccessOrder::Stream]) {
            for within in [0, BASE_PAGE, HUGE_2M / 2, usize::MAX] {
                memory.read(order, within, 2000, u64::MAX / 2);
            }
        }
    }

    #[test]
    fn lines_are_spread_over_all() {
        let (mut state, mut seen) = (1u64, [0u32; 8]);
        for _ in 0..8000 {
            state = state.wrapping_mul(FACTOR).wrapping_add(ADDEND);
            seen[line_of(state, 8) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }
}
