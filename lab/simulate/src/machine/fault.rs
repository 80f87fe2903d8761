//! Page faults, and releases of memory.

use super::Machine;
use crate::memory::Owner;
use crate::trace::Writer;
use megapage_decide::{Fault, FaultSize, Headroom, Reservation};
use megapage_plan::random::Random;
use megapage_snapshot::PAGES;
use megapage_units::{BASE_PAGE, Bytes};
use std::time::Duration;

/// Error: no page is free, and none can be taken back.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutOfMemory;

/// Writes to the pages of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writes {
    /// Pages present afterwards.
    pub pages: u16,
    /// Those that hold data afterwards.
    pub content: u16,
    /// The program's own work for each page that is written, in nanoseconds.
    pub own_ns: f64,
    pub written: Written,
}

/// The written part of each page, and the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Nothing: the kernel populates.
    Nothing,
    Line,
    Page(Writer),
}

/// Result of the faults of one region.
#[derive(Clone, Copy, Debug, Default)]
struct Made {
    faults: u64,
    handler_ns: f64,
    /// Base pages that were zeroed in the fault.
    warm: u64,
    /// True if a huge page was zeroed in the fault.
    zeroed_huge: bool,
}

impl Machine {
    /// Writes pages of a region until `writes.pages` are present and `writes.content` of them hold
    /// data. Returns the seconds that it took.
    pub(super) fn touch(
        &mut self,
        at: usize,
        number: u32,
        writes: Writes,
        time: f64,
    ) -> Result<f64, OutOfMemory> {
        let Writes { pages, content, .. } = writes;
        let costs = self.setup.hardware.faults.clone();
        let before = self.processes[at].regions[number as usize];
        let owner = self.owner(at, number);
        let mut made = Made::default();
        while self.processes[at].regions[number as usize].present < pages {
            let region = self.processes[at].regions[number as usize];
            let missing = pages - region.present;
            match self.ask(at, number, owner) {
                FaultSize::Huge if region.present == 0 && self.fault_huge(at, number, owner, &mut made) => {}
                FaultSize::Mthp(size) => {
                    let block = (size.bytes().0 / BASE_PAGE as u64).clamp(1, u64::from(PAGES)) as u16;
                    // Whole blocks, as far as the region has room.
                    let wanted = missing.div_ceil(block).saturating_mul(block).min(PAGES - region.present);
                    let (zeroed, dirty) = self.take(at, number, owner, wanted)?;
                    let blocks = (zeroed + dirty).div_ceil(block);
                    made.faults += u64::from(blocks);
                    made.handler_ns += f64::from(blocks) * costs.base_ns;
                    made.handler_ns += f64::from(dirty) * costs.zero_base_ns;
                    made.warm += u64::from(dirty);
                }
                size => {
                    let reserves = size == FaultSize::Reserve;
                    if reserves && region.present == 0 && !self.memory.is_reserved(owner) {
                        let reserved = self.memory.reserve(owner, self.state.policy().prefers_zeroed());
                        self.processes[at].change(number, |region| region.reserved = reserved);
                    }
                    let (zeroed, dirty) = self.take(at, number, owner, missing)?;
                    made.faults += u64::from(zeroed + dirty);
                    made.handler_ns += f64::from(zeroed + dirty) * costs.base_ns;
                    made.handler_ns += f64::from(dirty) * costs.zero_base_ns;
                    made.warm += u64::from(dirty);
                    let full = self.processes[at].regions[number as usize].present == PAGES;
                    if reserves && full && self.memory.is_contiguous(owner) && self.has_budget() {
                        made.handler_ns += self.setup.hardware.work.remap_ns;
                        self.processes[at].change(number, |region| region.huge = true);
                        self.processes[at].account.huge_faults += 1;
                    }
                }
            }
        }

        // A page that was zeroed just now is in a cache; any other is not.
        let filled = content.saturating_sub(before.content);
        let new = if before.huge { 0 } else { pages.saturating_sub(before.present) };
        let written = u64::from(filled.max(new));
        let warm = if made.zeroed_huge { written } else { made.warm.min(written) };
        let (warm_ns, cold_ns) = match writes.written {
            Written::Nothing => (0.0, 0.0),
            Written::Line => (costs.touch_warm_ns, costs.touch_cold_ns),
            Written::Page(_) if made.zeroed_huge => (costs.fill_huge_ns, costs.fill_cold_ns),
            Written::Page(_) => (costs.fill_base_ns, costs.fill_cold_ns),
        };
        let write_ns = warm as f64 * warm_ns + (written - warm) as f64 * cold_ns;
        let own_ns = written as f64 * writes.own_ns;
        // A fault that the kernel takes while it writes for a system call neither enters nor leaves
        // it.
        let around_ns = if writes.written == Written::Page(Writer::Kernel) { 0.0 } else { costs.around_ns };
        let taken_ns =
            made.handler_ns + made.faults as f64 * around_ns + (write_ns + own_ns) * (1.0 + self.zeroing);
        let process = &mut self.processes[at];
        process.change(number, |region| {
            region.content = region.content.max(content.min(region.present));
            if made.faults > 0 {
                region.changed = time;
            }
        });
        process.account.faults += made.faults;
        process.account.fault_seconds += made.handler_ns * 1e-9;
        process.account.pages_touched += written;
        Ok(taken_ns * 1e-9)
    }

    /// Maps a huge page where there is none yet. Returns `false` if none is free.
    fn fault_huge(&mut self, at: usize, number: u32, owner: Owner, made: &mut Made) -> bool {
        if !self.has_budget() {
            return false;
        }
        let Some(zeroed) = self.memory.take_huge(owner, self.state.policy().prefers_zeroed()) else {
            return false;
        };
        let costs = &self.setup.hardware.faults;
        made.faults += 1;
        made.zeroed_huge = !zeroed;
        made.handler_ns += costs.huge_ns + if zeroed { 0.0 } else { costs.zero_huge_ns };
        self.processes[at].change(number, |region| {
            region.present = PAGES;
            region.zero_page = 0;
            region.huge = true;
        });
        self.processes[at].account.huge_faults += 1;
        true
    }

    fn owner(&mut self, at: usize, number: u32) -> Owner {
        let region = &mut self.processes[at].regions[number as usize];
        *region.owner.get_or_insert_with(|| self.memory.enter())
    }

    /// Takes base pages for a region. Returns the zeroed ones and the others. If memory is short,
    /// breaks reservations as the policy decides.
    fn take(&mut self, at: usize, number: u32, owner: Owner, pages: u16) -> Result<(u16, u16), OutOfMemory> {
        let (mut zeroed, mut total) = (0, 0);
        while total < pages {
            let taken = self.memory.take(owner, pages - total, self.state.policy().prefers_zeroed());
            zeroed += taken.zeroed;
            total += taken.pages;
            if total < pages && !self.break_reservation() {
                break;
            }
        }
        self.processes[at].change(number, |region| {
            region.present += total;
            // Pages that mapped the page of zeros are written to first.
            region.zero_page = region.zero_page.saturating_sub(total);
        });
        if total < pages { Err(OutOfMemory) } else { Ok((zeroed, total - zeroed)) }
    }

    fn break_reservation(&mut self) -> bool {
        let owners: Vec<Owner> = self.memory.reservations().collect();
        if owners.is_empty() {
            return false;
        }
        let mut known: Vec<(Owner, Reservation)> = Vec::new();
        for process in &self.processes {
            for (number, region) in process.regions.iter().enumerate() {
                if let Some(owner) = region.owner.filter(|&owner| self.memory.is_reserved(owner)) {
                    known.push((
                        owner,
                        Reservation {
                            process: process.id,
                            region: process.addresses[number],
                            populated: region.present,
                            changed: Duration::from_secs_f64(region.changed),
                        },
                    ));
                }
            }
        }
        let reservations: Vec<Reservation> = known.iter().map(|(_, reservation)| *reservation).collect();
        match self.state.policy().breaks(&reservations).and_then(|at| known.get(at)) {
            Some(&(owner, _)) => {
                self.memory.break_reservation(owner);
                true
            }
            None => false,
        }
    }

    fn ask(&mut self, at: usize, number: u32, owner: Owner) -> FaultSize {
        let process = &self.processes[at];
        let headroom = self.headroom();
        self.state.on_fault(&Fault {
            process: process.id,
            region: process.addresses[number as usize],
            present: process.regions[number as usize].present,
            eligible: true,
            reserved: self.memory.is_reserved(owner),
            headroom,
        })
    }

    fn headroom(&self) -> Headroom {
        let free = self.memory.free_pages() + self.memory.cache_pages();
        Headroom {
            total: Bytes(self.memory.total_pages() << 12),
            free: Bytes(free << 12),
            huge_available: self.memory.huge_free(),
            zeroed: self.memory.huge_zeroed(),
            fragmentation: self.memory.fragmentation(),
        }
    }

    /// Releases pages of a region; each page with content stays with the chance `keep`. A huge page
    /// is split first. Returns the seconds that it took.
    pub(super) fn give_back(&mut self, at: usize, number: u32, keep: f64, own_ns: f64, time: f64) -> f64 {
        let region = self.processes[at].regions[number as usize];
        let Some(owner) = region.owner else { return 0.0 };
        let kept = binomial(&mut self.random, region.content, keep);
        let gone = region.content - kept;
        if gone == 0 {
            return 0.0;
        }
        self.note_peak();
        let mut seconds = f64::from(gone) * own_ns * 1e-9;
        if region.huge {
            seconds += self.setup.hardware.work.split_ns * 1e-9;
        }
        self.memory.give_back(owner, gone);
        self.processes[at].change(number, |region| {
            region.huge = false;
            region.present -= gone;
            region.content -= gone;
            region.zeros = None;
            region.changed = time;
        });
        seconds
    }
}

/// Returns how many of `n` independent tries succeed, each with the chance `share`.
fn binomial(random: &mut Random, n: u16, share: f64) -> u16 {
    if share >= 1.0 {
        return n;
    }
    (0..n).filter(|_| random.unit() < share).count() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binomials_have_the_mean_asked_for() {
        let mut random = Random::new(3);
        let total: u32 = (0..1000).map(|_| u32::from(binomial(&mut random, 512, 0.2))).sum();
        let mean = f64::from(total) / 1000.0;
        assert!((mean - 102.4).abs() < 1.5, "{mean}");
        assert_eq!(binomial(&mut random, 512, 1.0), 512);
        assert_eq!(binomial(&mut random, 512, 0.0), 0);
    }
}
