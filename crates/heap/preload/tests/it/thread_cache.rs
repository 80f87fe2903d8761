//! The cache of freed blocks of each thread (src/thread_cache.c), in a separate program.

use crate::preloaded;

use preloaded::passes;

#[test]
fn a_freed_block_is_handed_out_next() {
    passes("thread_cache", "order");
}

#[test]
fn a_block_has_at_least_the_size_and_the_alignment_that_was_asked_for() {
    passes("thread_cache", "sizes");
}

#[test]
fn a_thread_that_ends_leaves_nothing_behind() {
    passes("thread_cache", "ends");
}

#[test]
fn blocks_that_other_threads_free_are_whole() {
    passes("thread_cache", "handed-over");
}

#[test]
fn a_child_has_blocks_of_its_own() {
    passes("thread_cache", "child");
}
