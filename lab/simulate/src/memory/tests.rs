use super::*;

const MIB: u64 = 1 << 20;

#[test]
fn small_orders_go_first_so_that_whole_blocks_last() {
    let mut memory = Memory::new(64 * MIB, 1);
    let (one, two) = (memory.enter(), memory.enter());
    assert_eq!(memory.take(one, 100, false), Taken { pages: 100, zeroed: 0 });
    assert_eq!(memory.take(two, 500, false).pages, 500);
    assert_eq!(memory.huge_free(), 30, "412 pages of the first block were left");
    memory.leave(one);
    memory.leave(two);
    assert_eq!(memory.huge_free(), 32);
    assert!(memory.is_conserved());
}

#[test]
fn fragmentation_is_the_share_asked_for() {
    for share in [0.0, 0.3, 0.7, 1.0] {
        let mut memory = Memory::new(1024 * MIB, 7);
        memory.fragment(share, Filler::Unmovable);
        let index = memory.fragmentation().unwrap();
        assert!((index - share).abs() < 0.002, "asked {share}, got {index}");
        assert!(memory.is_conserved());
    }
}

#[test]
fn scattered_frees_fragment_and_compaction_repairs_it() {
    let mut memory = Memory::new(64 * MIB, 3);
    let owners: Vec<Owner> = (0..32).map(|_| memory.enter()).collect();
    for &owner in &owners {
        assert!(memory.take_huge(owner, false).is_some());
    }
    assert_eq!(memory.free_pages(), 0);
    assert_eq!(memory.fragmentation(), None);
    for &owner in &owners {
        memory.give_back(owner, 410);
    }
    assert_eq!(memory.fragmentation(), Some(1.0));
    let late = memory.enter();
    assert_eq!(memory.take_huge(late, false), None);
    assert_eq!(memory.compact(), Some(102));
    assert!(memory.is_conserved());
    assert_eq!(memory.take_huge(late, false), Some(false));
    let mut emptied = 0;
    while memory.compact().is_some() {
        emptied += 1;
    }
    // 31 blocks' worth of 102 pages fit in 6.2 blocks.
    assert!((24..=25).contains(&(emptied + 1)), "{emptied}");
    assert!(memory.is_conserved());
    assert!(owners.iter().all(|&owner| memory.held(owner) == 102));
}

#[test]
fn what_cannot_move_is_not_compacted() {
    let mut memory = Memory::new(16 * MIB, 3);
    memory.fragment(1.0, Filler::Unmovable);
    assert_eq!(memory.compact(), None);
    let mut memory = Memory::new(16 * MIB, 3);
    memory.fragment(1.0, Filler::Cache);
    assert_eq!(memory.compact(), Some(1));
    assert!(memory.is_conserved());
}

#[test]
fn cache_goes_before_memory_runs_out() {
    let mut memory = Memory::new(4 * MIB, 1);
    memory.fragment(1.0, Filler::Cache);
    let owner = memory.enter();
    assert_eq!(memory.take(owner, 512, false).pages, 512);
    let other = memory.enter();
    assert_eq!(memory.take(other, 600, false).pages, 512);
    assert_eq!(memory.cache_pages(), 0);
    assert_eq!(memory.free_pages(), 0);
    assert!(memory.is_conserved());
}

#[test]
fn zeroed_blocks_are_a_list_of_their_own() {
    let mut memory = Memory::new(8 * MIB, 1);
    assert_eq!(memory.prezero(2), 2);
    assert_eq!(memory.huge_zeroed(), 2);
    let (one, two, three) = (memory.enter(), memory.enter(), memory.enter());
    assert_eq!(memory.take_huge(one, true), Some(true));
    assert_eq!(memory.take_huge(two, false), Some(false));
    assert_eq!(memory.take_huge(three, true), Some(true));
    memory.leave(one);
    assert_eq!(memory.huge_zeroed(), 0, "what was used is dirty");
    assert_eq!(memory.prezero(100), 2);
    let four = memory.enter();
    assert_eq!(memory.take(four, 10, false), Taken { pages: 10, zeroed: 10 });
    assert!(memory.is_conserved());
}

#[test]
fn a_reservation_fills_up_or_is_broken_under_pressure() {
    let mut memory = Memory::new(8 * MIB, 1);
    let (full, old, young, other) = (memory.enter(), memory.enter(), memory.enter(), memory.enter());
    for owner in [full, old, young] {
        assert!(memory.reserve(owner, false));
        assert_eq!(memory.take(owner, 12, false).pages, 12);
    }
    assert_eq!(memory.take(full, 500, false).pages, 500);
    assert!(memory.is_contiguous(full) && !memory.is_reserved(full));
    // One free block and two reserved ones: pages of a reservation are not free.
    assert_eq!(memory.take(other, 512 + 3, false).pages, 512);
    assert_eq!(memory.reservations().collect::<Vec<_>>(), [old, young]);
    memory.break_reservation(old);
    assert_eq!(memory.take(other, 3, false).pages, 3);
    assert!(!memory.is_reserved(old) && memory.is_reserved(young));
    assert!(memory.is_conserved());
    assert_eq!(memory.free_pages(), 2 * 500 - 3);
}

#[test]
fn a_collapse_gives_back_where_the_pages_were() {
    let mut memory = Memory::new(8 * MIB, 1);
    let owner = memory.enter();
    memory.take(owner, 102, false);
    assert_eq!(memory.take_huge(owner, false), Some(false));
    assert_eq!(memory.held(owner), 512);
    assert_eq!(memory.huge_free(), 3);
    assert!(memory.is_contiguous(owner));
    assert!(memory.is_conserved());
}
