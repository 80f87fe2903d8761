//! Advice for the program's own memory, and its backing.

use crate::failure::Failure;
use crate::types::{MEGAPAGE_ADVISE_NOW, MEGAPAGE_ADVISE_POPULATE, megapage_backing};
use megapage_kernel::KernelRoot;
use megapage_kernel::own_advice::{self, Advice};
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::smaps::{Mapping, backing as backing_of, read_own_smaps};
use megapage_units::{BASE_PAGE, HugePage, HugeRange, PageSize, Pid, VirtRange};

/// Returns the whole base pages that the bytes lie in.
fn range(address: usize, length: usize) -> Result<VirtRange, Failure> {
    let start = address as u64 & !(BASE_PAGE as u64 - 1);
    let end = (address as u64)
        .checked_add(length as u64)
        .and_then(|end| end.checked_next_multiple_of(BASE_PAGE as u64))
        .filter(|_| address != 0 && length > 0);
    end.and_then(|end| VirtRange::new(start, end)).ok_or_else(|| {
        Failure::invalid(format!("{length} bytes from {address:#x} on are no range of memory"))
    })
}

/// Asks for huge pages for the range.
pub fn advise(address: usize, length: usize, flags: u32) -> Result<(), Failure> {
    if flags & !(MEGAPAGE_ADVISE_NOW | MEGAPAGE_ADVISE_POPULATE) != 0 {
        return Err(Failure::invalid(format!("{flags:#x} has flags that are unknown")));
    }
    let range = range(address, length)?;
    let root = KernelRoot::live();
    let mappings = read_own_smaps(&root).map_err(kernel)?;
    let is_hugetlb = |mapping: &&Mapping| mapping.kernel_page_size != PageSize::BASE;
    let touched: Vec<&Mapping> =
        mappings.iter().filter(|one| one.range.intersection(range).is_some()).collect();
    // Pages of a pool are huge already, and the kernel takes no such advice for them.
    if touched.is_empty() || !touched.iter().all(is_hugetlb) {
        own_advice::give(range, Advice::Huge)
            .map_err(|error| Failure::system("advising huge pages (MADV_HUGEPAGE)", &error))?;
    }
    if flags & MEGAPAGE_ADVISE_POPULATE != 0 {
        own_advice::give(range, Advice::Populate)
            .map_err(|error| Failure::system("having the memory present (MADV_POPULATE_WRITE)", &error))?;
    }
    if flags & MEGAPAGE_ADVISE_NOW != 0 && !touched.iter().all(is_hugetlb) {
        for page in HugeRange::within(range).iter().flat_map(|whole| whole.pages()) {
            // A failure shows in the backing. The advice stays in force, and the kernel may follow
            // it later.
            let _ = own_advice::give(page.range(), Advice::Collapse);
        }
    }
    Ok(())
}

/// Returns the backing of the whole base pages of the range.
pub fn backing(address: usize, length: usize) -> Result<megapage_backing, Failure> {
    let range = range(address, length)?;
    let root = KernelRoot::live();
    let mappings = read_own_smaps(&root).map_err(kernel)?;
    let pid = Pid(std::process::id() as i32);
    let mut pagemap = Pagemap::open(&root, pid).map_err(kernel)?;
    let mut sum = megapage_backing::default();
    if pagemap.find_out_leaves().map_err(kernel)? {
        sum.exact = 1;
        for mapping in &mappings {
            if let Some(part) = mapping.range.intersection(range) {
                add(&mut sum, mapping, part, &mut pagemap)?;
            }
        }
    } else {
        let touched = mappings.iter().filter(|mapping| mapping.range.intersection(range).is_some());
        let all = backing_of(touched);
        let most = |bytes: u64| bytes.min(range.len().0);
        (sum.hugetlb_1g, sum.hugetlb_2m) = (most(all.hugetlb_1g.0), most(all.hugetlb_2m.0));
        (sum.thp, sum.base) = (most(all.thp.0 + all.shmem_pmd.0 + all.file_pmd.0), most(all.base.0));
    }
    sum.absent = range.len().0.saturating_sub(sum.hugetlb_1g + sum.hugetlb_2m + sum.thp + sum.base);
    Ok(sum)
}

/// Adds the backing of a part of a mapping, region by region.
fn add(
    sum: &mut megapage_backing,
    mapping: &Mapping,
    part: VirtRange,
    pagemap: &mut Pagemap,
) -> Result<(), Failure> {
    for (page, piece) in part.by_huge_page() {
        let found = pagemap.regions(page.range()).map_err(kernel)?;
        let (huge, present) = found.first().map_or((None, 0), |found| (found.huge, found.present));
        let bytes = piece.len().0;
        match mapping.kernel_page_size {
            PageSize::HUGE_1G if present > 0 => sum.hugetlb_1g += bytes,
            PageSize::HUGE_2M if present > 0 => sum.hugetlb_2m += bytes,
            _ if huge == Some(true) => sum.thp += bytes,
            _ if bytes == HugePage::SIZE => sum.base += u64::from(present) * BASE_PAGE as u64,
            _ => {
                let entries = pagemap.entries(piece).map_err(kernel)?;
                sum.base +=
                    entries.iter().filter(|entry| entry.is_present()).count() as u64 * BASE_PAGE as u64;
            }
        }
    }
    Ok(())
}

fn kernel(error: megapage_kernel::KernelError) -> Failure {
    Failure::new(crate::failure::errno::EIO, error.to_string())
}
