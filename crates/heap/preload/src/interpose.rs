//! Exports the wrappers of src/interpose.c under the C library's names.
//!
//! Each export is a bare jump. It leaves every argument (variadic ones too) and the return address
//! as they are, by which dlopen(3) finds its caller.
//!
//! File-level obligation: an export only jumps, so that its target sees the caller's call
//! unchanged.

#![allow(unsafe_code)]

use crate::jump::jumps;
use std::ffi::CStr;
use std::os::raw::c_char;

jumps! {
    dlopen => megapage_dlopen,
    execve => megapage_execve,
    execvpe => megapage_execvpe,
    fexecve => megapage_fexecve,
    execv => megapage_execv,
    execvp => megapage_execvp,
    execl => megapage_execl,
    execlp => megapage_execlp,
    execle => megapage_execle,
}

unsafe extern "C" {
    fn megapage_find_real();
    fn megapage_remember(name: *const c_char, name_length: usize, value: *const c_char);
}

/// Looks up the C library's functions. Called once, from the constructor.
pub fn find_real() {
    // SAFETY: one thread, as the constructor promises.
    unsafe { megapage_find_real() }
}

/// Keeps a variable, which is about to be removed, for this process's own next exec.
pub fn remember(name: &str, value: &CStr) {
    // SAFETY: a string of the given length and a C string, which are copied.
    unsafe { megapage_remember(name.as_ptr().cast(), name.len(), value.as_ptr()) }
}
