//! Linux: a huge page on first touch if one is free, and khugepaged for the rest. It takes the
//! processes in the order of their arrival, and each from low to high addresses.
//!
//! Sources: Documentation/admin-guide/mm/transhuge.rst, mm/khugepaged.c (Linux 6.18),
//! mm/huge_memory.c.

use crate::pace::Rounds;
use crate::{Action, Answer, Fault, FaultSize, Obtained, Outcome, Pace, Policy, Reason, Tick};
use megapage_snapshot::{Leaf, PAGES, Process, ProcessId, Region};
use megapage_units::PageSize;
use std::collections::VecDeque;
use std::time::Duration;

/// Settings of /sys/kernel/mm/transparent_hugepage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Name in reports.
    pub name: &'static str,
    /// `enabled`: true for `always`, false for `never`.
    pub enabled: bool,
    /// `khugepaged/pages_to_scan` every `khugepaged/scan_sleep_millisecs`: base pages, 512 for each
    /// region looked at.
    pub scan: Pace,
    /// `khugepaged/alloc_sleep_millisecs`: the pause after a huge page could not be allocated.
    pub alloc_sleep: Duration,
    /// `khugepaged/max_ptes_none`: maximum of a region's base pages that are absent (or map the
    /// zero page).
    pub max_ptes_none: u16,
    /// `khugepaged/max_ptes_swap`: maximum of a region's base pages that are swapped out.
    pub max_ptes_swap: u16,
}

impl Parameters {
    /// Returns `always`, with the kernel's defaults: 4096 pages every 10 s, 60 s after a failure,
    /// 511 absent, 64 swapped.
    pub fn always() -> Parameters {
        Parameters {
            name: "linux",
            enabled: true,
            scan: Pace::KHUGEPAGED.in_pages(PAGES),
            alloc_sleep: Duration::from_secs(60),
            max_ptes_none: PAGES - 1,
            max_ptes_swap: 64,
        }
    }

    /// Returns these settings, scanning at most the regions of `pace` in a round.
    pub fn at(self, pace: Pace) -> Parameters {
        Parameters { scan: pace.in_pages(PAGES), ..self }
    }

    /// Returns `never`: base pages only.
    pub fn never() -> Parameters {
        Parameters { name: "linux-4k", enabled: false, ..Parameters::always() }
    }
}

/// The policy.
#[derive(Clone, Debug)]
pub struct Linux {
    parameters: Parameters,
    rounds: Rounds,
    /// Processes in the order of their arrival. The first is being scanned.
    queue: VecDeque<ProcessId>,
    /// Address at which the scan of the first process continues.
    address: u64,
}

impl Linux {
    /// Returns Linux with these settings.
    pub fn new(parameters: Parameters) -> Linux {
        Linux { parameters, rounds: Rounds::default(), queue: VecDeque::new(), address: 0 }
    }

    /// Removes processes that are gone from the queue. A process joins when it first appears in a
    /// snapshot; of several new ones the oldest comes first.
    fn enqueue(&mut self, processes: &[&Process]) {
        let first = self.queue.front().copied();
        self.queue.retain(|id| processes.iter().any(|process| process.id == *id));
        if self.queue.front().copied() != first {
            self.address = 0;
        }
        let mut new: Vec<&&Process> =
            processes.iter().filter(|process| !self.queue.contains(&process.id)).collect();
        new.sort_by_key(|process| (process.id.start_ticks, process.id.pid));
        self.queue.extend(new.into_iter().map(|process| process.id));
    }

    /// Returns true if khugepaged would collapse this region: `hpage_collapse_scan_pmd`.
    fn collapses(&self, region: &Region) -> bool {
        let absent = PAGES.saturating_sub(region.present).saturating_sub(region.swapped);
        region.leaf == Leaf::Base
            && absent <= self.parameters.max_ptes_none
            && region.swapped <= self.parameters.max_ptes_swap
            // At least one page was accessed lately (SCAN_LACK_REFERENCED_PAGE), unless that is
            // unknown.
            && region.accessed.is_none_or(|accessed| accessed.coverage > 0)
    }
}

impl Policy for Linux {
    fn name(&self) -> &'static str {
        self.parameters.name
    }

    fn tick(&mut self, tick: &mut Tick<'_>) {
        let processes = tick.processes();
        // The scan continues at the first region that was not tried.
        let untried = tick.untried_promotions();
        if let Some((process, region)) = untried.first()
            && let Some(at) = self.queue.iter().position(|other| other == process)
        {
            self.queue.rotate_left(at);
            self.address = region.start();
            self.rounds.give_back(untried.len() as u64 * u64::from(PAGES));
        }
        self.enqueue(&processes);
        if !self.parameters.enabled {
            return;
        }
        let mut pages = self.rounds.due(tick.now(), self.parameters.scan);
        // Scans each process at most once a step: khugepaged, too, sleeps after a full pass.
        for _ in 0..self.queue.len() {
            let Some(process) =
                self.queue.front().and_then(|first| processes.iter().find(|process| process.id == *first))
            else {
                return;
            };
            let from = process.regions.partition_point(|region| region.start() < self.address);
            for region in &process.regions[from..] {
                if pages < u64::from(PAGES) {
                    return;
                }
                self.address = region.start() + 1;
                // `thp_vma_allowable_order`.
                if !tick.is_allowed(process, region) {
                    continue;
                }
                if self.collapses(region)
                    && tick.promote(process, region, PageSize::HUGE_2M, Reason::AddressOrder) == Answer::Spent
                {
                    self.address = region.start();
                    return;
                }
                pages -= u64::from(PAGES);
            }
            self.queue.rotate_left(1);
            self.address = 0;
        }
    }

    fn samples(&self) -> bool {
        false
    }

    fn on_fault(&mut self, fault: &Fault) -> FaultSize {
        let is_huge = self.parameters.enabled && fault.eligible && fault.present == 0;
        if is_huge { FaultSize::Huge } else { FaultSize::Base }
    }

    fn note(&mut self, now: Duration, outcome: &Outcome) {
        if matches!(outcome.action, Action::Promote { .. }) && outcome.obtained == Obtained::NoMemory {
            self.rounds.sleep_until(now + self.parameters.alloc_sleep);
        }
    }

    fn tracked(&self) -> usize {
        self.queue.len()
    }
}
