//! Freed memory that waits or goes back (src/waiting.c, src/thread_cache.c), in a separate program.

use crate::preloaded;

use megapage_inside::memory_available_and_total;
use preloaded::passes;

#[test]
fn a_block_that_grows_leaves_little_behind() {
    passes("waiting", "grows");
}

#[test]
fn freed_small_blocks_go_back_though_the_program_rests() {
    passes("waiting", "rests");
}

#[test]
fn what_was_freed_goes_back_though_only_kept_blocks_are_asked_for() {
    passes("waiting", "kept");
}

#[test]
fn a_large_block_that_is_asked_for_again_is_still_there() {
    passes("waiting", "again");
}

#[test]
fn arrays_that_are_asked_for_again_are_still_there() {
    let (_, total) = memory_available_and_total().unwrap();
    if total < 4 << 30 {
        megapage_testing::skip("needs a machine of 4 GiB: smaller ones release large blocks at once");
        return;
    }
    passes("waiting", "arrays");
}

#[test]
fn what_waits_does_not_add_to_the_most_that_was_in_use() {
    passes("waiting", "most");
}

#[test]
fn a_large_block_that_grows_is_never_there_twice() {
    passes("waiting", "moves");
}

#[test]
fn a_block_that_shrinks_takes_less() {
    passes("waiting", "shrinks");
}

#[test]
fn blocks_of_random_sizes_take_each_others_place() {
    passes("waiting", "random");
}
