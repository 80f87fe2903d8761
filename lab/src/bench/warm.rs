//! Memory that the host has backed. Behind a hypervisor, free memory goes back to the host. Its
//! first touch then costs up to six times as much, and it is chance which peer pays for that.

use megapage_kernel::{Reservation, hugetlb_available};
use megapage_units::{Bytes, PageSize};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Touches `bytes` of memory of the kind that the next run will take, and releases them. These are
/// pages of the 2 MiB pool, as far as it has them, or else ordinary memory. Memory that is not
/// available stays cold. Returns the bytes that were touched; a part that failed half way does not
/// count.
pub fn warm(bytes: Bytes, from_pool: bool) -> Bytes {
    touch(bytes, from_pool.then_some(PageSize::HUGE_2M))
}

/// Does the same as [`warm`] for ordinary memory, a piece at a time, while `goes_on` returns true:
/// the host may take seconds for each GiB. It holds the memory for `rest` before it releases it:
/// for no time, or for [`REPORTED_AFTER`].
pub fn warm_while(bytes: Bytes, rest: Duration, goes_on: &mut dyn FnMut() -> bool) -> Bytes {
    let (mut held, mut warmed) = (Vec::new(), Bytes::ZERO);
    while warmed < bytes && goes_on() {
        let Some((range, touched)) = take(PIECE.min(bytes.saturating_sub(warmed)), None) else { break };
        held.push(range);
        warmed += touched;
    }
    let start = Instant::now();
    while start.elapsed() < rest && goes_on() {
        sleep(Duration::from_millis(20).min(rest));
    }
    warmed
}

/// Time after which the kernel has reported free pages to the host. It reports 2 s after some
/// became free (PAGE_REPORTING_DELAY of mm/page_reporting.c), those first that became free last.
/// Memory that is held until no report is due stays backed for this time after its release.
pub const REPORTED_AFTER: Duration = Duration::from_millis(2200);

/// Piece of [`warm_while`].
const PIECE: Bytes = Bytes::mib(256);

/// Does the same as [`warm`] for pages of the pool of `pool`.
pub(super) fn touch(bytes: Bytes, pool: Option<PageSize>) -> Bytes {
    take(bytes, pool).map_or(Bytes::ZERO, |(_, touched)| touched)
}

/// Returns the memory, touched, until it is dropped; `None` if none is available.
fn take(bytes: Bytes, pool: Option<PageSize>) -> Option<(Reservation, Bytes)> {
    let unit = pool.unwrap_or(PageSize::HUGE_2M).bytes().0 as usize;
    let mut len = bytes.0 as usize / unit * unit;
    if let Some(size) = pool {
        let pages = hugetlb_available(size).unwrap_or(0) as usize;
        len = len.min(pages * unit);
    }
    if len == 0 {
        return None;
    }
    let range = Reservation::new(len, unit).ok()?;
    match pool {
        Some(size) => range.map_hugetlb(size),
        None => range.open(),
    }
    .ok()?;
    if pool.is_none() {
        let _ = range.advise_thp();
    }
    range.populate().ok()?;
    Some((range, Bytes(len as u64)))
}
