//! A fictitious program and machine, for tests of the choices.

use megapage_launch::jvm::obstacles::Surroundings;
use megapage_launch::machine::Machine;
use megapage_launch::program::Program;
use megapage_launch::versions::Versions;
use megapage_units::Bytes;
use std::collections::BTreeMap;

/// Returns an ordinary dynamic program with glibc.
pub fn program() -> Program {
    Program::ordinary("/bin/program")
}

/// Returns a machine with both libraries, 1 GiB of pages of 2 MiB, and no obstacles. It must not be
/// asked to move text.
pub fn machine() -> Machine {
    Machine {
        library: Ok("/lib/libmegapage.so".into()),
        text_library: Ok("/lib/libmegapage_text.so".into()),
        needed: Versions::new(),
        text_refused: || unreachable!("no text is asked for"),
        thp: Ok(()),
        shared_thp_off: || None,
        collapse_off: false,
        switched_off: None,
        pool_2m: Bytes::gib(1),
        pool_1g: Bytes::ZERO,
        hugetlb_may_be_refused: false,
        memory_room: None,
        several_nodes: false,
        broker: None,
        promotion_lacks: None,
        may_trace_others: true,
        collapses_own_mappings: true,
        surroundings: Surroundings { group: 100, ..Surroundings::open(Bytes::gib(8)) },
        filters: None,
        environment: BTreeMap::new(),
    }
}
