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
    /// Memory runs short and it is unknown where the zeros are.
    Shortage,
    /// Faults to come should find memory that is already zero.
    FaultLatency,
    /// The actuator ends, and takes back what it did. No policy's.
    Undo,
}

/// What a policy asks for: each of these a running machine carries out. Regions are named by their first address, a multiple of 2 MiB.
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
}

/// What a policy asks the simulator's machine for, and no running one: there, the observer samples on a schedule of its own,
/// within the budget of each process, and no interface of a stock kernel fills free memory with zeros ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelAction {
    /// Clear the accessed bits of these ranges and read them after the window. The model may do it later or less often, where
    /// it would slow the process too much.
    Sample {
        /// Whose.
        process: ProcessId,
        /// Whole regions, ascending, disjoint.
        ranges: Vec<VirtRange>,
        /// From clearing to reading.
        window: Duration,
        /// Why.
        reason: Reason,
    },
    /// Fill free 2 MiB blocks with zeros ahead of the faults that will take them.
    PreZero {
        /// How many 2 MiB blocks.
        blocks: u64,
        /// Why.
        reason: Reason,
    },
}

/// What a policy asks of a modelled machine, where its order among the others matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// What a running machine can be asked for, too.
    Action(Action),
    /// What only a modelled one can.
    Model(ModelAction),
}

impl Action {
    /// The process.
    pub fn process(&self) -> ProcessId {
        match self {
            Action::Promote { process, .. }
            | Action::Demote { process, .. }
            | Action::Recover { process, .. }
            | Action::ZeroScan { process, .. } => *process,
        }
    }

    /// The one region that is changed; `None` where none is.
    pub fn region(&self) -> Option<u64> {
        match self {
            Action::Promote { region, .. }
            | Action::Demote { region, .. }
            | Action::Recover { region, .. } => Some(*region),
            Action::ZeroScan { .. } => None,
        }
    }

    /// The process and its one region that is changed; `None` where none is.
    pub fn place(&self) -> Option<(ProcessId, u64)> {
        self.region().map(|region| (self.process(), region))
    }

    /// Why.
    pub fn reason(&self) -> Reason {
        match self {
            Action::Promote { reason, .. }
            | Action::Demote { reason, .. }
            | Action::Recover { reason, .. }
            | Action::ZeroScan { reason, .. } => *reason,
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
    /// What was requested.
    pub action: Action,
    /// What was obtained.
    pub obtained: Obtained,
}

fn address_list<S: Serializer>(addresses: &[u64], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(addresses.iter().map(|address| format!("{address:x}")))
}
