//! Cost of address translation for a program: TLB misses by Che's approximation, and the wait for
//! each walk.
//!
//! A walk reads the last level of the page table. It also reads the directory above unless the
//! paging-structure cache holds it. The second-level cache, the last-level cache or memory answers
//! a reference. The same approximation gives their shares, with the lines of the page tables and of
//! the data competing.
//!
//! Under nested paging, the host's tables translate each reference of the guest, and the datum
//! itself, once more. A TLB entry covers the smaller of the guest's page and the host's (Intel SDM,
//! volume 3, "combined mappings").

use megapage_snapshot::AccessClass;
use megapage_tlb::{Class, EntrySize, Geometry, GeometrySource, characteristic_time, walks_each};
use serde::Serialize;

/// Base pages of a region that one cache line of the page table covers.
const PAGES_A_LINE: f64 = 8.0;
/// Cache lines in a base page.
const LINES_A_PAGE: f64 = 64.0;

/// Costs of page walks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WalkCosts {
    /// Entries of the TLBs.
    pub tlb: Geometry,
    /// Time of a reference of the walker that the second-level cache answers.
    pub near_ns: f64,
    /// Time of one that the last-level cache answers.
    pub far_ns: f64,
    /// Time of one that memory answers.
    pub memory_ns: f64,
    /// Time of a first-level TLB miss that the second level answers.
    pub second_level_ns: f64,
    /// Share of this time that a program waits for if accesses are independent: look-ups are
    /// pipelined, unlike walks. This is an assumption.
    pub exposed_second_level: f64,
    /// Lines of 64 bytes in the second-level cache.
    pub near_lines: f64,
    /// Lines of 64 bytes in the last-level cache.
    pub far_lines: f64,
    /// Entries of the paging-structure cache that hold directories: the 2 MiB ranges of which a
    /// walk needs only the last level.
    pub directories: f64,
    /// Share of a walk that a streaming program waits for: the next walks are prefetched, and eight
    /// entries share a cache line.
    pub exposed_streaming: f64,
    /// Share of a walk that the program waits for if accesses are random but independent. One
    /// walker serves them one after the other, while other work goes on.
    pub exposed_random: f64,
    /// Share of a walk that the program waits for if each access waits for the one before.
    pub exposed_dependent: f64,
}

impl WalkCosts {
    /// Returns the platform of the HawkEye paper: Xeon E5-2690 v3 (Haswell, 2.6 GHz).
    ///
    /// TLB: the paper's platform table. Cache latencies: Intel 64 and IA-32 Architectures
    /// Optimization Reference Manual (12 cycles L2, about 50 cycles L3), memory 90 ns as usually
    /// measured there.
    pub fn haswell() -> WalkCosts {
        WalkCosts {
            tlb: Geometry {
                first_base: 64,
                first_2m: 8,
                first_1g: 4,
                second: 1024,
                second_1g: 0,
                source: GeometrySource::Model,
            },
            near_ns: 4.6,
            far_ns: 19.0,
            memory_ns: 90.0,
            second_level_ns: 2.7,
            exposed_second_level: 0.07,
            near_lines: (256 << 10) as f64 / 64.0,
            far_lines: (30 << 20) as f64 / 64.0,
            directories: 32.0,
            exposed_streaming: 0.07,
            exposed_random: 0.5,
            exposed_dependent: 1.0,
        }
    }
}

/// Regions with the same accesses, on pages of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Number of regions.
    pub regions: f64,
    /// Base pages visited, in all of them.
    pub pages: f64,
    /// Visits in all of them, per second of work.
    pub visits: f64,
    /// Access class.
    pub class: AccessClass,
    /// True if huge pages map them.
    pub huge: bool,
}

/// Pages by which the host backs a virtual machine's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostPages {
    /// Pages of the same size as the guest's there: host and guest promote alike.
    #[default]
    Same,
    /// Base pages.
    Base,
    /// Huge pages.
    Huge,
}

/// Cost of translation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Translation {
    /// Seconds that the program waits for page walks, for each second of work.
    pub walked: f64,
    /// Seconds that it waits for the second level of the TLB, for each second of work.
    pub looked_up: f64,
    /// Number of page walks, per second of work.
    pub walks: f64,
}

impl Translation {
    /// Returns the share of the program's cycles in which it waits for page walks, 0 to 1. The
    /// performance monitoring unit counts this share.
    pub fn share(&self) -> f64 {
        self.walked / self.seconds()
    }

    /// Returns the duration of one second of work, in seconds.
    pub fn seconds(&self) -> f64 {
        1.0 + self.walked + self.looked_up
    }
}

/// Returns the cost of translation for a program with this load: on the machine itself, or in a
/// virtual machine with `host`.
pub fn translation(costs: &WalkCosts, load: &[Part], host: Option<HostPages>) -> Translation {
    let live: Vec<Part> = load.iter().copied().filter(|part| part.visits > 0.0 && part.pages > 0.0).collect();
    let levels = Levels(host);
    let classes: Vec<Class> = live.iter().map(|part| levels.entry(part)).collect();
    let walks = walks_each(&costs.tlb, &classes);
    let caches = Caches::of(costs, levels, &live, &walks);
    let mut found = Translation::default();
    for (part, &walks) in live.iter().zip(&walks) {
        let exposed = match part.class {
            AccessClass::Streaming => costs.exposed_streaming,
            AccessClass::Random => costs.exposed_random,
            AccessClass::Dependent => costs.exposed_dependent,
        };
        let each = caches.walk_ns(part, walks);
        found.walks += walks;
        found.walked += walks * each * exposed * 1e-9;
        let waits = if part.class == AccessClass::Dependent { exposed } else { costs.exposed_second_level };
        let second = (part.visits * caches.missed_first(part) - walks).max(0.0);
        found.looked_up += second * costs.second_level_ns * waits * 1e-9;
    }
    found
}

/// Levels of page tables: a program's, and the host's if there is one.
#[derive(Clone, Copy)]
struct Levels(Option<HostPages>);

impl Levels {
    /// Returns true if the host's pages below this part are huge; `None` without a host.
    fn host_is_huge(self, part: &Part) -> Option<bool> {
        self.0.map(|pages| match pages {
            HostPages::Same => part.huge,
            HostPages::Base => false,
            HostPages::Huge => true,
        })
    }

    /// Returns the number of levels that map this part by base pages.
    fn on_base(self, part: &Part) -> u32 {
        u32::from(!part.huge) + u32::from(self.host_is_huge(part) == Some(false))
    }

    /// Returns the number of levels.
    fn count(self) -> u32 {
        1 + u32::from(self.0.is_some())
    }

    /// Returns the TLB entries of a part.
    fn entry(self, part: &Part) -> Class {
        if self.on_base(part) == 0 {
            Class { size: EntrySize::Huge2m, pages: part.regions, rate: part.visits / part.regions.max(1.0) }
        } else {
            Class { size: EntrySize::Base, pages: part.pages, rate: part.visits / part.pages }
        }
    }
}

impl Part {
    /// Returns the lines of the last level of the page table.
    fn leaf_lines(&self) -> f64 {
        self.pages.min(self.regions * 512.0 / PAGES_A_LINE).max(self.pages / PAGES_A_LINE)
    }

    /// Returns the lines of the directories.
    fn directory_lines(&self) -> f64 {
        (self.regions / PAGES_A_LINE).max(1.0)
    }
}

/// Time for which the two cache levels hold a line.
struct Caches<'a> {
    costs: &'a WalkCosts,
    levels: Levels,
    near: f64,
    far: f64,
    /// Chance that the paging-structure cache holds a directory entry.
    directory_held: f64,
    first_base: f64,
    first_huge: f64,
}

impl<'a> Caches<'a> {
    fn of(costs: &'a WalkCosts, levels: Levels, load: &[Part], walks: &[f64]) -> Caches<'a> {
        let on_base = load.iter().filter(|part| levels.on_base(part) > 0);
        let regions: f64 = on_base.map(|part| part.regions).sum();
        let directory_held = if regions > 0.0 { (costs.directories / regions).min(1.0) } else { 1.0 };
        let mut lines: Vec<(f64, f64)> = Vec::new();
        for (part, &walks) in load.iter().zip(walks) {
            let (tables, leaves) = (f64::from(levels.count()), f64::from(levels.on_base(part)));
            // The directory of a level of huge pages is its last: each walk reads it.
            let missed = if leaves < tables { 1.0 } else { 1.0 - directory_held };
            lines.push((tables * part.directory_lines(), walks * missed / part.directory_lines()));
            if leaves > 0.0 {
                lines.push((leaves * part.leaf_lines(), walks / part.leaf_lines()));
            }
            // A visit to a random page reads one line of it; a stream reads all lines.
            let read = if part.class == AccessClass::Streaming { LINES_A_PAGE } else { 1.0 };
            let data = part.pages * LINES_A_PAGE;
            lines.push((data, part.visits * read / data));
        }
        let first = |size: EntrySize, capacity: u32| {
            let alike = load.iter().map(|part| levels.entry(part)).filter(|class| class.size == size);
            characteristic_time(alike.map(|class| (class.pages, class.rate)), f64::from(capacity))
        };
        Caches {
            costs,
            levels,
            near: characteristic_time(lines.iter().copied(), costs.near_lines),
            far: characteristic_time(lines.iter().copied(), costs.far_lines),
            directory_held,
            first_base: first(EntrySize::Base, costs.tlb.first_base),
            first_huge: first(EntrySize::Huge2m, costs.tlb.first_2m),
        }
    }

    /// Returns the share of a part's visits that the first level of the TLB does not hold.
    fn missed_first(&self, part: &Part) -> f64 {
        let entry = self.levels.entry(part);
        let time = if entry.size == EntrySize::Base { self.first_base } else { self.first_huge };
        if time.is_infinite() { 0.0 } else { (-entry.rate * time).exp() }
    }

    /// Returns the cost of a reference to a line that is read `rate` times a second.
    fn reference(&self, rate: f64) -> f64 {
        let missed = |time: f64| if time.is_infinite() { 0.0 } else { (-rate * time).exp() };
        let (past_near, past_far) = (missed(self.near), missed(self.far));
        let costs = self.costs;
        (1.0 - past_near) * costs.near_ns
            + (past_near - past_far).max(0.0) * costs.far_ns
            + past_far * costs.memory_ns
    }

    fn walk_ns(&self, part: &Part, walks: f64) -> f64 {
        let near = self.costs.near_ns;
        let directory = self.reference(walks / part.directory_lines());
        let leaf = self.reference(walks / part.leaf_lines());
        let missed = 1.0 - self.directory_held;
        // Time that one level's tables take for a page of the data.
        let tables = |huge: bool| if huge { directory } else { leaf + missed * directory };
        let Some(host_is_huge) = self.levels.host_is_huge(part) else {
            return tables(part.huge);
        };
        // The host's tables for the guest's tables are 512 times smaller than those for the data.
        let guest = if part.huge {
            directory + if host_is_huge { near } else { near + near }
        } else if host_is_huge {
            leaf + near + missed * (directory + near)
        } else {
            leaf + directory + near + missed * (directory + near + near)
        };
        guest + tables(host_is_huge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(regions: f64, visits: f64, class: AccessClass, huge: bool) -> Part {
        Part { regions, pages: regions * 512.0, visits, class, huge }
    }

    const NATIVE: Option<HostPages> = None;
    const SAME: Option<HostPages> = Some(HostPages::Same);

    fn share(parts: &[Part], host: Option<HostPages>) -> f64 {
        translation(&WalkCosts::haswell(), parts, host).share()
    }

    #[test]
    fn what_fits_costs_nothing() {
        let parts = [part(1.0, 1e7, AccessClass::Dependent, false)];
        assert!(share(&parts, NATIVE) < 0.05, "{}", share(&parts, NATIVE));
        assert_eq!(share(&[], NATIVE), 0.0);
        assert_eq!(share(&[part(1000.0, 0.0, AccessClass::Random, false)], NATIVE), 0.0);
    }

    #[test]
    fn huge_pages_nesting_and_classes_rank_as_they_should() {
        let random = |huge| part(2048.0, 1e7, AccessClass::Random, huge);
        assert!(share(&[random(true)], NATIVE) < share(&[random(false)], NATIVE) / 3.0);
        assert!(share(&[random(false)], SAME) > share(&[random(false)], NATIVE) * 1.5);
        let dependent = part(2048.0, 1e7, AccessClass::Dependent, false);
        let streaming = part(2048.0, 2.5e6, AccessClass::Streaming, false);
        assert!(share(&[dependent], NATIVE) > share(&[random(false)], NATIVE));
        assert!(share(&[streaming], NATIVE) < share(&[random(false)], NATIVE) / 3.0);
    }

    /// Huge pages of each level alone have some effect; the TLB's entries become large only with
    /// both.
    #[test]
    fn in_a_virtual_machine_both_levels_count() {
        let cost = |huge, host| share(&[part(2048.0, 1e7, AccessClass::Random, huge)], Some(host));
        let none = cost(false, HostPages::Base);
        let (guest, host) = (cost(true, HostPages::Base), cost(false, HostPages::Huge));
        let both = cost(true, HostPages::Huge);
        assert!(both < guest && both < host && guest < none && host < none, "{none} {guest} {host} {both}");
        assert!(both < none / 3.0, "{both} {none}");
        assert_eq!((none, both), (cost(false, HostPages::Same), cost(true, HostPages::Same)));
    }

    #[test]
    fn half_of_the_regions_give_less_than_half_of_the_cost_back() {
        let all = share(&[part(2048.0, 1e7, AccessClass::Random, false)], NATIVE);
        let half = share(
            &[part(1024.0, 5e6, AccessClass::Random, false), part(1024.0, 5e6, AccessClass::Random, true)],
            NATIVE,
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
            let cost = translation(&WalkCosts::haswell(), &parts, SAME);
            assert!(cost.seconds().is_finite() && cost.share() <= 1.0);
        }
    }
}
