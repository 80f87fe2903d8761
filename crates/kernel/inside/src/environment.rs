//! The process's own environment, read and edited in place, without allocation.
//!
//! File-level obligation: these functions run in a library constructor (or earlier), while the
//! process has one thread, as setenv(3) demands too. `environ` is a null-terminated array of C
//! strings, or null.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::raw::c_char;

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The longest value that is looked at, in bytes; a longer one counts as absent.
pub const MAX_VALUE: usize = 4096;

/// Returns true if the C library has set the environment up.
pub fn environment_is_ready() -> bool {
    // SAFETY: one thread (see the header); only the pointer is read.
    unsafe { !environ.is_null() }
}

/// Returns true if the program has rights that its caller lacks (AT_SECURE of getauxval(3)):
/// set-user-ID, file capabilities. /etc/ld.so.preload loads libraries into such programs, too.
pub fn is_secure() -> bool {
    // SAFETY: the call takes a number, and reads what the kernel gave the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the slot of variable `name`. A secure program has none: its caller has chosen the
/// values.
fn slot(name: &str) -> Option<*mut *mut c_char> {
    if is_secure() {
        return None;
    }
    // SAFETY: one thread, and a null-terminated array of C strings (see the header).
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry).to_bytes();
            if text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'=')) {
                return Some(entry);
            }
            entry = entry.add(1);
        }
    }
    None
}

/// Copies the value of variable `name`, with a final NUL, into `buffer`; `None` when it is unset or
/// too long.
pub fn environment_variable<'a>(name: &str, buffer: &'a mut [u8; MAX_VALUE]) -> Option<&'a CStr> {
    let entry = slot(name)?;
    // SAFETY: the slot holds a C string of at least the name and '='.
    let text = unsafe { CStr::from_ptr(*entry) }.to_bytes_with_nul();
    let value = &text[name.len() + 1..];
    let target = buffer.get_mut(..value.len())?;
    target.copy_from_slice(value);
    CStr::from_bytes_with_nul(target).ok()
}

/// Removes variable `name`, so that the process's children do not get it.
pub fn remove_environment_variable(name: &str) {
    let Some(mut entry) = slot(name) else { return };
    // SAFETY: one thread; the entries after the slot, its final null included, move down by one.
    unsafe {
        while !(*entry).is_null() {
            *entry = *entry.add(1);
            entry = entry.add(1);
        }
    }
}

/// Copies the first item for which `wanted` holds, with a final NUL, out of the list in variable
/// `name` (see [`remove_from_environment_list`]).
pub fn environment_list_item<'a>(
    name: &str,
    wanted: impl Fn(&[u8]) -> bool,
    buffer: &'a mut [u8; MAX_VALUE],
) -> Option<&'a CStr> {
    let entry = slot(name)?;
    // SAFETY: the slot holds a C string of at least the name and '='.
    let list = &unsafe { CStr::from_ptr(*entry) }.to_bytes()[name.len() + 1..];
    let item = list.split(|&byte| byte == b':' || byte == b' ').find(|item| wanted(item))?;
    let target = buffer.get_mut(..item.len() + 1)?;
    target[..item.len()].copy_from_slice(item);
    target[item.len()] = 0;
    CStr::from_bytes_with_nul(target).ok()
}

/// Removes every item for which `unwanted` holds from the list in variable `name`. Items are
/// separated by colons or spaces, as those of LD_PRELOAD are (see ld.so(8)). An empty list is
/// removed whole.
pub fn remove_from_environment_list(name: &str, unwanted: impl Fn(&[u8]) -> bool) {
    let Some(entry) = slot(name) else { return };
    // SAFETY: one thread; the value only gets shorter, so that it stays inside its string.
    let value = unsafe {
        let start = (*entry).add(name.len() + 1);
        std::slice::from_raw_parts_mut(start.cast::<u8>(), CStr::from_ptr(start).to_bytes_with_nul().len())
    };
    let (mut read, mut written) = (0, 0);
    let end = value.len() - 1;
    while read < end {
        let length = value[read..end].iter().take_while(|&&byte| byte != b':' && byte != b' ').count();
        let item = read..read + length;
        if length > 0 && !unwanted(&value[item.clone()]) {
            if written > 0 {
                value[written] = b':';
                written += 1;
            }
            value.copy_within(item, written);
            written += length;
        }
        read += length + 1;
    }
    value[written] = 0;
    if written == 0 {
        remove_environment_variable(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Tests run in threads, so that editing needs a separate process: this test starts itself
    /// again.
    #[test]
    fn variables_are_read_and_removed() {
        const INNER: &str = "MEGAPAGE_TEST_INNER";
        let mut buffer = [0; MAX_VALUE];
        if environment_variable(INNER, &mut buffer).is_some() {
            are_edited(&mut buffer);
        } else {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["environment::tests::variables_are_read_and_removed", "--exact", "--test-threads=1"])
                .env(INNER, "1")
                .env("LIST", "/a/unwanted.so:/b/wanted.so unwanted.so")
                .env("ALL", "unwanted.so")
                .env("LAST", "x")
                .status();
            assert!(status.unwrap().success());
        }
    }

    fn are_edited(buffer: &mut [u8; MAX_VALUE]) {
        let item = environment_list_item("LIST", |item| item.ends_with(b"unwanted.so"), buffer);
        assert_eq!(item, Some(c"/a/unwanted.so"));
        assert_eq!(environment_list_item("LIST", |item| item == b"none", buffer), None);
        remove_from_environment_list("LIST", |item| item.ends_with(b"unwanted.so"));
        remove_from_environment_list("ALL", |item| item.ends_with(b"unwanted.so"));
        remove_environment_variable("LAST");
        remove_environment_variable("NEVER_SET");
        assert_eq!(environment_variable("LIST", buffer), Some(c"/b/wanted.so"));
        assert_eq!(environment_variable("ALL", buffer), None);
        assert_eq!(environment_variable("LAST", buffer), None);
        assert_eq!(std::env::var("LIST").as_deref(), Ok("/b/wanted.so"));
    }
}
