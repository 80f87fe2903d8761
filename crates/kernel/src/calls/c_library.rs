//! Functions of the C library, declared with types that express all their demands on a caller.
//!
//! File-level obligation: each declaration agrees with the function's manual page. A function that
//! is safe here takes only numbers and references. It has an answer or an error for each number. A
//! reference leads to memory as large as its type, and is not kept.

#![allow(unsafe_code)]

use libc::{c_char, c_int, c_uint, c_ulong, pid_t, rusage, sigset_t};
use std::mem::MaybeUninit;

unsafe extern "C" {
    pub(crate) safe fn _exit(status: c_int) -> !;
    pub(crate) safe fn alarm(seconds: c_uint) -> c_uint;
    pub(crate) safe fn dlerror() -> *const c_char;
    pub(crate) safe fn getauxval(kind: c_ulong) -> c_ulong;
    pub(crate) safe fn kill(process: pid_t, signal: c_int) -> c_int;
    #[cfg(target_env = "gnu")]
    pub(crate) safe fn malloc_trim(kept: usize) -> c_int;
    pub(crate) safe fn pthread_sigmask(how: c_int, set: &sigset_t, former: Option<&mut sigset_t>) -> c_int;
    pub(crate) safe fn raise(signal: c_int) -> c_int;
    pub(crate) safe fn shmget(key: c_int, size: usize, flags: c_int) -> c_int;
    pub(crate) safe fn sigaddset(set: &mut sigset_t, signal: c_int) -> c_int;
    pub(crate) safe fn signalfd(descriptor: c_int, set: &sigset_t, flags: c_int) -> c_int;
    pub(crate) safe fn wait4(
        process: pid_t,
        status: &mut c_int,
        options: c_int,
        usage: &mut MaybeUninit<rusage>,
    ) -> pid_t;
}
