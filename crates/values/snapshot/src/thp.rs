//! The settings of transparent huge pages.
//!
//! Source: Documentation/admin-guide/mm/transhuge.rst.

use crate::wire;
use megapage_units::{Bytes, PageSize};
use serde::Serialize;

megapage_units::named! {
    /// Receivers of huge pages for anonymous memory: `enabled`, global or for one size.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ThpEnabled {
        /// Every process.
        Always = "always",
        /// Ranges that asked with madvise(MADV_HUGEPAGE).
        Madvise = "madvise",
        /// No process.
        Never = "never",
        /// As the global setting says. Only for one size.
        Inherit = "inherit",
    }
}

megapage_units::named! {
    /// Effort of a page fault if no huge page is free: `defrag`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ThpDefrag {
        /// Reclaims and compacts in the fault, for all processes.
        Always = "always",
        /// Wakes kswapd and kcompactd; the fault itself falls back to base pages.
        Defer = "defer",
        /// As `defer`, but ranges that asked with madvise reclaim and compact in the fault.
        #[serde(rename = "defer+madvise")]
        DeferMadvise = "defer+madvise",
        /// Only ranges that asked with madvise reclaim and compact in the fault.
        Madvise = "madvise",
        /// Takes free huge pages, and makes no effort for more.
        Never = "never",
    }
}

megapage_units::named! {
    /// Receivers of huge pages for shared anonymous memory, SysV shm and memfds: `shmem_enabled`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ThpShmem {
        /// All processes.
        Always = "always",
        /// Ranges in which the huge page lies within the file's size, or which asked with madvise.
        WithinSize = "within_size",
        /// Ranges that asked with madvise.
        Advise = "advise",
        /// No process.
        Never = "never",
        /// No process, tmpfs mounts with `huge=` included.
        Deny = "deny",
        /// All processes, tmpfs mounts included; for testing.
        Force = "force",
        /// As the global setting says. Only for one size.
        Inherit = "inherit",
    }
}

/// Settings of one page size (`hugepages-<size>kB/`, Linux 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ThpSize {
    /// The size, mTHP or 2 MiB.
    #[serde(serialize_with = "wire::page_size")]
    pub page_size: PageSize,
    /// Setting for anonymous memory.
    pub enabled: ThpEnabled,
    /// Setting for shared memory (Linux 6.11).
    pub shmem: Option<ThpShmem>,
}

/// Settings of the kernel thread that collapses base pages to huge ones in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Khugepaged {
    /// True if it may compact and reclaim to get a huge page.
    pub defrag: bool,
    /// Most base pages of a region that may be absent, and are then filled with zeros.
    pub max_ptes_none: u64,
    /// Base pages looked at in one round.
    pub pages_to_scan: u64,
    /// Pause between rounds, in milliseconds.
    pub scan_sleep_ms: u64,
    /// Regions collapsed since boot.
    pub pages_collapsed: u64,
}

/// All settings of transparent huge pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThpSettings {
    /// The global setting for anonymous memory.
    pub enabled: ThpEnabled,
    /// Effort of a page fault.
    pub defrag: ThpDefrag,
    /// Global setting for shared memory; `None` if the kernel has none.
    pub shmem: Option<ThpShmem>,
    /// Size that a page-table entry of the second level maps: 2 MiB on x86-64.
    #[serde(serialize_with = "wire::bytes", rename = "pmd_size_bytes")]
    pub pmd_size: Bytes,
    /// The settings by size, ascending; empty before Linux 6.8.
    pub sizes: Vec<ThpSize>,
    /// Settings of the background thread; `None` if the kernel shows none.
    pub khugepaged: Option<Khugepaged>,
    /// True if the kernel splits underused huge pages under memory pressure (Linux 6.12).
    pub shrink_underused: Option<bool>,
}

impl ThpSettings {
    /// Returns the setting that applies to anonymous memory in pages of `size`: `Always`, `Madvise`
    /// or `Never`.
    pub fn anonymous(&self, size: PageSize) -> ThpEnabled {
        match self.sizes.iter().find(|entry| entry.page_size == size) {
            Some(ThpSize { enabled: ThpEnabled::Inherit, .. }) => self.enabled,
            Some(entry) => entry.enabled,
            // Before there were settings by size, the global one applied only to this size.
            None if size.bytes() == self.pmd_size => self.enabled,
            None => ThpEnabled::Never,
        }
    }

    /// Returns the setting that applies to shared memory in pages of `size`; `Never` if the kernel
    /// has no such setting.
    pub fn shared(&self, size: PageSize) -> ThpShmem {
        let global = self.shmem.unwrap_or(ThpShmem::Never);
        // These two override the settings by size.
        if matches!(global, ThpShmem::Deny | ThpShmem::Force) {
            return global;
        }
        match self.sizes.iter().find(|entry| entry.page_size == size).and_then(|entry| entry.shmem) {
            Some(ThpShmem::Inherit) => global,
            Some(own) => own,
            None if size.bytes() == self.pmd_size => global,
            None => ThpShmem::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    /// Shows a word as serde writes it.
    struct Written<T>(T);

    impl<T: Serialize> fmt::Display for Written<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.serialize(f)
        }
    }

    #[test]
    fn words_of_json_are_those_of_the_kernel() {
        for it in ThpEnabled::ALL {
            assert_eq!(Written(it).to_string(), it.name());
        }
        for it in ThpDefrag::ALL {
            assert_eq!(Written(it).to_string(), it.name());
        }
        for it in ThpShmem::ALL {
            assert_eq!(Written(it).to_string(), it.name());
        }
    }
}
