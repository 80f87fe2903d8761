//! Regions that were promoted here, or that failed.

use megapage_snapshot::ProcessId;
use megapage_units::HugePage;
use std::collections::{BTreeMap, BTreeSet};

/// Regions by process, up to a bound.
#[derive(Clone, Debug, Default)]
pub(super) struct Regions {
    processes: BTreeMap<ProcessId, BTreeSet<HugePage>>,
    count: usize,
}

impl Regions {
    /// Stores a region. Returns true if it is stored, false if there was no room.
    pub fn add(&mut self, process: ProcessId, region: HugePage, most: usize) -> bool {
        if self.count >= most {
            return self.processes.get(&process).is_some_and(|regions| regions.contains(&region));
        }
        self.count += usize::from(self.processes.entry(process).or_default().insert(region));
        true
    }

    /// Forgets a region. Returns true if it was stored.
    pub fn remove(&mut self, process: ProcessId, region: HugePage) -> bool {
        let Some(regions) = self.processes.get_mut(&process) else { return false };
        let was = regions.remove(&region);
        self.count -= usize::from(was);
        if regions.is_empty() {
            self.processes.remove(&process);
        }
        was
    }

    /// Forgets a process.
    pub fn remove_process(&mut self, process: ProcessId) {
        self.count -= self.processes.remove(&process).map_or(0, |regions| regions.len());
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn processes(&self) -> Vec<ProcessId> {
        self.processes.keys().copied().collect()
    }

    pub fn regions(&self, process: ProcessId) -> Vec<HugePage> {
        self.processes.get(&process).into_iter().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::Pid;

    #[test]
    fn the_count_is_that_of_the_regions_and_bounded() {
        let process = |pid| ProcessId { pid: Pid(pid), start_ticks: 1, start_stack: 1 };
        let region = |at| HugePage::nth(at);
        let mut regions = Regions::default();
        for at in 0..3 {
            assert!(regions.add(process(1), region(at), 4));
            assert!(regions.add(process(1), region(at), 4), "twice is once");
        }
        assert!(regions.add(process(2), region(7), 4));
        assert!(!regions.add(process(2), region(8), 4));
        assert!(regions.add(process(2), region(7), 4), "it is there already");
        assert_eq!((regions.count(), regions.processes().len()), (4, 2));
        regions.remove(process(2), region(8));
        regions.remove(process(2), region(7));
        assert_eq!(regions.processes(), [process(1)]);
        regions.remove_process(process(1));
        regions.remove_process(process(1));
        assert_eq!(regions.count(), 0);
        assert!(regions.regions(process(1)).is_empty());
    }
}
