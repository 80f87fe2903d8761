//! The readers of /proc against those of procfs-core, which shares no code with them: on captured
//! trees, and on the kernel at hand.

use megapage_kernel::process::{Stat, Status, read_stat, read_status, ticks};
use megapage_kernel::smaps::{Mapping, read_smaps};
use megapage_kernel::{KernelRoot, meminfo};
use megapage_units::{Bytes, Pid};
use procfs_core::process::{self, MMPermissions, MMapPath, MemoryMaps};
use procfs_core::{FromBufRead, FromRead, Meminfo};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Captured trees, and processes in them.
const TREES: [(&str, &[i32]); 2] =
    [("linux-6.18-one-node", &[4711]), ("two-nodes-by-hand", &[300, 301, 400, 500, 600, 700])];

fn tree(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn open(path: &Path) -> Option<BufReader<File>> {
    File::open(path).ok().map(BufReader::new)
}

/// A process that does nothing, and ends with this.
struct Idle(Child);

impl Idle {
    fn start() -> Idle {
        let mut child = Command::new("sh")
            .args(["-c", "echo; exec sleep 600"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh and sleep are there");
        // Once the kernel shows it in sleep(3), it stays there for as long as it lives.
        let root = KernelRoot::live();
        let pid = Pid(child.id() as i32);
        let sleeps = || read_status(&root, pid).is_ok_and(|it| it.name == "sleep" && it.state == 'S');
        let began = std::time::Instant::now();
        while !sleeps() {
            if began.elapsed().as_secs() > 60 {
                let _ = child.kill();
                panic!("sleep does not start");
            }
            std::thread::yield_now();
        }
        Idle(child)
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id() as i32)
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn permissions(theirs: MMPermissions) -> String {
    let letter = |flag, letter| if theirs.contains(flag) { letter } else { '-' };
    let last = if theirs.contains(MMPermissions::SHARED) { 's' } else { 'p' };
    let letters = [(MMPermissions::READ, 'r'), (MMPermissions::WRITE, 'w'), (MMPermissions::EXECUTE, 'x')];
    letters.into_iter().map(|(flag, name)| letter(flag, name)).chain([last]).collect()
}

/// Returns the sizes of one mapping, by the names of smaps(5).
fn sizes(ours: &Mapping) -> [(&'static str, Bytes); 8] {
    [
        ("Rss", ours.rss),
        ("Pss", ours.pss),
        ("Referenced", ours.referenced),
        ("Anonymous", ours.anonymous),
        ("AnonHugePages", ours.anon_huge),
        ("ShmemPmdMapped", ours.shmem_pmd),
        ("FilePmdMapped", ours.file_pmd),
        ("Swap", ours.swap),
    ]
}

/// Values of an idle process that change between two readings: other processes map its libraries,
/// and clear accessed bits.
const PASSING: [&str; 2] = ["Pss", "Referenced"];

/// Compares all sizes but those `left_out`, and returns the number of mappings.
fn compare_smaps(root: &KernelRoot, file: &Path, pid: Pid, left_out: &[&str]) -> usize {
    let ours = read_smaps(root, pid).unwrap();
    let theirs = MemoryMaps::from_buf_read(open(file).unwrap()).unwrap().0;
    assert_eq!(ours.len(), theirs.len(), "{}", file.display());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let what = format!("{}: {}", file.display(), ours.range);
        assert_eq!((ours.range.start(), ours.range.end()), theirs.address, "{what}");
        assert_eq!(ours.permissions, permissions(theirs.perms), "{what}");
        assert_eq!((ours.offset, ours.inode), (theirs.offset, theirs.inode), "{what}");
        assert_eq!((ours.device.0 as i32, ours.device.1 as i32), theirs.dev, "{what}");
        if let MMapPath::Path(path) = &theirs.pathname {
            assert_eq!(Path::new(&ours.name), path, "{what}");
        }
        for (name, value) in sizes(ours).into_iter().filter(|(name, _)| !left_out.contains(name)) {
            if let Some(theirs) = theirs.extension.map.get(name) {
                assert_eq!(value.0, *theirs, "{what}: {name}");
            }
        }
    }
    ours.len()
}

fn compare_status(ours: &Status, theirs: &process::Status, what: &str) {
    assert_eq!(ours.name, theirs.name, "{what}");
    assert_eq!((ours.pid.0, ours.parent.0), (theirs.pid, theirs.ppid), "{what}");
    assert_eq!(ours.uids, [theirs.ruid, theirs.euid, theirs.suid, theirs.fuid], "{what}");
    assert_eq!(ours.gids, [theirs.rgid, theirs.egid, theirs.sgid, theirs.fgid], "{what}");
    assert_eq!(ours.threads, theirs.threads, "{what}");
    let sizes = [
        (ours.peak_rss, theirs.vmhwm),
        (ours.rss, theirs.vmrss),
        (ours.rss_anonymous, theirs.rssanon),
        (ours.swap, theirs.vmswap),
        (ours.page_tables, theirs.vmpte),
        (ours.locked, theirs.vmlck),
        (ours.pinned, theirs.vmpin),
    ];
    for (at, (ours, kib)) in sizes.into_iter().enumerate() {
        assert_eq!(ours, Bytes::kib(kib.unwrap_or(0)), "{what}: size {at}");
    }
}

fn compare_stat(ours: &Stat, theirs: &process::Stat, what: &str) {
    assert_eq!((&ours.name, ours.state), (&theirs.comm, theirs.state), "{what}");
    assert_eq!((ours.parent.0, ours.start_ticks), (theirs.ppid, theirs.starttime), "{what}");
    assert_eq!(ours.cpu, ticks(theirs.utime + theirs.stime), "{what}");
    assert_eq!(ours.children_cpu, ticks((theirs.cutime + theirs.cstime) as u64), "{what}");
    assert_eq!(ours.start_stack, theirs.startstack, "{what}");
}

#[test]
fn mappings_of_captured_trees_are_read_alike() {
    let mut compared = 0;
    for (name, pids) in TREES {
        let root = KernelRoot::captured(tree(name));
        for pid in pids {
            let file = tree(name).join(format!("proc/{pid}/smaps"));
            compared += compare_smaps(&root, &file, Pid(*pid), &[]);
        }
    }
    assert!(compared > 20, "{compared} mappings");
}

#[test]
fn an_idle_process_is_read_alike() {
    let (idle, root) = (Idle::start(), KernelRoot::live());
    let directory = PathBuf::from(format!("/proc/{}", idle.pid()));
    assert!(compare_smaps(&root, &directory.join("smaps"), idle.pid(), &PASSING) > 5);
    let theirs = process::Status::from_buf_read(open(&directory.join("status")).unwrap()).unwrap();
    compare_status(&read_status(&root, idle.pid()).unwrap(), &theirs, "status");
    let theirs = process::Stat::from_read(open(&directory.join("stat")).unwrap()).unwrap();
    compare_stat(&read_stat(&root, idle.pid()).unwrap(), &theirs, "stat");
}

#[test]
fn the_memory_of_the_machine_is_read_alike() {
    let live = (KernelRoot::live(), PathBuf::from("/proc/meminfo"));
    let captured = tree("linux-6.18-one-node");
    for (root, file) in [(KernelRoot::captured(captured.clone()), captured.join("proc/meminfo")), live] {
        let ours = meminfo(&root).unwrap();
        let theirs = Meminfo::from_buf_read(open(&file).unwrap()).unwrap();
        // Values that change while both read are left out.
        assert_eq!(ours.total, Some(Bytes(theirs.mem_total)), "{}", file.display());
        assert_eq!(ours.swap_total, Some(Bytes(theirs.swap_total)), "{}", file.display());
        assert_eq!(ours.default_huge_size.map(|size| size.bytes().0), theirs.hugepagesize);
        if file.starts_with(&captured) {
            assert_eq!(ours.free, Some(Bytes(theirs.mem_free)));
            assert_eq!(ours.available, theirs.mem_available.map(Bytes));
            assert_eq!(ours.page_tables, theirs.page_tables.map(Bytes));
            assert_eq!(ours.anon_huge, theirs.anon_hugepages.map(Bytes));
            assert_eq!(ours.hugetlb, theirs.hugetlb.map(Bytes));
            assert_eq!(ours.cma_total, theirs.cma_total.map(Bytes));
        }
    }
}
