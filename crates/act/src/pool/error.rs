//! Reasons that a pool cannot be set as asked, in one line each.

use super::impact::MemoryImpact;
use megapage_kernel::KernelError;
use megapage_kernel::hugetlb::PoolScope;
use megapage_units::{Bytes, PageSize};
use thiserror::Error;

/// A request that was refused. Nothing has been changed, or the former values were restored.
#[derive(Debug, Error)]
pub enum PoolError {
    /// No spec at all.
    #[error("nothing is asked for; name a pool, such as 2m=512")]
    NothingAsked,
    /// The kernel has no pools.
    #[error(
        "this kernel has no hugetlb pools (it was built without CONFIG_HUGETLBFS, or booted with hugepages off)"
    )]
    NoHugetlb,
    /// The kernel has no pool of that size.
    #[error("'{spec}': this kernel has no pool of {size} pages; it has {known}")]
    UnknownSize {
        /// The argument.
        spec: String,
        /// Its page size.
        size: PageSize,
        /// The sizes that the kernel has.
        known: String,
    },
    /// The machine has no such node.
    #[error("this machine has no node {node}; it has {known}")]
    UnknownNode {
        /// The node named.
        node: u32,
        /// The nodes that the machine has.
        known: String,
    },
    /// `--node` and a node in the spec.
    #[error("'{spec}' names its nodes itself; leave out --node")]
    NodeTwice {
        /// The argument.
        spec: String,
    },
    /// The kernel keeps overcommit limits for the machine only.
    #[error("'{spec}': overcommit cannot be set for a single node; leave the node out")]
    OvercommitOfNode {
        /// The argument.
        spec: String,
    },
    /// Memory that is no whole number of pages.
    #[error("'{spec}' is not a whole number of {size} pages")]
    NotWhole {
        /// The argument.
        spec: String,
        /// The page size.
        size: PageSize,
    },
    /// `-N` of a value below N.
    #[error("'{spec}' takes away more than there is: the value is {before}")]
    TooFew {
        /// The argument.
        spec: String,
        /// The present value.
        before: u64,
    },
    /// The same pool twice.
    #[error("two values are asked for the {size} pool; give one for the machine or one for each node")]
    Contradiction {
        /// The page size.
        size: PageSize,
    },
    /// More memory than there is, with or without `force`.
    #[error("'{spec}' {}", absurd(.asked, .bound))]
    Absurd {
        /// The argument.
        spec: String,
        /// The memory that it comes to; `None` if that is more than 2^64 bytes.
        asked: Option<Bytes>,
        /// The memory that the machine or the node has.
        bound: Option<(PoolScope, Bytes)>,
    },
    /// More than could be freed, with or without `force`.
    #[error(
        "{cost} more are asked for, but {available} of memory are available ({swap} of swap are free); ask for less"
    )]
    NotThere {
        /// Memory that the request takes.
        cost: Bytes,
        /// `MemAvailable`.
        available: Bytes,
        /// `SwapFree`.
        swap: Bytes,
    },
    /// The remainder of the machine would run short of memory.
    #[error(
        "taking {cost} would leave {} of memory available, below the safe floor of {}; ask for less, or pass --force",
        .impact.available_after, .impact.floor
    )]
    BelowFloor {
        /// Memory that the request takes.
        cost: Bytes,
        /// The values.
        impact: MemoryImpact,
    },
    /// Pages that are to be released are in use.
    #[error(
        "{size}={asked} for {scope} is less than what is in use or reserved: {becomes_surplus} pages would become \
         surplus; free them first, or pass --force"
    )]
    InUse {
        /// The page size.
        size: PageSize,
        /// The value asked for.
        asked: u64,
        /// The machine or a node.
        scope: PoolScope,
        /// Pages that would become surplus.
        becomes_surplus: u64,
    },
    /// `/proc/meminfo` lacks MemTotal or MemAvailable.
    #[error("the kernel does not say how much memory is available (MemAvailable, Linux 3.14)")]
    NoMeminfo,
    /// The caller is not root.
    #[error("{0}: permission denied; pools are set by root (sudo)")]
    Denied(String),
    /// A container's view of the machine.
    #[error("{0}: read-only; set pools on the host, outside this container")]
    ReadOnly(String),
    /// The kernel does not support this change for a pool of this size.
    #[error("{path}: the kernel refuses {what} for {size} pages{help}")]
    Refused {
        /// The file that was written.
        path: String,
        /// `changes while it runs` or `overcommit`.
        what: &'static str,
        /// The page size.
        size: PageSize,
        /// The remedy.
        help: &'static str,
    },
    /// A captured tree cannot be changed.
    #[error("pools are set on the running machine only")]
    NotLive,
    /// Another error of the kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

fn absurd(asked: &Option<Bytes>, bound: &Option<(PoolScope, Bytes)>) -> String {
    match (asked, bound) {
        (Some(asked), Some((scope, bound))) => format!("comes to {asked}, but {scope} has {bound} of memory"),
        _ => "comes to more than 2^64 bytes".to_string(),
    }
}
