//! Memory that the host has backed. Behind a hypervisor, memory that lies free goes back to the host, and its
//! first touch then costs up to six times as much: which peer pays for that is chance.

use megapage_kernel::{Reservation, hugetlb_available};
use megapage_units::{Bytes, PageSize};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Touches `bytes` of memory of the kind that the next run will take, and releases them: pages of the 2 MiB
/// pool, as far as it has them, or else ordinary memory. What cannot be had stays cold. Answers how much was touched; of
/// what failed half way, none.
pub fn warm(bytes: Bytes, from_pool: bool) -> Bytes {
    touch(bytes, from_pool.then_some(PageSize::HUGE_2M))
}

/// As [`warm`], ordinary memory a piece at a time, for as long as `goes_on`: the host may take seconds for each GiB. It is
/// released after it was held for `rest`: at once, or after [`REPORTED_AFTER`].
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

/// Where the host is told of free pages, it is told 2 s after some became free (PAGE_REPORTING_DELAY of mm/page_reporting.c), of
/// those that became free last first. Memory that is held until nothing waits to be told is backed for so long after its
/// release.
pub const REPORTED_AFTER: Duration = Duration::from_millis(2200);

/// Of [`warm_while`].
const PIECE: Bytes = Bytes::mib(256);

/// As [`warm`], from the pool of `pool`.
pub(super) fn touch(bytes: Bytes, pool: Option<PageSize>) -> Bytes {
    take(bytes, pool).map_or(Bytes::ZERO, |(_, touched)| touched)
}

/// The memory, touched, until it is dropped; `None` where none can be had.
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
