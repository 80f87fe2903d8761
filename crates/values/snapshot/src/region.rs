//! One aligned 2 MiB range of one process's address space.

use crate::wire;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugePage, VirtRange};
use serde::Serialize;
use std::time::Duration;

/// Base pages in a region: 512.
pub const PAGES: u16 = (HUGE_2M / BASE_PAGE) as u16;

/// Kind of page-table entry that maps a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leaf {
    /// Entries of 4 KiB (or nothing). mTHP folios are mapped this way, too: see [`Region::folios`].
    #[default]
    Base,
    /// One 2 MiB entry: a transparent huge page.
    Huge2m,
    /// One 2 MiB entry of a hugetlb page.
    Hugetlb2m,
    /// A part of a 1 GiB entry of a hugetlb page.
    Hugetlb1g,
}

impl Leaf {
    /// Returns true if an entry of 2 MiB or more maps the region.
    pub const fn is_huge(self) -> bool {
        !matches!(self, Leaf::Base)
    }
}

/// The result of the last sample of access bits of a region.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accessed {
    /// Coverage, 0 to 512: base pages accessed between the last clearing and the last reading. If
    /// one 2 MiB entry maps the region, there is one bit for all: 0 or 512.
    pub coverage: u16,
    /// Exponential moving average of the coverage over the samples, 0 to 512.
    pub average: f32,
    /// Time at which the region was last found accessed; `None` if never while observed.
    #[serde(serialize_with = "wire::some_seconds", rename = "last_seconds")]
    pub last: Option<Duration>,
    /// Time at which the last sample of this region was read.
    #[serde(serialize_with = "wire::seconds", rename = "sampled_seconds")]
    pub sampled: Duration,
}

megapage_units::named! {
    /// Access pattern of a program in a region, which decides how much of a TLB miss's cost is
    /// hidden.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum AccessClass {
        /// One page after the other: one miss a page, and the walks are prefetched.
        Streaming = "streaming",
        /// Any page next, but known early: several walks are under way at once.
        Random = "random",
        /// The next address comes from the data just read: the program waits for the whole walk.
        Dependent = "dependent",
    }
}

/// Estimated rate and pattern of accesses to a region, which coverage cannot show.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AccessProfile {
    /// Visits of base pages, for all 512 together, per second of the process's processor time. A
    /// run of accesses to one page is one visit. This is the rate of look-ups for the translation
    /// of base pages. Not negative.
    pub visits: f64,
    /// Access pattern.
    pub class: AccessClass,
}

/// One region that holds something.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Region {
    /// The addresses.
    #[serde(serialize_with = "wire::address", rename = "start")]
    pub page: HugePage,
    /// Index in [`crate::Process::mappings`] of the mapping that holds most of the region.
    pub mapping: u32,
    /// True if that mapping holds the whole region: otherwise no huge page can map it.
    pub whole: bool,
    /// Present base pages, 0 to 512, without the shared page of zeros. 512 for a huge page.
    pub present: u16,
    /// Base pages that map the shared page of zeros.
    pub zero_page: u16,
    /// Base pages that are swapped out (or migrating).
    pub swapped: u16,
    /// Kind of page-table entry that maps it.
    pub leaf: Leaf,
    /// Present base pages by the order of the folio that they lie on: `[0]` 4 KiB, `[4]` 64 KiB,
    /// `[9]` 2 MiB or more. A folio of 2 MiB that entries of 4 KiB map is counted at 9, with
    /// [`Leaf::Base`]. `None` if the kernel was not asked or does not say (it takes CAP_SYS_ADMIN).
    pub folios: Option<[u16; 10]>,
    /// Present base pages that hold only zeros, as of the last zero scan; `None` if it was not
    /// scanned.
    pub zeros: Option<u16>,
    /// Last sample of access bits; `None` if the region was not sampled.
    pub accessed: Option<Accessed>,
    /// Rate and pattern of accesses; `None` if no estimator has reported.
    pub profile: Option<AccessProfile>,
}

impl Region {
    /// Returns a region with this many present base pages, whole within the first mapping of its
    /// process. Nothing else is known of it.
    pub fn of_base_pages(page: HugePage, present: u16) -> Region {
        Region { page, whole: true, present, ..Region::default() }
    }

    /// Returns the first address.
    pub const fn start(&self) -> u64 {
        self.page.start()
    }

    /// Returns the addresses.
    pub const fn range(&self) -> VirtRange {
        self.page.range()
    }

    /// Returns the present bytes.
    pub fn present_bytes(&self) -> Bytes {
        Bytes(u64::from(self.present) * BASE_PAGE as u64)
    }

    /// Returns the zero-filled part of a huge page, in bytes: recovery would free as much. Zero for
    /// base pages, and without a zero scan.
    pub fn bloat(&self) -> Bytes {
        match self.zeros {
            Some(zeros) if self.leaf == Leaf::Huge2m => Bytes(u64::from(zeros) * BASE_PAGE as u64),
            _ => Bytes::ZERO,
        }
    }
}
