//! Actions that a policy requests, and their outcomes.

use megapage_snapshot::{ProcessId, wire};
use megapage_units::{HugePage, PageSize, VirtRange};
use serde::{Serialize, Serializer};
use std::time::Duration;

megapage_units::named! {
    /// Reason for the request of an action. Each is one rule of one policy.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Reason {
        /// The region is next in the order of addresses.
        AddressOrder = "address-order",
        /// All 512 base pages are present.
        FullyPopulated = "fully-populated",
        /// Enough of the base pages are present.
        Utilised = "utilised",
        /// Memory is hardly fragmented: a huge page is cheap to get.
        Unfragmented = "unfragmented",
        /// The region has the highest access coverage.
        Coverage = "coverage",
        /// The process has the highest translation cost.
        TranslationCost = "translation-cost",
        /// The region has the highest gain for each byte copied, zeroed and bound.
        Gain = "gain",
        /// The process has less huge memory than its guaranteed share.
        GuaranteedShare = "guaranteed-share",
        /// A size below 2 MiB, as 2 MiB would bind too much unused memory.
        WouldBloat = "would-bloat",
        /// The huge page is no longer fully populated.
        Depopulated = "depopulated",
        /// Memory runs short and this huge page holds zeros.
        Bloat = "bloat",
        /// The process or its control group has more huge memory than its cap.
        OverCap = "over-cap",
        /// A period has passed.
        Period = "period",
        /// Memory runs short and the place of the zeros is unknown.
        Shortage = "shortage",
        /// Later faults should find memory that is already zero.
        FaultLatency = "fault-latency",
        /// The actuator ends and undoes its changes. No policy uses this.
        Undo = "undo",
    }
}

/// Request of a policy that a running machine carries out. A region is the address range of one
/// huge page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "action")]
pub enum Action {
    /// Collapse of a region. A `size` of 2 MiB gives one huge page. A smaller one (mTHP) collapses
    /// each aligned block of `size` in the region with at least half of its pages present.
    Promote {
        /// The process.
        process: ProcessId,
        /// The region.
        #[serde(serialize_with = "wire::address")]
        region: HugePage,
        /// Page size to collapse to.
        #[serde(serialize_with = "wire::page_size")]
        size: PageSize,
        /// The reason.
        reason: Reason,
    },
    /// Split of a huge page into base pages. All stay present.
    Demote {
        /// The process.
        process: ProcessId,
        /// The region.
        #[serde(serialize_with = "wire::address")]
        region: HugePage,
        /// The reason.
        reason: Reason,
    },
    /// Split of a huge page, with release of its base pages that hold only zeros.
    Recover {
        /// The process.
        process: ProcessId,
        /// The region.
        #[serde(serialize_with = "wire::address")]
        region: HugePage,
        /// The reason.
        reason: Reason,
    },
    /// Count of the zero-filled base pages in these huge pages.
    ZeroScan {
        /// The process.
        process: ProcessId,
        /// The regions, ascending.
        #[serde(serialize_with = "address_list")]
        regions: Vec<HugePage>,
        /// The reason.
        reason: Reason,
    },
}

/// Request of a policy that only the simulator's machine carries out, and no running one. On a
/// running machine, the observer samples on its own schedule, within the budget of each process. No
/// interface of a stock kernel fills free memory with zeros ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelAction {
    /// Clearing of the accessed bits of these ranges, and reading of them after the window. If this
    /// would slow the process too much, the model may do it later or less often.
    Sample {
        /// The process.
        process: ProcessId,
        /// Whole regions, ascending, disjoint.
        ranges: Vec<VirtRange>,
        /// Time from clearing to reading.
        window: Duration,
        /// The reason.
        reason: Reason,
    },
    /// Zero-filling of free 2 MiB blocks ahead of the faults that will take them.
    PreZero {
        /// Number of 2 MiB blocks.
        blocks: u64,
        /// The reason.
        reason: Reason,
    },
}

/// Request of a policy to a modelled machine. One type for both kinds keeps the order among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A request that a running machine can carry out, too.
    Action(Action),
    /// A request that only a modelled machine can carry out.
    Model(ModelAction),
}

impl Action {
    /// Returns the process.
    pub fn process(&self) -> ProcessId {
        match self {
            Action::Promote { process, .. }
            | Action::Demote { process, .. }
            | Action::Recover { process, .. }
            | Action::ZeroScan { process, .. } => *process,
        }
    }

    /// Returns the one region that the action changes; `None` if it changes none.
    pub fn region(&self) -> Option<HugePage> {
        match self {
            Action::Promote { region, .. }
            | Action::Demote { region, .. }
            | Action::Recover { region, .. } => Some(*region),
            Action::ZeroScan { .. } => None,
        }
    }

    /// Returns the process and the one region that the action changes; `None` if it changes none.
    pub fn place(&self) -> Option<(ProcessId, HugePage)> {
        self.region().map(|region| (self.process(), region))
    }

    /// Returns the reason.
    pub fn reason(&self) -> Reason {
        match self {
            Action::Promote { reason, .. }
            | Action::Demote { reason, .. }
            | Action::Recover { reason, .. }
            | Action::ZeroScan { reason, .. } => *reason,
        }
    }
}

megapage_units::named! {
    /// Result of an action.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Obtained {
        /// The page tables show the effect.
        Done = "done",
        /// Something holds the pages for now: pinned, locked, off the LRU (EAGAIN, EBUSY). Another
        /// try is worth it.
        Busy = "busy",
        /// This region cannot be changed (EINVAL): no page table, not allowed, registered with
        /// userfaultfd(2).
        Impossible = "impossible",
        /// No free or compactable memory (ENOMEM). Further tries on any region fail for a while.
        NoMemory = "no-memory",
        /// The kernel refuses this process (EPERM).
        Denied = "denied",
        /// The process has ended.
        Gone = "gone",
        /// This machine cannot do such an action at all, such as a collapse to this size.
        Unsupported = "unsupported",
    }
}

/// An action and its result. Policies learn from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The requested action.
    pub action: Action,
    /// The result.
    pub obtained: Obtained,
}

fn address_list<S: Serializer>(pages: &[HugePage], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(pages.iter().map(|page| format!("{page:x}")))
}
