//! System calls as instructions of this library.
//!
//! A program, or a library in it, may define `open`, `syscall` or any other name of the C
//! library's, and run code there that allocates, takes locks or ends the program. So nothing here
//! goes by such a name. Nor is errno touched.
//!
//! A program may also forbid itself system calls (seccomp(2)), often on pain of death. From
//! [`program_confines`] on [`call`] makes those alone that a malloc needs, and answers EPERM for
//! all others.
//!
//! File-level obligation: registers are used as syscall(2) says, and nothing else is in the
//! instructions.

#![allow(unsafe_code)]

use crate::errno::Errno;
use libc::c_long;
use std::arch::asm;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering::Relaxed};

/// Calls that any malloc makes, and the one that ends the process.
const OF_A_MALLOC: [c_long; 7] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_futex,
    libc::SYS_exit_group,
];

/// A filter's presence when it was looked first: 0 until then, 1 for none, 2 for one.
static FILTERED_AT_FIRST: AtomicU8 = AtomicU8::new(0);
static CONFINED: AtomicBool = AtomicBool::new(false);
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Makes a system call for this library. EPERM, and no call, for one that the program may have
/// forbidden itself.
///
/// # Safety
/// As for the call: pointers among the arguments are what it says they must be.
#[inline]
pub unsafe fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> Result<usize, Errno> {
    if CONFINED.load(Relaxed) && !OF_A_MALLOC.contains(&number) {
        return Err(Errno::EPERM);
    }
    // SAFETY: the caller's promise.
    unsafe { call_for_program(number, arguments) }
}

/// Makes a system call that the program itself has asked for, whatever it has forbidden itself.
///
/// # Safety
/// As for [`call`].
#[inline]
pub unsafe fn call_for_program<const N: usize>(
    number: c_long,
    arguments: [usize; N],
) -> Result<usize, Errno> {
    let mut six = [0; 6];
    six[..N].copy_from_slice(&arguments);
    // SAFETY: the caller's promise.
    let answer = unsafe { instruction(number, six) };
    // The last 4,095 values are errors.
    if answer >= -4095isize as usize { Err(Errno(-(answer as isize) as i32)) } else { Ok(answer) }
}

#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn instruction(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> usize {
    let answer;
    // SAFETY: the caller's promise. The kernel changes rax, rcx and r11 alone.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as usize => answer,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

#[cfg(target_arch = "aarch64")]
#[inline]
unsafe fn instruction(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> usize {
    let answer;
    // SAFETY: the caller's promise. The kernel changes x0 alone.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") a => answer,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            options(nostack),
        );
    }
    answer
}

/// Returns the calling process's id: asked for, for a child of vfork(2) shares this memory, or as
/// it was last where the program may have forbidden itself to ask.
pub fn own_pid() -> u32 {
    // SAFETY: getpid(2) takes nothing.
    let asked = unsafe { call(libc::SYS_getpid, []) }.map(|pid| pid as i32);
    if let Ok(pid) = asked {
        PROCESS.store(pid, Relaxed);
    }
    asked.unwrap_or(PROCESS.load(Relaxed)) as u32
}

/// Returns the calling thread's id; 0 where it may not be asked for.
pub fn own_thread() -> i32 {
    // SAFETY: gettid(2) takes nothing.
    unsafe { call(libc::SYS_gettid, []) }.map_or(0, |thread| thread as i32)
}

/// Returns true if a thread of the calling process still exists.
pub fn thread_exists(thread: i32) -> bool {
    // SAFETY: signal 0 is never sent.
    unsafe { call(libc::SYS_tgkill, [own_pid() as usize, thread as usize, 0]) }.is_ok()
}

/// Ends the process at once, as _exit(2) does.
pub fn exit_process(status: i32) -> ! {
    // SAFETY: it takes a number and does not return.
    let _ = unsafe { call(libc::SYS_exit_group, [status as usize]) };
    std::process::abort()
}

/// Names the calling thread; the kernel keeps 15 bytes (PR_SET_NAME).
pub fn set_thread_name(name: &std::ffi::CStr) {
    // SAFETY: the name is a C string.
    let _ = unsafe { call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0]) };
}

/// Notes that the program begins: filters that it has now are its surroundings', a container's or a
/// service's.
pub fn program_begins() {
    // SAFETY: this prctl takes no pointer.
    let mode = unsafe { call(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0]) };
    FILTERED_AT_FIRST.store(1 + u8::from(mode.is_ok_and(|mode| mode > 0)), Relaxed);
    own_pid();
}

/// Notes that the program is about to forbid itself system calls. From here on [`call`] makes few.
pub fn program_confines() {
    CONFINED.store(true, Relaxed);
}

/// Returns true if the program may have forbidden itself system calls since it began.
pub fn is_confined() -> bool {
    CONFINED.load(Relaxed)
}

/// Returns true if system calls may go through a filter (seccomp(2)), the program's own or its
/// surroundings'.
pub fn is_filtered() -> bool {
    if FILTERED_AT_FIRST.load(Relaxed) == 0 && !is_confined() {
        program_begins();
    }
    FILTERED_AT_FIRST.load(Relaxed) > 1 || is_confined()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_answer_as_the_c_librarys_and_leave_errno_alone() {
        crate::set_errno(libc::EXDEV);
        // SAFETY: neither call takes a pointer that is followed.
        let (pid, refused) = unsafe { (call(libc::SYS_getpid, []), call(libc::SYS_munmap, [1, 4096])) };
        assert_eq!(pid, Ok(std::process::id() as usize));
        assert_eq!(refused, Err(Errno::EINVAL));
        assert_eq!(Errno::last(), Errno(libc::EXDEV));
        let mut six = [0u8; 4];
        // SAFETY: six arguments: the buffer is writable and of the given length.
        let read = unsafe {
            let file =
                call(libc::SYS_openat, [libc::AT_FDCWD as usize, c"/proc/self/exe".as_ptr() as usize, 0]);
            let file = file.unwrap();
            let at = [file, six.as_mut_ptr() as usize, six.len(), 0];
            (call(libc::SYS_pread64, at), call(libc::SYS_close, [file]))
        };
        assert_eq!((read, &six), ((Ok(4), Ok(0)), b"\x7fELF"));
        assert!(thread_exists(own_thread()) && !thread_exists(i32::MAX));
    }

    // In a separate process, which stays confined.
    #[test]
    fn a_confined_program_meets_the_calls_of_a_malloc_alone() {
        megapage_testing::in_child(
            "system::tests::a_confined_program_meets_the_calls_of_a_malloc_alone",
            || {
                program_begins();
                let pid = own_pid();
                program_confines();
                // SAFETY: no pointer is followed.
                let (asked, unmapped) =
                    unsafe { (call(libc::SYS_getppid, []), call(libc::SYS_munmap, [1, 4096])) };
                assert_eq!((asked, unmapped), (Err(Errno::EPERM), Err(Errno::EINVAL)));
                assert_eq!(own_pid(), pid);
                assert!(is_filtered() && crate::memory_available_and_total().is_none());
            },
        );
    }
}
