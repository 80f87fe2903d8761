//! Layout of an address space: regions become bands of cells, and empty parts between them are cut
//! out.

use megapage_snapshot::{Leaf, Mapping, MappingKind, PAGES, Process, Region};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ops::AddAssign;

/// Length of an empty range that ends a band: program, heap, mapped memory and stack lie further
/// apart.
const APART: u64 = 1 << 30;
/// Number of regions below which a range is joined with others of its kind.
const SMALL: usize = 8;

/// Present pages by the page-table entries that map them, in base pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Pages of 4 KiB.
    pub base: u64,
    /// Pages on larger folios that entries of 4 KiB map (mTHP).
    pub large: u64,
    /// Transparent huge pages of 2 MiB.
    pub thp: u64,
    /// 2 MiB hugetlb pages.
    pub hugetlb_2m: u64,
    /// 1 GiB hugetlb pages.
    pub hugetlb_1g: u64,
}

impl Pages {
    fn of(region: &Region) -> Pages {
        let present = u64::from(region.present);
        match region.leaf {
            Leaf::Huge2m => Pages { thp: present, ..Pages::default() },
            Leaf::Hugetlb2m => Pages { hugetlb_2m: present, ..Pages::default() },
            Leaf::Hugetlb1g => Pages { hugetlb_1g: present, ..Pages::default() },
            Leaf::Base => {
                let large =
                    region.folios.map_or(0, |folios| folios[1..].iter().copied().map(u64::from).sum());
                // The two counts are read one after the other: a page may have come or gone
                // between.
                let large = present.min(large);
                Pages { base: present - large, large, ..Pages::default() }
            }
        }
    }

    /// Returns the sum of all pages.
    pub fn total(self) -> u64 {
        self.base + self.large + self.huge()
    }

    /// Returns the pages on entries of 2 MiB or more.
    pub fn huge(self) -> u64 {
        self.thp + self.hugetlb_2m + self.hugetlb_1g
    }
}

impl AddAssign for Pages {
    fn add_assign(&mut self, other: Pages) {
        self.base += other.base;
        self.large += other.large;
        self.thp += other.thp;
        self.hugetlb_2m += other.hugetlb_2m;
        self.hugetlb_1g += other.hugetlb_1g;
    }
}

/// Sum over some regions, in base pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Present pages.
    pub pages: Pages,
    /// Pages that are swapped out or migrating.
    pub swapped: u64,
    /// Zero-filled pages within transparent huge pages, as far as scanned.
    pub bloat: u64,
    /// Regions that were sampled.
    pub sampled_regions: u64,
    /// Pages present in the regions that were sampled.
    pub sampled: u64,
    /// Pages accessed in the last sample. A huge page has one accessed bit for its 512 base pages.
    pub accessed: u64,
    /// Part of `accessed` on entries of 2 MiB or more.
    pub accessed_huge: u64,
    /// Part of `sampled` on entries of 2 MiB or more.
    pub sampled_huge: u64,
}

impl Content {
    /// Returns the sum over all regions of `process`.
    pub fn of_all(process: &Process) -> Content {
        Content::of_regions(&ascending(process))
    }

    fn of_regions(regions: &[&Region]) -> Content {
        let mut content = Content::default();
        for region in regions {
            content += Content::of(region);
        }
        content
    }

    fn of(region: &Region) -> Content {
        let mut content = Content {
            pages: Pages::of(region),
            swapped: region.swapped.into(),
            bloat: region.bloat().0 / BASE_PAGE as u64,
            ..Content::default()
        };
        if let Some(accessed) = region.accessed {
            let (present, coverage) = (u64::from(region.present), u64::from(accessed.coverage));
            content.sampled_regions = 1;
            content.sampled = present;
            content.accessed = coverage;
            if region.leaf.is_huge() {
                (content.sampled_huge, content.accessed_huge) = (present, coverage);
            }
        }
        content
    }

    /// Returns the mean coverage of the regions that were sampled, as a share of 512; `None` if
    /// none was.
    pub fn heat(&self) -> Option<f64> {
        (self.sampled_regions > 0)
            .then(|| self.accessed as f64 / (self.sampled_regions * u64::from(PAGES)) as f64)
    }
}

impl AddAssign for Content {
    fn add_assign(&mut self, other: Content) {
        self.pages += other.pages;
        self.swapped += other.swapped;
        self.bloat += other.bloat;
        self.sampled_regions += other.sampled_regions;
        self.sampled += other.sampled;
        self.accessed += other.accessed;
        self.accessed_huge += other.accessed_huge;
        self.sampled_huge += other.sampled_huge;
    }
}

/// Returns the bytes of this many base pages.
pub fn bytes(pages: u64) -> Bytes {
    Bytes(pages * BASE_PAGE as u64)
}

/// One piece of a band.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The regions of one cell: [`Layout::cell`] bytes of address space.
    Cell {
        /// The first address, a multiple of the cell's length.
        start: u64,
        /// Sum over these regions.
        content: Content,
    },
    /// Empty address space, cut out.
    Gap,
}

/// Neighbouring regions that form a unit: of one mapping, of several of one kind, or many small
/// ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// The first address of the first region.
    pub start: u64,
    /// Empty address space between the previous band and this one.
    pub gap_before: Bytes,
    /// Kind of most of its regions.
    pub kind: MappingKind,
    /// True if it has other kinds, too.
    pub mixed: bool,
    /// Name of the mapping that holds most of it; may be empty.
    pub name: String,
    /// Mappings that hold most of some region of it.
    pub mappings: usize,
    /// Sum over its regions.
    pub content: Content,
    /// Its cells and gaps, ascending.
    pub items: Vec<Item>,
}

impl Band {
    /// Returns its label: `heap`, `file redis-server`, `mixed: file libc.so.6 and 11 more`.
    pub fn label(&self) -> String {
        let name = self.name.rsplit('/').next().unwrap_or_default();
        let name = name.trim_end_matches(" (deleted)").trim_matches(['[', ']']);
        let name = name.strip_prefix("anon:").unwrap_or(name);
        let mut label = self.kind.name().to_string();
        // The kernel names private hugetlb memory after a file that no user can see.
        if !name.is_empty() && name != label && name != "anon_hugepage" {
            label = format!("{label} {name}");
        }
        if self.mixed {
            label = format!("mixed: {label}");
        }
        match self.mappings {
            0 | 1 => label,
            more => format!("{label} and {} more", more - 1),
        }
    }
}

/// An address space as bands of cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Address space of one cell: 2 MiB times a power of two.
    pub cell: Bytes,
    /// The bands, ascending.
    pub bands: Vec<Band>,
    /// Sum over all bands.
    pub content: Content,
}

impl Layout {
    /// Lays `process` out in at most `most_bands` bands (at least 1). Takes the smallest cells for
    /// which `fits` accepts the numbers of items in the bands. `fits` must accept cells that are
    /// large enough.
    pub fn new(process: &Process, most_bands: usize, fits: impl Fn(&[usize]) -> bool) -> Layout {
        let regions = ascending(process);
        let runs = bands(process, &regions, most_bands);
        let lengths = |cell: u64| -> Vec<usize> {
            runs.iter().map(|run| length(&regions[run.from..run.to], cell)).collect()
        };
        // A cell of 2^62 bytes is larger than any address space.
        let cells = (HUGE_2M.trailing_zeros()..=62).map(|power| 1 << power);
        let cell = cells.into_iter().find(|&cell| fits(&lengths(cell))).unwrap_or(1 << 62);
        Layout {
            cell: Bytes(cell),
            bands: band_values(process, &regions, &runs, cell),
            content: Content::of_regions(&regions),
        }
    }
}

/// Returns the regions, ascending, each once. The regions of an observed snapshot already are; but
/// any snapshot is accepted.
fn ascending(process: &Process) -> Vec<&Region> {
    let mut regions: Vec<&Region> = process.regions.iter().collect();
    regions.sort_by_key(|region| region.start());
    regions.dedup_by_key(|region| region.start() / HUGE_2M as u64);
    regions
}

/// The regions `from..to` of a process, joined from pieces; the longest piece has `longest`
/// regions.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: usize,
    to: usize,
    longest: usize,
}

/// Returns the values by which bands are distinguished: kind and name of the mapping.
fn identity<'a>(process: &'a Process, region: &Region) -> Option<(MappingKind, &'a str)> {
    mapping(process, region).map(|mapping| (mapping.kind, mapping.name.as_str()))
}

fn mapping<'a>(process: &'a Process, region: &Region) -> Option<&'a Mapping> {
    process.mappings.get(region.mapping as usize)
}

fn end(region: &Region) -> u64 {
    region.start().saturating_add(HUGE_2M as u64)
}

fn bands(process: &Process, regions: &[&Region], most: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, region) in regions.iter().enumerate() {
        let joins = index > 0 && {
            let before = regions[index - 1];
            region.start().saturating_sub(end(before)) < APART
                && identity(process, before) == identity(process, region)
        };
        match runs.last_mut() {
            Some(run) if joins => run.to = index + 1,
            _ => runs.push(Run { from: index, to: index + 1, longest: 0 }),
        }
    }
    for run in &mut runs {
        run.longest = run.to - run.from;
    }
    // Small neighbours of one kind, such as libraries, are one band. If there are still too many,
    // small ones of any kind are joined: at first only close ones, then all. A piece at least as
    // long as the threshold stays by itself.
    let kind = |run: &Run| identity(process, regions[run.from]).map(|(kind, _)| kind);
    runs = join(&runs, SMALL, |last, run| kind(last) == kind(run) && apart(regions, last, run) < APART);
    let mut threshold = SMALL;
    while runs.len() > most.max(1) {
        let anywhere = threshold > regions.len();
        runs = join(&runs, threshold, |last, run| anywhere || apart(regions, last, run) < APART);
        threshold *= 2;
    }
    runs
}

/// Returns the empty address space between two neighbours.
fn apart(regions: &[&Region], last: &Run, run: &Run) -> u64 {
    regions[run.from].start().saturating_sub(end(regions[last.to - 1]))
}

/// Joins neighbours made of pieces shorter than `threshold` regions, if `may` accepts the two.
fn join(runs: &[Run], threshold: usize, may: impl Fn(&Run, &Run) -> bool) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::new();
    for &run in runs {
        match joined.last_mut() {
            Some(last) if last.longest < threshold && run.longest < threshold && may(last, &run) => {
                last.to = run.to;
                last.longest = last.longest.max(run.longest);
            }
            _ => joined.push(run),
        }
    }
    joined
}

fn band_values(process: &Process, regions: &[&Region], runs: &[Run], cell: u64) -> Vec<Band> {
    let mut before = None;
    let mut bands = Vec::with_capacity(runs.len());
    for run in runs {
        let regions = &regions[run.from..run.to];
        let (start, end) = (regions[0].start(), end(regions[regions.len() - 1]));
        let (kind, name) = largest(process, regions);
        bands.push(Band {
            start,
            gap_before: Bytes(before.map_or(0, |before| start.saturating_sub(before))),
            kind,
            mixed: regions.iter().any(|region| mapping(process, region).is_some_and(|m| m.kind != kind)),
            name,
            mappings: regions.iter().map(|region| region.mapping).collect::<BTreeSet<_>>().len(),
            content: Content::of_regions(regions),
            items: items(regions, cell),
        });
        before = Some(end);
    }
    bands
}

/// Returns kind and name of the mapping with the most present pages.
fn largest(process: &Process, regions: &[&Region]) -> (MappingKind, String) {
    let mut present = std::collections::BTreeMap::<u32, u64>::new();
    for region in regions {
        *present.entry(region.mapping).or_default() += u64::from(region.present);
    }
    let most = present.into_iter().max_by_key(|(index, present)| (*present, std::cmp::Reverse(*index)));
    most.and_then(|(index, _)| process.mappings.get(index as usize))
        .map_or((MappingKind::Special, String::new()), |mapping| (mapping.kind, mapping.name.clone()))
}

/// Returns the number of items that [`items`] would make.
fn length(regions: &[&Region], cell: u64) -> usize {
    let (mut length, mut last) = (0, None);
    for region in regions {
        let at = region.start() / cell;
        length += match last {
            Some(last) if last == at => 0,
            Some(last) if last + 1 < at => 2,
            _ => 1,
        };
        last = Some(at);
    }
    length
}

fn items(regions: &[&Region], cell: u64) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for region in regions {
        let at = region.start() / cell * cell;
        if let Some(Item::Cell { start, content }) = items.last_mut() {
            if *start == at {
                *content += Content::of(region);
                continue;
            }
            if at > *start + cell {
                items.push(Item::Gap);
            }
        }
        items.push(Item::Cell { start: at, content: Content::of(region) });
    }
    items
}

/// Main values of a map, in bytes; `None` if nothing was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Present memory, hugetlb included.
    pub present_bytes: u64,
    /// Memory on pages of 2 MiB or more.
    pub huge_bytes: u64,
    /// Zero-filled memory within transparent huge pages, as far as scanned.
    pub bloat_bytes: u64,
    /// Memory present in regions that were sampled.
    pub sampled_bytes: Option<u64>,
    /// Memory accessed in the last sample.
    pub accessed_bytes: Option<u64>,
    /// Memory that was accessed, on pages of 2 MiB or more.
    pub accessed_huge_bytes: Option<u64>,
}

impl Content {
    /// Returns the sums in bytes.
    pub fn totals(&self) -> Totals {
        let sampled = |pages: u64| (self.sampled_regions > 0).then(|| bytes(pages).0);
        Totals {
            present_bytes: bytes(self.pages.total()).0,
            huge_bytes: bytes(self.pages.huge()).0,
            bloat_bytes: bytes(self.bloat).0,
            sampled_bytes: sampled(self.sampled),
            accessed_bytes: sampled(self.accessed),
            accessed_huge_bytes: sampled(self.accessed_huge),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{self, accessed};

    fn rows(lengths: &[usize]) -> usize {
        lengths.iter().map(|length| length.div_ceil(80)).sum()
    }

    fn lengths(layout: &Layout) -> Vec<usize> {
        layout.bands.iter().map(|band| band.items.len()).collect()
    }

    #[test]
    fn program_heap_libraries_and_stack_are_bands() {
        let layout = Layout::new(&synthetic::store(), 16, |_| true);
        let labels: Vec<String> = layout.bands.iter().map(Band::label).collect();
        assert_eq!(
            labels,
            ["file redis-server", "heap", "anonymous", "hugetlb", "file lib8.so.6 and 8 more", "stack"]
        );
        let libraries = &layout.bands[4];
        assert_eq!(libraries.items.len(), 17, "nine cells, and what is empty between them cut out");
        assert_eq!(libraries.items[1], Item::Gap);
        assert!(!libraries.mixed);
    }

    #[test]
    fn cells_hold_exactly_what_their_regions_hold() {
        let process = synthetic::store();
        let whole = Content::of_all(&process);
        assert_eq!(bytes(whole.pages.total()), process.backing.total());
        assert_eq!(bytes(whole.pages.huge()), process.backing.huge());
        assert_eq!((bytes(whole.swapped), bytes(whole.bloat)), (process.swap, process.bloat()));
        for rows_allowed in [1000, 12, 7] {
            let layout = Layout::new(&process, 6, |lengths| rows(lengths) <= rows_allowed);
            let mut sum = Content::default();
            let cells = layout.bands.iter().flat_map(|band| &band.items);
            for cell in cells {
                if let Item::Cell { content, start } = cell {
                    assert_eq!(start % layout.cell.0, 0);
                    sum += *content;
                }
            }
            assert_eq!(sum, whole);
            assert!(rows(&lengths(&layout)) <= rows_allowed);
            assert_eq!(layout.content, whole);
        }
    }

    #[test]
    fn a_terabyte_has_no_more_lines_than_asked_for() {
        let mut process = synthetic::process(1, "vast");
        synthetic::map(
            &mut process,
            0x1000_0000_0000,
            1 << 19,
            MappingKind::Anonymous,
            "",
            |number, region| {
                region.accessed = accessed((number % 513) as u16);
            },
        );
        let layout = Layout::new(&process, 16, |lengths| rows(lengths) <= 36);
        assert!(rows(&lengths(&layout)) <= 36 && layout.cell == Bytes::mib(512), "{}", layout.cell);
        let Item::Cell { content, .. } = &layout.bands[0].items[3] else { panic!("all are cells") };
        assert_eq!(content.pages.base, 256 * 512);
        assert!((0.0..1.0).contains(&content.heat().unwrap()));
    }

    #[test]
    fn many_small_mappings_become_few_bands() {
        // Small arenas of 64 MiB, as glibc makes them, with stacks between them; and one large
        // mapping.
        let mut process = synthetic::process(1, "java");
        for number in 0..2000u64 {
            let start = 0x7000_0000_0000 + number * (64 << 20);
            let kind = if number % 3 == 0 { MappingKind::Stack } else { MappingKind::Anonymous };
            synthetic::map(&mut process, start, 1 + number % 3, kind, &format!("[anon:{number}]"), |_, _| ());
        }
        synthetic::map(&mut process, 0x7800_0000_0000, 300, MappingKind::Shared, "/dev/shm/x", |_, _| ());
        for most in [1, 2, 16] {
            let layout = Layout::new(&process, most, |lengths| rows(lengths) <= 40);
            assert!(layout.bands.len() <= most && rows(&lengths(&layout)) <= 40);
        }
        let layout = Layout::new(&process, 2, |_| true);
        assert_eq!(layout.bands[1].label(), "shared x");
        assert!(layout.bands[0].label().starts_with("mixed: "), "{}", layout.bands[0].label());
    }

    #[test]
    fn regions_in_any_order_and_twice_are_one_picture() {
        let process = synthetic::store();
        let mut muddled = process.clone();
        muddled.regions.reverse();
        muddled.regions.extend_from_slice(&process.regions[..40]);
        assert_eq!(Layout::new(&muddled, 6, |_| true), Layout::new(&process, 6, |_| true));
    }

    #[test]
    fn what_no_mapping_explains_is_shown_all_the_same() {
        let mut process = synthetic::store();
        process.mappings.clear();
        let layout = Layout::new(&process, 16, |_| true);
        assert_eq!(layout.content, Content::of_all(&process));
        assert!(Layout::new(&synthetic::process(1, "none"), 16, |_| true).bands.is_empty());
    }
}
