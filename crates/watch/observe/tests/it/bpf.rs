//! The BPF tracker on children with known accesses.

use megapage_kernel::canary::Canary;
use megapage_kernel::kpageflags::FrameFlags;
use megapage_kernel::own_advice::{self, Advice};
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::{KernelRoot, Reservation, maps};
use megapage_observe::tracker::{BpfTracker, PART_PAGES, RegionBits, TrackError, Tracker, part, select};
use megapage_observe::{Leaf, PAGES, TrackerKind};
use megapage_testing::{PoolGuard, ThpSetting, require_root, skip, until, wait_for};
use megapage_units::{HUGE_2M, HugePage, PageSize, Pid, VirtRange};
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

const REGIONS: usize = 16;
const HUGE_REGIONS: usize = 2;

/// Lock for one test at a time: a forked child shares the memory of the other tests, which then
/// cannot be cleared.
static ALONE: Mutex<()> = Mutex::new(());

fn open() -> Option<(MutexGuard<'static, ()>, BpfTracker)> {
    let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    require_root().then(|| (alone, BpfTracker::open(&KernelRoot::live()).expect("as root")))
}

fn all(child: &Canary) -> [VirtRange; 1] {
    [VirtRange::new(child.base().start(), child.huge().end()).unwrap()]
}

/// Returns the accessed pages, numbered from the first region.
fn pages(read: &[RegionBits]) -> BTreeSet<usize> {
    let mut pages = BTreeSet::new();
    for region in read {
        let first = (region.page.start() - read[0].page.start()) as usize / 4096;
        for (index, word) in region.bits.expect("cleared").iter().enumerate() {
            pages.extend((0..64).filter(|n| word >> n & 1 == 1).map(|n| first + index * 64 + n));
        }
    }
    pages
}

/// Returns true if another user has cleared the accessed bit of a page: DAMON, which marks it so.
fn cleared_by_others(child: &Canary, page: usize) -> bool {
    let root = KernelRoot::live();
    let start = child.base().start() + 4096 * page as u64;
    let page = VirtRange::new(start, start + 4096).unwrap();
    let entry = Pagemap::open(&root, child.pid()).unwrap().entries(page).unwrap()[0];
    let flags = FrameFlags::open(&root).unwrap().read(entry.frame().expect("as root"), 1).unwrap();
    flags[0].is_idle()
}

#[test]
fn known_accesses_are_read_exactly() {
    let Some((_alone, mut tracker)) = open() else { return };
    let mut child = Canary::start(REGIONS, HUGE_REGIONS, true).unwrap();
    for round in 0..8 {
        tracker.clear(child.pid(), &all(&child)).unwrap();
        let read = tracker.read(child.pid(), &all(&child)).unwrap();
        assert_eq!(read.len(), REGIONS + HUGE_REGIONS);
        assert_eq!(pages(&read), BTreeSet::new(), "round {round}");
        let base = REGIONS * usize::from(PAGES);
        let mut touched: BTreeSet<usize> =
            (0..base).filter(|page| page * 7919 % 11 == round || page % 97 == round).collect();
        // One page of the last huge region is touched: its one bit stands for all 512.
        touched.insert(base + 512 + round);
        assert_eq!(child.touch(touched.iter().copied()).unwrap().wrong, 0);
        touched.extend(base + 512..base + 1024);
        let read = tracker.read(child.pid(), &all(&child)).unwrap();
        let mut wrong = pages(&read).symmetric_difference(&touched).copied().collect::<Vec<usize>>();
        wrong.retain(|&page| !touched.contains(&page) || !cleared_by_others(&child, page));
        assert!(wrong.is_empty(), "round {round}: {wrong:?}");
        assert!(read[REGIONS..].iter().all(|region| region.leaf == Leaf::Huge2m));
    }
}

#[test]
fn a_part_of_a_region_is_cleared_alone_and_a_huge_page_whole() {
    let Some((_alone, mut tracker)) = open() else { return };
    let mut child = Canary::start(REGIONS, HUGE_REGIONS, true).unwrap();
    let base = 0..REGIONS * usize::from(PAGES);
    let place = |page: usize| {
        let region = page / usize::from(PAGES);
        (HugePage::containing(child.base().start()).offset(region as u64), (page % usize::from(PAGES)) as u16)
    };
    let in_part: BTreeSet<usize> =
        base.clone().filter(|page| part(place(*page).0).contains(&place(*page).1)).collect();
    assert_eq!(in_part.len(), REGIONS * usize::from(PART_PAGES));
    child.touch(base.clone()).unwrap();
    tracker.clear_part(child.pid(), &all(&child)).unwrap();
    let read = tracker.read(child.pid(), &all(&child)).unwrap();
    assert!(pages(&read).is_disjoint(&in_part));
    // Few of the other pages have lost their bit, to other users that clear it.
    let kept = pages(&read).iter().filter(|page| base.contains(page)).count();
    assert!(kept >= (base.len() - in_part.len()) * 9 / 10, "{kept}");
    assert!(read[REGIONS..].iter().all(|region| (region.leaf, region.accessed) == (Leaf::Huge2m, Some(0))));
    child.touch(in_part.iter().copied()).unwrap();
    let read = tracker.read(child.pid(), &all(&child)).unwrap();
    let missed = in_part.difference(&pages(&read)).filter(|page| !cleared_by_others(&child, **page)).count();
    assert_eq!(missed, 0);
}

#[test]
fn what_was_never_cleared_is_not_told() {
    let Some((_alone, mut tracker)) = open() else { return };
    let child = Canary::start(2, 0, true).unwrap();
    let first = VirtRange::new(child.base().start(), child.base().start() + 4096 * 512).unwrap();
    tracker.clear(child.pid(), &[first]).unwrap();
    let told: Vec<bool> = tracker
        .read(child.pid(), &all(&child))
        .unwrap()
        .iter()
        .map(|region| region.accessed.is_some())
        .collect();
    assert_eq!(told, [true, false]);
}

#[test]
fn clearing_a_region_again_keeps_the_others_cleared() {
    let Some((_alone, mut tracker)) = open() else { return };
    let mut child = Canary::start(2, 0, true).unwrap();
    let (pid, both) = (child.pid(), [child.base()]);
    tracker.clear(pid, &both).unwrap();
    child.touch([0]).unwrap();
    tracker.clear(pid, &[HugePage::containing(both[0].start()).range()]).unwrap();
    let accessed = |read: Vec<RegionBits>| read.iter().map(|region| region.accessed).collect::<Vec<_>>();
    assert_eq!(accessed(tracker.read(pid, &both).unwrap()), [Some(0), Some(0)]);
    tracker.forget(pid);
    assert_eq!(accessed(tracker.read(pid, &both).unwrap()), [None, None]);
}

#[test]
fn one_that_has_ended_is_gone() {
    let Some((_alone, mut tracker)) = open() else { return };
    let child = Canary::start(1, 0, true).unwrap();
    let (pid, range) = (child.pid(), all(&child));
    tracker.clear(pid, &range).unwrap();
    drop(child);
    assert!(matches!(tracker.read(pid, &range), Err(TrackError::Gone(gone)) if gone == pid));
    assert!(matches!(tracker.clear(pid, &range), Err(TrackError::Gone(_))));
}

/// Memory of this process, released when dropped.
struct Memory(Reservation);

impl Memory {
    fn new(regions: usize) -> Memory {
        Memory(Reservation::new(regions * HUGE_2M, HUGE_2M).unwrap())
    }

    fn range(&self) -> VirtRange {
        VirtRange::new(self.0.start() as u64, self.0.end() as u64).unwrap()
    }
}

fn own_pid() -> Pid {
    Pid(std::process::id() as i32)
}

#[test]
fn memory_that_cannot_be_cleared_is_not_told() {
    let Some((_alone, mut tracker)) = open() else { return };
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 1) else { return };
    let memory = Memory::new(3);
    // The memory has base pages, hugetlb pages, and base pages.
    memory.0.part(HUGE_2M, HUGE_2M).map_hugetlb(PageSize::HUGE_2M).unwrap();
    for part in [memory.0.part(0, HUGE_2M), memory.0.part(2 * HUGE_2M, HUGE_2M)] {
        part.open().unwrap();
    }
    memory.0.populate().unwrap();
    tracker.clear(own_pid(), &[memory.range()]).unwrap();
    let read = tracker.read(own_pid(), &[memory.range()]).unwrap();
    let told: Vec<_> = read.iter().map(|region| (region.leaf.is_huge(), region.accessed)).collect();
    assert_eq!((told.len(), told[1]), (3, (true, None)));
    assert_eq!(read[1].leaf, Leaf::Hugetlb2m);
    assert_eq!((told[0].1, told[2].1), (Some(0), Some(0)), "the refusal of one holds up no other");
}

#[test]
fn smaller_folios_stay_whole() {
    let Some((_alone, mut tracker)) = open() else { return };
    let Some(setting) = ThpSetting::write("hugepages-64kB/enabled", "madvise") else { return };
    // The middle one of three is used: at an edge a half would join a neighbour, and not the other
    // half.
    let memory = Memory::new(3);
    let half = HUGE_2M / 2;
    let start = memory.0.start() + HUGE_2M;
    let range = VirtRange::new(start as u64, (start + HUGE_2M) as u64).unwrap();
    // The halves are populated one by one: the whole would get one huge page.
    for part in [memory.0.part(HUGE_2M, half), memory.0.part(HUGE_2M + half, half)] {
        part.open().unwrap();
        part.advise_thp().unwrap();
        part.populate().unwrap();
    }
    drop(setting);
    // Otherwise khugepaged, which runs every 10 s, may collapse them between the two readings.
    own_advice::give(range, Advice::NoHuge).unwrap();
    let orders = || -> Vec<u32> {
        let root = KernelRoot::live();
        let flags = FrameFlags::open(&root).unwrap();
        let entries = Pagemap::open(&root, own_pid()).unwrap().entries(range).unwrap();
        entries.iter().map(|entry| flags.folio(entry.frame().expect("as root")).unwrap().1).collect()
    };
    let before = orders();
    if !before.contains(&4) {
        return skip("the kernel gave no folio of 64 KiB");
    }
    tracker.clear(own_pid(), &[range]).unwrap();
    assert_eq!(orders(), before);
    let read = tracker.read(own_pid(), &[range]).unwrap();
    assert_eq!((read[0].leaf, read[0].present, read[0].accessed), (Leaf::Base, 512, Some(0)));
}

/// Child that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn one_that_executes_another_program_is_another() {
    let Some((_alone, mut tracker)) = open() else { return };
    let mut command = Command::new("sh");
    command.args(["-c", "read line; exec sleep 100"]).stdin(Stdio::piped());
    let mut child = Killed(command.spawn().unwrap());
    let pid = Pid(child.0.id() as i32);
    let mappings = |pid| {
        let maps = maps::read_maps(&KernelRoot::live(), pid).unwrap_or_default();
        let whole = |range: VirtRange| {
            let huge = HUGE_2M as u64;
            VirtRange::new(range.start() / huge * huge, range.end().next_multiple_of(huge))
        };
        let mut ranges: Vec<VirtRange> = maps.iter().filter_map(|mapping| whole(mapping.range)).collect();
        ranges.retain(|range| range.end() < 1 << 48);
        ranges.dedup_by(|later, range| {
            let overlap = later.start() < range.end();
            if overlap {
                *range = VirtRange::new(range.start(), later.end().max(range.end())).unwrap();
            }
            overlap
        });
        ranges
    };
    let is = |name: &str| {
        let status = megapage_kernel::process::read_status(&KernelRoot::live(), pid);
        status.is_ok_and(|status| status.name == name)
    };
    wait_for("sh", || is("sh"));
    let ranges = mappings(pid);
    tracker.clear(pid, &ranges).unwrap();
    tracker.read(pid, &ranges).unwrap();
    child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    wait_for("sleep", || is("sleep"));
    assert!(matches!(tracker.read(pid, &ranges), Err(TrackError::Gone(_))));
    // From then on nothing of the process has been cleared. Its name appears before its memory.
    let read = until("its memory", || {
        let read = tracker.read(pid, &mappings(pid)).unwrap();
        (!read.is_empty()).then_some(read)
    });
    assert!(read.iter().all(|region| region.accessed.is_none()));
}

/// Variable that is set in the child of the next tests.
const AS_NOBODY: &str = "MEGAPAGE_TEST_AS_NOBODY";

/// Runs `test` of this program as another user, with `setpriv`'s further arguments.
fn run_as_nobody(test: &str, further: &[&str]) {
    // Another user may not enter our directory and gets a copy of this program. Another process
    // makes it: a program that is open for writing anywhere cannot be executed.
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.path().join("bpf");
    assert!(
        Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap().success()
    );
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(further)
        .arg("--")
        .arg(&program)
        .args(["--exact", &format!("bpf::{test}")])
        .env(AS_NOBODY, "1")
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn without_rights_the_next_tracker_is_taken_and_the_reason_kept() {
    if std::env::var_os(AS_NOBODY).is_none() && megapage_testing::is_root() {
        return run_as_nobody("without_rights_the_next_tracker_is_taken_and_the_reason_kept", &[]);
    }
    let selected = select(&KernelRoot::live(), None).unwrap();
    let (kind, why) = &selected.skipped[0];
    assert_eq!(*kind, TrackerKind::Bpf);
    assert!(why.contains("CAP_BPF and CAP_PERFMON") && !why.contains('\n'), "{why}");
    let error = select(&KernelRoot::live(), Some(TrackerKind::Bpf)).err().unwrap().to_string();
    assert!(error.starts_with("the tracker bpf cannot be used: ") && error.contains("CAP_BPF"), "{error}");
}

#[test]
fn four_capabilities_suffice() {
    if std::env::var_os(AS_NOBODY).is_some() {
        let selected = select(&KernelRoot::live(), Some(TrackerKind::Bpf)).unwrap();
        assert_eq!(selected.tracker.kind(), TrackerKind::Bpf);
    } else if require_root() {
        let inherited = "--inh-caps=+bpf,+perfmon,+sys_nice,+sys_ptrace";
        let ambient = "--ambient-caps=+bpf,+perfmon,+sys_nice,+sys_ptrace";
        run_as_nobody("four_capabilities_suffice", &[inherited, ambient]);
    }
}

#[test]
fn without_the_right_to_clear_a_process_is_denied() {
    if std::env::var_os(AS_NOBODY).is_some() {
        // CAP_SYS_NICE is missing.
        let mut tracker = BpfTracker::open(&KernelRoot::live()).unwrap();
        let mut child = Canary::start(1, 0, true).unwrap();
        let range = all(&child);
        child.touch([1]).unwrap();
        let denied = tracker.clear(child.pid(), &range).unwrap_err();
        assert!(
            matches!(&denied, TrackError::Denied { what, .. } if what.contains("CAP_SYS_NICE")),
            "{denied}"
        );
        assert_eq!(tracker.read(child.pid(), &range).unwrap()[0].accessed, None);
    } else if require_root() {
        let caps = ["--inh-caps=+bpf,+perfmon", "--ambient-caps=+bpf,+perfmon"];
        run_as_nobody("without_the_right_to_clear_a_process_is_denied", &caps);
    }
}
