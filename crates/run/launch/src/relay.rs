//! Passes signals on to a program in the launcher's process group, so that it gets each one once.
//!
//! A signal names its sender, but not its target: one process, or the whole group. A shell's `kill
//! -- -PGID`, timeout(1) and the terminal signal the group; a service manager signals each process
//! of a control group. A witness in the same group shows the difference: a signal that the witness
//! gets too was also sent to the program by the kernel.

use megapage_kernel::helper::Witness;
use megapage_kernel::spawn::Signal;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Longest time between the arrivals of one sender's signal at the witness and at the launcher.
/// kill(2) takes microseconds for a group, a service manager some milliseconds for a control group.
/// Within that time the kernel also merges two equal signals into one.
const TOGETHER: Duration = Duration::from_millis(20);
/// Time between two looks at a witness that is not at rest.
const PAUSE: Duration = Duration::from_millis(2);
/// Longest wait for a witness that does not come to rest on a busy machine.
const LONGEST: Duration = Duration::from_secs(1);
/// Largest number of signals that are kept: a further one pushes out the oldest.
const MOST: usize = 64;

type At = (Signal, Instant);

/// The state of passing signals on.
#[derive(Debug, Default)]
pub struct Relay {
    witness: Option<Witness>,
    /// Signals that the witness got recently.
    seen: Vec<At>,
    /// Signals that may have to be passed on.
    held: Vec<At>,
}

impl Relay {
    /// Starts a witness for signals of these numbers. Call it before the program is started. If no
    /// process can be made, there is no witness; then every signal from a process is passed on at
    /// once.
    pub fn start(numbers: &[i32]) -> Relay {
        Relay { witness: Witness::start(numbers).ok(), ..Relay::default() }
    }

    /// Takes a signal that the launcher got.
    pub fn take(&mut self, signal: Signal, now: Instant) {
        keep(&mut self.held, (signal, now));
    }

    /// Takes the signals that the witness has seen. Call it before the launcher reads its own
    /// signals: the witness gets those of the whole group first.
    pub fn look(&mut self, now: Instant) {
        while let Some(witness) = &mut self.witness {
            match witness.take() {
                Ok(Some(signal)) => keep(&mut self.seen, (signal, now)),
                Ok(None) => break,
                Err(_) => self.witness = None,
            }
        }
    }

    /// Returns the signals that are to be passed on now, in their order.
    pub fn due(&mut self, now: Instant) -> Vec<Signal> {
        let is_due = self.held.iter().any(|(_, at)| now.saturating_duration_since(*at) >= TOGETHER);
        let pending = self.witness.as_ref().filter(|_| is_due).and_then(Witness::pending);
        self.look(now);
        match self.witness {
            Some(_) => settle(&mut self.seen, &mut self.held, pending, now),
            None => self.held.drain(..).map(|(signal, _)| signal).filter(|it| it.sender.is_some()).collect(),
        }
    }

    /// Returns the time to wait for the other of two signals that belong together; zero if none is
    /// expected. Meanwhile the caller does nothing that takes long, so that the times are right.
    pub fn open(&self, now: Instant) -> Duration {
        let left = |(_, at): &At| (*at + TOGETHER).saturating_duration_since(now);
        // A held signal also waits for the witness to come to rest.
        let held = self.held.iter().map(|it| left(it).max(PAUSE));
        held.chain(self.seen.iter().map(left)).max().unwrap_or_default()
    }

    /// Returns the descriptor that becomes readable when the witness gets a signal.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.witness.as_ref().map(AsFd::as_fd)
    }
}

fn keep(list: &mut Vec<At>, one: At) {
    if list.len() == MOST {
        list.remove(0);
    }
    list.push(one);
}

/// Drops held signals that the witness has seen or has got (`pending`, if it is at rest). Returns
/// those that it did not get in time.
fn settle(seen: &mut Vec<At>, held: &mut Vec<At>, pending: Option<u64>, now: Instant) -> Vec<Signal> {
    let age = |at: Instant| now.saturating_duration_since(at);
    // The witness may be late by any time: a held signal is still undecided.
    let together = |at: Instant, then: Instant| at.saturating_duration_since(then) <= TOGETHER;
    held.retain(|(signal, at)| !seen.iter().any(|(other, then)| other == signal && together(*at, *then)));
    seen.retain(|(_, at)| age(*at) <= TOGETHER);
    let mut due = Vec::new();
    held.retain(|(signal, at)| match pending {
        _ if age(*at) < TOGETHER => true,
        Some(bits) if bits >> (signal.number - 1) & 1 == 1 => false,
        None if age(*at) < LONGEST => true,
        _ => {
            due.push(*signal);
            false
        }
    });
    due
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::spawn::signal::{SIGINT, SIGTERM};
    use megapage_units::Pid;

    fn from(sender: i32, number: i32) -> Signal {
        Signal { number, sender: Some(Pid(sender)) }
    }

    #[test]
    fn what_the_witness_has_seen_is_not_passed_on() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let settled =
            |seen: &[At], held: &[At], now| settle(&mut seen.to_vec(), &mut held.to_vec(), Some(0), now);
        let term = from(7, SIGTERM);
        // Sent to the launcher alone: held for a moment, then passed on.
        assert_eq!(settled(&[], &[(term, at(0))], at(19)), []);
        assert_eq!(settled(&[], &[(term, at(0))], at(20)), [term]);
        // Sent to both, in either order. timeout(1) signals its child, and then the group.
        assert_eq!(settled(&[(term, at(1))], &[(term, at(0)), (term, at(1))], at(90)), []);
        assert_eq!(settled(&[(term, at(0))], &[(term, at(5))], at(90)), []);
        // A signal from another sender, with another number, or from much earlier does not match.
        for (other, then) in [(from(8, SIGTERM), 50), (from(7, SIGINT), 50), (term, 29)] {
            assert_eq!(settled(&[(other, at(then))], &[(term, at(50))], at(90)), [term], "{other:?}");
        }
        // A late witness on a busy machine is waited for, within bounds. A stopped witness has got
        // the signal.
        let busy = |pending, now| settle(&mut Vec::new(), &mut vec![(term, at(0))], pending, now);
        assert_eq!(settled(&[(term, at(300))], &[(term, at(0))], at(300)), []);
        assert_eq!((busy(None, at(999)), busy(None, at(1000))), (vec![], vec![term]));
        assert_eq!(busy(Some(1 << (SIGTERM - 1)), at(20)), []);
        let kernel = Signal { number: SIGINT, sender: None };
        assert_eq!(settled(&[(kernel, at(0))], &[(kernel, at(0))], at(90)), []);
        assert_eq!(settled(&[], &[(kernel, at(0))], at(90)), [kernel], "as a hangup, to a session's leader");
    }

    #[test]
    fn nothing_is_kept_for_ever() {
        let start = Instant::now();
        let late = start + Duration::from_secs(1);
        let mut seen = vec![(from(1, SIGTERM), start)];
        settle(&mut seen, &mut Vec::new(), None, late);
        assert_eq!(seen, []);
        let mut relay = Relay::default();
        for _ in 0..100 {
            relay.take(from(1, SIGTERM), start);
        }
        assert_eq!(relay.held.len(), MOST);
        assert_eq!((relay.open(start), relay.open(late)), (TOGETHER, PAUSE));
        // Without a witness there is no wait. A signal of the kernel itself goes to the whole
        // group.
        relay.take(Signal { number: SIGINT, sender: None }, start);
        assert_eq!(relay.due(start), vec![from(1, SIGTERM); MOST - 1]);
        assert_eq!(relay.held, []);
    }
}
