//! Sorting of one lot of actions into work on one process after the other.

use super::NO_SMALL;
use megapage_decide::{Action, Obtained};
use megapage_snapshot::ProcessId;
use megapage_units::{HugePage, PageSize};

/// Kind of work on a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Promote,
    Demote,
    Recover,
}

/// Action for which the kernel is asked, or one that is answered without asking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sorted {
    Work(Work, ProcessId, HugePage),
    Answer(Obtained, &'static str),
    /// An action of the observer.
    Ignored,
}

/// Returns the work or the answer that an action means.
pub(super) fn sort(action: &Action) -> Sorted {
    let (work, process, region) = match action {
        Action::Promote { size, .. } if *size != PageSize::HUGE_2M => {
            return Sorted::Answer(Obtained::Unsupported, NO_SMALL);
        }
        Action::Promote { process, region, .. } => (Work::Promote, process, *region),
        Action::Demote { process, region, .. } => (Work::Demote, process, *region),
        Action::Recover { process, region, .. } => (Work::Recover, process, *region),
        Action::ZeroScan { .. } => return Sorted::Ignored,
    };
    Sorted::Work(work, *process, region)
}

/// Work of one kind on one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub work: Work,
    pub process: ProcessId,
    /// The actions, by their places, and their regions, in the policy's order.
    pub regions: Vec<(usize, HugePage)>,
}

/// Number of consecutive actions of the policy among which those on one process are brought
/// together. Each look at a process has its price, so groups should not be small.
/// But no action is to be carried out much before those that the policy put first.
pub(super) const WINDOW: usize = 256;

/// Returns the groups of one window, in the order of their first actions.
pub(super) fn group(work: &[(usize, Work, ProcessId, HugePage)]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for &(index, work, process, region) in work {
        match groups.iter_mut().find(|group| group.work == work && group.process == process) {
            Some(group) => group.regions.push((index, region)),
            None => groups.push(Group { work, process, regions: vec![(index, region)] }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_decide::Reason;
    use megapage_units::Pid;

    fn process(pid: i32) -> ProcessId {
        ProcessId { pid: Pid(pid), start_ticks: 1, start_stack: 1 }
    }

    #[test]
    fn what_no_kernel_can_do_is_answered_without_asking() {
        let promote =
            |region, size| Action::Promote { process: process(1), region, size, reason: Reason::Gain };
        let page = HugePage::nth(2);
        assert!(matches!(sort(&promote(page, PageSize::HUGE_2M)), Sorted::Work(Work::Promote, _, _)));
        for (region, size, obtained) in [
            (page, PageSize::new(64 << 10).unwrap(), Obtained::Unsupported),
            (page, PageSize::HUGE_1G, Obtained::Unsupported),
        ] {
            let sorted = sort(&promote(region, size));
            assert!(matches!(sorted, Sorted::Answer(got, _) if got == obtained), "{region:x} {sorted:?}");
        }
        let scan = Action::ZeroScan { process: process(1), regions: vec![], reason: Reason::Period };
        assert_eq!(sort(&scan), Sorted::Ignored);
    }

    #[test]
    fn groups_keep_the_order_of_their_first_actions() {
        let region = HugePage::nth;
        let work = [
            (0, Work::Recover, process(2), region(5)),
            (1, Work::Promote, process(1), region(9)),
            (2, Work::Promote, process(2), region(3)),
            (3, Work::Recover, process(2), region(1)),
            (4, Work::Promote, process(1), region(4)),
        ];
        let groups = group(&work);
        let shown: Vec<_> = groups
            .iter()
            .map(|group| (group.process.pid.0, group.regions.iter().map(|(index, _)| *index).collect()))
            .collect();
        assert_eq!(shown, [(2, vec![0, 3]), (1, vec![1, 4]), (2, vec![2])]);
    }
}
