//! What a policy asks for, and what became of it.

use megapage_snapshot::{ProcessId, wire};
use megapage_units::{PageSize, VirtRange};
use serde::{Serialize, Serializer};
use std::time::Duration;

/// Why a policy asks for an action. Each is one rule of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Next in the order of addresses.
    AddressOrder,
    /// All 512 base pages are there.
    FullyPopulated,
    /// Enough of the base pages are there.
    Utilised,
    /// Memory is hardly fragmented: a huge page is cheap to get.
    Unfragmented,
    /// The highest access coverage.
    Coverage,
    /// The process with the highest translation cost.
    TranslationCost,
    /// The highest gain for each byte copied, zeroed and bound.
    Gain,
    /// The process has less than the share that it is guaranteed.
    GuaranteedShare,
    /// A smaller size than 2 MiB, which would bind too much memory that nothing uses.
    WouldBloat,
    /// A huge page that is not populated whole any longer.
    Depopulated,
    /// Memory runs short and this huge page holds zeros.
    Bloat,
    /// More huge memory than the cap of the process or its control group.
    OverCap,
    /// A period has passed.
    Period,
    /// Memory runs short and nobody knows where the zeros are.
    Shortage,
    /// Faults to come should find memory that is already zero.
    FaultLatency,
    /// Whoever carries actions out ends, and takes back what it did. No policy's.
    Undo,
}

/// What a policy asks for. Regions are named by their first address, a multiple of 2 MiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "action")]
pub enum Action {
    /// Collapse a region. With a `size` of 2 MiB: to one huge page. With a smaller one (mTHP): each aligned block of
    /// `size` in the region of which at least half is present.
    Promote {
        /// Whose.
        process: ProcessId,
        /// Which region.
        #[serde(serialize_with = "wire::address")]
        region: u64,
        /// To what.
        #[serde(serialize_with = "wire::page_size")]
        size: PageSize,
        /// Why.
        reason: Reason,
    },
    /// Split a huge page to base pages. All stay present.
    Demote {
        /// Whose.
        process: ProcessId,
        /// Which region.
        #[serde(serialize_with = "wire::address")]
        region: u64,
        /// Why.
        reason: Reason,
    },
    /// Split a huge page and free those of its base pages that hold only zeros.
    Recover {
        /// Whose.
        process: ProcessId,
        /// Which region.
        #[serde(serialize_with = "wire::address")]
        region: u64,
        /// Why.
        reason: Reason,
    },
    /// Clear the accessed bits of these ranges and read them after the window. Whoever observes may do it later or
    /// less often, where its budget says so.
    Sample {
        /// Whose.
        process: ProcessId,
        /// Whole regions, ascending, disjoint.
        #[serde(serialize_with = "range_list")]
        ranges: Vec<VirtRange>,
        /// From clearing to reading.
        #[serde(serialize_with = "wire::seconds", rename = "window_seconds")]
        window: Duration,
        /// Why.
        reason: Reason,
    },
    /// Count the zero-filled base pages of these huge pages.
    ZeroScan {
        /// Whose.
        process: ProcessId,
        /// Which regions, ascending.
        #[serde(serialize_with = "address_list")]
        regions: Vec<u64>,
        /// Why.
        reason: Reason,
    },
    /// Fill free 2 MiB blocks with zeros ahead of the faults that will take them. A stock kernel offers no way to
    /// that: there, this is not obtained.
    PreZero {
        /// How many 2 MiB blocks.
        blocks: u64,
        /// Why.
        reason: Reason,
    },
}

impl Action {
    /// The process; `None` for what concerns the machine.
    pub fn process(&self) -> Option<ProcessId> {
        match self {
            Action::Promote { process, .. }
            | Action::Demote { process, .. }
            | Action::Recover { process, .. }
            | Action::Sample { process, .. }
            | Action::ZeroScan { process, .. } => Some(*process),
            Action::PreZero { .. } => None,
        }
    }

    /// The one region that is changed; `None` where none or several are concerned.
    pub fn region(&self) -> Option<u64> {
        match self {
            Action::Promote { region, .. }
            | Action::Demote { region, .. }
            | Action::Recover { region, .. } => Some(*region),
            Action::Sample { .. } | Action::ZeroScan { .. } | Action::PreZero { .. } => None,
        }
    }

    /// Why.
    pub fn reason(&self) -> Reason {
        match self {
            Action::Promote { reason, .. }
            | Action::Demote { reason, .. }
            | Action::Recover { reason, .. }
            | Action::Sample { reason, .. }
            | Action::ZeroScan { reason, .. }
            | Action::PreZero { reason, .. } => *reason,
        }
    }
}

/// What became of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obtained {
    /// The page tables show it.
    Done,
    /// Something holds the pages for now: pinned, locked, off the LRU (EAGAIN, EBUSY). Worth another try.
    Busy,
    /// This region cannot (EINVAL): no page table, not allowed, registered with userfaultfd(2).
    Impossible,
    /// No free or compactable memory (ENOMEM): of no use for any region for a while.
    NoMemory,
    /// The kernel refuses this process (EPERM).
    Denied,
    /// The process has ended.
    Gone,
    /// This machine cannot do such a thing at all, such as collapse to this size.
    Unsupported,
}

/// An action and what became of it. Policies learn from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// What was asked.
    pub action: Action,
    /// What was obtained.
    pub obtained: Obtained,
}

fn range_list<S: Serializer>(ranges: &[VirtRange], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(ranges.iter().map(|range| [format!("{:x}", range.start()), format!("{:x}", range.end())]))
}

fn address_list<S: Serializer>(addresses: &[u64], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(addresses.iter().map(|address| format!("{address:x}")))
}
