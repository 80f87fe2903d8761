//! The observer on this process, and on children that come and go.

use megapage_kernel::own_advice::{self, Advice};
use megapage_kernel::process::list_processes;
use megapage_kernel::{KernelRoot, Reservation, own_memory};
use megapage_observe::{
    Leaf, MappingKind, MissedWhy, Observer, Options, Process, Region, Snapshot, select_processes,
};
use megapage_testing::{PoolGuard, ThpSetting, copied, require_root, skip};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, PageSize, Pid, VirtRange};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn own_pid() -> Pid {
    Pid(std::process::id().cast_signed())
}

fn pid_of(child: &Child) -> Pid {
    Pid(child.id().cast_signed())
}

fn observer(options: Options) -> Observer {
    Observer::start(&KernelRoot::live(), Options { sample: false, ..options }).unwrap()
}

/// Memory of this process: some regions, at a multiple of 2 MiB, in a separate mapping.
struct Memory {
    _ends: [Reservation; 2],
    range: Reservation,
}

impl Memory {
    fn new(regions: usize) -> Memory {
        // The memory around it is not accessible, so that the kernel joins it to no other mapping.
        let mut first = Reservation::new((regions + 2) * HUGE_2M, HUGE_2M).unwrap();
        let mut range = first.split_off(HUGE_2M);
        let last = range.split_off(regions * HUGE_2M);
        Memory { _ends: [first, last], range }
    }

    fn open(regions: usize) -> Memory {
        let memory = Memory::new(regions);
        memory.range.open().unwrap();
        memory
    }

    fn address(&self, region: usize, page: usize) -> u64 {
        (self.range.start() + region * HUGE_2M + page * BASE_PAGE) as u64
    }

    fn write(&self, region: usize, page: usize) {
        // The last byte of the page is written: a scan for zeros must read all of it.
        let at = self.address(region, page) + BASE_PAGE as u64 - 1;
        own_memory().unwrap().write_all_at(b"x", at).unwrap();
    }

    fn read(&self, region: usize, page: usize) {
        own_memory().unwrap().read_exact_at(&mut [0], self.address(region, page)).unwrap();
    }

    fn regions<'a>(&self, process: &'a Process) -> Vec<&'a Region> {
        let inside = |region: &&Region| {
            self.range.start() as u64 <= region.start() && region.start() < self.range.end() as u64
        };
        process.regions.iter().filter(inside).collect()
    }
}

/// Child that is killed at the end of the test, even if it fails.
struct Killed(Child);

impl Killed {
    fn spawn(command: &mut Command) -> Killed {
        Killed(command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn sleep() -> Killed {
        Killed::spawn(Command::new("sleep").arg("600"))
    }

    fn kill(&mut self) {
        // The whole group is killed: a shell's children would outlive it otherwise.
        let _ = Command::new("kill")
            .args(["-9", "--", &format!("-{}", self.0.id())])
            .stderr(Stdio::null())
            .status();
        let _ = self.0.kill();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
        let _ = self.0.wait();
    }
}

/// Takes snapshots until `accept` finds what it looks for.
fn until<R>(observer: &mut Observer, pid: Pid, mut accept: impl FnMut(&Snapshot) -> Option<R>) -> R {
    let end = Instant::now() + Duration::from_secs(180);
    loop {
        let snapshot = observer.snapshot(&[pid]);
        if let Some(found) = accept(&snapshot) {
            return found;
        }
        assert!(Instant::now() < end, "not within three minutes: {:?}", snapshot.missed);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn base_pages_zero_pages_and_holes_are_told_apart() {
    let memory = Memory::open(3);
    for page in 0..100 {
        memory.write(0, 2 * page);
    }
    for page in 100..130 {
        memory.read(0, 2 * page);
    }
    memory.write(2, 511);
    let snapshot = observer(Options { folios: true, ..Options::default() }).snapshot(&[own_pid()]);
    let process = snapshot.process(own_pid()).unwrap();
    let regions = memory.regions(process);
    if regions[0].leaf.is_huge() {
        return skip("needs THP that are not given unasked");
    }
    let found: Vec<_> =
        regions.iter().map(|region| (region.present, region.zero_page, region.swapped)).collect();
    assert_eq!(found, [(100, 30, 0), (1, 0, 0)], "the second region holds nothing");
    let mapping = &process.mappings[regions[0].mapping as usize];
    assert!(regions.iter().all(|region| region.whole && region.accessed.is_none() && region.zeros.is_none()));
    assert_eq!((mapping.kind, mapping.range.start()), (MappingKind::Anonymous, memory.address(0, 0)));
    assert!(mapping.flags.read && mapping.flags.write && !mapping.flags.shared && !mapping.flags.huge);
    assert!(mapping.thp_eligible.is_some());
    // The sum over the regions equals the kernel's count, except for the work of other threads
    // meanwhile.
    let (sum, rss) = (process.backing.total() - process.backing.hugetlb(), process.rss);
    assert!(sum.0.abs_diff(rss.0) < Bytes::mib(64).0, "{sum} by regions, {rss} by the kernel");
    if require_root() {
        let folios = regions[0].folios.expect("root sees page frames");
        assert_eq!(folios.iter().sum::<u16>(), 100, "{folios:?}: the page of zeros does not count");
    }
}

#[test]
fn huge_pages_and_the_zeros_in_them_are_counted() {
    let memory = Memory::open(4);
    let advised = memory.range.part(0, 2 * HUGE_2M);
    if advised.advise_thp().and_then(|()| advised.populate()).is_err() {
        return skip("needs transparent huge pages");
    }
    for page in [0, 17, 511] {
        memory.write(1, page);
    }
    memory.write(3, 0);
    let mut observer = observer(Options { folios: true, zero_scan: true, ..Options::default() });
    let snapshot = observer.snapshot(&[own_pid()]);
    let process = snapshot.process(own_pid()).unwrap();
    let regions = memory.regions(process);
    if regions[0].leaf != Leaf::Huge2m || regions[1].leaf != Leaf::Huge2m {
        return skip("needs two free huge pages");
    }
    assert_eq!(regions[..2].iter().map(|region| region.zeros).collect::<Vec<_>>(), [Some(512), Some(509)]);
    assert_eq!(regions[1].bloat(), Bytes((509 * BASE_PAGE) as u64));
    assert_eq!(regions[0].folios, Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 512]));
    assert_eq!(regions[2].zeros, None, "base pages are not scanned");
    assert!(process.mappings[regions[0].mapping as usize].flags.huge);
    assert!(process.backing.thp >= Bytes::mib(4) && process.huge_regions() >= 2);

    // After a split, the former count of zeros is not shown. khugepaged may not collapse the region
    // before it is read.
    let both = VirtRange::new(memory.address(0, 0), memory.address(2, 0)).unwrap();
    own_advice::give(both, Advice::NoHuge).unwrap();
    memory.range.part(0, BASE_PAGE).discard().unwrap();
    let snapshot = observer.snapshot(&[own_pid()]);
    let region = memory.regions(snapshot.process(own_pid()).unwrap())[0];
    assert_eq!((region.leaf, region.present, region.zeros), (Leaf::Base, 511, None));
}

#[test]
fn smaller_folios_are_told_by_their_order() {
    let Some(_setting) = ThpSetting::write("hugepages-64kB/enabled", "madvise") else { return };
    let mut observer = observer(Options { folios: true, ..Options::default() });
    // With fragmented memory the kernel may have given base pages for some, but not each time.
    let mut halves = (0..20).map(|_| {
        let memory = Memory::new(1);
        // A part of a region cannot be one huge page.
        let part = memory.range.part(0, HUGE_2M / 2);
        part.open().unwrap();
        part.advise_thp().unwrap();
        part.populate().unwrap();
        let snapshot = observer.snapshot(&[own_pid()]);
        let regions = memory.regions(snapshot.process(own_pid()).unwrap());
        let folios = regions[0].folios.expect("root sees page frames");
        assert_eq!((regions[0].present, regions[0].leaf, folios.iter().sum::<u16>()), (256, Leaf::Base, 256));
        assert!(!regions[0].whole, "its mapping holds half of it");
        folios[4]
    });
    assert!(halves.any(|pages| pages >= 128), "20 times no more than half was in folios of 64 KiB");
}

#[test]
fn hugetlb_pages_are_told_from_transparent_ones() {
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 2) else { return };
    let memory = Memory::new(2);
    memory.range.map_hugetlb(PageSize::HUGE_2M).unwrap();
    memory.range.populate().unwrap();
    let mut observer = observer(Options { zero_scan: true, ..Options::default() });
    let snapshot = observer.snapshot(&[own_pid()]);
    let process = snapshot.process(own_pid()).unwrap();
    let regions = memory.regions(process);
    let found: Vec<_> = regions.iter().map(|region| (region.leaf, region.present, region.zeros)).collect();
    assert_eq!(found, [(Leaf::Hugetlb2m, 512, None); 2]);
    assert_eq!(process.mappings[regions[0].mapping as usize].kind, MappingKind::Hugetlb);
    assert!(process.backing.hugetlb_2m >= Bytes::mib(4));
    let pool = snapshot.machine.pools.iter().find(|pool| pool.page_size == PageSize::HUGE_2M).unwrap();
    assert!(pool.total >= 2 && pool.free <= pool.total - 2);
}

#[test]
fn a_mapping_that_grows_keeps_its_flags_and_a_new_one_gets_its_own() {
    let memory = Memory::new(4);
    let (first, second) = (memory.range.part(0, HUGE_2M), memory.range.part(2 * HUGE_2M, HUGE_2M));
    first.open().unwrap();
    if first.advise_thp().is_err() {
        return skip("needs transparent huge pages");
    }
    memory.write(0, 0);
    let mut observer = observer(Options::default());
    let huge = |snapshot: &Snapshot| {
        let process = snapshot.process(own_pid()).unwrap();
        let flags = |region: &&Region| process.mappings[region.mapping as usize].flags.huge;
        memory.regions(process).iter().map(flags).collect::<Vec<bool>>()
    };
    assert_eq!(huge(&observer.snapshot(&[own_pid()])), [true]);
    second.open().unwrap();
    second.advise_thp().unwrap();
    memory.write(2, 0);
    // smaps is read again once it would take no more than its share of the time.
    let found = until(&mut observer, own_pid(), |snapshot| {
        let found = huge(snapshot);
        (found.len() == 2 && found[1]).then_some(found)
    });
    assert_eq!(found, [true, true]);
}

#[test]
fn a_child_that_ends_is_gone() {
    let mut child = Killed::sleep();
    let pid = pid_of(&child.0);
    let mut observer = observer(Options::default());
    // At first it may be in its exec.
    let parent = |snapshot: &Snapshot| snapshot.processes.first().map(|one| one.parent);
    assert_eq!(until(&mut observer, pid, parent), own_pid());
    child.kill();
    // It is first a zombie, then gone.
    let gone = |snapshot: &Snapshot| snapshot.missed.first().map(|missed| (missed.why, missed.what.clone()));
    let expected = (MissedWhy::Gone, format!("process {pid} has ended"));
    assert_eq!(until(&mut observer, pid, gone), expected);
    child.0.wait().unwrap();
    assert_eq!(until(&mut observer, pid, gone), expected);
}

#[test]
fn a_child_that_executes_another_program_is_another() {
    let mut child = Killed::spawn(Command::new("sh").args(["-c", "read line; exec sleep 600"]));
    let pid = pid_of(&child.0);
    let mut observer = observer(Options::default());
    let named = |name: &'static str| {
        move |snapshot: &Snapshot| snapshot.processes.first().filter(|one| one.name == name).map(|one| one.id)
    };
    let before = until(&mut observer, pid, named("sh"));
    child.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let after = until(&mut observer, pid, named("sleep"));
    assert_eq!((before.pid, before.start_ticks), (after.pid, after.start_ticks));
    assert_ne!(before.start_stack, after.start_stack);
}

#[test]
fn a_forked_child_that_shares_memory_is_counted() {
    let child = Killed::spawn(Command::new("sh").args(["-c", "(sleep 600; :) & wait"]));
    let mut observer = observer(Options::default());
    let sharing = |snapshot: &Snapshot| snapshot.processes.first().and_then(|one| one.sharing_children);
    let mut shares = |count| {
        until(&mut observer, pid_of(&child.0), |snapshot| sharing(snapshot).filter(|found| *found == count))
    };
    assert_eq!(shares(1), 1);
    let alone = Killed::sleep();
    assert_eq!(observer_of(&alone).sharing_children, Some(0));
}

fn observer_of(child: &Killed) -> Process {
    let mut observer = observer(Options::default());
    until(&mut observer, pid_of(&child.0), |snapshot| snapshot.processes.first().cloned())
}

/// Variable with the process that the child of the next test is to observe.
const OBSERVE: &str = "MEGAPAGE_TEST_OBSERVE";

#[test]
#[ignore = "started by the next test, as another user"]
fn observe_as_another_user() {
    let pid = Pid(std::env::var(OBSERVE).unwrap().parse().unwrap());
    let snapshot = observer(Options::default()).snapshot(&[pid]);
    println!("{:?} {}", snapshot.missed[0].why, snapshot.missed[0].what);
}

#[test]
fn another_users_process_is_denied_with_what_helps() {
    if !require_root() {
        return;
    }
    // Another user may not enter our directory and gets a copy of this program.
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.path().join("observer");
    copied(std::env::current_exe().unwrap(), &program);
    let target = Killed::sleep();
    // CommandExt::uid would fork, and a fork may split the huge pages of the tests beside this one.
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&program)
        .args(["--exact", "observer::observe_as_another_user", "--ignored", "--nocapture"])
        .env(OBSERVE, target.0.id().to_string())
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let pid = target.0.id();
    let expected = format!("Denied process {pid} (sleep) is denied to us: ");
    let line = text.lines().find(|line| line.contains("Denied")).unwrap_or_else(|| panic!("{output:?}"));
    assert!(line.contains(&expected) && line.ends_with("; run megapage as its user or as root"), "{line}");
}

#[test]
fn processes_that_come_and_go_all_the_time_do_no_harm() {
    let root = KernelRoot::live();
    let mut observer = observer(Options::default());
    let churn = std::thread::spawn(|| {
        for _ in 0..100 {
            Command::new("true").status().unwrap();
        }
    });
    let mut rounds = 0;
    while !churn.is_finished() || rounds == 0 {
        let pids: Vec<Pid> = list_processes(&root).unwrap();
        let snapshot = observer.snapshot(&pids);
        let mut seen: Vec<Pid> = snapshot.processes.iter().map(|process| process.id.pid).collect();
        seen.extend(snapshot.missed.iter().map(|missed| missed.pid));
        seen.sort();
        assert_eq!(seen, pids, "each is either observed or missed");
        assert!(snapshot.missed.iter().all(|missed| !missed.what.is_empty() && !missed.what.contains('\n')));
        rounds += 1;
    }
    churn.join().unwrap();
}

#[test]
fn a_running_program_is_selected_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let name = format!("obs-{}", std::process::id());
    let program = directory.path().join(&name);
    let places = ["/bin/sleep", "/usr/bin/sleep"].map(Path::new);
    copied(places.iter().find(|place| place.exists()).expect("sleep(1)"), &program);
    // If sleep is a part of a larger program, that program goes by the name of the call.
    let child = Killed::spawn(Command::new(&program).arg0("sleep").arg("600"));
    let root = KernelRoot::live();
    let end = Instant::now() + Duration::from_secs(60);
    let found = loop {
        match select_processes(&root, std::slice::from_ref(&name)) {
            Ok(found) => break found,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    assert_eq!(found, [pid_of(&child.0)]);
    let by_number = select_processes(&root, &[child.0.id().to_string(), format!("^{name}$")]).unwrap();
    assert_eq!(by_number, found);
}

#[test]
fn an_observer_starts_with_what_this_machine_can_do() {
    let start = |options| Observer::start(&KernelRoot::live(), options);
    if require_root() {
        let observer = start(Options::default()).unwrap();
        let sampling = observer.sampling().expect("root can have smaps at the least");
        assert!(sampling.first_access_ns > 0.0 && sampling.budget == 0.01);
        assert_eq!(observer.why_unsampled(), None);
    }
    assert!(
        start(Options { budget: 2.0, ..Options::default() }).unwrap_err().to_string().contains("at most 1")
    );
    let tree = tempfile::tempdir().unwrap();
    let captured = KernelRoot::captured(tree.path());
    assert!(Observer::start(&captured, Options::default()).is_err(), "there is no such machine");
}
