//! Reclaim of bloat at once: splits a process's huge pages that hold many base pages of zeros. The
//! kernel frees those.

use crate::demote::{DemoteOutcome, Demotion};
use crate::remote::{Bounds, RemoteError, identify};
use megapage_decide::Promotions;
use megapage_kernel::KernelRoot;
use megapage_kernel::ability::SPLIT_FREES_ZEROS;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::smaps::read_smaps;
use megapage_observe::{Thoroughness, count_zeros};
use megapage_units::{BASE_PAGE, Bytes, HugePage, Pid, VirtRange};
use serde::Serialize;

/// Request to reclaim memory of one process.
#[derive(Clone, Copy, Debug)]
pub struct Reclaim {
    /// The process.
    pub pid: Pid,
    /// Minimum number of base pages of zeros, 1 to 512, for which a huge page is split.
    pub least: u16,
    /// Bounds on the cost of the splits.
    pub bounds: Bounds,
}

/// Bloat that was found, and the outcome of its splits.
#[derive(Clone, Debug, Serialize)]
pub struct Reclaimed {
    /// The process.
    pub pid: i32,
    /// Private huge pages that were looked at.
    pub huge: u64,
    /// Those of them with enough zeros.
    pub bloated: u64,
    /// Bytes of zeros in all huge pages that were looked at.
    pub zero_bytes: u64,
    /// Bytes of zeros in the huge pages to split.
    pub expected_bytes: u64,
    /// Outcome of the splits; `None` for a dry run.
    pub outcome: Option<DemoteOutcome>,
    /// The regions to split.
    #[serde(skip)]
    pub demotion: Demotion,
}

impl Reclaim {
    /// Looks through the private huge pages of the process. It changes nothing, but marks them as
    /// accessed.
    ///
    /// # Errors
    /// [`RemoteError::Unsupported`] before Linux 6.12: a split would free nothing.
    /// [`RemoteError::Unseen`] if huge pages cannot be distinguished (before Linux 6.7). Other
    /// errors as of [`Demotion::apply`].
    pub fn look(&self, root: &KernelRoot) -> Result<Reclaimed, RemoteError> {
        if !root.is_live() {
            return Err(RemoteError::NotLive);
        }
        if !SPLIT_FREES_ZEROS.is_there(root) {
            return Err(RemoteError::Unsupported(&SPLIT_FREES_ZEROS));
        }
        let gone = |error: megapage_kernel::KernelError| match error.is_gone() {
            true => RemoteError::Gone(self.pid),
            false => RemoteError::Kernel(error),
        };
        let process = identify(root, self.pid)?;
        let mappings = read_smaps(root, self.pid).map_err(gone)?;
        // Only a private page is split into zero pages that are freed.
        let ranges: Vec<VirtRange> = mappings
            .iter()
            .filter(|it| it.anon_huge > Bytes::ZERO && it.permissions.ends_with('p'))
            .map(|it| it.range)
            .collect();
        let mut pagemap = Pagemap::open(root, self.pid).map_err(gone)?;
        let regions = pagemap.held(&ranges).map_err(gone)?;
        if !ranges.is_empty() && !pagemap.distinguishes_leaves() {
            return Err(RemoteError::Unseen);
        }
        let huge: Vec<HugePage> =
            regions.iter().filter(|it| it.huge == Some(true)).map(|it| it.page).collect();
        let zeros = count_zeros(root, self.pid, &huge, Thoroughness::All);
        let bytes = |counts: &mut dyn Iterator<Item = u16>| -> u64 {
            counts.map(|count| u64::from(count) * BASE_PAGE as u64).sum()
        };
        let bloated = || zeros.iter().filter(|(_, count)| *count >= self.least);
        let regions = bloated().map(|(page, _)| *page).collect();
        Ok(Reclaimed {
            pid: self.pid.0,
            huge: zeros.len() as u64,
            bloated: bloated().count() as u64,
            zero_bytes: bytes(&mut zeros.iter().map(|(_, count)| *count)),
            expected_bytes: bytes(&mut bloated().map(|(_, count)| *count)),
            outcome: None,
            demotion: Demotion { process, regions, bounds: self.bounds },
        })
    }
}

impl Reclaimed {
    /// Splits the regions that were found. After a slow call it backs off from the process, then
    /// goes on. The contents of memory stay the same.
    pub fn apply(mut self, root: &KernelRoot, promotions: &mut Promotions) -> Result<Reclaimed, RemoteError> {
        self.outcome = Some(self.demotion.apply_patiently(root, promotions)?);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_captured_tree_is_not_looked_through() {
        let tree = tempfile::tempdir().unwrap();
        let reclaim = Reclaim { pid: Pid(1), least: 64, bounds: Bounds::default() };
        assert!(matches!(reclaim.look(&KernelRoot::captured(tree.path())), Err(RemoteError::NotLive)));
    }

    #[test]
    fn a_process_that_has_gone_is_named() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id() as i32);
        child.wait().unwrap();
        let reclaim = Reclaim { pid, least: 64, bounds: Bounds::default() };
        let error = reclaim.look(&KernelRoot::live()).unwrap_err();
        assert!(matches!(error, RemoteError::Gone(_) | RemoteError::Unsupported(_)), "{error}");
    }
}
