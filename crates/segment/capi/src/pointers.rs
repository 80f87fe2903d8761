//! Pointers from C: checked before they are followed.
//!
//! File-level obligation: a pointer that is neither null nor misaligned is as the header demands.
//! It leads to as much memory as the header says, which stays readable (or writable) during the
//! call. Nothing that is borrowed from it outlives the call.

#![allow(unsafe_code)]

use crate::failure::Failure;
use std::ffi::{CStr, c_char};

/// Destination of a result, which is written after the call has succeeded.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Checks the pointer. Fails if it is null or misaligned.
    pub fn new(pointer: *mut T, what: &str) -> Result<Out<T>, Failure> {
        if pointer.is_null() || !pointer.is_aligned() {
            return Err(Failure::invalid(format!("the pointer for {what} is null or misaligned")));
        }
        Ok(Out(pointer))
    }

    /// Writes several results, one behind the other. The header demands room for all of them.
    pub fn write_all(self, values: &[T])
    where
        T: Copy,
    {
        // SAFETY: neither null nor misaligned. The caller of the entry point gave room for this
        // number of results (see the header).
        unsafe { self.0.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }

    pub fn write(self, value: T)
    where
        T: Copy,
    {
        self.write_all(&[value]);
    }
}

/// Returns the destination of an optional result; `None` for a null pointer. Fails if the pointer
/// is misaligned.
pub fn optional<T>(pointer: *mut T, what: &str) -> Result<Option<Out<T>>, Failure> {
    if pointer.is_null() { Ok(None) } else { Out::new(pointer, what).map(Some) }
}

/// Copies the value behind a pointer.
pub fn read<T: Copy>(pointer: *const T, what: &str) -> Result<T, Failure> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::invalid(format!("the pointer to {what} is null or misaligned")));
    }
    // SAFETY: neither null nor misaligned. The caller of the entry point gave it to be read (see
    // the header).
    Ok(unsafe { pointer.read() })
}

/// Copies `count` values behind a pointer, which may be null if there are none.
pub fn array<T: Copy>(pointer: *const T, count: usize, what: &str) -> Result<Vec<T>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() || !pointer.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::invalid(format!(
            "the pointer to {what} is null or misaligned, or they are too many"
        )));
    }
    // SAFETY: neither null nor misaligned. The caller of the entry point gave this number of values
    // to be read (see the header).
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) }.to_vec())
}

/// Copies a string.
pub fn text(pointer: *const c_char, what: &str) -> Result<String, Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("{what} is a null pointer")));
    }
    // SAFETY: not null. The caller of the entry point gave a string that ends in a zero byte (see
    // the header).
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map(str::to_string).map_err(|_| Failure::invalid(format!("{what} is not UTF-8")))
}
