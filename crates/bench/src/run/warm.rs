//! Memory that the host has backed. Behind a hypervisor, memory that lies free goes back to the host, and its
//! first touch then costs up to six times as much: which peer pays for that is chance.

use megapage_kernel::{Reservation, hugetlb_available};
use megapage_units::{Bytes, PageSize};

/// Touches `bytes` of memory of the kind that the next run will take, and releases them: pages of the 2 MiB
/// pool, as far as it has them, or else ordinary memory. What cannot be had stays cold. Answers how much was touched; of
/// what failed half way, none.
pub fn warm(bytes: Bytes, from_pool: bool) -> Bytes {
    touch(bytes, from_pool.then_some(PageSize::HUGE_2M))
}

/// As [`warm`], from the pool of `pool`.
pub(super) fn touch(bytes: Bytes, pool: Option<PageSize>) -> Bytes {
    let unit = pool.unwrap_or(PageSize::HUGE_2M).bytes().0 as usize;
    let mut len = bytes.0 as usize / unit * unit;
    if let Some(size) = pool {
        let pages = hugetlb_available(size).unwrap_or(0) as usize;
        len = len.min(pages * unit);
    }
    if len == 0 {
        return Bytes::ZERO;
    }
    let Ok(range) = Reservation::new(len, unit) else { return Bytes::ZERO };
    let mut touched = Bytes::ZERO;
    let mapped = match pool {
        Some(size) => range.map_hugetlb(size),
        None => range.open(),
    };
    if mapped.is_ok() {
        if pool.is_none() {
            let _ = range.advise_thp();
        }
        if range.populate().is_ok() {
            touched = Bytes(len as u64);
        }
    }
    touched
}
