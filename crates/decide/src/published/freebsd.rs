//! FreeBSD: reserves a contiguous 2 MiB block on the first touch of a region. The region becomes
//! huge only when all its 512 base pages are populated. So no memory is ever bound that the program
//! did not touch.
//!
//! Sources: Navarro, Iyer, Druschel, Cox, "Practical, transparent operating system support for
//! superpages" (OSDI 2002); sys/vm/vm_reserv.c. The partially populated reservation without a
//! change for longest is broken first.

use crate::pace::Rounds;
use crate::{Answer, Fault, FaultSize, Pace, Policy, Reason, Reservation, Tick};
use megapage_snapshot::{Leaf, PAGES};
use megapage_units::PageSize;

/// The policy: population decides. FreeBSD has no pace, since a reservation becomes huge without a
/// copy. Without reservations each promotion is a copy; then the pace of the other policies may
/// apply to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct FreeBsd {
    /// Regions promoted in a round; `None`: all full ones.
    pace: Option<Pace>,
    rounds: Rounds,
}

impl FreeBsd {
    /// Returns the policy, promoting at most the regions of `pace` in a round.
    pub fn at(pace: Pace) -> FreeBsd {
        FreeBsd { pace: Some(pace), rounds: Rounds::default() }
    }
}

impl Policy for FreeBsd {
    fn name(&self) -> &'static str {
        "freebsd"
    }

    fn tick(&mut self, tick: &mut Tick<'_>) {
        self.rounds.give_back(tick.untried_promotions().len() as u64);
        let mut due = self.pace.map_or(u64::MAX, |pace| self.rounds.due(tick.now(), pace));
        for process in tick.processes() {
            for region in &process.regions {
                let answer = match region.leaf {
                    Leaf::Base if region.present == PAGES && due > 0 => {
                        let answer = tick.promote(process, region, PageSize::HUGE_2M, Reason::FullyPopulated);
                        due -= u64::from(answer == Answer::Accepted);
                        answer
                    }
                    Leaf::Huge2m if region.present < PAGES => {
                        tick.demote(process, region, Reason::Depopulated)
                    }
                    _ => continue,
                };
                if answer == Answer::Spent {
                    return;
                }
            }
        }
    }

    fn samples(&self) -> bool {
        false
    }

    fn on_fault(&mut self, fault: &Fault) -> FaultSize {
        // A region without a reservation, broken or never made, does not get one later: its pages
        // lie elsewhere.
        if fault.eligible && (fault.reserved || fault.present == 0) {
            FaultSize::Reserve
        } else {
            FaultSize::Base
        }
    }

    fn breaks(&self, reservations: &[Reservation]) -> Option<usize> {
        let partial =
            reservations.iter().enumerate().filter(|(_, reservation)| reservation.populated < PAGES);
        partial
            .min_by_key(|(_, reservation)| (reservation.changed, reservation.process, reservation.region))
            .map(|(at, _)| at)
    }

    fn tracked(&self) -> usize {
        0
    }
}
