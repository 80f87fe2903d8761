//! The processor time of a service.

use megapage_kernel::cgroup::GroupAccounts;
use megapage_kernel::{KernelRoot, ProcessClock};
use megapage_units::Pid;
use std::time::Duration;

/// The processor time of a service. It never falls: the time of an ended process still counts.
#[derive(Debug)]
pub(crate) enum Processor {
    /// The time of a control group, with that of processes that start later.
    Group { root: KernelRoot, accounts: GroupAccounts, last: Duration },
    /// The times of single processes.
    Processes(Vec<(ProcessClock, Duration)>),
}

impl Processor {
    /// Returns the clock of the control group if there is one, else that of the present processes.
    pub fn of(root: &KernelRoot, group: Option<&GroupAccounts>, pids: &[Pid]) -> Processor {
        match group {
            Some(accounts) => {
                Processor::Group { root: root.clone(), accounts: accounts.clone(), last: Duration::ZERO }
            }
            None => {
                let clocks = pids.iter().filter_map(|pid| ProcessClock::open(root, *pid).ok());
                Processor::Processes(clocks.map(|clock| (clock, Duration::ZERO)).collect())
            }
        }
    }

    /// Returns the time so far.
    pub fn now(&mut self) -> Duration {
        match self {
            Processor::Group { root, accounts, last } => {
                *last = accounts.processor(root).unwrap_or(*last).max(*last);
                *last
            }
            Processor::Processes(clocks) => clocks
                .iter_mut()
                .map(|(clock, last)| {
                    *last = clock.now().unwrap_or(*last).max(*last);
                    *last
                })
                .sum(),
        }
    }

    /// Names the unit of the time, and its owner if that is a group.
    pub fn in_words(&self) -> &'static str {
        match self {
            Processor::Group { .. } => "CPU second of its control group",
            Processor::Processes(_) => "CPU second",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_time_goes_on() {
        let own = Pid(std::process::id().cast_signed());
        let mut clock = Processor::of(&KernelRoot::live(), None, &[own, Pid(1 << 28)]);
        let before = clock.now();
        while clock.now() < before + Duration::from_millis(30) {
            std::hint::black_box((0..100_000u64).sum::<u64>());
        }
    }
}
