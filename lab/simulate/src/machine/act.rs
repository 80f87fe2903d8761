//! Actions of the policy, carried out on the model.

use super::{COMPACT_ABOVE, MOST_LISTED, Machine};
use crate::process::Region;
use crate::trace::Operation;
use megapage_decide::{Action, ModelAction, Obtained};
use megapage_snapshot::{AccessClass, PAGES, ProcessId};
use megapage_units::{HugePage, PageSize, VirtRange};

/// Largest share of a program's time for first accesses after clearings: a sample that would take
/// more comes later. This is an assumption: no such limit is published.
const MOST_SLOWED: f64 = 0.1;

impl Machine {
    /// Carries out the policy's action, and returns the result.
    pub(super) fn act(&mut self, action: &Action) -> Obtained {
        let obtained = match action {
            Action::Promote { process, region, size, .. } => self.promote(*process, *region, *size),
            Action::Demote { process, region, .. } => self.demote(*process, *region, false),
            Action::Recover { process, region, .. } => self.demote(*process, *region, true),
            Action::ZeroScan { process, regions, .. } => self.zero_scan(*process, regions),
        };
        self.count(obtained)
    }

    /// Does the same for actions that only the model has.
    pub(super) fn act_as_model(&mut self, action: &ModelAction) -> Obtained {
        let obtained = match action {
            ModelAction::Sample { process, ranges, window, .. } => {
                self.clear(*process, ranges, window.as_secs_f64())
            }
            ModelAction::PreZero { blocks, .. } => self.prezero(*blocks),
        };
        self.count(obtained)
    }

    fn count(&mut self, obtained: Obtained) -> Obtained {
        self.run.failures += u64::from(obtained != Obtained::Done);
        obtained
    }

    fn find(&self, id: ProcessId) -> Option<usize> {
        let at = usize::try_from(id.pid.0 - 1000).ok()?;
        (self.processes.get(at)?.id == id && self.processes[at].is_running()).then_some(at)
    }

    fn spend(&mut self, nanoseconds: f64) {
        self.run.daemon_seconds += nanoseconds * 1e-9;
    }

    fn promote(&mut self, id: ProcessId, page: HugePage, size: PageSize) -> Obtained {
        let Some(at) = self.find(id) else { return Obtained::Gone };
        let Some(number) = self.processes[at].at_address(page) else { return Obtained::Impossible };
        if size != PageSize::HUGE_2M {
            // The modelled kernel, as every one so far, collapses to 2 MiB only.
            return Obtained::Unsupported;
        }
        let region = self.processes[at].regions[number as usize];
        let Some(owner) = region.owner.filter(|_| region.present > 0 && !region.huge) else {
            return Obtained::Impossible;
        };
        if !self.has_budget() {
            return Obtained::NoMemory;
        }
        let work = self.setup.hardware.work.clone();
        let mut cost = work.collapse_ns;
        if region.reserved && self.memory.is_contiguous(owner) {
            cost = work.remap_ns;
        } else {
            let prefer_zeroed = self.state.policy().prefers_zeroed();
            let zeroed = match self.memory.take_huge(owner, prefer_zeroed) {
                Some(zeroed) => zeroed,
                None => {
                    let Some(moved) = self.memory.compact() else { return Obtained::NoMemory };
                    cost += f64::from(moved) * work.migrate_ns;
                    match self.memory.take_huge(owner, prefer_zeroed) {
                        Some(zeroed) => zeroed,
                        None => return Obtained::NoMemory,
                    }
                }
            };
            let absent = f64::from(PAGES - region.present) / f64::from(PAGES);
            cost += f64::from(region.present) * work.copy_base_ns;
            if !zeroed {
                cost += absent * self.setup.hardware.faults.zero_huge_ns;
            }
        }
        self.processes[at].change(number, |region: &mut Region| {
            region.present = PAGES;
            region.zero_page = 0;
            region.huge = true;
            region.zeros = None;
        });
        self.spend(cost);
        // A collapse holds the address space locked: a fault in that time waits.
        let process = &mut self.processes[at];
        let faulting = matches!(
            process.program.operations.get(process.next),
            Some(Operation::Touch { .. } | Operation::Populate { .. } | Operation::Fill { .. })
        );
        if faulting {
            process.loan += cost * 1e-9;
            process.account.disturbed_seconds += cost * 1e-9;
        }
        process.account.promotions += 1;
        self.run.promotions += 1;
        if self.run.promoted.len() < MOST_LISTED {
            self.run.promoted.push((at, page.start()));
        }
        Obtained::Done
    }

    /// Compacts as many blocks as a background thread does in a step.
    pub(super) fn compact_ahead(&mut self, length: f64) {
        let most = (self.setup.compaction * length) as u64;
        for _ in 0..most {
            if self.memory.fragmentation().is_none_or(|index| index <= COMPACT_ABOVE) {
                return;
            }
            let Some(moved) = self.memory.compact() else { return };
            self.run.compaction_seconds += f64::from(moved) * self.setup.hardware.work.migrate_ns * 1e-9;
        }
    }

    fn demote(&mut self, id: ProcessId, page: HugePage, free_zeros: bool) -> Obtained {
        let Some(at) = self.find(id) else { return Obtained::Gone };
        let Some(number) = self.processes[at].at_address(page) else { return Obtained::Impossible };
        let region = self.processes[at].regions[number as usize];
        let Some(owner) = region.owner.filter(|_| region.huge) else { return Obtained::Impossible };
        let work = self.setup.hardware.work.clone();
        let mut cost = work.split_ns;
        let zeros = region.present - region.content;
        if free_zeros {
            cost += f64::from(zeros) * work.scan_zero_ns + f64::from(region.content) * work.scan_used_ns;
            self.memory.give_back(owner, zeros);
        }
        let process = &mut self.processes[at];
        process.change(number, |region| {
            region.huge = false;
            if free_zeros {
                region.present -= zeros;
                region.zero_page += zeros;
            }
            region.zeros = None;
        });
        process.account.demotions += 1;
        self.run.demotions += 1;
        self.spend(cost);
        Obtained::Done
    }

    /// Clears accessed bits; they are read when the window is over.
    fn clear(&mut self, id: ProcessId, ranges: &[VirtRange], window: f64) -> Obtained {
        let Some(at) = self.find(id) else { return Obtained::Gone };
        if self.processes[at].sampling.is_some() || self.now < self.processes[at].next_sample {
            return Obtained::Busy;
        }
        let process = &self.processes[at];
        let mut regions: Vec<u32> = Vec::new();
        let mut ranges = ranges.iter().peekable();
        for &number in process.by_address() {
            let address = process.addresses[number as usize].start();
            while ranges.next_if(|range| range.end() <= address).is_some() {}
            let wanted = ranges.peek().is_some_and(|range| range.start() <= address);
            if wanted && process.regions[number as usize].present > 0 {
                regions.push(number);
            }
        }
        // Clearing and reading both walk the page tables; each page then costs its first access.
        let read = self.setup.hardware.work.read_region_ns;
        let cost = 2.0 * regions.len() as f64 * read;
        let window = window.max(1e-3);
        let pages: f64 = regions.iter().map(|&number| self.coverage(at, number, window)).sum();
        let slowed = pages * self.setup.hardware.work.first_access_ns * 1e-9;
        let process = &mut self.processes[at];
        process.loan += slowed;
        process.account.disturbed_seconds += slowed;
        process.next_sample = self.now + slowed / MOST_SLOWED;
        process.sampling = Some((regions, window));
        self.spend(cost);
        Obtained::Done
    }

    /// Returns the pages of a region that are visited within `window` seconds, at most as many as
    /// there are bits for.
    pub(super) fn coverage(&self, at: usize, number: u32, window: f64) -> f64 {
        let process = &self.processes[at];
        let region = process.regions[number as usize];
        let Some((pages, visits, class)) = process.pattern_of(number) else { return 0.0 };
        let pages = f64::from(pages.min(region.present));
        let works = matches!(process.program.operations.get(process.next), Some(Operation::Work { .. }));
        if pages <= 0.0 || !works {
            return 0.0;
        }
        let visits = visits * window / process.translation.seconds();
        if class == AccessClass::Streaming {
            // A stream sweeps over its memory: pages that it has passed within the window are
            // covered in full.
            let sweeps = visits / pages;
            let position = f64::from(number) / process.regions.len() as f64;
            let swept = (position - self.now * sweeps / window).rem_euclid(1.0) < sweeps;
            return if !swept {
                0.0
            } else if region.huge {
                1.0
            } else {
                pages
            };
        }
        if region.huge {
            return 1.0 - (-visits).exp();
        }
        pages * (1.0 - (-visits / pages).exp())
    }

    fn zero_scan(&mut self, id: ProcessId, pages: &[HugePage]) -> Obtained {
        let Some(at) = self.find(id) else { return Obtained::Gone };
        let work = self.setup.hardware.work.clone();
        for &page in pages {
            let Some(number) = self.processes[at].at_address(page) else { continue };
            let region = &mut self.processes[at].regions[number as usize];
            let zeros = region.present - region.content;
            region.zeros = Some(zeros);
            let content = region.content;
            self.spend(f64::from(zeros) * work.scan_zero_ns + f64::from(content) * work.scan_used_ns);
        }
        Obtained::Done
    }

    fn prezero(&mut self, blocks: u64) -> Obtained {
        let done = self.memory.prezero(blocks);
        let cost = done as f64 * self.setup.hardware.work.prezero_huge_ns;
        self.spend(cost);
        // The share of one core's memory bandwidth that zeroing takes from the others while it
        // lasts.
        self.zeroing = cost * 1e-9 / self.setup.step * self.setup.hardware.work.zeroing_slows;
        Obtained::Done
    }
}
