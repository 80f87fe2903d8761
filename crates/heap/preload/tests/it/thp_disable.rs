//! Programs that switch transparent huge pages off for themselves (src/thp_disable.rs).

use crate::preloaded;

use megapage_inside::{thp_is_possible, thp_only_on_advice};
use preloaded::{preloaded, program, text};

fn passes(part: &str) {
    if !thp_is_possible() || !thp_only_on_advice() {
        megapage_testing::skip("transparent_hugepage/enabled is to say `madvise`");
        return;
    }
    let Some(program) = program("thp_disable", part) else { return };
    for heap in ["thp", "none"] {
        let run = preloaded(&program, &[part, heap], heap);
        assert!(run.status.success(), "{part}, {heap}: {}: {}", run.status, text(&run.stderr));
    }
}

#[test]
fn the_heap_stays_huge() {
    passes("heap");
}

#[test]
fn own_mappings_become_huge_once_they_are_dense_and_no_sooner() {
    passes("mappings");
}

#[test]
fn the_program_is_told_what_it_has_set_and_all_else_is_the_kernels() {
    passes("other_uses");
}
