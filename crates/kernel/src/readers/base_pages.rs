//! The size of the kernel's base pages: 4 KiB everywhere on x86-64; on arm64 the kernel's build
//! decides.

use crate::KernelRoot;
use megapage_inside::base_page_size;
use megapage_units::{BASE_PAGE, Bytes};
use thiserror::Error;

/// Key of the auxiliary vector's entry for the size of a page (getauxval(3), AT_PAGESZ). An entry
/// is two words.
const AT_PAGESZ: u64 = 6;

/// The error for a kernel whose base pages are not of 4 KiB. Everything here reckons with that
/// size: one page table of 512 entries for each 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "this kernel's base pages are {0}; megapage supports base pages of 4 KiB: boot a kernel that has those (Debian: \
     linux-image-arm64 in place of linux-image-arm64-16k)"
)]
pub struct OtherBasePages(pub Bytes);

/// Refuses a kernel whose base pages are not of 4 KiB. In a captured tree `proc/self/auxv` shows
/// the size; a tree without that file counts as 4 KiB.
pub fn require_base_pages(root: &KernelRoot) -> Result<(), OtherBasePages> {
    let size =
        if root.is_live() { base_page_size() as u64 } else { captured(root).unwrap_or(BASE_PAGE as u64) };
    if size == BASE_PAGE as u64 { Ok(()) } else { Err(OtherBasePages(Bytes(size))) }
}

fn captured(root: &KernelRoot) -> Option<u64> {
    let bytes = std::fs::read(root.path("proc/self/auxv")).ok()?;
    let mut words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        if key == AT_PAGESZ {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests;
