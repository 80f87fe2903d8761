//! Dry run: touches nothing, and reports what would be done.

use super::{Actuator, Done};
use megapage_decide::{Action, Obtained, Outcome, Promotions};
use megapage_units::{Bytes, HugeCount, PageSize, Pid};
use std::time::Duration;

/// Actuator that carries nothing out. It answers every action that the kernel could carry out as
/// done, so that a policy goes on as it would. `why` holds the call that was not made, as a shell
/// comment: no shell command acts on single regions.
#[derive(Clone, Copy, Debug, Default)]
pub struct DryRun;

impl Actuator for DryRun {
    fn carry_out(&mut self, _now: Duration, actions: &[Action], _: &mut Promotions) -> Vec<Done> {
        let mut answers = Vec::with_capacity(actions.len());
        for action in actions {
            let Some((obtained, line)) = plan(action) else { continue };
            let done = obtained == Obtained::Done;
            let huge = done && matches!(action, Action::Promote { .. });
            answers.push(Done {
                outcome: Outcome { action: action.clone(), obtained },
                promoted: if huge { HugeCount(1).bytes() } else { Bytes::ZERO },
                freed: Bytes::ZERO,
                took: Duration::ZERO,
                why: Some(line),
            });
        }
        answers
    }
}

/// Returns the result that an action would have, with the line that reports it or the reason for a
/// refusal. `None` for actions of the observer.
fn plan(action: &Action) -> Option<(Obtained, String)> {
    Some(match action {
        Action::Promote { size, .. } if *size != PageSize::HUGE_2M => {
            (Obtained::Unsupported, super::NO_SMALL.into())
        }
        Action::Promote { process, region, .. } => {
            (Obtained::Done, promote_line(process.pid, &region.range().to_string()))
        }
        Action::Demote { process, region, .. } => {
            (Obtained::Done, split_line(process.pid, &region.range().to_string(), ""))
        }
        Action::Recover { process, region, .. } => (
            Obtained::Done,
            split_line(process.pid, &region.range().to_string(), "; its pages of zeros are freed"),
        ),
        Action::ZeroScan { .. } => return None,
    })
}

/// Returns the call that promotes a region, as a shell comment.
pub(crate) fn promote_line(pid: Pid, region: &str) -> String {
    format!("# process_madvise(pidfd of {pid}, {region}, MADV_COLLAPSE)")
}

/// Returns the call that splits the huge page of a region, as a shell comment.
pub(crate) fn split_line(pid: Pid, region: &str, and: &str) -> String {
    format!("# process_madvise(pidfd of {pid}, first page of {region}, MADV_COLD), if it is huge{and}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_decide::Reason;
    use megapage_snapshot::ProcessId;
    use megapage_units::HugePage;

    #[test]
    fn possible_and_impossible_work_is_reported() {
        let process = ProcessId { pid: Pid(7), start_ticks: 1, start_stack: 2 };
        let (region, reason) = (HugePage::nth(1), Reason::Bloat);
        let promote = |size| Action::Promote { process, region, size, reason };
        let actions = [
            promote(PageSize::HUGE_2M),
            Action::Demote { process, region, reason },
            Action::Recover { process, region, reason },
            promote(PageSize::new(64 << 10).unwrap()),
            Action::ZeroScan { process, regions: vec![region], reason },
        ];
        let done = DryRun.carry_out(Duration::ZERO, &actions, &mut Promotions::default());
        let obtained: Vec<Obtained> = done.iter().map(|done| done.outcome.obtained).collect();
        let (yes, no) = (Obtained::Done, Obtained::Unsupported);
        assert_eq!(obtained, [yes, yes, yes, no]);
        assert!(done.iter().all(|done| done.why.is_some() && done.freed == Bytes::ZERO));
        let lines: Vec<String> = done.into_iter().take(3).filter_map(|done| done.why).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], "# process_madvise(pidfd of 7, 200000-400000, MADV_COLLAPSE)");
        assert!(lines.iter().all(|line| line.starts_with('#') && line.contains("pidfd of 7")));
    }
}
