//! Names that the preloaded libraries take from others: a name that is missing here may be a
//! program's own function.

use crate::preloaded::built;
use std::collections::BTreeSet;
use std::process::Command;

/// Names, each with the reason why it is the loader's or the C library's.
const ALLOWED: &str = include_str!("../symbols.txt");

#[test]
fn no_call_of_files_clocks_processes_or_memory_goes_by_a_name() {
    let allowed: BTreeSet<&str> = ALLOWED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    for library in ["libmegapage.so", "libmegapage_text.so"] {
        let listed = Command::new("nm").args(["-D", "--undefined-only"]).arg(built(library)).output();
        let Ok(listed) = listed else { return megapage_testing::skip("needs nm") };
        let listed = String::from_utf8(listed.stdout).unwrap();
        let names = listed.lines().filter_map(|line| line.split_whitespace().last());
        let names: BTreeSet<&str> = names.map(|name| name.split('@').next().unwrap_or(name)).collect();
        assert!(names.contains("memcpy") || names.contains("memmove"), "{library}: {names:?}");
        // The standard library's allocator, for the message of a panic. libmegapage_text.so
        // allocates nothing; libmegapage.so is malloc.
        let of_text = ["malloc", "calloc", "realloc", "free", "posix_memalign"];
        let strangers: Vec<&&str> = names
            .difference(&allowed)
            .filter(|name| library != "libmegapage_text.so" || !of_text.contains(name))
            .collect();
        assert!(strangers.is_empty(), "{library} calls {strangers:?}: see tests/symbols.txt");
    }
}
