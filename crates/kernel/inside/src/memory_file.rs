//! Files that are memory (memfd_create(2)), and files on hugetlb pages.

use megapage_units::PageSize;
use rustix::fd::AsFd;
use std::fs::File;
use std::io;

/// `HUGETLBFS_MAGIC` of statfs(2).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// Returns the size of the hugetlb pages behind a file or directory on hugetlbfs, or behind a
/// hugetlb memory file; `None` elsewhere.
pub fn huge_page_size_of(file: impl AsFd) -> io::Result<Option<PageSize>> {
    let statfs = rustix::fs::fstatfs(file)?;
    Ok(if statfs.f_type as u64 == HUGETLBFS_MAGIC { PageSize::new(statfs.f_bsize as u64) } else { None })
}

/// Makes a new memory file (memfd_create(2)) that can never shrink: on hugetlb pages of this size,
/// or on base pages.
pub fn memory_file(name: impl rustix::path::Arg, size: Option<PageSize>) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if let Some(size) = size {
        // MFD_HUGE_2MB and its like: the logarithm of the page size in bits 26 to 31.
        flags |= MemfdFlags::HUGETLB;
        flags |= MemfdFlags::from_bits_retain(size.bytes().0.trailing_zeros() << 26);
    }
    let file = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file.into())
}
