//! The memory of a process is reported while transparent_hugepage/enabled is `never`, too. Then no
//! fault of our own shows which page is the 2 MiB one of zeros. In a separate process, since other
//! tests want huge pages.

#![cfg(feature = "bpf")]

use megapage_kernel::hugetlb::PoolScope;
use megapage_kernel::maps::read_maps;
use megapage_kernel::page_tables::PageTables;
use megapage_kernel::pagemap::{Pagemap, Region};
use megapage_kernel::thp::{ThpEnabled, settings};
use megapage_kernel::{KernelRoot, reclaim};
use megapage_testing::thp_change::{ThpChange, ThpControls};
use megapage_testing::{PoolGuard, require_root, skip};
use megapage_units::{BASE_PAGE, HUGE_2M, PageSize, Pid, VirtRange};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Number of times that the settings' lock, and a 2 MiB page of zeros, are asked for.
const TRIES: u32 = 5;
/// Base pages of 2 MiB.
const ALL: u16 = (HUGE_2M / BASE_PAGE) as u16;

/// A process with memory of all kinds. Killed when dropped.
struct Kinds {
    child: Child,
    /// Address at which it has read from memory that was to be huge.
    zeros: u64,
}

impl Kinds {
    /// Starts the process. `None`, after a loud skip, without Python.
    fn start() -> Option<Kinds> {
        let mut command = Command::new("python3");
        command.args(["-c", include_str!("../../src/bpf/page_tables/kinds.py")]);
        let Ok(child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            skip("needs python3");
            return None;
        };
        let mut kinds = Kinds { child, zeros: 0 };
        let mut said = String::new();
        BufReader::new(kinds.child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("hugetlb-2m"), "one of its pages may not be accessed: {said}");
        let zeros = said.split_whitespace().find_map(|word| word.strip_prefix("zeros="));
        kinds.zeros = zeros.and_then(|zeros| zeros.parse().ok()).expect("it tells where they are");
        Some(kinds)
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    /// Returns true if these regions show the 2 MiB page of zeros at the address where it was asked
    /// for.
    fn has_zeros(&self, held: &[Region]) -> bool {
        held.iter().any(|region| region.page.start() == self.zeros && region.zero_page == ALL)
    }
}

impl Drop for Kinds {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a process that maps the 2 MiB page of zeros. That page is made when it is first asked
/// for, and the kernel may have no huge page for it. `None` after a loud skip.
fn start_with_zeros(root: &KernelRoot) -> Option<Kinds> {
    for _ in 0..TRIES {
        let kinds = Kinds::start()?;
        let mut pagemap = Pagemap::open(root, kinds.pid()).unwrap();
        let range = VirtRange::new(kinds.zeros, kinds.zeros + HUGE_2M as u64).unwrap();
        let held = pagemap.held(&[range]).unwrap();
        if !pagemap.distinguishes_leaves() {
            skip("needs PAGEMAP_SCAN (Linux 6.7)");
            return None;
        }
        if kinds.has_zeros(&held) {
            return Some(kinds);
        }
        // Either may be refused, or be of no use.
        let _ = reclaim::drop_caches(root);
        let _ = reclaim::compact(root, PoolScope::Machine);
    }
    skip("needs a 2 MiB page of zeros: use_zero_page is 0, or the kernel finds no huge page for it");
    None
}

/// Takes the right to change settings of huge pages. Skips loudly and returns `None` if another
/// process (a bench) keeps it.
fn begin(root: &KernelRoot) -> Option<ThpChange> {
    let mut refused = None;
    for _ in 0..TRIES {
        match ThpChange::begin(root) {
            Ok(change) => return Some(change),
            Err(error) => refused = Some(error),
        }
    }
    skip(&format!("needs to change transparent_hugepage/enabled: {}", refused?));
    None
}

/// Sets `enabled`. Returns the setting that then holds for pages of 2 MiB; `None` after a loud
/// skip.
fn set(root: &KernelRoot, change: &mut ThpChange, enabled: ThpEnabled) -> Option<ThpEnabled> {
    let controls = ThpControls { enabled: Some(enabled), ..ThpControls::default() };
    if let Err(error) = change.set(&controls) {
        skip(&format!("needs to change transparent_hugepage/enabled: {error}"));
        return None;
    }
    Some(settings(root).unwrap().expect("it has just been set").anonymous(PageSize::HUGE_2M))
}

#[test]
fn page_tables_tell_what_the_page_map_tells_under_never() {
    if !require_root() {
        return;
    }
    // First: with it no other test changes settings of huge pages.
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 2) else { return };
    let root = KernelRoot::live();
    let Some(mut change) = begin(&root) else { return };
    if set(&root, &mut change, ThpEnabled::Madvise).is_none() {
        return;
    }
    let Some(kinds) = start_with_zeros(&root) else { return };
    match set(&root, &mut change, ThpEnabled::Never) {
        None => return,
        Some(ThpEnabled::Never) => {}
        Some(_) => return skip("needs hugepages-2048kB/enabled to be 'inherit'"),
    }
    let pid = kinds.pid();
    let special = ["[vvar", "[vdso]", "[vsyscall]"];
    let maps = read_maps(&root, pid).unwrap();
    let own = maps.iter().filter(|map| !special.iter().any(|name| map.name.starts_with(name)));
    let ranges: Vec<VirtRange> = own.map(|map| map.range).collect();
    let mut tables = match PageTables::open(&root) {
        Ok(tables) => tables,
        Err(error) => return skip(&format!("page tables cannot be read here: {error}")),
    };
    let mut pagemap = Pagemap::open(&root, pid).unwrap();
    let (mut differ, mut agreed) = (String::new(), None);
    // Others (reclaim, khugepaged) may change memory between the two.
    for _ in 0..50 {
        let told = pagemap.held(&ranges).unwrap();
        let held = tables.held(pid, &ranges, &[]).unwrap().map(|(held, _)| held);
        if held.as_ref() == Some(&told) {
            agreed = Some(told);
            break;
        }
        let only = |all: &[Region], others: &[Region]| -> Vec<String> {
            all.iter().filter(|one| !others.contains(one)).map(|one| format!("{one:?}")).collect()
        };
        differ = match held {
            Some(held) => {
                format!("page map: {:#?}\npage tables: {:#?}", only(&told, &held), only(&held, &told))
            }
            None => "no value".into(),
        };
    }
    let told = agreed.unwrap_or_else(|| panic!("{differ}"));
    assert!(told.iter().any(|region| region.huge == Some(true)), "hugetlb at least: {told:?}");
    // Only the kernel's flags of frames show that.
    assert!(kinds.has_zeros(&told), "the page of zeros at {:#x}: {told:?}", kinds.zeros);
}
