//! mmap(2) and its family, in place of the C library's. See `megapage_memory::mapped` for their
//! effect.
//!
//! Each function makes the program's own call unchanged, with three exceptions. For
//! `mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS)` a better address may be
//! known. Hints that would scatter a heap are skipped. Shared memory is placed for huge pages: see
//! `megapage_memory::shared`. Before [`begin`] private mappings get the kernel's own answers.
//!
//! File-level obligation: an export has the signature and the contract of the C function whose name
//! it bears, and passes its arguments on unread. An address that it answers by itself was mapped
//! for this request, and is handed out only once.

#![allow(unsafe_code)]

use crate::jump::jumps;
use crate::next::Next;
use crate::primitives::{megapage_system_mmap, megapage_system_mprotect, megapage_system_munmap};
use crate::{HEAP, MAPPED, SHARED, collapser, limits, segments, threads};
use libc::off_t;
use megapage_inside::{ErrnoGuard, find_clock, has_supported_base_pages, program_memory, thp_is_possible};
use megapage_memory::Heap;
use megapage_memory::Kernel;
use megapage_memory::mapped::{LARGEST, SMALLEST};
use megapage_memory::shared::{Shm, note_refused};
use megapage_units::BASE_PAGE;
use std::os::raw::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// True if the program's mappings are looked at.
static ACTIVE: AtomicBool = AtomicBool::new(false);

const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const WRITABLE: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// Flags of memory with a special use: a stack, or pages of the pool.
const OF_ITS_OWN: c_int = libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;

static NEXT_MMAP: Next<Mmap> = Next::new(c"mmap");
static NEXT_MUNMAP: Next<Munmap> = Next::new(c"munmap");
static NEXT_MREMAP: Next<Mremap> = Next::new(c"mremap");
static NEXT_MPROTECT: Next<Mprotect> = Next::new(c"mprotect");

type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, off_t) -> *mut c_void;
type Munmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
type Mprotect = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

/// Looks at the program's mappings from now on, if huge pages are asked for and possible. Called
/// before any thread exists.
pub fn begin() {
    find_clock();
    NEXT_MMAP.find();
    NEXT_MUNMAP.find();
    NEXT_MREMAP.find();
    NEXT_MPROTECT.find();
    segments::begin();
    threads::own();
    let wanted = HEAP.config().heap != Heap::None && has_supported_base_pages() && thp_is_possible();
    ACTIVE.store(wanted, Relaxed);
}

/// Returns true if huge pages are asked for and possible.
pub fn is_active() -> bool {
    ACTIVE.load(Relaxed)
}

/// Stands in for mmap(2).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let next = |address| {
        let mmap = NEXT_MMAP.get_or(megapage_system_mmap);
        // SAFETY: the caller's promise.
        unsafe { mmap(address, len, protection, flags, fd, offset) }
    };
    let ask = || {
        let mapped = next(address);
        let again = mapped == libc::MAP_FAILED && limits::make_room_for_mapping();
        if again { next(address) } else { mapped }
    };
    if flags & libc::MAP_HUGETLB != 0 {
        let mapped = ask();
        if mapped == libc::MAP_FAILED {
            let errno = ErrnoGuard::save();
            note_refused(HEAP.ledger(), len, flags, errno.saved());
        }
        return mapped;
    }
    if address.is_null() && is_plainly_shared(flags) && SHARED.asked() != Shm::None {
        return map_shared(len, protection, flags, (fd, offset)).unwrap_or_else(ask);
    }
    if flags & ANONYMOUS != ANONYMOUS || flags & OF_ITS_OWN != 0 || !ACTIVE.load(Relaxed) {
        return ask();
    }
    let plain = flags & !(ANONYMOUS | libc::MAP_NORESERVE) == 0 && offset == 0;
    if address.is_null() && plain && protection == WRITABLE && len >= SMALLEST {
        return map_anywhere(len, flags & libc::MAP_NORESERVE == 0, ask);
    }
    if protection == libc::PROT_NONE
        && flags == ANONYMOUS | libc::MAP_NORESERVE
        && MAPPED.may_pass_over(&Kernel, address as usize, len)
    {
        // A program that has given a hint accepts any address.
        return next(ptr::null_mut());
    }
    let mapped = ask();
    if mapped != libc::MAP_FAILED && !address.is_null() {
        // A hint that was not followed says nothing about the memory there.
        if mapped == address {
            MAPPED.named(&Kernel, mapped as usize, len);
        }
        if protection & libc::PROT_WRITE != 0 {
            collapser::consider(len);
        }
    }
    mapped
}

/// Returns true if flags ask for shared memory, and for nothing that has special rules.
fn is_plainly_shared(flags: c_int) -> bool {
    const PLAIN: c_int = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_POPULATE;
    flags & libc::MAP_TYPE == libc::MAP_SHARED && flags & !PLAIN == 0
}

/// Maps shared memory at any address. Returns `None` if the program's own call is to be made.
fn map_shared(
    len: usize,
    protection: c_int,
    flags: c_int,
    (fd, offset): (c_int, off_t),
) -> Option<*mut c_void> {
    let _errno = ErrnoGuard::save();
    let mapped = match flags & libc::MAP_ANONYMOUS {
        0 => SHARED.map_file(HEAP.ledger(), len, protection, flags, (fd, offset)),
        // Without write access nothing is gained yet. The kernel checks the offset even of
        // anonymous mappings.
        _ if protection & libc::PROT_WRITE == 0 || offset != 0 => None,
        _ => SHARED.map_anonymous(HEAP.ledger(), len, protection, flags),
    }?;
    collapser::consider(len);
    Some(mapped as *mut c_void)
}

/// Maps private memory at any address, which may be the answer of `ask`.
fn map_anywhere(len: usize, reserve: bool, ask: impl Fn() -> *mut c_void) -> *mut c_void {
    // At first touch the program must not wait until the kernel has made room for a huge page.
    let may = len < LARGEST && !HEAP.is_near_limit() && HEAP.take_free(len).is_ok();
    let placed = may.then(|| MAPPED.place(&Kernel, len, reserve)).flatten();
    if may && placed.is_none() {
        HEAP.return_free(len);
    }
    let mut mapped = placed.map_or_else(&ask, |address| address as *mut c_void);
    if mapped == libc::MAP_FAILED && MAPPED.return_spares(&Kernel) {
        mapped = ask();
    }
    if mapped == libc::MAP_FAILED {
        return mapped;
    }
    if placed.is_none() {
        MAPPED.probe(mapped as usize, len);
    }
    collapser::consider(len);
    mapped
}

// mmap(2) by its other name.
jumps! { mmap64 => mmap }

/// Stands in for munmap(2).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, len: usize) -> c_int {
    SHARED.unmapping(address as usize, len);
    // A call that is refused for its arguments takes nothing away.
    let advised = (address as usize).is_multiple_of(BASE_PAGE) && MAPPED.unmapping(address as usize, len);
    if advised {
        program_memory::split_at_ends(address as usize, len.next_multiple_of(BASE_PAGE));
    }
    let munmap = NEXT_MUNMAP.get_or(megapage_system_munmap);
    // SAFETY: the caller's promise.
    let answer = unsafe { munmap(address, len) };
    if answer != 0 && advised {
        let _errno = ErrnoGuard::save();
        MAPPED.keeps_advice(address as usize, len);
    }
    answer
}

/// Stands in for mremap(2). The fifth argument counts only with MREMAP_FIXED and MREMAP_DONTUNMAP.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    wanted: *mut c_void,
) -> *mut c_void {
    const NAMES: c_int = libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    SHARED.unmapping(old as usize, old_len);
    let wanted = if flags & NAMES != 0 { wanted } else { ptr::null_mut() };
    // An `old_len` of 0 makes a second mapping of shared memory, and takes nothing away.
    let advised = (old as usize).is_multiple_of(BASE_PAGE) && MAPPED.unmapping(old as usize, old_len);
    if flags & libc::MREMAP_FIXED != 0 {
        // The new mapping replaces the memory there.
        MAPPED.unmapping(wanted as usize, new_len);
    }
    let answer = match NEXT_MREMAP.get() {
        // SAFETY: a function of that name has this type; the caller's promise.
        Some(next) => unsafe { next(old, old_len, new_len, flags, wanted) },
        // SAFETY: the caller's promise.
        None => unsafe { program_memory::system_mremap(old, old_len, new_len, flags, wanted) },
    };
    let failed = answer == libc::MAP_FAILED;
    if advised {
        let _errno = ErrnoGuard::save();
        if failed || flags & libc::MREMAP_DONTUNMAP != 0 {
            MAPPED.keeps_advice(old as usize, old_len);
        }
        if !failed {
            MAPPED.keeps_advice(answer as usize, new_len);
        }
    }
    if !failed && new_len > old_len && ACTIVE.load(Relaxed) {
        collapser::consider(new_len - old_len);
    }
    answer
}

/// Stands in for mprotect(2), which opens memory that was reserved without access.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(address: *mut c_void, len: usize, protection: c_int) -> c_int {
    let mprotect = NEXT_MPROTECT.get_or(megapage_system_mprotect);
    // SAFETY: the caller's promise.
    let answer = unsafe { mprotect(address, len, protection) };
    if answer == 0 && protection == WRITABLE && len >= SMALLEST && ACTIVE.load(Relaxed) {
        collapser::consider(len);
    }
    answer
}
