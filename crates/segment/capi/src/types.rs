//! The constants and types of the C header.

#![allow(non_camel_case_types)]

/// An open pool: the directory of one application. 0 is none. The number of a closed pool, segment,
/// heap or listener is never used again.
pub type megapage_pool = u64;

/// An open segment. 0 is none.
pub type megapage_segment = u64;

/// An open heap. 0 is none.
pub type megapage_heap = u64;

/// A socket at which this process waits for its successor. 0 is none.
pub type megapage_listener = u64;

/// The most segments that are handed over at once.
pub const MEGAPAGE_UPGRADE_MOST: usize = 64;

/// Pages of 2 MiB, for page_size.
pub const MEGAPAGE_2M: u64 = 2097152;
/// Pages of 1 GiB, for page_size.
pub const MEGAPAGE_1G: u64 = 1073741824;

/// Removes existing files of that name first: the memory is fresh. The new files stay behind.
pub const MEGAPAGE_UNLINK_EXISTING: u32 = 0;
/// As MEGAPAGE_UNLINK_EXISTING, and the new files lose their names at once: nothing stays behind.
pub const MEGAPAGE_UNLINK_ALWAYS: u32 = 1;
/// Reuses existing files, old bytes included. A process that can become the user can read the data
/// that the program left.
pub const MEGAPAGE_UNLINK_NEVER: u32 = 2;

/// All pages in one file.
pub const MEGAPAGE_SINGLE_FILE: u32 = 0;
/// Each page in a separate file.
pub const MEGAPAGE_FILE_PER_PAGE: u32 = 1;

/// For node: any node that the kernel chooses.
pub const MEGAPAGE_ANY_NODE: i32 = -1;

/// Flag of megapage_options: also fills the page tables for reused pages. This takes about 0.3 ms
/// for each GiB on pages of 2 MiB. Without it the time to open does not depend on the size, and the
/// first access to each page takes a minor fault.
pub const MEGAPAGE_POPULATE: u32 = 1;

/// Flag of megapage_heap_allocate: all bytes are zero.
pub const MEGAPAGE_ZEROED: u32 = 1;

/// Flag of megapage_advise: moves present memory onto huge pages now, as far as the kernel finds
/// any.
pub const MEGAPAGE_ADVISE_NOW: u32 = 1;
/// Flag of megapage_advise: makes all memory of the range present, as if it had been written to.
pub const MEGAPAGE_ADVISE_POPULATE: u32 = 2;

/// For megapage_remap_self: transparent huge pages.
pub const MEGAPAGE_REMAP_THP: u32 = 1;
/// For megapage_remap_self: pages of 2 MiB from the pool for memory that is never written,
/// transparent huge pages for data.
pub const MEGAPAGE_REMAP_2M: u32 = 2;
/// For megapage_remap_self: as MEGAPAGE_REMAP_2M, with pages of 1 GiB from the pool for each whole
/// GiB of a segment.
pub const MEGAPAGE_REMAP_1G: u32 = 3;

/// Flag of megapage_remap_self: fails if anything is not obtained.
pub const MEGAPAGE_REMAP_REQUIRE: u32 = 1;

/// Options for opening a segment. Fill them in with megapage_options_init, then change some.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct megapage_options {
    /// Size in bytes, rounded up to whole pages. A reused segment that is larger keeps its size.
    pub size: u64,
    /// The most bytes that it may ever grow to, fixed when it is made; 0: its size.
    pub most: u64,
    /// One of MEGAPAGE_UNLINK_...; init gives MEGAPAGE_UNLINK_EXISTING.
    pub unlink: u32,
    /// MEGAPAGE_SINGLE_FILE (init) or MEGAPAGE_FILE_PER_PAGE.
    pub layout: u32,
    /// The NUMA node that its pages must come from, or MEGAPAGE_ANY_NODE (init).
    pub node: i32,
    /// The permission bits of its files; init gives 0600. Their directory admits only the user in
    /// any case.
    pub mode: u32,
    /// 0 (init) or MEGAPAGE_POPULATE.
    pub flags: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Properties of a segment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct megapage_segment_info {
    /// The address of its first byte in this process.
    pub address: u64,
    /// Its size in bytes, including what it keeps for itself.
    pub size: u64,
    /// The most bytes that it may grow to.
    pub most: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// Pages that the kernel gave when it was opened: zeros.
    pub fresh_pages: u64,
    /// Pages of an earlier opening that were never handed out: zeros.
    pub clean_pages: u64,
    /// Pages of an earlier opening that may hold old bytes.
    pub dirty_pages: u64,
    /// Number of times that owners have opened it again since it was made.
    pub openings: u64,
    /// 1 if its pages come from a hugetlb pool, 0 if it is on base pages.
    pub hugetlb: u32,
    /// 1 for its owner, 0 for a process that maps another's segment.
    pub owner: u32,
    /// 1 if it is at the same address as the last time, or as in its owner.
    pub same_address: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Leads to a block of a heap, in this run and after a restart. It may be stored anywhere, also in
/// other blocks. {0, 0} is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct megapage_handle {
    /// Bytes from the start of the segment.
    pub offset: u64,
    /// A number that is never given twice in one heap.
    pub serial: u64,
}

/// Backing of a range of addresses, as the kernel reports it. In bytes; the sizes do not overlap.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct megapage_backing {
    /// Bytes on pages of 1 GiB from a pool.
    pub hugetlb_1g: u64,
    /// Bytes on pages of 2 MiB from a pool.
    pub hugetlb_2m: u64,
    /// Bytes on transparent huge pages of 2 MiB.
    pub thp: u64,
    /// Bytes on smaller pages.
    pub base: u64,
    /// Bytes not present: never touched, given back, or swapped out.
    pub absent: u64,
    /// 1 if the kernel reports each page (Linux 6.7). 0 if these are the totals of the mappings
    /// that the range touches, each at most the range.
    pub exact: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Result of megapage_remap_self. In bytes, unless stated otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct megapage_remapped {
    /// Bytes in whole blocks of 2 MiB of the inspected segments.
    pub possible: u64,
    /// Those of them on huge pages now, as the kernel reports (smaps): moved by this call or
    /// before.
    pub huge: u64,
    /// Those of them that the kernel was asked to back with huge pages on first touch (.bss).
    pub advised: u64,
    /// Nanoseconds that the call took.
    pub nanoseconds: u64,
    /// Those of them that the kernel took for the pages.
    pub pages_nanoseconds: u64,
    /// Threads of the process when the call began. With more than one, data was not moved.
    pub threads: u32,
    /// Always 0.
    pub reserved: u32,
}
