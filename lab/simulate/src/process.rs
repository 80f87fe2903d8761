//! One simulated process: its page tables, by regions, and its place in its program.

use crate::memory::Owner;
use crate::trace::{Operation, Program, Span};
use megapage_plan::translation::WalkCosts;
use megapage_plan::translation::{HostPages, Part, Translation, translation};
use megapage_snapshot::{AccessClass, Accessed, PAGES, ProcessId};
use megapage_units::{Bytes, HugePage};
use serde::Serialize;

/// First address of regions without a `Map`: 4 GiB.
const ORIGIN: u64 = 4 << 30;

/// One region of an address space.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Region {
    /// The owner of its pages in physical memory; `None` if it never had any.
    pub owner: Option<Owner>,
    /// Base pages present.
    pub present: u16,
    /// Those of them that hold data other than zeros.
    pub content: u16,
    /// Base pages that map the shared page of zeros.
    pub zero_page: u16,
    /// True if a huge page maps it.
    pub huge: bool,
    /// True if its pages come from a reserved block: then no copy is needed to make it huge.
    pub reserved: bool,
    /// The entry of `patterns` that describes its accesses, plus 1; 0: there are none.
    part: u16,
    /// The last sample.
    pub accessed: Option<Accessed>,
    /// Zero-filled pages, as of the last zero scan.
    pub zeros: Option<u16>,
    /// Time at which its population last changed, in seconds.
    pub changed: f64,
}

/// Regions that are accessed alike.
#[derive(Clone, Copy, Debug)]
struct Pattern {
    /// Base pages visited of each region.
    pages: u16,
    /// Visits of each region per second of work.
    visits: f64,
    class: AccessClass,
    /// Regions of base pages, and their visited pages.
    base_regions: u32,
    base_pages: u64,
    huge_regions: u32,
}

/// Fate of a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Fate {
    /// It has not started, or still runs.
    Running,
    /// It has done all of its program.
    Finished {
        /// The time, in seconds.
        at: f64,
    },
    /// The kernel killed it for lack of memory.
    OutOfMemory {
        /// The time, in seconds.
        at: f64,
    },
}

/// Counters of a process so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Account {
    /// Seconds of work done, as if translation were free.
    pub work_seconds: f64,
    /// Seconds that it waited for address translation.
    pub translation_seconds: f64,
    /// Page faults.
    pub faults: u64,
    /// Seconds in the page-fault handler.
    pub fault_seconds: f64,
    /// Base pages written for the first time.
    pub pages_touched: u64,
    /// Seconds in which it was waiting or slowed by the policy: samples, collapses, zeroing.
    pub disturbed_seconds: f64,
    /// The most memory that it ever had resident, in bytes.
    pub peak_bytes: u64,
    /// Seconds that translation would have taken in addition if all its memory had been on base
    /// pages.
    pub saved_seconds: f64,
    /// Regions that became huge at a page fault.
    pub huge_faults: u64,
    /// Promotions of its regions.
    pub promotions: u64,
    /// Demotions and recoveries of its regions.
    pub demotions: u64,
}

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    pub id: ProcessId,
    pub program: Program,
    pub regions: Vec<Region>,
    /// The address of each region.
    pub addresses: Vec<HugePage>,
    /// Regions by address, for users who name them by address.
    order: Vec<u32>,
    patterns: Vec<Pattern>,
    /// The next operation, and its progress: regions or seconds.
    pub next: usize,
    pub done_regions: u32,
    pub done_seconds: f64,
    mark: usize,
    repeats: Option<u32>,
    /// Seconds of the next step that are used already.
    pub loan: f64,
    pub phase: Option<String>,
    pub fate: Fate,
    pub account: Account,
    pub present_pages: u64,
    pub content_pages: u64,
    pub huge_regions: u64,
    /// True if the load on the TLB has changed since it was last computed.
    pub load_changed: bool,
    pub translation: Translation,
    /// The same for the same load on base pages.
    pub translation_on_base: Translation,
    /// A sample under way: its regions, and its window in seconds.
    pub sampling: Option<(Vec<u32>, f64)>,
    /// Time before which no sample is taken, in seconds.
    pub next_sample: f64,
    pub samples: u64,
    pub last_sample: Option<f64>,
}

impl Process {
    /// Makes a process that has done nothing yet.
    pub fn new(id: ProcessId, program: Program) -> Process {
        let count = program.regions() as usize;
        let mut addresses: Vec<HugePage> =
            (0..count as u64).map(|at| HugePage::containing(ORIGIN).offset(at)).collect();
        for operation in &program.operations {
            if let Operation::Map { span, address } = operation {
                for (offset, region) in span.regions().enumerate() {
                    addresses[region as usize] = HugePage::containing(*address).offset(offset as u64);
                }
            }
        }
        let mut order: Vec<u32> = (0..count as u32).collect();
        order.sort_by_key(|&region| addresses[region as usize]);
        Process {
            id,
            program,
            regions: vec![Region::default(); count],
            addresses,
            order,
            patterns: Vec::new(),
            next: 0,
            done_regions: 0,
            done_seconds: 0.0,
            mark: 0,
            repeats: None,
            loan: 0.0,
            phase: None,
            fate: Fate::Running,
            account: Account::default(),
            present_pages: 0,
            content_pages: 0,
            huge_regions: 0,
            load_changed: true,
            translation: Translation::default(),
            translation_on_base: Translation::default(),
            sampling: None,
            next_sample: 0.0,
            samples: 0,
            last_sample: None,
        }
    }

    pub fn is_running(&self) -> bool {
        self.fate == Fate::Running
    }

    /// Returns the regions in ascending order of address.
    pub fn by_address(&self) -> &[u32] {
        &self.order
    }

    /// Returns the region at `page`.
    pub fn at_address(&self, page: HugePage) -> Option<u32> {
        let at = self.order.binary_search_by_key(&page, |&region| self.addresses[region as usize]).ok()?;
        Some(self.order[at])
    }

    pub fn resident(&self) -> Bytes {
        Bytes(self.present_pages << 12)
    }

    /// Changes a region, and keeps all sums right.
    pub fn change<T>(&mut self, at: u32, change: impl FnOnce(&mut Region) -> T) -> T {
        self.count(at, false);
        let answer = change(&mut self.regions[at as usize]);
        self.count(at, true);
        debug_assert!(self.regions[at as usize].present <= PAGES);
        debug_assert!(self.regions[at as usize].content <= self.regions[at as usize].present);
        self.account.peak_bytes = self.account.peak_bytes.max(self.resident().0);
        answer
    }

    fn count(&mut self, at: u32, add: bool) {
        let region = self.regions[at as usize];
        let sum = |total: &mut u64, part: u64| *total = if add { *total + part } else { *total - part };
        sum(&mut self.present_pages, u64::from(region.present));
        sum(&mut self.content_pages, u64::from(region.content));
        sum(&mut self.huge_regions, u64::from(region.huge));
        if region.part == 0 {
            return;
        }
        self.load_changed = true;
        let pattern = &mut self.patterns[usize::from(region.part) - 1];
        let visited = region.present.min(pattern.pages);
        let sum = |total: &mut u32| *total = if add { *total + 1 } else { *total - 1 };
        if region.huge {
            sum(&mut pattern.huge_regions);
        } else if visited > 0 {
            sum(&mut pattern.base_regions);
            let pages = u64::from(visited);
            pattern.base_pages = if add { pattern.base_pages + pages } else { pattern.base_pages - pages };
        }
    }

    /// Sets the accesses to the regions of `span` from here on.
    pub fn access(&mut self, span: Span, pages: u16, visits: f64, class: AccessClass) {
        let part = if pages == 0 || visits <= 0.0 { 0 } else { self.pattern(pages, visits, class) };
        for at in span.regions() {
            if self.regions[at as usize].part != part {
                self.change(at, |region| region.part = part);
                self.load_changed = true;
            }
        }
    }

    /// Returns the number, plus 1, of a pattern; makes a new one if there is none like it. Beyond
    /// 65,535 of them the last one stands for the remainder.
    fn pattern(&mut self, pages: u16, visits: f64, class: AccessClass) -> u16 {
        let alike =
            |pattern: &Pattern| pattern.pages == pages && pattern.visits == visits && pattern.class == class;
        if let Some(at) = self.patterns.iter().position(alike) {
            return at as u16 + 1;
        }
        let empty = |pattern: &Pattern| pattern.base_regions == 0 && pattern.huge_regions == 0;
        let new = Pattern { pages, visits, class, base_regions: 0, base_pages: 0, huge_regions: 0 };
        // A pattern that no region follows can be replaced; regions without pages may still name
        // it.
        if let Some(at) = (0..self.patterns.len()).find(|&at| {
            empty(&self.patterns[at]) && !self.regions.iter().any(|region| usize::from(region.part) == at + 1)
        }) {
            self.patterns[at] = new;
            return at as u16 + 1;
        }
        if self.patterns.len() < usize::from(u16::MAX) {
            self.patterns.push(new);
        }
        self.patterns.len() as u16
    }

    /// Returns the load on the TLB: the present and visited pages.
    pub fn load(&self) -> Vec<Part> {
        let mut load = Vec::with_capacity(2 * self.patterns.len());
        for pattern in &self.patterns {
            let (base, huge) = (f64::from(pattern.base_regions), f64::from(pattern.huge_regions));
            let part = |regions: f64, pages: f64, huge: bool| Part {
                regions,
                pages,
                visits: regions * pattern.visits,
                class: pattern.class,
                huge,
            };
            load.push(part(base, pattern.base_pages as f64, false));
            load.push(part(huge, huge * f64::from(pattern.pages), true));
        }
        load
    }

    /// Computes the cost of translation if the load has changed.
    pub fn translate(&mut self, costs: &WalkCosts, host: Option<HostPages>) {
        if !self.load_changed {
            return;
        }
        self.load_changed = false;
        let mut load = self.load();
        self.translation = translation(costs, &load, host);
        self.translation_on_base = if load.iter().any(|part| part.huge && part.regions > 0.0) {
            load.iter_mut().for_each(|part| part.huge = false);
            translation(costs, &load, host)
        } else {
            self.translation
        };
    }

    /// Returns pages visited, visits per second of work, and class of a region.
    pub fn pattern_of(&self, at: u32) -> Option<(u16, f64, AccessClass)> {
        let part = self.regions[at as usize].part;
        let pattern = self.patterns.get(usize::from(part).checked_sub(1)?)?;
        Some((pattern.pages, pattern.visits, pattern.class))
    }

    /// Ends an operation.
    pub fn advance(&mut self) {
        self.next += 1;
        self.done_regions = 0;
        self.done_seconds = 0.0;
    }

    /// Notes the place to which repeats go back.
    pub fn set_mark(&mut self) {
        self.mark = self.next + 1;
        self.repeats = None;
    }

    /// Goes back for a repeat, or on after the last.
    pub fn repeat(&mut self, times: u32) {
        let left = self.repeats.unwrap_or(times);
        if left == 0 {
            self.repeats = None;
            self.advance();
        } else {
            self.repeats = Some(left - 1);
            self.next = self.mark;
            self.done_regions = 0;
            self.done_seconds = 0.0;
        }
    }

    /// Clears every region, as the end of the process does. Returns the owners of pages.
    pub fn clear(&mut self) -> Vec<Owner> {
        let owners = self.regions.iter_mut().filter_map(|region| region.owner.take()).collect();
        self.regions.fill(Region::default());
        self.patterns.clear();
        self.present_pages = 0;
        self.content_pages = 0;
        self.huge_regions = 0;
        self.load_changed = true;
        self.sampling = None;
        owners
    }

    /// Returns the lowest address and the first one after the last.
    pub fn extent(&self) -> Option<(u64, u64)> {
        let first = self.addresses[*self.order.first()? as usize];
        let last = self.addresses[*self.order.last()? as usize];
        Some((first.start(), last.end()))
    }
}
