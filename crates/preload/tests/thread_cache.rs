//! The cache of freed blocks of each thread (src/thread_cache.c), in a program of its own.

mod preloaded;

use preloaded::{preloaded, program, text};

fn passes(part: &str) {
    let Some(program) = program("thread_cache", part) else { return };
    for heap in ["thp", "none"] {
        let run = preloaded(&program, &[part], heap);
        assert!(run.status.success(), "{part}, {heap}: {}: {}", run.status, text(&run.stderr));
    }
}

#[test]
fn a_freed_block_is_handed_out_next() {
    passes("order");
}

#[test]
fn a_block_has_at_least_the_size_and_the_alignment_that_was_asked_for() {
    passes("sizes");
}

#[test]
fn a_thread_that_ends_leaves_nothing_behind() {
    passes("ends");
}

#[test]
fn blocks_that_other_threads_free_are_whole() {
    passes("handed-over");
}

#[test]
fn a_child_has_blocks_of_its_own() {
    passes("child");
}
