//! What becomes of freed memory (src/waiting.c, src/thread_cache.c), in a program of its own.

mod preloaded;

use preloaded::{preloaded, program, text};

fn passes(part: &str) {
    let Some(program) = program("waiting", part) else { return };
    for heap in ["thp", "none"] {
        let run = preloaded(&program, &[part], heap);
        assert!(run.status.success(), "{part}, {heap}: {}: {}", run.status, text(&run.stderr));
    }
}

#[test]
fn a_block_that_grows_leaves_little_behind() {
    passes("grows");
}

#[test]
fn freed_small_blocks_go_back_though_the_program_rests() {
    passes("rests");
}

#[test]
fn a_large_block_that_is_asked_for_again_is_still_there() {
    passes("again");
}

#[test]
fn what_waits_does_not_add_to_the_most_that_was_in_use() {
    passes("most");
}

#[test]
fn a_block_that_shrinks_takes_less() {
    passes("shrinks");
}
