//! The mmap family (src/mappings.rs), compared with the kernel's own answers in a separate program.
//!
//! MEGAPAGE_MAPPED_CALLS is the number of calls; 1,000,000 take some ten minutes.
//! MEGAPAGE_MAPPED_SEED chooses them.

use crate::preloaded;
use megapage_kernel::KernelRoot;
use megapage_kernel::ability::PAGEMAP_SCAN;
use preloaded::{preloaded, program, text};

const CALLS: &str = "20000";

/// Returns the value before `word`.
fn value(said: &str, word: &str) -> u64 {
    let words: Vec<&str> = said.split([' ', ',', '\n']).filter(|word| !word.is_empty()).collect();
    let at = words.iter().position(|it| *it == word).unwrap_or_else(|| panic!("no {word} in: {said}"));
    words[at - 1].parse().expect("a number")
}

#[test]
fn the_mmap_family_answers_as_the_kernel_does() {
    let Some(program) = program("mapped", "calls") else { return };
    let calls = std::env::var("MEGAPAGE_MAPPED_CALLS").unwrap_or(CALLS.into());
    let seed = std::env::var("MEGAPAGE_MAPPED_SEED").unwrap_or("1".into());
    let run = preloaded(&program, &[&calls, &seed], "thp");
    let said = text(&run.stdout);
    assert!(run.status.success(), "{}: {said}{}", run.status, text(&run.stderr));
    assert_eq!(value(&said, "calls").to_string(), calls);
    if megapage_inside::thp_is_possible() {
        assert!(value(&said, "advised") > 0, "nothing of the library's was at work: {said}");
    } else {
        megapage_testing::skip("needs transparent huge pages");
    }
    // Now and then the kernel does not merge mappings that it could, because of a neighbour. It
    // does so on our side no more often.
    let (ours, twin) = (value(&said, "ours"), value(&said, "twin"));
    assert!(ours <= twin + 3 + calls.parse::<u64>().unwrap() / 10_000, "{said}");
    let without = preloaded(&program, &["5000", &seed], "none");
    assert!(without.status.success() && text(&without.stdout).contains(" 0 advised"), "{without:?}");
}

#[test]
fn what_is_mapped_within_advised_memory_moves_with_it() {
    let Some(program) = program("mapped", "merge") else { return };
    for heap in ["thp", "none"] {
        let run = preloaded(&program, &["merge"], heap);
        let said = text(&run.stdout);
        assert!(run.status.success(), "{heap}: {said}{}", text(&run.stderr));
        assert_eq!(value(&said, "moved"), 56, "{heap}: as without the library");
    }
}

#[test]
fn a_mapping_that_grows_by_mremap_becomes_huge() {
    let Some(program) = program("mapped", "grow") else { return };
    if !megapage_inside::thp_is_possible() || !PAGEMAP_SCAN.is_there(&KernelRoot::live()) {
        return megapage_testing::skip("needs transparent huge pages and PAGEMAP_SCAN (Linux 6.7)");
    }
    let run = preloaded(&program, &["grow"], "thp");
    assert!(value(&text(&run.stdout), "huge") >= 16 << 10, "{run:?}");
}
