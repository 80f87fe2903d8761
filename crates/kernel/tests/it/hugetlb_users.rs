//! Holders of hugetlb pages on this machine, against pages that the test itself takes.

use megapage_kernel::KernelRoot;
use megapage_kernel::hugetlb_users::memfds;
use megapage_testing::PoolGuard;
use megapage_units::{Bytes, PageSize, Pid};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use std::path::Path;

#[test]
fn a_memory_file_on_huge_pages_is_found_once_and_an_ordinary_one_is_not() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 2) else { return };
    let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB | MemfdFlags::CLOEXEC;
    let huge = memfd_create("on-huge-pages", flags).unwrap();
    ftruncate(&huge, 6 << 20).unwrap();
    fallocate(&huge, FallocateFlags::empty(), 0, 4 << 20).unwrap();
    let _same = huge.try_clone().unwrap();
    let ordinary = memfd_create("on-base-pages", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&ordinary, 6 << 20).unwrap();

    let own = Pid(std::process::id().try_into().unwrap());
    let found = memfds(&KernelRoot::live(), own).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].name, Path::new("on-huge-pages"));
    assert_eq!((found[0].length, found[0].allocated), (Bytes::mib(6), Bytes::mib(4)));
    assert_eq!(found[0].page_size, PageSize::HUGE_2M);
}
