//! Trials of abilities, on this process.
//!
//! File-level obligation: each call names no memory, memory in the function's frame, or memory that
//! the function has mapped itself and unmaps before it returns. Every structure that the kernel
//! reads is initialised and outlives the call. No change stays that another thread could see.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

const HUGE: usize = megapage_units::HUGE_2M;

/// Reads from a call's result if the kernel knows the call. An error in `unknown` means no, any
/// other error yes; `None` for a refusal.
fn known_unless(result: libc::c_long, unknown: &[i32]) -> Option<bool> {
    if result >= 0 {
        return Some(true);
    }
    match std::io::Error::last_os_error().raw_os_error()? {
        errno if unknown.contains(&errno) => Some(false),
        // The answer of a filter or of a security module, not of the kernel.
        libc::EPERM | libc::EACCES => None,
        _ => Some(true),
    }
}

/// Tries madvise(2) of no bytes: the kernel checks the advice before the range.
fn knows_advice(advice: i32) -> Option<bool> {
    // SAFETY: an empty range; no memory is advised.
    let result = unsafe { libc::madvise(ptr::null_mut(), 0, advice) };
    known_unless(result.into(), &[libc::EINVAL, libc::ENOSYS])
}

/// Tries process_madvise(2) with an invalid descriptor: EBADF if the kernel has the call.
pub(super) fn process_madvise() -> Option<bool> {
    // SAFETY: no descriptor and no ranges: nothing can be advised.
    let result = unsafe {
        libc::syscall(libc::SYS_process_madvise, -1, ptr::null::<libc::iovec>(), 0, libc::MADV_COLD, 0)
    };
    known_unless(result, &[libc::ENOSYS])
}

/// Tries MADV_POPULATE_WRITE.
pub(super) fn populate_write() -> Option<bool> {
    knows_advice(libc::MADV_POPULATE_WRITE)
}

/// Tries MADV_COLLAPSE. The release that brought it also has it for other processes.
pub(super) fn collapse() -> Option<bool> {
    match (knows_advice(libc::MADV_COLLAPSE), process_madvise()) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (own, _) => own,
    }
}

/// Tries PAGEMAP_SCAN of one page that this process has mapped.
pub(super) fn pagemap_scan() -> Option<bool> {
    let file = File::open(crate::KernelRoot::live().path("proc/self/pagemap")).ok()?;
    let mut run = megapage_inside::pagemap_scan::Run::default();
    let start = ptr::from_ref(&run).addr() as u64 & !(megapage_units::BASE_PAGE as u64 - 1);
    let mut argument = megapage_inside::pagemap_scan::ScanArgument {
        size: size_of::<megapage_inside::pagemap_scan::ScanArgument>() as u64,
        start,
        end: start + megapage_units::BASE_PAGE as u64,
        vec: ptr::from_mut(&mut run).expose_provenance() as u64,
        vec_len: 1,
        category_anyof_mask: megapage_inside::pagemap_scan::IS_PRESENT,
        return_mask: megapage_inside::pagemap_scan::IS_PRESENT,
        ..Default::default()
    };
    // SAFETY: the argument states its own size, and a vector of one element, which lives through
    // the call.
    let result =
        unsafe { libc::ioctl(file.as_raw_fd(), megapage_inside::pagemap_scan::PAGEMAP_SCAN, &mut argument) };
    known_unless(result.into(), &[libc::ENOTTY, libc::EINVAL, libc::ENOSYS])
}

/// Tries mremap(2) of a hugetlb mapping, which takes no page of the pool, onto a range reserved for
/// it. Returns `None` without a pool of 2 MiB pages.
pub(super) fn hugetlb_mremap() -> Option<bool> {
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let huge = private | libc::MAP_HUGETLB | (21 << libc::MAP_HUGE_SHIFT);
    // SAFETY: for the whole block, new mappings at addresses of the kernel's choice overlap
    // nothing. The ranges that MAP_FIXED replaces and that are unmapped lie within them. None of
    // this memory is ever accessed.
    unsafe {
        let from = libc::mmap(ptr::null_mut(), HUGE, libc::PROT_NONE, huge, -1, 0);
        if from == libc::MAP_FAILED {
            return None;
        }
        let room = libc::mmap(ptr::null_mut(), 2 * HUGE, libc::PROT_NONE, private, -1, 0);
        if room == libc::MAP_FAILED {
            libc::munmap(from, HUGE);
            return None;
        }
        let to = room.wrapping_byte_add(room.addr().wrapping_neg() % HUGE);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let moved = libc::mremap(from, HUGE, HUGE, flags, to);
        if moved == libc::MAP_FAILED {
            let answer = known_unless(-1, &[libc::EINVAL]);
            libc::munmap(from, HUGE);
            // The kernel may have unmapped the target before it failed: a mapping that lies there
            // now may be another thread's.
            let (start, aligned) = (room.addr(), to.addr());
            libc::munmap(room, aligned - start);
            libc::munmap(to.wrapping_byte_add(HUGE), start + HUGE - aligned);
            answer
        } else {
            libc::munmap(room, 2 * HUGE);
            Some(true)
        }
    }
}

/// Tries PR_SET_THP_DISABLE with PR_THP_DISABLE_EXCEPT_ADVISED, and undoes it at once. Returns
/// `None` if transparent huge pages are switched off for this process: that setting must stay.
pub(super) fn thp_disable_except_advised() -> Option<bool> {
    const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
    let none: libc::c_ulong = 0;
    // SAFETY: prctl(2) with numbers only.
    unsafe {
        if libc::prctl(libc::PR_GET_THP_DISABLE, none, none, none, none) != 0 {
            return None;
        }
        let on: libc::c_ulong = 1;
        let result = libc::prctl(libc::PR_SET_THP_DISABLE, on, EXCEPT_ADVISED, none, none);
        let answer = known_unless(result.into(), &[libc::EINVAL, libc::ENOSYS]);
        if result == 0 {
            libc::prctl(libc::PR_SET_THP_DISABLE, none, none, none, none);
        }
        answer
    }
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
        assert_eq!(knows_advice(libc::MADV_WILLNEED), Some(true));
        assert_eq!(knows_advice(0x7abc), Some(false));
    }
}
