//! Causes of missing pages, from the kernel's own values, and remedies.

use super::outcome::{StepOutcome, title};
use super::plan::Step;
use megapage_kernel::hugetlb::PoolScope;
use megapage_kernel::{KernelRoot, buddyinfo, meminfo, node_meminfo, pageblocks};
use megapage_observe::unmovable::{Unmovable, unmovable};
use megapage_observe::wire;
use megapage_units::{Bytes, PageSize};
use serde::Serialize;

/// Most processes that are named.
const HOLDERS: usize = 10;

/// Pages that a transaction did not obtain, with the evidence.
#[derive(Clone, Debug, Serialize)]
pub struct Shortfall {
    /// One entry for each step that fell short.
    pub missing: Vec<Missing>,
    /// Holders of memory that cannot be moved; `None` if `/proc` could not be read.
    pub unmovable: Option<Unmovable>,
}

/// Pages that one step did not obtain.
#[derive(Clone, Debug, Serialize)]
pub struct Missing {
    /// The pool, in words.
    pub pool: String,
    /// Number of pages.
    pub pages: u64,
    /// The main cause.
    pub cause: Cause,
    /// The cause with the values that show it.
    pub because: String,
    /// Remedies, the most promising first.
    pub help: Vec<String>,
    /// The values.
    pub evidence: Evidence,
}

/// The main cause of a shortfall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// There is not enough memory that could be freed.
    Memory,
    /// There is enough memory, but not in whole blocks of the page size.
    Fragmentation,
    /// The kernel does not report enough to know.
    Unknown,
}

/// The kernel's values for the machine or the node, after the last attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// Memory that the missing pages would take.
    #[serde(serialize_with = "wire::bytes")]
    pub needed_bytes: Bytes,
    /// `MemAvailable`; for a node its `MemFree`, because the kernel does not estimate a node's
    /// available memory.
    #[serde(serialize_with = "wire::some_bytes")]
    pub available_bytes: Option<Bytes>,
    /// Free memory in the page allocator.
    #[serde(serialize_with = "wire::some_bytes")]
    pub free_bytes: Option<Bytes>,
    /// Pages of this size that the allocator could hand out at once; `None` for sizes beyond its
    /// largest block.
    pub free_pages_of_size: Option<u64>,
    /// The share of free memory that lies in smaller blocks, 0 to 1.
    pub unusable_share: Option<f64>,
    /// Page blocks (2 MiB on x86-64) that hold unmovable or merely reclaimable memory. Only root
    /// can read it.
    pub unmovable_blocks: Option<u64>,
    /// All page blocks.
    pub blocks: Option<u64>,
}

/// Returns the shortfall; `None` if nothing is missing. `rolling_back` is true if the pages
/// obtained will be released.
pub(super) fn explain(root: &KernelRoot, outcomes: &[StepOutcome], rolling_back: bool) -> Option<Shortfall> {
    let missing: Vec<Missing> = outcomes
        .iter()
        .filter(|outcome| outcome.missing() > 0)
        .map(|outcome| missing(root, &outcome.step, outcome.missing(), rolling_back))
        .collect();
    (!missing.is_empty()).then(|| Shortfall { missing, unmovable: unmovable(root, HOLDERS).ok() })
}

fn missing(root: &KernelRoot, step: &Step, pages: u64, rolling_back: bool) -> Missing {
    let evidence = gather(root, step.size, step.scope, pages);
    let cause = judge(&evidence);
    Missing {
        pool: title(step),
        pages,
        cause,
        because: because(step.size, cause, &evidence),
        help: help(step, cause, &evidence, rolling_back),
        evidence,
    }
}

fn gather(root: &KernelRoot, size: PageSize, scope: PoolScope, pages: u64) -> Evidence {
    let of_scope = |node: u32| scope == PoolScope::Machine || scope == PoolScope::Node(node);
    let order = buddyinfo::order(size);
    let mut evidence =
        Evidence { needed_bytes: Bytes(pages.saturating_mul(size.bytes().0)), ..Evidence::default() };
    evidence.available_bytes = match scope {
        PoolScope::Machine => meminfo(root).ok().and_then(|info| info.available),
        PoolScope::Node(node) => node_meminfo(root, node).ok().and_then(|info| info.free),
    };
    if let Ok(zones) = buddyinfo::buddyinfo(root) {
        let zones: Vec<_> = zones.into_iter().filter(|zone| of_scope(zone.node)).collect();
        let free: Bytes = zones.iter().map(|zone| zone.free()).sum();
        let usable: Bytes = zones.iter().map(|zone| zone.free_from(order)).sum();
        evidence.free_bytes = Some(free);
        if zones.iter().any(|zone| order < zone.counts.len()) {
            evidence.free_pages_of_size = Some(zones.iter().map(|zone| zone.available(size)).sum());
            if free > Bytes::ZERO {
                evidence.unusable_share = Some(1.0 - usable.0 as f64 / free.0 as f64);
            }
        }
    }
    if let Ok(zones) = pageblocks::page_blocks(root)
        && !zones.is_empty()
    {
        let zones = zones.iter().filter(|zone| of_scope(zone.node));
        let (mut unmovable, mut all) = (0, 0);
        for zone in zones {
            unmovable += zone.unmovable + zone.reclaimable;
            all += zone.total;
        }
        (evidence.unmovable_blocks, evidence.blocks) = (Some(unmovable), Some(all));
    }
    evidence
}

fn judge(evidence: &Evidence) -> Cause {
    match evidence.available_bytes {
        Some(available) if available < evidence.needed_bytes => Cause::Memory,
        Some(_) => Cause::Fragmentation,
        None => Cause::Unknown,
    }
}

fn because(size: PageSize, cause: Cause, evidence: &Evidence) -> String {
    let say = |bytes: Option<Bytes>| bytes.map_or("an unknown amount".to_string(), |bytes| bytes.to_string());
    match cause {
        Cause::Memory => format!(
            "memory is short: they need {}, and {} is available",
            evidence.needed_bytes,
            say(evidence.available_bytes)
        ),
        Cause::Fragmentation => {
            let mut text = format!("memory is fragmented: {} is free, ", say(evidence.free_bytes));
            text += &match evidence.free_pages_of_size {
                Some(0) => format!("but nowhere a whole {size} page"),
                Some(1) => format!("but in one place only a whole {size} page"),
                Some(pages) => format!("but in {pages} places only a whole {size} page"),
                None => format!("but too few aligned, movable ranges of {}", size.bytes()),
            };
            if let (Some(unmovable), Some(all)) = (evidence.unmovable_blocks, evidence.blocks) {
                text += &format!("; {unmovable} of {all} page blocks hold memory that cannot be moved");
            }
            text
        }
        Cause::Unknown => "the kernel does not say how much memory is available".to_string(),
    }
}

fn help(step: &Step, cause: Cause, evidence: &Evidence, rolling_back: bool) -> Vec<String> {
    let size = step.size;
    let at_boot = format!(
        "reserve at boot, before memory is fragmented: megapage pool persist --boot {size}={} --apply",
        step.asked
    );
    let mut help = match cause {
        Cause::Memory => {
            vec![format!("end or shrink programs until {} more is available", evidence.needed_bytes)]
        }
        Cause::Fragmentation | Cause::Unknown => {
            vec![
                "restart the processes below that hold most unmovable memory, then try again".to_string(),
                at_boot,
            ]
        }
    };
    match cause {
        Cause::Memory => {}
        _ if size > PageSize::HUGE_2M => help.push(
            "where the kernel has CMA, keep room for them at boot: megapage pool persist --cma SIZE --apply"
                .to_string(),
        ),
        _ => help.push(
            "keep a part of memory movable: boot with movablecore=SIZE, and ask again then".to_string(),
        ),
    }
    if !rolling_back {
        help.push("give back what was obtained unless all is: --rollback-on-shortfall".to_string());
    }
    help
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tree(available_kib: u64, buddy: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("proc")).unwrap();
        let meminfo = format!("MemTotal: 2000000 kB\nMemAvailable: {available_kib} kB\n");
        fs::write(tree.path().join("proc/meminfo"), meminfo).unwrap();
        fs::write(tree.path().join("proc/buddyinfo"), buddy).unwrap();
        let blocks = "Number of blocks type Unmovable Movable Reclaimable\nNode 0, zone Normal 600 380 20\n";
        fs::write(tree.path().join("proc/pagetypeinfo"), blocks).unwrap();
        tree
    }

    fn judged(tree: &tempfile::TempDir, size: PageSize, pages: u64) -> (Cause, String) {
        let root = KernelRoot::captured(tree.path());
        let evidence = gather(&root, size, PoolScope::Machine, pages);
        (judge(&evidence), because(size, judge(&evidence), &evidence))
    }

    const SCATTERED: &str = "Node 0, zone Normal 1000 1000 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn too_little_memory_is_distinguished_from_scattered_memory() {
        let short = judged(&tree(1024, SCATTERED), PageSize::HUGE_2M, 600);
        assert_eq!(short.0, Cause::Memory);
        assert_eq!(short.1, "memory is short: they need 1.17 GiB, and 1 MiB is available");

        let scattered = judged(&tree(1_900_000, SCATTERED), PageSize::HUGE_2M, 600);
        assert_eq!(scattered.0, Cause::Fragmentation);
        assert_eq!(
            scattered.1,
            "memory is fragmented: 11.7 MiB is free, but nowhere a whole 2m page; 620 of 1000 page blocks hold \
             memory that cannot be moved"
        );
        let gigantic = judged(&tree(1_900_000, SCATTERED), PageSize::HUGE_1G, 1);
        assert!(gigantic.1.contains("too few aligned, movable ranges of 1 GiB"), "{}", gigantic.1);
    }

    #[test]
    fn nothing_missing_needs_no_explanation() {
        let tree = tree(1, SCATTERED);
        assert!(explain(&KernelRoot::captured(tree.path()), &[], false).is_none());
    }
}
