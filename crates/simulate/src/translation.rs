//! What address translation costs a program: TLB misses by Che's approximation, and what each walk waits for.
//!
//! A walk reads the last level of the page table, and the directory above it where the paging-structure cache does not
//! hold it. Whether a reference is answered by the second-level cache, the last-level cache or memory follows from
//! the same approximation, with the lines of the page tables and of the data competing. Under nested paging each
//! reference of the guest, and the datum itself, is translated once more by the host's tables.

use crate::hardware::WalkCosts;
use megapage_snapshot::AccessClass;
use megapage_tlb::{Class, EntrySize, characteristic_time, walks_each};

/// Base pages of a region that one cache line of the page table covers.
const PAGES_A_LINE: f64 = 8.0;
/// Cache lines in a base page.
const LINES_A_PAGE: f64 = 64.0;

/// Regions that are accessed alike, under one size of page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// How many regions.
    pub regions: f64,
    /// Base pages visited, in all of them.
    pub pages: f64,
    /// Visits in all of them, per second of work.
    pub visits: f64,
    /// How.
    pub class: AccessClass,
    /// Whether huge pages map them.
    pub huge: bool,
}

/// What translation costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Translation {
    /// Seconds that the program waits for page walks, for each second of work.
    pub walked: f64,
    /// Seconds that it waits for the second level of the TLB, for each second of work.
    pub looked_up: f64,
    /// Page walks, per second of work.
    pub walks: f64,
}

impl Translation {
    /// The share of the program's cycles in which it waits for page walks, 0 to 1: what the performance monitoring
    /// unit counts.
    pub fn share(&self) -> f64 {
        self.walked / self.seconds()
    }

    /// What one second of work takes, in seconds.
    pub fn seconds(&self) -> f64 {
        1.0 + self.walked + self.looked_up
    }
}

/// What translation costs a program with this load, on the machine itself or, where `nested`, in a virtual machine
/// whose memory the host backs by pages of the same sizes.
pub fn translation(costs: &WalkCosts, load: &[Part], nested: bool) -> Translation {
    let live: Vec<Part> = load.iter().copied().filter(|part| part.visits > 0.0 && part.pages > 0.0).collect();
    let classes: Vec<Class> = live.iter().map(Part::class).collect();
    let walks = walks_each(&costs.tlb, &classes);
    let caches = Caches::of(costs, &live, &walks, nested);
    let mut found = Translation::default();
    for (part, &walks) in live.iter().zip(&walks) {
        let exposed = match part.class {
            AccessClass::Streaming => costs.exposed_streaming,
            AccessClass::Random => costs.exposed_random,
            AccessClass::Dependent => costs.exposed_dependent,
        };
        let each = caches.walk_ns(part, walks, nested);
        found.walks += walks;
        found.walked += walks * each * exposed * 1e-9;
        let waits = if part.class == AccessClass::Dependent { exposed } else { costs.exposed_second_level };
        let second = (part.visits * caches.missed_first(part) - walks).max(0.0);
        found.looked_up += second * costs.second_level_ns * waits * 1e-9;
    }
    found
}

impl Part {
    fn class(&self) -> Class {
        if self.huge {
            Class { size: EntrySize::Huge2m, pages: self.regions, rate: self.visits / self.regions.max(1.0) }
        } else {
            Class { size: EntrySize::Base, pages: self.pages, rate: self.visits / self.pages }
        }
    }

    /// Lines of the last level of the page table.
    fn leaf_lines(&self) -> f64 {
        self.pages.min(self.regions * 512.0 / PAGES_A_LINE).max(self.pages / PAGES_A_LINE)
    }

    /// Lines of the directories.
    fn directory_lines(&self) -> f64 {
        (self.regions / PAGES_A_LINE).max(1.0)
    }
}

/// How long the two cache levels remember a line.
struct Caches<'a> {
    costs: &'a WalkCosts,
    near: f64,
    far: f64,
    /// The chance that the paging-structure cache holds a directory entry.
    directory_held: f64,
    first_base: f64,
    first_huge: f64,
}

impl<'a> Caches<'a> {
    fn of(costs: &'a WalkCosts, load: &[Part], walks: &[f64], nested: bool) -> Caches<'a> {
        let regions: f64 = load.iter().filter(|part| !part.huge).map(|part| part.regions).sum();
        let directory_held = if regions > 0.0 { (costs.directories / regions).min(1.0) } else { 1.0 };
        let mut lines: Vec<(f64, f64)> = Vec::new();
        for (part, &walks) in load.iter().zip(walks) {
            let tables = if nested { 2.0 } else { 1.0 };
            let missed = if part.huge { 1.0 } else { 1.0 - directory_held };
            lines.push((tables * part.directory_lines(), walks * missed / part.directory_lines()));
            if !part.huge {
                lines.push((tables * part.leaf_lines(), walks / part.leaf_lines()));
            }
            // A visit to a random page reads one line of it, a stream all.
            let read = if part.class == AccessClass::Streaming { LINES_A_PAGE } else { 1.0 };
            let data = part.pages * LINES_A_PAGE;
            lines.push((data, part.visits * read / data));
        }
        let first = |size: EntrySize, capacity: u32| {
            let alike = load.iter().map(Part::class).filter(move |class| class.size == size);
            characteristic_time(alike.map(|class| (class.pages, class.rate)), f64::from(capacity))
        };
        Caches {
            costs,
            near: characteristic_time(lines.iter().copied(), costs.near_lines),
            far: characteristic_time(lines.iter().copied(), costs.far_lines),
            directory_held,
            first_base: first(EntrySize::Base, costs.tlb.first_base),
            first_huge: first(EntrySize::Huge2m, costs.tlb.first_2m),
        }
    }

    /// The share of a part's visits that the first level of the TLB does not hold.
    fn missed_first(&self, part: &Part) -> f64 {
        let time = if part.huge { self.first_huge } else { self.first_base };
        if time.is_infinite() { 0.0 } else { (-part.class().rate * time).exp() }
    }

    /// What a reference to a line costs that is read `rate` times a second.
    fn reference(&self, rate: f64) -> f64 {
        let missed = |time: f64| if time.is_infinite() { 0.0 } else { (-rate * time).exp() };
        let (past_near, past_far) = (missed(self.near), missed(self.far));
        let costs = self.costs;
        (1.0 - past_near) * costs.near_ns
            + (past_near - past_far).max(0.0) * costs.far_ns
            + past_far * costs.memory_ns
    }

    fn walk_ns(&self, part: &Part, walks: f64, nested: bool) -> f64 {
        let near = self.costs.near_ns;
        let directory = self.reference(walks / part.directory_lines());
        if part.huge {
            // Guest's entry, the host's entry for the page that holds it, the host's entry for the datum.
            return if nested { directory + near + directory } else { directory };
        }
        let leaf = self.reference(walks / part.leaf_lines());
        let missed = 1.0 - self.directory_held;
        if !nested {
            return leaf + missed * directory;
        }
        // The host's tables for the guest's tables are 512 times smaller than those for the data.
        let guest_leaf = leaf + directory + near;
        let guest_directory = missed * (directory + near + near);
        let datum = leaf + missed * directory;
        guest_leaf + guest_directory + datum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Hardware;

    fn part(regions: f64, visits: f64, class: AccessClass, huge: bool) -> Part {
        Part { regions, pages: regions * 512.0, visits, class, huge }
    }

    fn share(parts: &[Part], nested: bool) -> f64 {
        translation(&Hardware::haswell().walks, parts, nested).share()
    }

    #[test]
    fn what_fits_costs_nothing() {
        let parts = [part(1.0, 1e7, AccessClass::Dependent, false)];
        assert!(share(&parts, false) < 0.05, "{}", share(&parts, false));
        assert_eq!(share(&[], false), 0.0);
        assert_eq!(share(&[part(1000.0, 0.0, AccessClass::Random, false)], false), 0.0);
    }

    #[test]
    fn huge_pages_nesting_and_classes_rank_as_they_should() {
        let random = |huge| part(2048.0, 1e7, AccessClass::Random, huge);
        assert!(share(&[random(true)], false) < share(&[random(false)], false) / 3.0);
        assert!(share(&[random(false)], true) > share(&[random(false)], false) * 1.5);
        let dependent = part(2048.0, 1e7, AccessClass::Dependent, false);
        let streaming = part(2048.0, 2.5e6, AccessClass::Streaming, false);
        assert!(share(&[dependent], false) > share(&[random(false)], false));
        assert!(share(&[streaming], false) < share(&[random(false)], false) / 3.0);
    }

    #[test]
    fn half_of_the_regions_give_less_than_half_of_the_cost_back() {
        let all = share(&[part(2048.0, 1e7, AccessClass::Random, false)], false);
        let half = share(
            &[part(1024.0, 5e6, AccessClass::Random, false), part(1024.0, 5e6, AccessClass::Random, true)],
            false,
        );
        assert!(half < 0.7 * all && half > 0.3 * all, "{half} of {all}");
    }

    #[test]
    fn absurd_loads_give_numbers() {
        for visits in [0.0, 1e-30, 1e30] {
            let parts = [
                part(1e9, visits, AccessClass::Random, false),
                part(0.5, visits, AccessClass::Dependent, true),
            ];
            let cost = translation(&Hardware::haswell().walks, &parts, true);
            assert!(cost.seconds().is_finite() && cost.share() <= 1.0);
        }
    }
}
