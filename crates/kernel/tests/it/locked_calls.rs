//! Calls that wait uninterruptibly in the kernel delay neither this process nor its end.

use megapage_kernel::helper::counts;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::spawn::open_pidfd;
use megapage_kernel::{KernelRoot, process_madvise};
use megapage_testing::{HeldLock, is_root, skip, wait_for};
use megapage_units::{HUGE_2M, VirtRange};
use std::os::fd::AsFd;

/// One test: see `locked_process.rs`.
#[test]
fn advice_that_waits_for_the_lock_is_left_behind_and_bounded() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to advise on memory of another process");
    }
    let range = VirtRange::new(HUGE_2M as u64, 2 * HUGE_2M as u64).unwrap();
    let mut held = Vec::new();
    for expected in 1..=2 {
        let Some(one) = HeldLock::start(0) else { return };
        let pidfd = open_pidfd(one.pid()).unwrap();
        held.push(one);
        let error = process_madvise::cold(pidfd.as_fd(), &[range]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
        assert_eq!(counts().stuck, expected, "no signal ends that wait");
    }
    // A third one of the same user is not tried.
    let Some(third) = HeldLock::start(0) else { return };
    let pidfd = open_pidfd(third.pid()).unwrap();
    let error = process_madvise::cold(pidfd.as_fd(), &[range]).unwrap_err();
    assert!(error.to_string().contains("too many calls wait"), "{error}");
    assert_eq!((counts().stuck, counts().refused), (2, 1));
    // But reading is tried: that wait can be ended.
    assert!(Pagemap::open(&KernelRoot::live(), third.pid()).is_ok(), "opening takes no lock");
    // The helpers end with the locks.
    drop((held, third));
    wait_for("the end of the helpers", || counts().stuck == 0);
}
