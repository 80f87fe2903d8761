//! The sizes of the kernel's base pages and huge pages: 4 KiB and 2 MiB everywhere on x86-64; on
//! arm64 the kernel's build decides.

use crate::KernelRoot;
use megapage_inside::base_page_size;
use megapage_units::{BASE_PAGE, Bytes, HugePage};
use thiserror::Error;

/// Key of the auxiliary vector's entry for the size of a page (getauxval(3), AT_PAGESZ). An entry
/// is two words.
const AT_PAGESZ: u64 = 6;

/// Error for a kernel whose base pages are not of 4 KiB, or whose huge pages are not of 2 MiB. All
/// code here assumes these sizes: one page table of 512 entries for each 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "this kernel's {kind} pages are {size}; megapage supports base pages of 4 KiB and huge pages of 2 MiB: boot a kernel that has those (Debian: \
     linux-image-arm64 in place of linux-image-arm64-16k)"
)]
pub struct OtherBasePages {
    /// `base` or `huge`.
    pub kind: &'static str,
    /// Size of these pages.
    pub size: Bytes,
}

/// Refuses a kernel whose base pages are not of 4 KiB, or whose huge pages are not of
/// [`HugePage::SIZE`]. In a captured tree `proc/self/auxv` shows the size of base pages. A tree
/// without that file counts as 4 KiB, and a kernel without transparent huge pages as 2 MiB.
pub fn require_base_pages(root: &KernelRoot) -> Result<(), OtherBasePages> {
    let base =
        if root.is_live() { base_page_size() as u64 } else { captured(root).unwrap_or(BASE_PAGE as u64) };
    let huge = root.read_u64("sys/kernel/mm/transparent_hugepage/hpage_pmd_size").unwrap_or(HugePage::SIZE);
    let sizes = [("base", base, BASE_PAGE as u64), ("huge", huge, HugePage::SIZE)];
    match sizes.into_iter().find(|(_, size, supported)| size != supported) {
        Some((kind, size, _)) => Err(OtherBasePages { kind, size: Bytes(size) }),
        None => Ok(()),
    }
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
