//! The constants and types of the C header.

#![allow(non_camel_case_types)]

/// A pool that is open: the directory of one application. 0 is none. Whatever was closed is never given again.
pub type megapage_pool = u64;

/// A segment that is open. 0 is none.
pub type megapage_segment = u64;

/// A heap that is open. 0 is none.
pub type megapage_heap = u64;

/// Where this process waits for its successor. 0 is none.
pub type megapage_listener = u64;

/// The most segments that are handed over at once.
pub const MEGAPAGE_UPGRADE_MOST: usize = 64;

/// Pages of 2 MiB, for page_size.
pub const MEGAPAGE_2M: u64 = 2097152;
/// Pages of 1 GiB, for page_size.
pub const MEGAPAGE_1G: u64 = 1073741824;

/// What is left of that name is removed first, the memory is fresh; files stay behind.
pub const MEGAPAGE_UNLINK_EXISTING: u32 = 0;
/// As before, and the files lose their names at once: nothing stays behind.
pub const MEGAPAGE_UNLINK_ALWAYS: u32 = 1;
/// What is there is reused, old bytes included. A process that can become the user can read what the program left.
pub const MEGAPAGE_UNLINK_NEVER: u32 = 2;

/// All pages in one file.
pub const MEGAPAGE_SINGLE_FILE: u32 = 0;
/// A file for each page.
pub const MEGAPAGE_FILE_PER_PAGE: u32 = 1;

/// For node: wherever the kernel takes pages from.
pub const MEGAPAGE_ANY_NODE: i32 = -1;

/// Flag of megapage_options: the page tables are filled for pages that are reused, too, about 0.3 ms for each GiB on pages
/// of 2 MiB. Without it opening them takes the same time whatever the size, and the first access to each page takes a minor
/// fault.
pub const MEGAPAGE_POPULATE: u32 = 1;

/// Flag of megapage_heap_allocate: all bytes are zero.
pub const MEGAPAGE_ZEROED: u32 = 1;

/// Flag of megapage_advise: what is there already is put on huge pages now, as far as the kernel finds any.
pub const MEGAPAGE_ADVISE_NOW: u32 = 1;
/// Flag of megapage_advise: all memory of the range is made present, as if it had been written to.
pub const MEGAPAGE_ADVISE_POPULATE: u32 = 2;

/// For megapage_remap_self: transparent huge pages.
pub const MEGAPAGE_REMAP_THP: u32 = 1;
/// For megapage_remap_self: pages of 2 MiB from the pool for what is never written, transparent huge pages for data.
pub const MEGAPAGE_REMAP_2M: u32 = 2;
/// For megapage_remap_self: the same, with pages of 1 GiB from the pool for the whole GiB of a segment.
pub const MEGAPAGE_REMAP_1G: u32 = 3;

/// Flag of megapage_remap_self: it fails where anything is not obtained.
pub const MEGAPAGE_REMAP_REQUIRE: u32 = 1;

/// What segment is wanted. Fill it with megapage_options_init, then change what should differ.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct megapage_options {
    /// Bytes, rounded up to whole pages. One that is reused and larger stays as it is.
    pub size: u64,
    /// Bytes that it may ever grow to, fixed when it is made; 0: its size.
    pub most: u64,
    /// One of MEGAPAGE_UNLINK_...; init gives MEGAPAGE_UNLINK_EXISTING.
    pub unlink: u32,
    /// MEGAPAGE_SINGLE_FILE (init) or MEGAPAGE_FILE_PER_PAGE.
    pub layout: u32,
    /// The NUMA node that its pages must come from, or MEGAPAGE_ANY_NODE (init).
    pub node: i32,
    /// The permission bits of its files; init gives 0600. Their directory lets in the user alone all the same.
    pub mode: u32,
    /// 0 (init) or MEGAPAGE_POPULATE.
    pub flags: u32,
    /// Always 0.
    pub reserved: u32,
}

/// What is known of a segment.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct megapage_segment_info {
    /// The address of its first byte in this process.
    pub address: u64,
    /// Bytes that it has, what it keeps for itself included.
    pub size: u64,
    /// Bytes that it may grow to.
    pub most: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// Pages that the kernel has just given when it was opened: zeros.
    pub fresh_pages: u64,
    /// Pages of an earlier opening that were never handed out: zeros.
    pub clean_pages: u64,
    /// Pages of an earlier opening that may hold old bytes.
    pub dirty_pages: u64,
    /// How many times it has been opened again since it was made.
    pub openings: u64,
    /// 1 where its pages come from a hugetlb pool, 0 where it is on base pages.
    pub hugetlb: u32,
    /// 1 for its owner, 0 for who maps what another owns.
    pub owner: u32,
    /// 1 where it lies at the address at which it lay the last time, or where its owner has it.
    pub same_address: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Leads to a block of a heap, in this run and after a restart. It may be stored anywhere, in other blocks, too.
/// {0, 0} is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct megapage_handle {
    /// Bytes from the start of the segment.
    pub offset: u64,
    /// A number that is never given twice in one heap.
    pub serial: u64,
}

/// What a range of addresses is mapped with, as the kernel says. In bytes; they do not overlap.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct megapage_backing {
    /// On pages of 1 GiB from a pool.
    pub hugetlb_1g: u64,
    /// On pages of 2 MiB from a pool.
    pub hugetlb_2m: u64,
    /// On transparent huge pages of 2 MiB.
    pub thp: u64,
    /// On smaller pages.
    pub base: u64,
    /// Not present: never touched, given back, or swapped out.
    pub absent: u64,
    /// 1 where the kernel tells it page by page (Linux 6.7); 0 where what the mappings of the range have in all was taken
    /// for it.
    pub exact: u32,
    /// Always 0.
    pub reserved: u32,
}

/// What came of megapage_remap_self. In bytes, where nothing else is said.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct megapage_remapped {
    /// What lies in whole blocks of 2 MiB of the segments that were looked at.
    pub possible: u64,
    /// What of it is on huge pages now, as the kernel says (smaps), moved by this call or before.
    pub huge: u64,
    /// What of it the kernel was asked to give huge pages when it is touched (.bss).
    pub advised: u64,
    /// Nanoseconds that the call took.
    pub nanoseconds: u64,
    /// Nanoseconds of them that the kernel took for the pages.
    pub pages_nanoseconds: u64,
    /// Threads of the process when it began: with more than one, data was left where it is.
    pub threads: u32,
    /// Always 0.
    pub reserved: u32,
}
