//! The size of the kernel's base pages.
//!
//! File-level obligation: an advice for no memory at all changes nothing.

#![allow(unsafe_code)]

use crate::errno::Errno;
use crate::program_memory::advise;
use megapage_units::BASE_PAGE;

/// The largest base page of any kernel for the machines that this is for (arm64), in bytes.
const LARGEST: usize = 64 << 10;

/// Returns the size of this process's base pages in bytes. Neither allocates nor changes errno. In
/// a preloaded library [`probed_page_size`] answers (see `names.rs`).
pub fn base_page_size() -> usize {
    // SAFETY: it takes a number and answers with one; for this number it cannot fail.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(BASE_PAGE)
}

/// Returns the size of this process's base pages in bytes: the least address but 0 that madvise(2)
/// takes for the beginning of a page. Neither allocates nor changes errno.
pub(crate) fn probed_page_size() -> usize {
    let is_inside_one = |address: usize| {
        // The call advises no byte. It only checks that a page begins there.
        advise(address, 0, libc::MADV_NORMAL) == Err(Errno::EINVAL)
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
        assert_eq!(super::probed_page_size(), super::base_page_size());
    }
}
