//! Steps of a transaction, from a request and the present values; or the reason to refuse it.

use super::error::PoolError;
use super::impact::MemoryImpact;
use super::spec::{Amount, SizeName, Spec};
use megapage_kernel::hugetlb::{self, PoolCounts, PoolFile, PoolScope};
use megapage_kernel::{KernelRoot, MemInfo, meminfo, node_meminfo};
use megapage_observe::wire;
use megapage_units::{Bytes, PageSize};
use serde::{Serialize, Serializer};
use std::time::Duration;

/// Returns the available memory that is not used unless `force` is given: 512 MiB or 5 % of all
/// memory, whichever is more. Free hugetlb pages serve only hugetlb mappings, so a machine below
/// this starts to reclaim, then to kill.
pub fn floor(total: Bytes) -> Bytes {
    Bytes::mib(512).max(Bytes(total.0 / 20))
}

/// Request to size pools.
#[derive(Clone, Debug)]
pub struct Request {
    /// Pools to size.
    pub pools: Vec<Spec>,
    /// Overcommit limits (surplus pages on demand) to set.
    pub overcommit: Vec<Spec>,
    /// The node of values that name none; `None` for the machine.
    pub node: Option<u32>,
    /// True to go below the [`floor`], and to shrink below the pages in use.
    pub force: bool,
    /// Time for which a shortfall is worked on. No new attempt starts after it.
    pub timeout: Duration,
    /// True to restore the former values unless every page is obtained.
    pub roll_back: bool,
}

/// One write: a value of one pool, from its present to its target value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The pool's page size.
    #[serde(serialize_with = "wire::page_size", rename = "page_size")]
    pub size: PageSize,
    /// The machine or a node.
    #[serde(serialize_with = "node", rename = "node")]
    pub scope: PoolScope,
    /// Pages, or the overcommit limit.
    #[serde(serialize_with = "value", rename = "figure")]
    pub file: PoolFile,
    /// The value before: persistent pages, or the overcommit limit.
    pub before: u64,
    /// The value asked for.
    pub asked: u64,
    /// Pages that turn into surplus because they are in use or reserved. They go back to the kernel
    /// when they are freed.
    pub becomes_surplus: u64,
    /// The pool's pages before and after, surplus included: the step's cost in memory.
    #[serde(skip)]
    total: (u64, u64),
}

impl Step {
    /// Returns true if the value is already as asked.
    pub fn is_no_op(&self) -> bool {
        self.before == self.asked
    }

    /// Returns the memory that the step takes, less the memory that it releases.
    fn memory(&self) -> i128 {
        match self.file {
            PoolFile::Pages => {
                (i128::from(self.total.1) - i128::from(self.total.0)) * i128::from(self.size.bytes().0)
            }
            PoolFile::Overcommit => 0,
        }
    }
}

/// Writes `null` for the machine.
fn node<S: Serializer>(scope: &PoolScope, to: S) -> Result<S::Ok, S::Error> {
    match scope {
        PoolScope::Machine => to.serialize_none(),
        PoolScope::Node(node) => to.serialize_u32(*node),
    }
}

fn value<S: Serializer>(file: &PoolFile, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(match file {
        PoolFile::Pages => "pages",
        PoolFile::Overcommit => "overcommit",
    })
}

/// Steps of one transaction, in the order in which they are made. Overcommit limits come first (the
/// kernel may refuse them outright), then pools that shrink, then those that grow; the largest
/// pages come first.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Steps, no-ops included.
    pub steps: Vec<Step>,
    /// Their memory impact.
    pub memory: MemoryImpact,
    /// As in the request.
    pub timeout: Duration,
    /// As in the request.
    pub roll_back: bool,
}

/// Reads the present values. Refuses unknown sizes and nodes, and contradictory, absurd or unsafe
/// requests.
pub fn plan(root: &KernelRoot, request: &Request) -> Result<Plan, PoolError> {
    let info = meminfo(root)?;
    let mut steps = Vec::new();
    for (file, specs) in [(PoolFile::Overcommit, &request.overcommit), (PoolFile::Pages, &request.pools)] {
        for spec in specs {
            steps.extend(steps_of(root, &info, request, file, spec)?);
        }
    }
    if steps.is_empty() {
        return Err(PoolError::NothingAsked);
    }
    refuse_contradictions(&steps)?;
    steps.sort_by_key(|step| {
        let grows = step.asked > step.before;
        (step.file == PoolFile::Pages, grows, std::cmp::Reverse(step.size), step.scope)
    });
    let memory = weigh(root, &info, &steps, request.force)?;
    Ok(Plan { steps, memory, timeout: request.timeout, roll_back: request.roll_back })
}

/// Returns the page size that a spec names, if this kernel has it.
pub(super) fn resolve_size(root: &KernelRoot, info: &MemInfo, spec: &Spec) -> Result<PageSize, PoolError> {
    let known = hugetlb::page_sizes(root)?;
    if known.is_empty() {
        return Err(PoolError::NoHugetlb);
    }
    let size = match spec.size {
        SizeName::Size(size) => size,
        SizeName::Default => info.default_huge_size.ok_or(PoolError::NoHugetlb)?,
    };
    if !known.contains(&size) {
        let list = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(PoolError::UnknownSize { spec: spec.text.clone(), size, known: list });
    }
    Ok(size)
}

fn steps_of(
    root: &KernelRoot,
    info: &MemInfo,
    request: &Request,
    file: PoolFile,
    spec: &Spec,
) -> Result<Vec<Step>, PoolError> {
    let size = resolve_size(root, info, spec)?;
    let mut steps = Vec::new();
    for &(scope, amount) in &spec.amounts {
        let scope = match (scope, request.node) {
            (PoolScope::Machine, Some(node)) => PoolScope::Node(node),
            (PoolScope::Node(_), Some(_)) => return Err(PoolError::NodeTwice { spec: spec.text.clone() }),
            (scope, None) => scope,
        };
        if let PoolScope::Node(node) = scope {
            if file == PoolFile::Overcommit {
                return Err(PoolError::OvercommitOfNode { spec: spec.text.clone() });
            }
            let known = hugetlb::nodes(root)?;
            if !known.contains(&node) {
                let list = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                return Err(PoolError::UnknownNode { node, known: list });
            }
        }
        let values = hugetlb::counts(root, size, scope)?;
        steps.push(step(spec, size, scope, file, &values, amount)?);
    }
    Ok(steps)
}

fn step(
    spec: &Spec,
    size: PageSize,
    scope: PoolScope,
    file: PoolFile,
    values: &PoolCounts,
    amount: Amount,
) -> Result<Step, PoolError> {
    let before = match file {
        PoolFile::Pages => values.persistent(),
        PoolFile::Overcommit => values.overcommit.unwrap_or(0),
    };
    let (Amount::Exactly(quantity) | Amount::More(quantity) | Amount::Less(quantity)) = amount;
    let pages = quantity.pages(size).ok_or_else(|| PoolError::NotWhole { spec: spec.text.clone(), size })?;
    let asked = match amount {
        Amount::Exactly(_) => Some(pages),
        Amount::More(_) => before.checked_add(pages),
        Amount::Less(_) => {
            let too_few = PoolError::TooFew { spec: spec.text.clone(), before };
            Some(before.checked_sub(pages).ok_or(too_few)?)
        }
    };
    // No machine has more than 2^64 pages, or bytes.
    let asked = asked
        .filter(|pages| pages.checked_mul(size.bytes().0).is_some())
        .ok_or_else(|| PoolError::Absurd { spec: spec.text.clone(), asked: None, bound: None })?;
    // As in set_max_huge_pages() of mm/hugetlb.c: growing takes pages out of surplus before it
    // allocates. Pages in use or reserved cannot be released and turn into surplus. Reserved pages
    // are known for the machine only. On a busy machine their count was seen below zero for a
    // moment, which reads as nearly 2^64.
    let held = values.in_use().saturating_add(values.reserved.unwrap_or(0));
    let total_after =
        if asked >= before { asked.max(values.total) } else { asked.max(held.min(values.total)) };
    let surplus_after = total_after - asked;
    Ok(Step {
        size,
        scope,
        file,
        before,
        asked,
        becomes_surplus: match file {
            PoolFile::Pages if asked < before => surplus_after.saturating_sub(values.surplus),
            _ => 0,
        },
        total: (values.total, total_after),
    })
}

/// Refuses two values for one pool in one transaction: it is unknown which one is meant.
fn refuse_contradictions(steps: &[Step]) -> Result<(), PoolError> {
    for (index, step) in steps.iter().enumerate() {
        for other in &steps[..index] {
            let overlap = step.scope == other.scope
                || step.scope == PoolScope::Machine
                || other.scope == PoolScope::Machine;
            if step.size == other.size && step.file == other.file && overlap {
                return Err(PoolError::Contradiction { size: step.size });
            }
        }
    }
    Ok(())
}

fn weigh(root: &KernelRoot, info: &MemInfo, steps: &[Step], force: bool) -> Result<MemoryImpact, PoolError> {
    let (Some(total), Some(available)) = (info.total, info.available) else {
        return Err(PoolError::NoMeminfo);
    };
    for step in steps {
        let bound = match step.scope {
            PoolScope::Machine => total,
            PoolScope::Node(node) => node_meminfo(root, node)?.total.unwrap_or(total),
        };
        // Cannot overflow: `step` has checked it.
        let asked = Bytes(step.asked * step.size.bytes().0);
        if step.asked > step.before && asked > bound {
            let spec = format!("{}={}", step.size, step.asked);
            return Err(PoolError::Absurd { spec, asked: Some(asked), bound: Some((step.scope, bound)) });
        }
        if step.becomes_surplus > 0 && !force {
            return Err(PoolError::InUse {
                size: step.size,
                asked: step.asked,
                scope: step.scope,
                becomes_surplus: step.becomes_surplus,
            });
        }
    }
    let cost: i128 = steps.iter().map(Step::memory).sum();
    let left = i128::from(available.0) - cost;
    let impact = MemoryImpact {
        total,
        available,
        available_after: Bytes(left.clamp(0, i128::from(u64::MAX)) as u64),
        floor: floor(total),
    };
    if cost > 0 {
        let swap = info.swap_free.unwrap_or(Bytes::ZERO);
        let cost = Bytes(cost as u64);
        if left + i128::from(swap.0) < 0 {
            return Err(PoolError::NotThere { cost, available, swap });
        }
        if left < i128::from(impact.floor.0) && !force {
            return Err(PoolError::BelowFloor { cost, impact });
        }
    }
    Ok(impact)
}
