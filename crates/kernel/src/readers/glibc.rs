//! The C library that this program runs with.
//!
//! File-level obligation of the unsafe code: the library's version string is static and ends in a
//! zero byte.

#![allow(unsafe_code)]

/// Returns the version of the glibc that this process has loaded, such as `(2, 36)`. `None` with
/// another C library. Source: gnu_get_libc_version(3).
pub fn glibc_version() -> Option<(u32, u32)> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call takes nothing and returns a static C string.
        let text = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        parse(text.to_str().ok()?)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Parses `2.36`, or a development version such as `2.36.9000`.
#[cfg(any(target_env = "gnu", test))]
fn parse(text: &str) -> Option<(u32, u32)> {
    let mut values = text.split('.');
    Some((values.next()?.parse().ok()?, values.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_two_numbers() {
        assert_eq!(parse("2.36"), Some((2, 36)));
        assert_eq!(parse("2.36.9000"), Some((2, 36)));
        assert_eq!(parse("stable"), None);
        #[cfg(target_env = "gnu")]
        assert!(glibc_version().is_some_and(|version| version >= (2, 17)));
    }
}
