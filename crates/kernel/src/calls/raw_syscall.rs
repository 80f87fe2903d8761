//! System call that touches nothing of the C library, not even `errno`. For code that runs without
//! a separate C library thread, beside the thread that started it.
//!
//! File-level obligation: the instruction takes and returns registers as the kernel's convention
//! says (syscall(2), "Architecture calling conventions"). The effects of the call itself are the
//! caller's responsibility.

#![allow(unsafe_code)]

use megapage_inside::{Errno, call_for_program};
use std::arch::asm;

/// Makes system call `number`. Returns the kernel's answer: from -4095 to -1 a negated error
/// number.
///
/// # Safety
/// The memory that the arguments point to must be valid for all reads and writes of this call.
pub(crate) unsafe fn syscall<const N: usize>(number: libc::c_long, arguments: [usize; N]) -> isize {
    // SAFETY: as the caller promises.
    let answer = unsafe { call_for_program(number, arguments) };
    answer.map_or_else(|errno| -(errno.0 as isize), |answer| answer as isize)
}

/// Reads a clock (clock_gettime(2)). EINVAL: no clock has this number.
pub(crate) fn read_clock(clock: libc::clockid_t) -> Result<libc::timespec, Errno> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let arguments = [clock as usize, (&raw mut time).expose_provenance()];
    // SAFETY: `time` is writable.
    unsafe { call_for_program(libc::SYS_clock_gettime, arguments) }.map(|_| time)
}

/// Returns the processor time of the calling thread, in nanoseconds.
pub(crate) fn thread_time() -> u64 {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |time| (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64))
}

/// Function that a new process runs.
pub(crate) type Body = extern "C" fn(*mut libc::c_void) -> libc::c_int;

/// Starts a process that shares this one's memory (clone(2), CLONE_VM; its end sends no signal). It
/// runs `body` with `argument` on a stack that ends at `top`, and ends when `body` returns. Returns
/// its number, or a negated error number.
///
/// Does not use the C library's clone. `megapage run` assumes of a program that imports that name,
/// or loads a library that does, that it starts children by it.
///
/// # Safety
/// Nothing else uses the stack, which is aligned to 16 bytes and exists as long as the process.
/// `body` touches nothing of the C library: the thread that it would find there is the caller's.
/// Signals are blocked.
pub(crate) unsafe fn start_process(top: *mut u8, body: Body, argument: *mut libc::c_void) -> isize {
    let answer: isize;
    // SAFETY: as the caller promises. The instructions after the system call use the new process's
    // own stack and registers there. In this process the kernel keeps all registers but these.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            // In the new process, a frame pointer of zero ends backtraces.
            "xor ebp, ebp",
            "mov rdi, r8",
            "call r9",
            "mov edi, eax",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit_group,
            inlateout("rax") libc::SYS_clone as isize => answer,
            in("rdi") libc::CLONE_VM as usize, in("rsi") top, in("rdx") 0usize, in("r10") 0usize,
            // clone(2) ignores its fifth argument without CLONE_SETTLS, and has no sixth.
            in("r8") argument, in("r9") body,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    // SAFETY: the same.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            // In the new process, a frame pointer of zero ends backtraces.
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, x6",
            "blr x5",
            "mov x8, {exit}",
            "svc 0",
            "brk #1",
            "2:",
            exit = const libc::SYS_exit_group,
            in("x8") libc::SYS_clone as isize,
            inlateout("x0") libc::CLONE_VM as isize => answer,
            in("x1") top, in("x2") 0usize, in("x3") 0usize, in("x4") 0usize,
            // clone(2) does not use these.
            in("x5") body, in("x6") argument,
            options(nostack)
        );
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{WaitOptions, waitpid};
    use std::sync::atomic::{AtomicI32, Ordering};

    static RAN: AtomicI32 = AtomicI32::new(0);

    extern "C" fn noted(argument: *mut libc::c_void) -> libc::c_int {
        RAN.store(argument.expose_provenance() as i32, Ordering::SeqCst);
        7
    }

    #[test]
    fn a_process_runs_its_body_and_ends_with_its_status() {
        let mut stack = vec![0u128; 1024];
        let top = stack.as_mut_ptr_range().end.cast();
        let pid = megapage_inside::without_signals(|| {
            // SAFETY: the stack belongs to the new process alone until its end; the body touches
            // one atomic.
            unsafe { start_process(top, noted, std::ptr::without_provenance_mut(42)) }
        });
        assert!(pid > 0, "{pid}");
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        let all = WaitOptions::from_bits_retain(libc::__WALL as u32);
        let (waited, status) = waitpid(Some(pid), all).unwrap().unwrap();
        assert_eq!(waited, pid);
        assert_eq!((status.exited(), status.exit_status()), (true, Some(7)));
        assert_eq!(RAN.load(Ordering::SeqCst), 42);
    }

    #[test]
    fn answers_and_errors_are_the_kernels() {
        // SAFETY: neither call is given a pointer.
        let (pid, closed) =
            unsafe { (syscall(libc::SYS_getpid, []), syscall(libc::SYS_close, [usize::MAX])) };
        assert_eq!(pid, std::process::id() as isize);
        assert_eq!(closed, -(libc::EBADF as isize));
    }
}
