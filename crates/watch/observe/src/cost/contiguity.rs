//! The share of neighbouring base pages of a process that are neighbours in physical memory, too.

use super::touches::Touches;
use megapage_kernel::KernelRoot;
use megapage_kernel::pagemap::Pagemap;
use megapage_units::{HugePage, Pid};
use std::collections::BTreeSet;

/// Largest number of regions that are read: about 1 ms.
const MOST_REGIONS: usize = 64;

/// Returns the share of pages that lie right behind the page before them, 0 to 1, in the sampled
/// promotable regions on base pages. `None` if there are no such regions, the numbers of page
/// frames are hidden (CAP_SYS_ADMIN), or the process has ended.
pub(super) fn of_sampled(root: &KernelRoot, pid: Pid, touches: &Touches) -> Option<f64> {
    let promotable = touches.histories.iter().filter(|it| it.promotable && !it.huge);
    let pages: BTreeSet<HugePage> = promotable.map(|it| it.page).collect();
    let step = pages.len().div_ceil(MOST_REGIONS).max(1);
    let pagemap = Pagemap::open(root, pid).ok()?;
    let some = pages.iter().step_by(step);
    let shares = some.filter_map(|page| pagemap.contiguity(page.range()).ok().flatten());
    let (count, sum) = shares.fold((0u32, 0.0), |(count, sum), share| (count + 1, sum + share));
    (count > 0).then(|| sum / f64::from(count))
}
