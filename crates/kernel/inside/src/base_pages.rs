//! The size of the kernel's base pages.
//!
//! File-level obligation: sysconf(3) takes no pointer.

#![allow(unsafe_code)]

use megapage_units::BASE_PAGE;

/// The size of this process's base pages in bytes. Neither allocates nor changes errno.
pub fn base_page_size() -> usize {
    // SAFETY: it takes a number and answers with one; for this number it cannot fail.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(BASE_PAGE)
}

/// Returns true if this process's base pages have the size that all code here is for. Neither
/// allocates nor changes errno.
pub fn has_supported_base_pages() -> bool {
    base_page_size() == BASE_PAGE
}
