//! Entries of a page map, and the argument of the ioctl that scans one
//! (Documentation/admin-guide/mm/pagemap.rst). For readers of their own process's page map and of
//! others'.

/// One base page of a process: an entry of its page map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    /// Returns true if the page is present, as the shared page of zeros is.
    pub const fn is_present(self) -> bool {
        self.0 & 1 << 63 != 0
    }

    /// Returns true if the page is swapped out or migrating.
    pub const fn is_swapped(self) -> bool {
        self.0 & 1 << 62 != 0
    }

    /// Returns true for a page of a file or of shared memory.
    pub const fn is_file_or_shared(self) -> bool {
        self.0 & 1 << 61 != 0
    }

    /// Returns true if this process alone maps it (Linux 4.2). False for the shared page of zeros.
    pub const fn is_exclusive(self) -> bool {
        self.0 & 1 << 56 != 0
    }

    /// Returns true for an anonymous page that another process maps as well, since a fork(2) or
    /// because KSM has merged it. Also true for the shared page of zeros.
    pub const fn is_shared(self) -> bool {
        self.is_present() && !self.is_file_or_shared() && !self.is_exclusive()
    }

    /// Returns the number of the page frame; `None` where the page is not present, or the reader
    /// lacks CAP_SYS_ADMIN.
    pub const fn frame(self) -> Option<u64> {
        match self.0 & ((1 << 55) - 1) {
            0 => None,
            frame if self.is_present() => Some(frame),
            _ => None,
        }
    }
}

/// `PAGEMAP_SCAN`, `_IOWR('f', 16, struct pm_scan_arg)`, since Linux 6.7.
pub const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;
/// PAGE_IS_PRESENT: in memory.
pub const IS_PRESENT: u64 = 1 << 3;
/// PAGE_IS_SWAPPED: swapped out, or migrating.
pub const IS_SWAPPED: u64 = 1 << 4;
/// PAGE_IS_PFNZERO: the shared page of zeros.
pub const IS_ZERO_PAGE: u64 = 1 << 5;
/// PAGE_IS_HUGE: mapped by one entry of 2 MiB or more.
pub const IS_HUGE: u64 = 1 << 6;

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanArgument {
    /// The size of this structure in bytes.
    pub size: u64,
    /// PM_SCAN_ flags.
    pub flags: u64,
    /// The first address.
    pub start: u64,
    /// The first address after the range.
    pub end: u64,
    /// The address at which the walk has ended; written by the kernel.
    pub walk_end: u64,
    /// The address of the [`Run`]s.
    pub vec: u64,
    /// Number of [`Run`]s that there is room for.
    pub vec_len: u64,
    /// Most pages that are reported; 0 for all.
    pub max_pages: u64,
    /// Categories that are inverted before the masks apply: those are to be absent.
    pub category_inverted: u64,
    /// Categories that all have to match.
    pub category_mask: u64,
    /// Categories of which one has to match.
    pub category_anyof_mask: u64,
    /// Categories that are reported.
    pub return_mask: u64,
}

impl ScanArgument {
    /// Returns its fields, in their order.
    pub fn words(&self) -> [u64; 12] {
        [
            self.size,
            self.flags,
            self.start,
            self.end,
            self.walk_end,
            self.vec,
            self.vec_len,
            self.max_pages,
            self.category_inverted,
            self.category_mask,
            self.category_anyof_mask,
            self.return_mask,
        ]
    }
}

/// `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    /// The first address.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
    /// Categories of `return_mask` that hold.
    pub categories: u64,
}
