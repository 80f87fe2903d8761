//! Trials of kernel abilities on this process. They leave no change that another thread could see.

use crate::own_advice::{self, Advice};
use crate::own_thp;
use crate::pagemap::scan;
use crate::process_madvise::advise_directly;
use megapage_inside::pagemap_scan::{IS_PRESENT, Run, ScanArgument};
use megapage_units::{BASE_PAGE, PageSize, VirtRange};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// Reads from a call's result if the kernel knows the call. An error in `unknown` means no, any
/// other error yes; `None` for a refusal.
fn known_unless<T>(result: io::Result<T>, unknown: &[i32]) -> Option<bool> {
    let Err(error) = result else { return Some(true) };
    match error.raw_os_error()? {
        errno if unknown.contains(&errno) => Some(false),
        // The answer of a filter or of a security module, not of the kernel.
        libc::EPERM | libc::EACCES => None,
        _ => Some(true),
    }
}

/// Gives advice for an empty range (madvise(2)): the kernel checks the advice before the range.
fn knows_advice(advice: Advice) -> Option<bool> {
    let given = own_advice::give(VirtRange::new(0, 0)?, advice);
    known_unless(given, &[libc::EINVAL, libc::ENOSYS])
}

/// Tries process_madvise(2) with the descriptor of a pipe: EBADF if the kernel has the call.
pub(super) fn process_madvise() -> Option<bool> {
    let (no_process, _) = io::pipe().ok()?;
    let result = advise_directly(no_process.as_fd(), &[], libc::MADV_COLD);
    known_unless(result.map_err(io::Error::from), &[libc::ENOSYS])
}

/// Tries MADV_POPULATE_WRITE.
pub(super) fn populate_write() -> Option<bool> {
    knows_advice(Advice::Populate)
}

/// Tries MADV_COLLAPSE. The release that brought it also has it for other processes.
pub(super) fn collapse() -> Option<bool> {
    match (knows_advice(Advice::Collapse), process_madvise()) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (own, _) => own,
    }
}

/// Tries PAGEMAP_SCAN of one page that this process has mapped.
pub(super) fn pagemap_scan() -> Option<bool> {
    let file = File::open(crate::KernelRoot::live().path("proc/self/pagemap")).ok()?;
    let mut runs = [Run::default()];
    let start = runs.as_ptr().addr() as u64 & !(BASE_PAGE as u64 - 1);
    let mut argument = ScanArgument {
        start,
        end: start + BASE_PAGE as u64,
        category_anyof_mask: IS_PRESENT,
        return_mask: IS_PRESENT,
        ..ScanArgument::default()
    };
    let result = scan(&file, &mut argument, &mut runs);
    known_unless(result, &[libc::ENOTTY, libc::EINVAL, libc::ENOSYS])
}

/// Tries mremap(2) of a hugetlb mapping, and takes no page of the pool. Returns `None` if the
/// kernel maps no hugetlb page of 2 MiB.
pub(super) fn hugetlb_mremap() -> Option<bool> {
    let moved = megapage_inside::try_move(PageSize::HUGE_2M)?;
    known_unless(moved.map_err(io::Error::from), &[libc::EINVAL])
}

/// Tries PR_SET_THP_DISABLE with PR_THP_DISABLE_EXCEPT_ADVISED, and undoes it at once. Returns
/// `None` if transparent huge pages are switched off for this process: that setting must stay.
pub(super) fn thp_disable_except_advised() -> Option<bool> {
    if own_thp::own_setting().ok()? != 0 {
        return None;
    }
    let result = own_thp::disable_own_thp(true);
    let undo = result.is_ok();
    let answer = known_unless(result, &[libc::EINVAL, libc::ENOSYS]);
    if undo {
        let _ = own_thp::enable_own_thp();
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KernelRoot, process::read_own_status};

    #[test]
    fn trials_leave_nothing_behind() {
        let root = KernelRoot::live();
        let before = read_own_status(&root).unwrap();
        let maps = || crate::maps::read_maps(&root, before.pid).unwrap();
        let hugetlb = |maps: Vec<crate::maps::Mapping>| {
            maps.iter().filter(|mapping| mapping.name.contains("hugepage")).count()
        };
        let held = hugetlb(maps());
        for trial in [
            process_madvise,
            populate_write,
            collapse,
            pagemap_scan,
            hugetlb_mremap,
            thp_disable_except_advised,
        ] {
            assert_eq!(trial(), trial(), "the same answer twice");
        }
        let after = read_own_status(&root).unwrap();
        assert_eq!(before.thp_enabled, after.thp_enabled);
        assert_eq!(hugetlb(maps()), held);
    }

    #[test]
    fn an_unknown_advice_is_distinguished_from_a_known_one() {
        assert_eq!(knows_advice(Advice::NoHuge), Some(true));
        let unknown = || Err::<(), _>(io::Error::from_raw_os_error(libc::EINVAL));
        assert_eq!(known_unless(unknown(), &[libc::EINVAL, libc::ENOSYS]), Some(false));
    }
}
