//! Comparison of a tracker's readings with the touches of a child, page by page.

use megapage_kernel::canary::Canary;
use megapage_kernel::kpageflags::FrameFlags;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::{KernelRoot, process_cpu_time};
use megapage_observe::tracker::self_test::{
    REGION_PAGES, clear, count, huge_regions_of, read, start_child, whole,
};
use megapage_observe::tracker::{PageBits, Tracker};
use megapage_snapshot::PAGES;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugePage, VirtRange};
use serde::Serialize;

/// Exactness of a tracker's readings, and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Exactness {
    /// Base pages whose bit was compared, over all rounds, half of them untouched or more.
    pub pages: u64,
    /// Those of them that were touched.
    pub touched: u64,
    /// Pages that were read as accessed and were not touched, or the other way round, less
    /// `disturbed`.
    pub wrong: u64,
    /// Pages that were touched and read as not accessed because another process cleared their bit
    /// in between: the kernel marks them as found idle by DAMON or the idle-page bitmap.
    pub disturbed: u64,
    /// Huge regions that were compared, over all rounds: one bit each. Regions for which the
    /// machine had no huge page do not count.
    pub huge_regions: u64,
    /// Those of them that were read wrongly, or had been split, less `disturbed_huge`.
    pub wrong_huge: u64,
    /// The same as `disturbed`, of huge regions: DAMON is 512 times as likely to come by.
    pub disturbed_huge: u64,
    /// Pages that did not hold the written value any more.
    pub lost: u64,
    /// Processor time of one reading, in milliseconds for each GiB on base pages; the median of the
    /// rounds.
    #[serde(skip)]
    pub read_ms_per_gib: f64,
    /// Processor time of one clearing, in milliseconds for each GiB on base pages; the median of
    /// the rounds.
    #[serde(skip)]
    pub clear_ms_per_gib: f64,
}

/// Lets a child touch another pseudo-random set of the base pages in `bytes` (rounded up to 2 MiB)
/// in each of `rounds`. Compares the tracker's readings page by page. Does the same with a
/// sixteenth of that on huge pages, region by region. Takes that much memory. An error has the
/// reason for which a comparison was not possible.
pub fn exactness(tracker: &mut dyn Tracker, bytes: Bytes, rounds: usize) -> Result<Exactness, String> {
    let base_regions = (bytes.0 as usize).div_ceil(HUGE_2M).max(1);
    let huge_regions = base_regions.div_ceil(16);
    let mut child = start_child(base_regions, huge_regions)?;
    let ranges = [whole(&child)];
    let gib = (base_regions * HUGE_2M) as f64 / (1u64 << 30) as f64;
    let others = Others::open(&child);
    // A fragmented machine may have had no huge page to give, as may one on which another process
    // has just switched them off. The tracker is not asked: it is the subject of the test.
    let given = huge_regions_of(&child)?;
    let mut exactness = Exactness::default();
    let (mut reads, mut clears) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let cleared = process_cpu_time();
        clear(tracker, &child, &ranges)?;
        clears.push((process_cpu_time() - cleared).as_secs_f64() * 1e3 / gib);
        let is_touched = |page: usize| is_in_set(page, round);
        let touched = (0..(base_regions + huge_regions) * REGION_PAGES).filter(|&page| is_touched(page));
        exactness.lost += child.touch(touched).map_err(|error| error.to_string())?.wrong;
        let started = process_cpu_time();
        let read = read(tracker, &child, &ranges)?;
        reads.push((process_cpu_time() - started).as_secs_f64() * 1e3 / gib);
        let mut regions = read.iter().peekable();
        for number in 0..base_regions + huge_regions {
            let page = HugePage::containing(child.base().start()).offset(number as u64);
            let start = page.start();
            let region = regions.next_if(|region| region.page == page);
            if number >= base_regions && !given.contains(&page) {
                continue;
            }
            let expected: PageBits = std::array::from_fn(|word| {
                (0..64).fold(0, |bits, n| {
                    bits | u64::from(is_touched(number * REGION_PAGES + word * 64 + n)) << n
                })
            });
            if number >= base_regions {
                let any = if count(&expected) > 0 { PAGES } else { 0 };
                exactness.huge_regions += 1;
                match region {
                    Some(read) if read.leaf.is_huge() && read.accessed == Some(any) => {}
                    Some(read) if read.leaf.is_huge() && any > 0 && others.have_cleared(start) => {
                        exactness.disturbed_huge += 1;
                    }
                    _ => exactness.wrong_huge += 1,
                }
                continue;
            }
            let bits = region.and_then(|region| region.bits).unwrap_or(expected.map(|word| !word));
            exactness.pages += u64::from(PAGES);
            exactness.touched += u64::from(count(&expected));
            for page in differing(&bits, &expected) {
                let missed = expected[page / 64] >> (page % 64) & 1 == 1;
                if missed && others.have_cleared(start + (page * BASE_PAGE) as u64) {
                    exactness.disturbed += 1;
                } else {
                    exactness.wrong += 1;
                }
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or_default()
    };
    exactness.read_ms_per_gib = median(reads);
    exactness.clear_ms_per_gib = median(clears);
    Ok(exactness)
}

/// Returns true if the child touches a page in a round. Every round has another set, scattered, of
/// another density (a half down to a 64th), and none at all of every eighth region.
fn is_in_set(page: usize, round: usize) -> bool {
    if (page / REGION_PAGES + round).is_multiple_of(8) {
        return false;
    }
    // The finaliser of splitmix64.
    let mut hash = (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (round as u64) << 40;
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ hash >> 31).is_multiple_of(2 << (round % 6))
}

/// Others who clear accessed bits.
struct Others {
    seen: Option<(Pagemap, FrameFlags)>,
}

impl Others {
    fn open(child: &Canary) -> Others {
        let root = KernelRoot::live();
        let pagemap = Pagemap::open(&root, child.pid());
        Others { seen: pagemap.ok().zip(FrameFlags::open(&root).ok()) }
    }

    /// Returns true if the kernel marks the page at `address` as one whose bit DAMON or the
    /// idle-page bitmap has cleared.
    fn have_cleared(&self, address: u64) -> bool {
        let seen = || {
            let (pagemap, flags) = self.seen.as_ref()?;
            let page = VirtRange::new(address, address + BASE_PAGE as u64)?;
            let frame = pagemap.entries(page).ok()?.first()?.frame()?;
            Some(flags.read(frame, 1).ok()?.first()?.is_idle())
        };
        seen().unwrap_or(false)
    }
}

fn differing(a: &PageBits, b: &PageBits) -> Vec<usize> {
    let differs = |page: &usize| (a[page / 64] ^ b[page / 64]) >> (page % 64) & 1 == 1;
    (0..REGION_PAGES).filter(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_observe::tracker::BpfTracker;

    #[test]
    fn the_truth_is_exact() {
        if !megapage_testing::require_root() {
            return;
        }
        // Other tests compact memory for a pool: a page that moves loses its accessed bit.
        let _lock = megapage_testing::MachineLock::take();
        let mut tracker = BpfTracker::open(&KernelRoot::live()).unwrap();
        let exactness = exactness(&mut tracker, Bytes::mib(64), 6).unwrap();
        assert_eq!(exactness.pages, 6 * 16384);
        // Regions for which no huge page was free do not count.
        assert!(exactness.huge_regions <= 6 * 2 && exactness.huge_regions.is_multiple_of(6), "{exactness:?}");
        assert_eq!((exactness.wrong, exactness.wrong_huge, exactness.lost), (0, 0, 0), "{exactness:?}");
        // Another process may clear a few; the test sees most.
        assert!(exactness.disturbed * 100 < exactness.touched, "{exactness:?}");
    }

    #[test]
    fn the_sets_differ_and_have_the_stated_density() {
        let count = |round| (0..1 << 16).filter(|&page| is_in_set(page, round)).count();
        for (round, share) in [(0, 2), (1, 4), (5, 64), (6, 2)] {
            let expected = (1 << 16) * 7 / 8 / share;
            assert!(count(round).abs_diff(expected) < expected / 10, "round {round}: {}", count(round));
        }
        let both = (0..1 << 16).filter(|&page| is_in_set(page, 0) && is_in_set(page, 6)).count();
        assert!(both < (1 << 16) / 3);
    }
}
