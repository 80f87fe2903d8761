//! The last resort, on every kernel: `/proc/PID/clear_refs` and `Referenced` in `/proc/PID/smaps`.
//!
//! The kernel counts referenced bytes for each mapping, not for each region. A mapping's count
//! gives that of a region only if nothing of the mapping was referenced, all of it was, or the
//! mapping lies within the region. Elsewhere the count is unknown. To spread a mapping's count
//! evenly over its regions would be a guess that looks like a measurement.

use super::usage::{open, track_error, usage};
use super::{RegionBits, TrackError, Tracker};
use megapage_kernel::smaps::{self, Mapping};
use megapage_kernel::{KernelRoot, clear_refs};
use megapage_snapshot::{Leaf, TrackerKind};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, Pid, VirtRange};

/// Tracker by mapping. Takes about 9 ms for each GiB read; a clearing is of the whole process.
#[derive(Debug)]
pub struct SmapsTracker {
    root: KernelRoot,
}

impl SmapsTracker {
    /// Creates the tracker. Each process needs the right to trace it, and the right to write its
    /// `clear_refs`.
    pub fn new(root: &KernelRoot) -> Result<SmapsTracker, TrackError> {
        Ok(SmapsTracker { root: root.clone() })
    }
}

impl Tracker for SmapsTracker {
    fn kind(&self) -> TrackerKind {
        TrackerKind::Smaps
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[
            "It counts by mapping: a region's count is known only where nothing or all of its mapping was accessed.",
            "It clears the bits of the whole process, whatever the ranges, and takes its mmap lock for writing.",
            "It does not flush the TLB: up to about 0.1 % of the accessed pages are missed.",
            "A page that another process accessed counts as accessed; hugetlb pages are unknown.",
        ]
    }

    fn clears_whole(&self) -> bool {
        true
    }

    fn clear(&mut self, pid: Pid, _ranges: &[VirtRange]) -> Result<(), TrackError> {
        clear_refs::clear_accessed(&self.root, pid).map_err(|error| track_error(pid, error))
    }

    fn read(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        let mappings = smaps::read_smaps(&self.root, pid).map_err(|error| track_error(pid, error))?;
        let mut regions = usage(&self.root, pid, &mut open(&self.root, pid)?, ranges)?;
        for region in &mut regions {
            if matches!(region.leaf, Leaf::Base | Leaf::Huge2m) {
                region.accessed = accessed(&mappings, region);
            }
        }
        Ok(regions)
    }
}

/// Returns the number of accessed base pages of the region, if the values of its mappings determine
/// it.
fn accessed(mappings: &[Mapping], region: &RegionBits) -> Option<u16> {
    let whole = VirtRange::new(region.start, region.start + HUGE_2M as u64)?;
    let first = mappings.partition_point(|mapping| mapping.range.end() <= whole.start());
    let parts = mappings[first..].iter().take_while(|mapping| mapping.range.start() < whole.end());
    let mut pages = 0;
    for mapping in parts {
        let is_inside = mapping.range.start() >= whole.start() && mapping.range.end() <= whole.end();
        let is_around = mapping.range.start() <= whole.start() && mapping.range.end() >= whole.end();
        pages += match mapping.referenced {
            Bytes::ZERO => 0,
            referenced if is_inside => referenced.0 / BASE_PAGE as u64,
            referenced if is_around && referenced >= mapping.rss => u64::from(region.present),
            _ => return None,
        };
    }
    // The two files were read one after the other: the result is at most the present pages.
    Some(pages.min(u64::from(region.present)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Start and end in MiB, resident and referenced in kB.
    type Values = (u64, u64, u64, u64);

    fn mappings(list: &[Values]) -> Vec<Mapping> {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("proc/7")).unwrap();
        let text: String = list
            .iter()
            .map(|(start, end, rss, referenced)| {
                format!(
                    "{:x}-{:x} rw-p 00000000 00:00 0 \nRss: {rss} kB\nReferenced: {referenced} kB\n",
                    start * MIB,
                    end * MIB
                )
            })
            .collect();
        std::fs::write(tree.path().join("proc/7/smaps"), text).unwrap();
        smaps::read_smaps(&KernelRoot::captured(tree.path()), Pid(7)).unwrap()
    }

    fn region(start: u64, present: u16) -> RegionBits {
        RegionBits {
            start: start * MIB,
            leaf: Leaf::Base,
            present,
            zero_page: 0,
            swapped: 0,
            accessed: None,
            bits: None,
        }
    }

    #[test]
    fn only_what_the_mappings_determine_is_reported() {
        let cases: [(&[Values], Option<u16>, &str); 7] = [
            (&[(0, 8, 4096, 0)], Some(0), "nothing of the mapping was accessed"),
            (&[(0, 8, 4096, 4096)], Some(300), "all of it was"),
            (&[(0, 8, 4096, 2048)], None, "some of it was, who knows where"),
            (&[(2, 3, 400, 120), (3, 4, 400, 80)], Some(50), "mappings within the region are exact"),
            (&[(0, 3, 400, 0), (3, 4, 400, 80)], Some(20), "an untouched one adds nothing"),
            (&[(0, 3, 400, 400), (3, 4, 400, 80)], None, "a part of a touched one is unknown"),
            (&[(2, 4, 2048, 9999)], Some(300), "never more than is present"),
        ];
        for (list, expected, what) in cases {
            assert_eq!(accessed(&mappings(list), &region(2, 300)), expected, "{what}");
        }
    }
}
