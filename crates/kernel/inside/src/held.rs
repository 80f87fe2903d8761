//! Two words of each thread: the locks that it holds, and the fork that it is in.
//!
//! A signal handler reads them when it has interrupted the code of this library. It may fork
//! (POSIX.1-2017 lists fork(2) among the functions for handlers), and must not wait for a lock that
//! the interrupted code holds.
//!
//! The words are reached without a call of the loader's, which may allocate (`__tls_get_addr`):
//! this runs within malloc. The symbol is weak: unit tests of this crate link it twice.
//!
//! File-level obligation: the symbol is a thread's own eight bytes, zero at first, and no other
//! name leads to them.

#![allow(unsafe_code)]

use std::arch::{asm, global_asm};

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .tbss.megapage_own_words,\"awT\",@nobits",
    ".weak megapage_own_words",
    ".hidden megapage_own_words",
    ".type megapage_own_words,@object",
    ".size megapage_own_words,8",
    ".p2align 3",
    "megapage_own_words:",
    ".zero 8",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .tbss.megapage_own_words,\"awT\",%nobits",
    ".weak megapage_own_words",
    ".hidden megapage_own_words",
    ".type megapage_own_words,%object",
    ".size megapage_own_words,8",
    ".p2align 3",
    "megapage_own_words:",
    ".zero 8",
    ".popsection",
);

/// Returns the calling thread's words.
#[inline]
fn words() -> *mut [u32; 2] {
    let address: usize;
    // SAFETY: the loader has placed the words at this offset from the thread's pointer
    // (initial-exec model).
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "mov {address}, qword ptr [rip + megapage_own_words@GOTTPOFF]",
            "add {address}, qword ptr fs:[0]",
            address = out(reg) address,
            options(nostack, readonly),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "adrp {address}, :gottprel:megapage_own_words",
            "ldr {address}, [{address}, :gottprel_lo12:megapage_own_words]",
            "mrs {pointer}, tpidr_el0",
            "add {address}, {address}, {pointer}",
            address = out(reg) address,
            pointer = out(reg) _,
            options(nostack, readonly),
        );
    }
    address as *mut [u32; 2]
}

/// Notes that the calling thread is about to take a lock.
#[inline]
pub(crate) fn taking() {
    // SAFETY: the words are this thread's. A handler that comes in between leaves them as it found
    // them.
    unsafe { (*words())[0] = (*words())[0].wrapping_add(1) }
}

/// Notes that the calling thread has released a lock, or did not get it.
#[inline]
pub(crate) fn released() {
    // SAFETY: as in `taking`.
    unsafe { (*words())[0] = (*words())[0].wrapping_sub(1) }
}

/// Returns true if the calling thread holds a lock of this crate's, or is about to take one.
pub fn holds_locks() -> bool {
    // SAFETY: as in `taking`.
    unsafe { (*words())[0] != 0 }
}

/// Returns the word that [`set_fork_state`] has set in the calling thread; 0 at first.
pub fn fork_state() -> u32 {
    // SAFETY: as in `taking`.
    unsafe { (*words())[1] }
}

/// Sets a word of the calling thread: the preloaded library's state of a fork. The thread's copy in
/// a child has it, too.
pub fn set_fork_state(state: u32) {
    // SAFETY: as in `taking`.
    unsafe { (*words())[1] = state }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lock;

    #[test]
    fn each_thread_knows_what_it_holds() {
        let (lock, other) = (Lock::new(), Lock::new());
        assert!(!holds_locks());
        lock.lock();
        other.with(|| assert!(holds_locks()));
        assert!(holds_locks());
        set_fork_state(7);
        std::thread::scope(|scope| {
            scope
                .spawn(|| assert!(!holds_locks() && !lock.try_lock() && !holds_locks() && fork_state() == 0));
        });
        lock.unlock();
        assert!(!holds_locks() && fork_state() == 7);
        // As in a forked child, for a lock that another thread held.
        assert!(lock.try_lock());
        released();
        lock.reset();
        assert!(!holds_locks() && lock.try_lock());
        lock.unlock();
    }
}
