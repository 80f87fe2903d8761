use super::*;
use crate::tracker::{BpfTracker, TrackError};
use megapage_units::Pid;

/// Tracker that lies in one way.
struct Liar {
    truth: BpfTracker,
    lie: fn(&mut Vec<RegionBits>),
    clears: bool,
}

impl Tracker for Liar {
    fn kind(&self) -> TrackerKind {
        TrackerKind::Bpf
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[]
    }

    fn clear(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<(), TrackError> {
        if self.clears { self.truth.clear(pid, ranges) } else { Ok(()) }
    }

    fn read(&mut self, pid: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        let mut read = self.truth.read(pid, ranges)?;
        (self.lie)(&mut read);
        Ok(read)
    }
}

fn caught(lie: fn(&mut Vec<RegionBits>), clears: bool) -> String {
    let truth = BpfTracker::open(&KernelRoot::live()).unwrap();
    self_test(&mut Liar { truth, lie, clears }).expect_err("a lie")
}

fn set(region: &mut RegionBits, bits: PageBits) {
    (region.accessed, region.bits) = (Some(count(&bits)), Some(bits));
}

#[test]
fn lies_are_caught() {
    if !megapage_testing::require_root() {
        return;
    }
    assert!(caught(|_| (), false).contains("told nothing"), "never clears");
    assert!(caught(|read| read.iter_mut().for_each(|r| set(r, [u64::MAX; 8])), true).contains("512"));
    assert!(caught(|read| read.iter_mut().for_each(|r| set(r, [0; 8])), true).contains("saw 0"));
    let one_off = |read: &mut Vec<RegionBits>| {
        let region = &mut read[1];
        if let Some(bits) = region.bits {
            set(region, bits.map(|word| word.rotate_left(1)));
        }
    };
    assert!(caught(one_off, true).contains("region 1"));
    assert!(caught(|read| read.truncate(4), true).contains("4 of 5 regions"));
    assert!(caught(|read| read[0].present -= 1, true).contains("511 of 512"));
}

#[test]
fn the_truth_passes() {
    if !megapage_testing::require_root() {
        return;
    }
    // Other tests compact memory for a pool: a page that moves loses its accessed bit.
    let _lock = megapage_testing::MachineLock::take();
    self_test(&mut BpfTracker::open(&KernelRoot::live()).unwrap()).unwrap();
}
