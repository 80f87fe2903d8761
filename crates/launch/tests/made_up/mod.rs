//! A program and a machine that nobody has, for the choices made of them.

use megapage_kernel::limits::{Limit, Sysctls};
use megapage_launch::jvm::obstacles::Surroundings;
use megapage_launch::machine::Machine;
use megapage_launch::program::{Linkage, Program};
use megapage_units::{Bytes, PageSize};
use std::collections::BTreeMap;

/// A dynamic program of glibc's with nothing special about it.
pub fn program() -> Program {
    Program {
        path: "/bin/program".into(),
        executable: "/bin/program".into(),
        script_arguments: Vec::new(),
        machine: "x86-64".into(),
        native: true,
        position_independent: true,
        linkage: Linkage::Glibc,
        heap_tunable: true,
        privilege: None,
        runtime: None,
        java: None,
        allocator: None,
        private_allocation: None,
        forks: Vec::new(),
        sanitizer: None,
        libraries: Vec::new(),
        missing: Vec::new(),
    }
}

/// A machine with both libraries, 1 GiB of pages of 2 MiB, and nothing in the way. It is not asked to move text.
pub fn machine() -> Machine {
    Machine {
        library: Ok("/lib/libmegapage.so".into()),
        text_library: Ok("/lib/libmegapage_text.so".into()),
        text_refused: || unreachable!("no text is asked for"),
        thp: Ok(()),
        collapse_off: false,
        pool_2m: Bytes::gib(1),
        pool_1g: Bytes::ZERO,
        hugetlb_may_be_refused: false,
        memory_room: None,
        several_nodes: false,
        broker: None,
        promotion_lacks: None,
        may_trace_others: true,
        surroundings: Surroundings {
            memory: Bytes::gib(8),
            default_page: Some(PageSize::HUGE_2M),
            room_2m: None,
            room_1g: None,
            data: Limit(None),
            address_space: Limit(None),
            sysctls: Sysctls::default(),
            shm_permitted: false,
            group: 100,
            may_add: Bytes::ZERO,
            page_refused: || None,
        },
        environment: BTreeMap::new(),
    }
}
