//! What a process holds is told while transparent_hugepage/enabled is `never`, too: then no fault of our own shows which
//! page is the 2 MiB one of zeros. In a process of its own, since other tests want huge pages.

#![cfg(feature = "bpf")]

use megapage_kernel::KernelRoot;
use megapage_kernel::maps::read_maps;
use megapage_kernel::page_tables::PageTables;
use megapage_kernel::pagemap::{Pagemap, Region};
use megapage_kernel::thp::{ThpEnabled, settings};
use megapage_kernel::thp_change::{ThpChange, ThpControls};
use megapage_testing::{PoolGuard, require_root, skip};
use megapage_units::{PageSize, Pid, VirtRange};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Killed when dropped.
struct Kinds(Child);

impl Drop for Kinds {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn page_tables_tell_what_the_page_map_tells_under_never() {
    if !require_root() {
        return;
    }
    // First: with it nobody else changes settings of huge pages.
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 2) else { return };
    let root = KernelRoot::live();
    let mut change = ThpChange::begin_enabled(&root).unwrap();
    let mut set = |enabled| {
        change.set(&ThpControls { enabled: Some(enabled), ..ThpControls::default() }).unwrap();
        settings(&root).unwrap().expect("this kernel has them").anonymous(PageSize::HUGE_2M)
    };
    // Huge pages, and the one of zeros, where this size follows `enabled` and the kernel finds some.
    set(ThpEnabled::Madvise);
    let mut command = Command::new("python3");
    command.args(["-c", include_str!("../src/page_tables/kinds.py")]);
    let Ok(child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        return skip("needs python3");
    };
    let mut kinds = Kinds(child);
    let mut said = String::new();
    BufReader::new(kinds.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("hugetlb-2m"), "one of its pages may not be accessed: {said}");
    if set(ThpEnabled::Never) != ThpEnabled::Never {
        return skip("needs hugepages-2048kB/enabled to be 'inherit'");
    }
    let pid = Pid(kinds.0.id() as i32);
    let special = ["[vvar", "[vdso]", "[vsyscall]"];
    let maps = read_maps(&root, pid).unwrap();
    let own = maps.iter().filter(|map| !special.iter().any(|name| map.name.starts_with(name)));
    let ranges: Vec<VirtRange> = own.map(|map| map.range).collect();
    let mut tables = PageTables::open(&root).expect("as root");
    let mut pagemap = Pagemap::open(&root, pid).unwrap();
    let mut differ = String::new();
    // Somebody else (reclaim, khugepaged) may change memory between the two.
    for _ in 0..50 {
        let told = pagemap.held(&ranges).unwrap();
        if !pagemap.tells_leaves() {
            return skip("needs PAGEMAP_SCAN (Linux 6.7)");
        }
        let held = tables.held(pid, &ranges).unwrap();
        if held.as_ref() == Some(&told) {
            assert!(told.iter().any(|region| region.huge == Some(true)), "hugetlb at least: {told:?}");
            return;
        }
        let only = |all: &[Region], others: &[Region]| -> Vec<String> {
            all.iter().filter(|one| !others.contains(one)).map(|one| format!("{one:?}")).collect()
        };
        differ = match held {
            Some(held) => {
                format!("page map: {:#?}\npage tables: {:#?}", only(&told, &held), only(&held, &told))
            }
            None => "nothing is told".into(),
        };
    }
    panic!("{differ}");
}
