//! The C and the C++ example, compiled as their users compile them, and run twice. The first run
//! builds, the second finds.

use crate::installed;

use installed::{Installed, done};
use megapage_testing::PoolGuard;
use megapage_units::PageSize;
use std::path::PathBuf;
use std::process::Command;

const C_SAYS: &str = "4000000 bytes: 720720 has 240 divisors\n";
const CC_SAYS: &str = "huge memory survives\n";

#[test]
fn a_c_program_finds_its_table_again() {
    let installed = Installed::new();
    let program = installed.compile("cc", &["-std=c11"], "examples/restart.c");
    let pool = [installed.path().join("pool")];
    assert_eq!(installed.run(&program, &pool), format!("built {C_SAYS}"));
    assert_eq!(installed.run(&program, &pool), format!("found {C_SAYS}"));
    // The program asks for the library by its soname, which names the compatible versions.
    let needed = done(Command::new("readelf").arg("-d").arg(&program));
    assert!(needed.contains("[libmegapage_c.so.0]"), "{needed}");
}

#[test]
fn a_cpp_program_finds_its_words_again() {
    let installed = Installed::new();
    let program = installed.compile("c++", &["-std=c++17"], "examples/restart.cc");
    let pool = [installed.path().join("pool")];
    assert_eq!(installed.run(&program, &pool), format!("built: {CC_SAYS}"));
    assert_eq!(installed.run(&program, &pool), format!("found: {CC_SAYS}"));
}

#[test]
fn the_same_on_huge_pages() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 8) else { return };
    use megapage_kernel::mounts::mount_hugetlbfs;
    use megapage_testing::unmount;
    struct Mounted(PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            if let Err(error) = unmount(&self.0) {
                eprintln!("{} was not unmounted: {error}", self.0.display());
            }
        }
    }
    let installed = Installed::new();
    let program = installed.compile("cc", &["-std=c11"], "examples/restart.c");
    let point = installed.path().join("pool");
    mount_hugetlbfs(&point, PageSize::HUGE_2M).unwrap();
    let _mounted = Mounted(point.clone());
    assert_eq!(installed.run(&program, std::slice::from_ref(&point)), format!("built {C_SAYS}"));
    assert_eq!(installed.run(&program, std::slice::from_ref(&point)), format!("found {C_SAYS}"));
}

#[test]
fn the_library_replaces_nothing_of_the_program() {
    let library = std::env::current_exe().unwrap().with_file_name("libmegapage_c.so");
    // A program gets no page of a broker if it needs a library that imports one of these.
    let imports = done(Command::new("nm").args(["-D", "--undefined-only"]).arg(&library));
    let starts = ["fork", "vfork", "clone", "_Fork", "__fork", "__libc_fork"];
    let named: Vec<&str> = imports.split_whitespace().map(|word| word.split('@').next().unwrap()).collect();
    assert!(!named.iter().any(|name| starts.contains(name)), "{imports}");
    let symbols = done(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let names: Vec<&str> = symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(names.contains(&"megapage_heap_allocate"), "{names:?}");
    let others: Vec<_> = names.iter().filter(|name| !name.starts_with("megapage_")).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn the_library_loads_with_every_glibc_since_2_17() {
    let library = std::env::current_exe().unwrap().with_file_name("libmegapage_c.so");
    let symbols = done(Command::new("readelf").args(["-W", "--dyn-syms"]).arg(library));
    let needs = symbols.lines().filter(|line| line.contains(" UND ") && line.contains("@GLIBC_2."));
    let newer = |line: &&str| {
        let minor = line.split("@GLIBC_2.").nth(1).unwrap().split([' ', '.']).next().unwrap();
        minor.parse::<u32>().unwrap() > 17
    };
    let newer: Vec<&str> = needs.clone().filter(newer).collect();
    assert!(newer.is_empty(), "crates/heap/glibc/symbols says what to do: {newer:#?}");
    assert!(needs.count() > 10, "{symbols}");
}

#[test]
fn other_base_pages_are_an_errno() {
    let installed = Installed::new();
    let arguments = ["-std=gnu11", "-Wno-pedantic", "-rdynamic"];
    let program = installed.compile("cc", &arguments, "crates/segment/capi/tests/programs/other_pages.c");
    let said = installed.run(&program, &[installed.path().join("pool")]);
    assert!(said.starts_with("this kernel's base pages are 16 KiB; "), "{said}");
    let made = std::fs::read_dir(installed.path().join("pool")).unwrap().count();
    assert_eq!(made, 0, "nothing is made");
}
