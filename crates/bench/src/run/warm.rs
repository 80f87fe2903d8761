//! Memory that the host has backed. Behind a hypervisor, memory that lies free goes back to the host, and its
//! first touch then costs up to six times as much: which peer pays for that is chance.

use megapage_kernel::{Reservation, hugetlb_available};
use megapage_units::{Bytes, HUGE_2M, PageSize};

/// Touches `bytes` of memory of the kind that the next run will take, and releases them: pages of the 2 MiB
/// pool, as far as it has them, or else ordinary memory. What cannot be had stays cold. Answers how much was touched; of
/// what failed half way, none.
pub fn warm(bytes: Bytes, from_pool: bool) -> Bytes {
    let mut len = bytes.0 as usize / HUGE_2M * HUGE_2M;
    if from_pool {
        let pages = hugetlb_available(PageSize::HUGE_2M).unwrap_or(0) as usize;
        len = len.min(pages * HUGE_2M);
    }
    if len == 0 {
        return Bytes::ZERO;
    }
    let Ok(range) = Reservation::new(len, HUGE_2M) else { return Bytes::ZERO };
    let mut touched = Bytes::ZERO;
    let mapped = if from_pool { range.map_hugetlb(PageSize::HUGE_2M) } else { range.open() };
    if mapped.is_ok() {
        if !from_pool {
            let _ = range.advise_thp();
        }
        if range.populate().is_ok() {
            touched = Bytes(len as u64);
        }
    }
    touched
}
