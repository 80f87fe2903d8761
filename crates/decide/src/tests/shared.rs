//! Shared memory: promoted once for all processes that map it.

use super::made::*;
use crate::megapage::Megapage;
use crate::{Limits, POLICIES, Policy, State};
use megapage_snapshot::{HugePages, Leaf, MappedObject, MappingKind, PAGES, Process, Region};
use std::collections::BTreeSet;
use std::time::Duration;

/// Returns a process that maps one object from `offset` on, and has touched `present` pages of each
/// of 40 regions.
fn sharing(pid: i32, inode: u64, offset: u64, present: u16) -> Process {
    let mut process = process(pid, (0..40).map(|n| accessed(base(n, present), present, SECOND)).collect());
    let mapping = &mut process.mappings[0];
    (mapping.kind, mapping.flags.shared) = (MappingKind::Shared, true);
    mapping.object = Some(MappedObject { device: (0, 1), inode, offset });
    process
}

/// Returns the regions of these processes that a policy promotes in 80 steps without any effect.
fn promoted_by(policy: Box<dyn Policy>, processes: &[Process]) -> BTreeSet<(i32, u64)> {
    let mut state = State::new(policy, Limits::default());
    let mut found = BTreeSet::new();
    for second in 1..80 {
        let now = SECOND * 10 * second;
        let mut processes = processes.to_vec();
        for process in &mut processes {
            process.cpu += now;
            for accessed in process.regions.iter_mut().filter_map(|region| region.accessed.as_mut()) {
                (accessed.sampled, accessed.last) = (now, Some(now));
            }
        }
        found.extend(promoted(&run(now, &snapshot(now, 0.2, processes), &mut state)));
    }
    found
}

fn ours() -> Box<dyn Policy> {
    Box::new(Megapage::new(constants()))
}

#[test]
fn each_block_is_promoted_by_the_process_that_uses_it_most() {
    let idle = Process { cpu: Duration::ZERO, ..sharing(1, 7, 0, PAGES) };
    let least = sharing(2, 7, 0, 300);
    let most = sharing(3, 7, 0, PAGES);
    let found = promoted_by(ours(), &[idle, least, most]);
    assert_eq!(found, (0..40).map(|n| (3, n)).collect(), "40 blocks, once each");
}

#[test]
fn every_policy_that_sees_it_promotes_it_once() {
    let processes = [sharing(1, 7, 0, PAGES), sharing(2, 7, 0, PAGES)];
    let mut who = Vec::new();
    for known in POLICIES {
        let found = promoted_by(known.make(), &processes);
        let regions: BTreeSet<u64> = found.iter().map(|(_, region)| *region).collect();
        assert_eq!(found.len(), regions.len(), "{}: {found:?}", known.name);
        if !regions.is_empty() {
            who.push(known.name);
        }
    }
    for name in ["megapage", "ingens", "freebsd", "hawkeye-g"] {
        assert!(who.contains(&name), "{name}: {who:?}");
    }
}

#[test]
fn what_can_not_be_mapped_huge_is_left_alone() {
    assert!(promoted_by(ours(), &[sharing(1, 7, 4096, PAGES)]).is_empty(), "address and offset disagree");
    let mut private = sharing(1, 7, 0, PAGES);
    private.mappings[0].flags.shared = false;
    assert!(promoted_by(ours(), &[private]).is_empty(), "a private mapping of a memory file");
    let disabled = Process { thp_disabled: true, ..sharing(1, 7, 0, PAGES) };
    assert!(promoted_by(ours(), std::slice::from_ref(&disabled)).is_empty());
    let found = promoted_by(ours(), &[disabled, sharing(2, 7, 0, 300)]);
    assert_eq!(found.len(), 40, "by another that maps it");
    // Another object at the same addresses has its own blocks.
    let found = promoted_by(ours(), &[sharing(1, 7, 0, PAGES), sharing(2, 8, 0, PAGES)]);
    assert_eq!(found.len(), 80);
}

#[test]
fn a_block_that_is_huge_for_one_is_huge_for_all() {
    let mut first = sharing(1, 7, 0, PAGES);
    for region in &mut first.regions[..30] {
        *region = Region { leaf: Leaf::Huge2m, present: PAGES, ..region.clone() };
    }
    let second = sharing(2, 7, 0, PAGES);
    let found = promoted_by(ours(), &[first.clone(), second.clone()]);
    assert!(found.iter().all(|(_, region)| *region >= 30) && found.len() == 10, "{found:?}");
    assert_eq!(HugePages::of([&first, &first]), 30, "mapped twice, counted once");
    let other = sharing(2, 7, 4 << 21, PAGES);
    assert_eq!(first.shared_block(&first.regions[4]), other.shared_block(&other.regions[0]));
}

#[test]
fn a_fork_keeps_private_memory_back_and_shared_memory_not() {
    let mut forks = sharing(1, 7, 0, PAGES);
    forks.sharing_children = Some(1);
    assert_eq!(promoted_by(ours(), &[forks.clone()]).len(), 40);
    let mut private = process(1, (0..40).map(|n| accessed(base(n, PAGES), PAGES, SECOND)).collect());
    private.sharing_children = Some(1);
    assert!(promoted_by(ours(), &[private]).is_empty());
}
