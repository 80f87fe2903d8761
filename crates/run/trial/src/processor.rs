//! The processor time of a service.

use megapage_kernel::cgroup::GroupAccounts;
use megapage_kernel::{KernelRoot, ProcessClock};
use megapage_units::Pid;
use std::time::Duration;

/// The clock of a service. It never falls: what a process has taken before its end counts.
#[derive(Debug)]
pub(crate) enum Processor {
    /// That of a control group, also of processes that come later.
    Group { root: KernelRoot, accounts: GroupAccounts, last: Duration },
    /// Those of processes.
    Processes(Vec<(ProcessClock, Duration)>),
}

impl Processor {
    /// Of a group where there is one, else of the processes that are there.
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

    /// The time so far.
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

    /// Whose time it is, in words.
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
