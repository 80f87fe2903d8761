//! A fork between the decision to promote and the promotion. The test needs a process for itself:
//! any other fork in it would share its memory as well.

use megapage_act::Bounds;
use megapage_act::promote::{Promotion, candidates, identify, part_shared};
use megapage_decide::Promotions;
use megapage_kernel::KernelRoot;
use megapage_lab::machine::HeldChild;
use megapage_testing::{MachineLock, is_root, skip};
use megapage_units::{HUGE_2M, Pid, VirtRange};

#[test]
fn what_a_fork_shares_is_left_alone_until_the_child_is_gone() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to promote memory");
    }
    let _lock = MachineLock::take();
    let root = KernelRoot::live();
    let own = Pid(std::process::id().cast_signed());
    let mut memory = vec![1u8; 16 << 20];
    let start = memory.as_ptr().addr() as u64;
    let inside = VirtRange::new(start, start + memory.len() as u64).unwrap();
    // First the decision...
    let mut regions = candidates(&root, own, 256, 10_000).unwrap().regions;
    regions.retain(|region| region.range().intersection(inside) == Some(region.range()));
    if regions.is_empty() {
        return skip("this system gives huge pages unasked: nothing is left to promote");
    }
    assert!(part_shared(&root, own, regions.clone()).unwrap().1.is_empty());
    // ... then the fork, then the call.
    let child = HeldChild::fork().unwrap();
    let process = identify(&root, own).unwrap();
    let promotion = Promotion { process, regions: regions.clone(), bounds: Bounds::default() };
    let mut promotions = Promotions::default();
    let outcome = promotion.apply_patiently(&root, &mut promotions).unwrap();
    assert_eq!((outcome.shared, outcome.calls), (regions.len() as u64, 0), "{outcome:?}");
    assert_eq!(outcome.obtained_bytes, 0);
    // A page that the parent has written again is its own; the rest of its region is not.
    memory[(regions[0].start() - start) as usize] = 2;
    assert_eq!(part_shared(&root, own, regions.clone()).unwrap().1, regions);
    let first = (regions[0].start() - start) as usize;
    memory[first..first + HUGE_2M].fill(2);
    let (free, shared) = part_shared(&root, own, regions.clone()).unwrap();
    assert_eq!((free, shared.len()), (regions[..1].to_vec(), regions.len() - 1));
    drop(child);
    assert_eq!(part_shared(&root, own, regions.clone()).unwrap().0, regions);
    let outcome = promotion.apply_patiently(&root, &mut promotions).unwrap();
    assert_eq!((outcome.shared, outcome.not_tried), (0, 0), "{outcome:?}");
    // Something may hold one for a moment, but not all of them.
    assert!(outcome.obtained_bytes >= outcome.asked_bytes / 2, "{outcome:?}");
    assert!(memory[first..first + HUGE_2M].iter().all(|&byte| byte == 2));
    assert!(memory[first + HUGE_2M..].iter().all(|&byte| byte == 1));
}
