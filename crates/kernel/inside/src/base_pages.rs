//! The size of the kernel's base pages.
//!
//! File-level obligation: an advice for no memory at all changes nothing.

#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::system::call;
use megapage_units::BASE_PAGE;

/// The largest base page of any kernel for the machines that this is for (arm64), in bytes.
const LARGEST: usize = 64 << 10;

/// The size of this process's base pages in bytes: the least address but 0 that madvise(2) takes
/// for the beginning of a page. Neither allocates nor changes errno.
pub fn base_page_size() -> usize {
    let is_inside_one = |address: usize| {
        // SAFETY: no byte is advised, so that the call only looks whether a page begins at the
        // address.
        let answer = unsafe { call(libc::SYS_madvise, [address, 0, libc::MADV_NORMAL as usize]) };
        answer == Err(Errno::EINVAL)
    };
    let mut size = BASE_PAGE;
    while size < LARGEST && is_inside_one(size) {
        size *= 2;
    }
    size
}

/// Returns true if this process's base pages have the size that all code here is for. Neither
/// allocates nor changes errno.
pub fn has_supported_base_pages() -> bool {
    base_page_size() == BASE_PAGE
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_size_is_the_c_librarys() {
        // SAFETY: it takes a number and answers with one.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        assert_eq!(super::base_page_size(), size as usize);
    }
}
