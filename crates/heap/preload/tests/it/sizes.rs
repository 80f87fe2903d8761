//! Memory of a block beyond its requested size (patches/01-more-size-classes.patch), in a separate
//! program.

use crate::preloaded;

use megapage_inside::program_memory::{OwnPagemap, is_confined};
use megapage_inside::thp_is_possible;
use megapage_memory::SPARES_VARIABLE;
use preloaded::{command, passes, preloaded, program, text};
use std::path::Path;
use std::process::{Command, Output};

#[test]
fn a_block_is_at_most_an_eighth_larger_than_was_asked_for() {
    passes("sizes", "classes");
}

#[test]
fn a_block_of_up_to_8_mib_takes_less_than_64_kib_more() {
    passes("sizes", "large");
}

#[test]
fn large_blocks_of_many_sizes_lie_together() {
    passes("sizes", "together");
}

#[test]
fn blocks_of_a_page_and_a_header_take_a_tenth_more_at_most() {
    passes("sizes", "pages");
}

#[test]
fn a_thread_with_few_blocks_of_each_size_takes_pages_of_few_sizes() {
    passes("sizes", "few");
}

#[test]
fn pages_that_threads_have_emptied_are_few_and_clean() {
    let Some(program) = program("sizes", "replaced") else { return };
    for heap in ["auto", "none"] {
        let run = preloaded(&program, &["replaced"], heap);
        assert!(run.status.success(), "{heap}: {}: {}", run.status, text(&run.stderr));
    }
}

#[test]
fn blocks_of_many_sizes_that_come_and_go_take_little_more_than_in_the_c_library() {
    compare_with_plain(&["hundred", "hundreds"]);
}

#[test]
fn a_large_block_of_zeros_takes_what_the_program_touches_and_becomes_huge_as_it_is_filled() {
    let scans = || OwnPagemap::open().is_some_and(|pagemap| pagemap.scans());
    if is_confined() || !thp_is_possible() || !scans() {
        return megapage_testing::skip("needs transparent huge pages, Linux 6.7, and no filter");
    }
    compare_with_plain(&["zeros", "zeros-first"]);
    let Some(program) = program("sizes", "dense") else { return };
    let run = sparing(&program, "dense");
    assert!(run.status.success(), "{}: {}", run.status, text(&run.stderr));
}

/// Runs a part with huge pages as `megapage run` chooses them by itself, without a pool: tests
/// beside this one have pools for a while.
fn sparing(program: &Path, part: &str) -> Output {
    command(program, "thp").env(SPARES_VARIABLE, "1").arg(part).output().expect("the program starts")
}

/// Runs parts that print their peak in bytes and their page faults. Compares these with what they
/// are in the C library: at most a twentieth and 4 MiB more, and four times as many.
fn compare_with_plain(parts: &[&str]) {
    let Some(program) = program("sizes", parts[0]) else { return };
    let figures = |output: &Output| -> [u64; 2] {
        assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
        let words: Vec<u64> =
            text(&output.stdout).split_whitespace().map(|word| word.parse().unwrap()).collect();
        words.try_into().expect("two figures")
    };
    for part in parts {
        let plain = figures(&Command::new(&program).arg(part).env_clear().output().unwrap());
        let ours = figures(&sparing(&program, part));
        assert!(
            ours[0] <= plain[0] * 21 / 20 + (4 << 20),
            "{part}: peak {} bytes, plain {}",
            ours[0],
            plain[0]
        );
        assert!(ours[1] <= 4 * plain[1], "{part}: {} page faults, plain {}", ours[1], plain[1]);
    }
}
