//! Control groups near their memory limits.

use super::made::*;
use super::megapage::{unguaranteed, visited};
use crate::Action;
use crate::megapage::{Megapage, Parameters};
use megapage_snapshot::{AccessClass, MemoryLimit, PAGES, Process, Region};
use megapage_units::Bytes;

/// Returns the process in a group of 1 GiB with this share in use.
fn limited(mut process: Process, group: &str, in_use: f64) -> Process {
    let limit = Bytes::gib(1);
    let usage = Bytes((limit.0 as f64 * in_use) as u64);
    process.memory_limit = Some(MemoryLimit { group: group.into(), limit, usage });
    process
}

#[test]
fn a_group_near_its_limit_is_relieved_by_its_own_bloat_alone() {
    let bloated = |pid| process(pid, (0..100).map(|n| huge(n, 400)).collect());
    let free = bloated(1);
    let full = limited(bloated(2), "/full", 0.9);
    let roomy = limited(bloated(3), "/roomy", 0.5);
    let seen = snapshot(SECOND, 0.3, vec![free, full, roomy]);
    let actions = run(SECOND, &seen, &mut state(Megapage::new(Parameters::default())));
    let demoted = demoted(&actions);
    assert!(demoted.iter().all(|(pid, _)| *pid == 2), "{demoted:?}");
    // From 90 % to 75 % of 1 GiB, 400 of 512 pages each.
    assert_eq!(demoted.len(), (0.15 * 1024.0 / (400.0 * 4096.0 / 1048576.0_f64)).ceil() as usize);
}

#[test]
fn a_full_group_whose_zeros_are_not_known_is_scanned_and_not_promoted() {
    let mut regions: Vec<Region> = (0..50).map(|n| Region { zeros: None, ..huge(n, 0) }).collect();
    regions.extend((50..90).map(|n| visited(base(n, PAGES), 1e5, AccessClass::Dependent)));
    let full = limited(process(2, regions.clone()), "/full", 0.9);
    let same = process(3, regions);
    let seen = snapshot(SECOND, 0.3, vec![full, same]);
    let actions = run(SECOND, &seen, &mut state(Megapage::new(unguaranteed())));
    let scanned = |action: &&Action| matches!(action, Action::ZeroScan { .. });
    let who: Vec<i32> = actions.iter().filter(scanned).map(|action| action.process().pid.0).collect();
    assert_eq!(who, [2]);
    assert!(!promoted(&actions).is_empty() && promoted(&actions).iter().all(|(pid, _)| *pid == 3));
}

#[test]
fn promotions_bind_no_more_than_a_group_has_room_for() {
    let sparse: Vec<Region> = (0..100).map(|n| visited(base(n, 412), 1e5, AccessClass::Dependent)).collect();
    let bound = |in_use| {
        let seen = snapshot(SECOND, 0.3, vec![limited(process(1, sparse.clone()), "/g", in_use)]);
        promoted(&run(SECOND, &seen, &mut state(Megapage::new(unguaranteed())))).len() as f64 * 100.0 * 4096.0
    };
    assert_eq!(bound(0.3), 100.0 * 100.0 * 4096.0);
    let room = (0.75 - 0.73) * 1024.0 * 1048576.0;
    assert!(bound(0.73) <= room, "{}", bound(0.73));
}

#[test]
fn a_group_that_fills_fast_is_short_before_it_is_full() {
    let mut state = state(Megapage::new(Parameters::default()));
    let seen = |second: u32, in_use| {
        let bloated = process(1, (0..100).map(|n| huge(n, 400)).collect());
        snapshot(SECOND * second, 0.3, vec![limited(bloated, "/g", in_use)])
    };
    assert!(demoted(&run(SECOND, &seen(1, 0.5), &mut state)).is_empty());
    // At 2 % a second it is full in 20 s.
    assert!(!demoted(&run(SECOND * 2, &seen(2, 0.52), &mut state)).is_empty());
}

#[test]
fn a_group_that_was_filled_fast_and_stays_below_its_mark_is_promoted_in() {
    // Half of its regions are whole, and the others lack a page. Counts the promotions after the
    // group was filled like this.
    let promoted_after = |uses: &[(u32, f64)]| {
        let mut state = state(Megapage::new(unguaranteed()));
        let hot = |n, present| visited(base(n, present), 1e5, AccessClass::Dependent);
        let regions = (0..80).map(|n| hot(n, PAGES - u16::from(n % 2 == 1))).collect();
        let (last, before) = uses.split_last().unwrap();
        let mut seen = |(second, in_use): (u32, f64), regions: Vec<Region>| {
            let process = limited(process(1, regions), "/g", in_use);
            run(SECOND * second, &snapshot(SECOND * second, 0.3, vec![process]), &mut state)
        };
        before.iter().for_each(|step| drop(seen(*step, vec![huge(0, 0)])));
        promoted(&seen(*last, regions)).len()
    };
    assert_eq!(promoted_after(&[(1, 0.4), (2, 0.5)]), 40, "10 % a second: short is what is to come");
    assert_eq!(promoted_after(&[(1, 0.4), (5, 0.8), (60, 0.8), (61, 0.8)]), 40, "and it did not come");
    assert_eq!(promoted_after(&[(1, 0.4), (5, 0.9)]), 0, "it did");
    assert_eq!(promoted_after(&[(1, 0.4), (5, 0.9), (60, 0.8)]), 0, "until the low watermark is reached");
    assert_eq!(promoted_after(&[(1, 0.4), (5, 0.9), (60, 0.3), (61, 0.3)]), 80);
}
