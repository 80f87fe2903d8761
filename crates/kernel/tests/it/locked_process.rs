//! A process that holds its own mmap lock makes no caller wait for longer than the deadline.

use megapage_kernel::helper::counts;
use megapage_kernel::maps::read_maps;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::process::{read_cmdline, read_status};
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::open_pidfd;
use megapage_kernel::{KernelRoot, clear_refs, process_madvise};
use megapage_testing::{HeldLock, wait_for};
use megapage_units::{HUGE_2M, VirtRange};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// One test: deadlines and back-off are those of the whole process.
#[test]
fn nothing_that_is_asked_of_it_takes_longer_than_the_deadline() {
    let Some(held) = HeldLock::start(0) else { return };
    let (root, pid) = (KernelRoot::live(), held.pid());
    let started = Instant::now();
    let error = read_smaps(&root, pid).unwrap_err();
    let took = started.elapsed();
    assert!(error.is_locked(), "{error}");
    assert!(took >= Duration::from_secs(2), "{took:?}");
    let text = error.to_string();
    let expected =
        format!("/proc/{pid}/smaps: process {pid} did not answer within 2 s: its memory map is locked");
    assert_eq!(text, expected);

    // From now on it is backed off: nothing waits.
    let range = VirtRange::new(HUGE_2M as u64, 2 * HUGE_2M as u64).unwrap();
    for (what, is_locked) in [
        ("maps", read_maps(&root, pid).is_err_and(|error| error.is_locked())),
        ("cmdline", read_cmdline(&root, pid).is_err_and(|error| error.is_locked())),
        ("environ", root.read(format!("proc/{pid}/environ")).is_err_and(|error| error.is_locked())),
        ("numa_maps", root.read(format!("proc/{pid}/numa_maps")).is_err_and(|error| error.is_locked())),
        ("pagemap", Pagemap::open(&root, pid).is_err_and(|error| error.is_locked())),
        ("clear_refs", clear_refs::clear_accessed(&root, pid).is_err_and(|error| error.is_locked())),
    ] {
        assert!(is_locked, "{what}");
    }
    let pidfd = open_pidfd(pid).unwrap();
    let error = process_madvise::cold(pidfd.as_fd(), &[range]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");

    // Calls that take no such lock are answered as ever.
    assert_eq!(read_status(&root, pid).unwrap().pid, pid);
    // One deadline was missed: everything else was refused without a wait.
    let counted = counts();
    assert_eq!((counted.missed, counted.locked), (1, 1), "{counted:?}");
    wait_for("the end of what was given up", || counts().stuck == 0);
}
