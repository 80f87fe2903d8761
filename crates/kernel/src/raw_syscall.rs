//! A system call that touches nothing of the C library's, not even `errno`: for code that runs without a thread of its
//! own, beside the one that started it.
//!
//! File-level obligation: the instruction takes and returns registers as the kernel's convention says (syscall(2),
//! "Architecture calling conventions"); what the call itself does is the caller's to answer for.

#![allow(unsafe_code)]

use std::arch::asm;

/// Makes system call `number`. The answer is the kernel's: from -4095 to -1 a negated error number.
///
/// # Safety
/// What the arguments point to must be valid for what this call reads and writes.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn syscall(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: as the caller promises; the kernel keeps all registers but these.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    answer
}

/// Makes system call `number`. The answer is the kernel's: from -4095 to -1 a negated error number.
///
/// # Safety
/// What the arguments point to must be valid for what this call reads and writes.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn syscall(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: as the caller promises; the kernel keeps all registers but x0.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as isize,
            inlateout("x0") a as isize => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_errors_are_the_kernels() {
        // SAFETY: neither call is given a pointer.
        let (pid, closed) = unsafe {
            (syscall(libc::SYS_getpid, [0; 6]), syscall(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]))
        };
        assert_eq!(pid, std::process::id() as isize);
        assert_eq!(closed, -(libc::EBADF as isize));
    }
}
