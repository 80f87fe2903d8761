use super::*;
use crate::canary::Canary;
use crate::pagemap::Region;
use megapage_snapshot::thp::ThpEnabled;
use megapage_units::{HUGE_2M, PageSize};
use std::os::fd::AsFd;

/// End of the addresses of programs.
const USER_END: u64 = if cfg!(target_arch = "aarch64") { 1 << 48 } else { 1 << 47 };

fn open() -> Option<PageTables> {
    megapage_testing::require_root().then(|| PageTables::open(&KernelRoot::live()).expect("as root"))
}

fn own() -> Pid {
    Pid(std::process::id() as i32)
}

fn walk(tables: &mut PageTables, pid: Pid, range: VirtRange) -> Vec<RegionBits> {
    let mut regions = Vec::new();
    tables.walk(pid, &[range], |region| regions.push(region)).unwrap();
    regions
}

/// Returns the mapping at an address. Tries again while other tests change our address space.
fn mapping(tables: &mut PageTables, pid: Pid, address: u64) -> Option<TableMapping> {
    for _ in 0..10_000 {
        match tables.mapping(pid, address) {
            Err(WalkError::Io(busy)) if busy.raw_os_error() == Some(libc::EBUSY) => std::thread::yield_now(),
            found => return found.unwrap(),
        }
    }
    panic!("EBUSY without end");
}

#[test]
fn a_captured_tree_is_refused() {
    let refused = PageTables::open(&KernelRoot::captured("fixtures"));
    assert!(matches!(refused, Err(OpenError::NotLive)));
}

#[test]
fn pages_of_a_child_are_read() {
    let Some(mut tables) = open() else { return };
    let child = Canary::start(3, 1, true).unwrap();
    // A collapse gives a huge page even if page faults give none (transparent_hugepage/enabled is
    // 'never').
    let pidfd = crate::spawn::open_pidfd(child.pid()).unwrap();
    let _ = crate::process_madvise::collapse(pidfd.as_fd(), &[child.huge()]);
    let regions = walk(&mut tables, child.pid(), VirtRange::new(0, USER_END).unwrap());
    let of_child = |start: u64| regions.iter().find(|region| region.page.start() == start).expect("touched");
    for n in 0..3 {
        let region = of_child(child.base().start() + n * HUGE_2M as u64);
        assert_eq!((region.leaf, region.present), (Leaf::Base, 512));
    }
    assert_eq!(of_child(child.huge().start()).leaf, Leaf::Huge2m);
    assert!(regions.is_sorted_by_key(|region| region.page));
    // Repeats it with the address space cut into more ranges than one run takes.
    let ranges: Vec<VirtRange> =
        (0..USER_END >> 35).map(|n| VirtRange::new(n << 35, (n + 1) << 35).unwrap()).collect();
    let mut again = Vec::new();
    tables.walk(child.pid(), &ranges, |region| again.push(region.page)).unwrap();
    assert_eq!(again, regions.iter().map(|region| region.page).collect::<Vec<_>>());
    let found = mapping(&mut tables, child.pid(), child.huge().start()).expect("mapped");
    assert!(!found.hugetlb && found.range.start() <= child.huge().start());
    assert_eq!(mapping(&mut tables, child.pid(), 0), None);
}

#[test]
fn an_address_space_is_known_again() {
    let Some(mut tables) = open() else { return };
    let child = Canary::start(1, 0, true).unwrap();
    let first = tables.address_space(child.pid()).unwrap();
    assert_eq!(tables.address_space(child.pid()).unwrap(), first);
    assert_ne!(tables.address_space(own()).unwrap(), first);
    let pid = child.pid();
    drop(child);
    assert!(matches!(tables.address_space(pid), Err(WalkError::Gone)));
    assert!(matches!(tables.mapping(pid, 0), Err(WalkError::Gone)));
    // A kernel thread has no address space.
    assert!(matches!(tables.address_space(Pid(2)), Err(WalkError::Gone)));
}

#[test]
fn the_shared_pages_of_zeros_are_reported() {
    let given = || {
        let settings = crate::thp::settings(&KernelRoot::live()).unwrap();
        settings.is_some_and(|settings| settings.anonymous(PageSize::HUGE_2M) != ThpEnabled::Never)
    };
    let before = given();
    let Some(tables) = open() else { return };
    let given = before && given();
    let frames = crate::kpageflags::FrameFlags::open(&KernelRoot::live()).unwrap();
    let flags = |frame: u64| frames.read(frame >> 12, 1).unwrap()[0];
    assert!(flags(tables.frames.zero).is_zero_page());
    let uses_huge = KernelRoot::live().read_u64("sys/kernel/mm/transparent_hugepage/use_zero_page");
    match (tables.frames.huge_zero, uses_huge) {
        (Some(frame), _) => assert!(flags(frame).is_zero_page()),
        // A page fault gives no such page at 'never'.
        (None, uses) => assert!(uses.ok() != Some(1) || !given),
    }
}

#[test]
fn hugetlb_pages_are_identified_by_their_mapping() {
    use crate::Reservation;
    let Some(mut tables) = open() else { return };
    let Some(_pool) = megapage_testing::PoolGuard::reserve(PageSize::HUGE_2M, 1) else { return };
    let memory = Reservation::new(HUGE_2M, HUGE_2M).unwrap();
    memory.map_hugetlb(PageSize::HUGE_2M).unwrap();
    let start = memory.start() as u64;
    let range = VirtRange::new(start, start + HUGE_2M as u64).unwrap();
    assert!(memory.populate().is_ok());
    let regions = walk(&mut tables, own(), range);
    assert_eq!((regions[0].page.start(), regions[0].leaf), (start, Leaf::Huge2m));
    assert_eq!(regions[0].present, 512);
    assert!(mapping(&mut tables, own(), start).expect("mapped").hugetlb);
    memory.release().unwrap();
}

#[test]
fn an_address_space_that_changes_all_the_time_is_read() {
    use crate::Reservation;
    use std::sync::atomic::{AtomicBool, Ordering};
    let Some(mut tables) = open() else { return };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Tables are made, freed, collapsed and split while they are walked.
        scope.spawn(|| {
            for _ in 0..150 {
                let memory = Reservation::new(4 * HUGE_2M, HUGE_2M).unwrap();
                memory.open().unwrap();
                memory.part(0, 2 * HUGE_2M).populate().unwrap();
                // The kernel refuses it if no huge page is free.
                let _ = memory.part(0, HUGE_2M).collapse();
                memory.part(4096, 4096).discard().unwrap();
                memory.release().unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let mut last = None;
            let walked = tables.walk(own(), &[VirtRange::new(0, USER_END).unwrap()], |region| {
                assert!(last < Some(region.page));
                last = Some(region.page);
                assert!(region.accessed <= Some(region.present), "{region:?}");
                assert!(region.present + region.zero_page + region.swapped <= 512, "{region:?}");
            });
            walked.expect("we live");
        }
    });
}

#[test]
fn children_that_end_while_they_are_read_are_gone() {
    let Some(mut tables) = open() else { return };
    let range = [VirtRange::new(0, USER_END).unwrap()];
    for _ in 0..16 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id() as i32);
        let end = (0..1_000_000).find_map(|_| tables.walk(pid, &range, |_| ()).err());
        assert!(matches!(end, Some(WalkError::Gone)), "{end:?}");
        child.wait().unwrap();
    }
}

#[test]
fn a_huge_entry_stands_for_its_part_of_the_ranges() {
    let found = Found { start: 5 * GIB + 4 * HUGE_2M as u64, entry: 1, level: 3, table: u32::MAX };
    let range = |start, end| VirtRange::new(start, end).unwrap();
    let starts =
        |ranges: &[VirtRange]| -> Vec<u64> { regions_of(&found, ranges).map(HugePage::start).collect() };
    let all = starts(&[range(0, GIB), range(found.start, 7 * GIB)]);
    assert_eq!((all.len(), all[0], all[507]), (508, found.start, 6 * GIB - HugePage::SIZE));
    assert_eq!(starts(&[range(found.start, found.start + HugePage::SIZE)]), [found.start]);
    assert!(starts(&[range(0, GIB), range(6 * GIB, 7 * GIB)]).is_empty());
    // The program reports the entry once, for all of these ranges.
    let at = |number| found.start + number * HugePage::SIZE;
    let several = [range(GIB, at(1)), range(at(2), at(3)), range(at(5), at(7)), range(6 * GIB, 7 * GIB)];
    assert_eq!(starts(&several), [0, 2, 5, 6].map(at));
}

/// Idle process with memory of all kinds, killed when dropped, and the text by which it reports
/// that memory.
struct Kinds(std::process::Child, String);

impl Kinds {
    /// Starts the process. Returns `None`, after a loud skip, without Python.
    fn start() -> Option<Kinds> {
        use std::io::BufRead;
        use std::process::{Command, Stdio};
        let mut command = Command::new("python3");
        command.args(["-c", include_str!("kinds.py")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(child) = command.spawn() else {
            megapage_testing::skip("needs python3");
            return None;
        };
        let mut kinds = Kinds(child, String::new());
        let said = kinds.0.stdout.take().unwrap();
        std::io::BufReader::new(said).read_line(&mut kinds.1).unwrap();
        assert!(kinds.1.contains("nohuge"), "it has not reported what it has");
        Some(kinds)
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id() as i32)
    }
}

impl Drop for Kinds {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the page map's answer once the page tables give the same one. Another actor in the
/// kernel (reclaim, khugepaged) may change memory between the two.
fn held_by_both(tables: &mut PageTables, pid: Pid, ranges: &[VirtRange]) -> Option<Vec<Region>> {
    let mut pagemap = crate::pagemap::Pagemap::open(&KernelRoot::live(), pid).unwrap();
    let mut differ = String::new();
    for _ in 0..50 {
        let reported = pagemap.held(ranges).unwrap();
        if !pagemap.distinguishes_leaves() {
            megapage_testing::skip("needs PAGEMAP_SCAN (Linux 6.7)");
            return None;
        }
        // Nothing is reported if a region has changed under several tries.
        let Some((held, _)) = tables.held(pid, ranges, &[]).unwrap() else { continue };
        if held == reported {
            return Some(reported);
        }
        let only = |all: &[Region], others: &[Region]| -> Vec<String> {
            all.iter().filter(|one| !others.contains(one)).map(|one| format!("{one:?}")).collect()
        };
        differ =
            format!("page map: {:#?}\npage tables: {:#?}", only(&reported, &held), only(&held, &reported));
    }
    panic!("{differ}");
}

#[test]
fn page_tables_agree_with_the_page_map() {
    use megapage_units::BASE_PAGE;
    if !megapage_testing::require_root() {
        return;
    }
    // Take the pool first: while it is held no other process changes settings of huge pages.
    let Some(_pool) = megapage_testing::PoolGuard::reserve(PageSize::HUGE_2M, 2) else { return };
    let Some(mut tables) = open() else { return };
    let Some(kinds) = Kinds::start() else { return };
    let special = ["[vvar", "[vdso]", "[vsyscall]"];
    let maps = crate::maps::read_maps(&KernelRoot::live(), kinds.pid()).unwrap();
    let own = maps.iter().filter(|map| !special.iter().any(|name| map.name.starts_with(name)));
    let ranges: Vec<VirtRange> = own.map(|map| map.range).collect();
    let Some(reported) = held_by_both(&mut tables, kinds.pid(), &ranges) else { return };
    // If the huge page of zeros was not known, it is learnt with the first process that may map it.
    tables.frames.huge_zero = None;
    assert_eq!(held_by_both(&mut tables, kinds.pid(), &ranges).as_ref(), Some(&reported));
    let some = |is: &dyn Fn(&Region) -> bool| reported.iter().any(is);
    assert!(
        reported.len() > 20 && some(&|region| region.zero_page > 0 && region.present > 0),
        "{reported:?}"
    );
    assert!(some(&|region| region.huge == Some(true)), "hugetlb at least: {}", kinds.1);
    assert!(some(&|region| region.swapped > 0) || !kinds.1.contains("guard"));
    // Repeats it for parts of each mapping: without its first and its last page, and with a hole.
    let page = BASE_PAGE as u64;
    let parts = ranges.iter().flat_map(|range| {
        let middle = (range.start() / 2 + range.end() / 2) / page * page;
        let ends = [(range.start() + page, middle), (middle + page, range.end().saturating_sub(page))];
        ends.into_iter().filter_map(|(start, end)| VirtRange::new(start, end)).filter(|part| !part.is_empty())
    });
    let parts: Vec<VirtRange> = parts.collect();
    let of_parts = held_by_both(&mut tables, kinds.pid(), &parts).expect("as before");
    let pages = |regions: &[Region]| regions.iter().map(|one| u64::from(one.present)).sum::<u64>();
    // The same reading shows the accesses of some regions, as a walk of these does.
    let asked: Vec<VirtRange> = of_parts.iter().step_by(3).map(|region| region.page.range()).collect();
    let mut both = (0..50).map(|_| {
        let (_, with) = tables.held(kinds.pid(), &parts, &asked).unwrap().expect("idle");
        let mut alone = Vec::new();
        tables.walk(kinds.pid(), &asked, |region| alone.push(region)).unwrap();
        (with, alone)
    });
    // Reclaim or DAMON may clear bits between the two.
    let (with, _) = both.find(|(with, alone)| with == alone).expect("equal once in 50 times");
    assert!(with.len() > 5 && with.iter().all(|region| region.bits.is_some()), "{with:?}");
    drop(both);
    assert!(pages(&of_parts) < pages(&reported));
    // Takes more ranges than one run takes.
    let singles: Vec<VirtRange> = ranges
        .iter()
        .flat_map(|range| (range.start()..range.end()).step_by(3 * BASE_PAGE))
        .filter_map(|start| VirtRange::new(start, start + page))
        .take(4 * MOST_RANGES)
        .collect();
    held_by_both(&mut tables, kinds.pid(), &singles).expect("as before");
    assert!(tables.held(kinds.pid(), &[], &[]).unwrap().is_some_and(|held| held.0.is_empty()));
    let pid = kinds.pid();
    drop(kinds);
    assert!(matches!(tables.held(pid, &ranges, &[]), Err(WalkError::Gone)));
}
