//! The machine: its memory, pools, settings, counters.

use crate::thp::ThpSettings;
use crate::wire;
use megapage_units::{Bytes, PageSize};
use serde::Serialize;
use std::collections::BTreeMap;

/// The machine at one moment. Its files are read one after the other: values may be a moment apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Machine {
    /// Memory as a whole.
    pub memory: Memory,
    /// The NUMA nodes, ascending; one node if the kernel knows none.
    pub nodes: Vec<Node>,
    /// The hugetlb pools, by size.
    pub pools: Vec<Pool>,
    /// The settings of transparent huge pages; `None` if the kernel has none.
    pub thp: Option<ThpSettings>,
    /// Counters since boot.
    pub counters: Counters,
    /// Memory pressure; `None` if the kernel does not measure it (PSI).
    pub pressure: Option<Pressure>,
}

/// Main values of `/proc/meminfo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// `MemTotal`.
    #[serde(serialize_with = "wire::bytes", rename = "total_bytes")]
    pub total: Bytes,
    /// `MemFree`.
    #[serde(serialize_with = "wire::bytes", rename = "free_bytes")]
    pub free: Bytes,
    /// `MemAvailable`: memory that new programs can get.
    #[serde(serialize_with = "wire::bytes", rename = "available_bytes")]
    pub available: Bytes,
    /// `SwapTotal`.
    #[serde(serialize_with = "wire::bytes", rename = "swap_total_bytes")]
    pub swap_total: Bytes,
    /// `SwapFree`.
    #[serde(serialize_with = "wire::bytes", rename = "swap_free_bytes")]
    pub swap_free: Bytes,
    /// `AnonHugePages`: anonymous memory on 2 MiB transparent huge pages.
    #[serde(serialize_with = "wire::bytes", rename = "anon_huge_bytes")]
    pub anon_huge: Bytes,
}

/// Free memory of one NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// The node.
    pub node: u32,
    /// Free memory.
    #[serde(serialize_with = "wire::bytes", rename = "free_bytes")]
    pub free: Bytes,
    /// Number of 2 MiB pages (order 9) that could be taken at once, without compaction.
    pub huge_available: u64,
    /// Free memory fragmentation index for order 9, 0 to 1. It is the share of free memory that is
    /// unusable for 2 MiB pages (Ingens, section 3.3; Gorman and Whitcroft 2005). `None` if nothing
    /// is free.
    pub fragmentation: Option<f64>,
}

/// A hugetlb pool of one page size, over all nodes; its counts are pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// The page size.
    #[serde(serialize_with = "wire::page_size")]
    pub page_size: PageSize,
    /// All pages, surplus included.
    pub total: u64,
    /// Pages that nothing holds.
    pub free: u64,
    /// Free pages reserved for mappings.
    pub reserved: u64,
    /// Pages beyond the persistent ones.
    pub surplus: u64,
}

impl Pool {
    /// Returns the pages that a new mapping can get.
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }
}

/// Counters of `/proc/vmstat` that concern huge pages: every `thp_*`, `compact_*` and
/// `pgmigrate_*`, and a few more. Keys are the kernel's names; values count since boot.
pub type Counters = BTreeMap<String, u64>;

/// Pressure stall information for memory (Documentation/accounting/psi.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pressure {
    /// Per cent of the last 10 s in which some task waited for memory.
    pub some_10s: f64,
    /// Per cent of the last 60 s in which some task waited for memory.
    pub some_60s: f64,
    /// Per cent of the last 10 s in which all tasks that had work waited for memory.
    pub full_10s: f64,
    /// Time in which some task waited, since boot, in microseconds.
    pub some_total_us: u64,
}
