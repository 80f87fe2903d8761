//! Passes signals on to a program that is in the launcher's process group, so that it gets each one
//! once.
//!
//! A signal names its sender, but not whether it was sent to one process or to the whole group (a
//! shell's `kill -- -PGID`, timeout(1), a service manager that signals each process of a control
//! group, the terminal). A witness in the same group shows it: what the witness gets, too, the
//! program has got from the kernel.

use megapage_kernel::helper::Witness;
use megapage_kernel::spawn::Signal;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How far apart the witness and the launcher may get the signal of one sender: kill(2) takes
/// microseconds for a group, a service manager some milliseconds for a control group. Within that
/// time the kernel, too, makes one of two signals.
const TOGETHER: Duration = Duration::from_millis(20);
/// How often it is looked at.
const PAUSE: Duration = Duration::from_millis(2);
/// A witness that does not come to rest on a busy machine is waited for so long.
const LONGEST: Duration = Duration::from_secs(1);
/// Signals that are kept at most: a sender of more loses the oldest.
const MOST: usize = 64;

type At = (Signal, Instant);

/// See the module.
#[derive(Debug, Default)]
pub struct Relay {
    witness: Option<Witness>,
    /// Signals of the witness, within the last moments.
    seen: Vec<At>,
    /// Signals that may have to be passed on.
    held: Vec<At>,
}

impl Relay {
    /// Starts a witness for signals of these numbers. Call it before the program is started.
    /// Without a witness (no process can be made) every signal that a process sent is passed on at
    /// once.
    pub fn start(numbers: &[i32]) -> Relay {
        Relay { witness: Witness::start(numbers).ok(), ..Relay::default() }
    }

    /// Takes in a signal that the launcher got.
    pub fn take(&mut self, signal: Signal, now: Instant) {
        keep(&mut self.held, (signal, now));
    }

    /// Takes in what the witness has seen. To be called before the launcher reads its own signals,
    /// of which the witness gets those of the whole group first.
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

    /// Returns how long to wait for the other of two signals that belong together; zero if none is
    /// expected. Meanwhile the caller does nothing that takes long, so that their times are right.
    pub fn open(&self, now: Instant) -> Duration {
        let left = |(_, at): &At| (*at + TOGETHER).saturating_duration_since(now);
        // One that is held still waits for the witness to come to rest.
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

/// Drops what the witness has seen, or has got (`pending`, if it is at rest), and takes out what it
/// has not got in time.
fn settle(seen: &mut Vec<At>, held: &mut Vec<At>, pending: Option<u64>, now: Instant) -> Vec<Signal> {
    let age = |at: Instant| now.saturating_duration_since(at);
    // However late the witness is: what is held is still undecided.
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
        // To the launcher alone: it is held for a moment, then passed on.
        assert_eq!(settled(&[], &[(term, at(0))], at(19)), []);
        assert_eq!(settled(&[], &[(term, at(0))], at(20)), [term]);
        // To both, whichever was first; timeout(1) signals its child, and then the group.
        assert_eq!(settled(&[(term, at(1))], &[(term, at(0)), (term, at(1))], at(90)), []);
        assert_eq!(settled(&[(term, at(0))], &[(term, at(5))], at(90)), []);
        // Another sender's, another signal, and one that came much later are others.
        for (other, then) in [(from(8, SIGTERM), 50), (from(7, SIGINT), 50), (term, 29)] {
            assert_eq!(settled(&[(other, at(then))], &[(term, at(50))], at(90)), [term], "{other:?}");
        }
        // A witness that is late on a busy machine is waited for, within bounds; one that is
        // stopped has got it.
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
        // Without a witness nothing is waited for, and what is the kernel's own goes to the whole
        // group.
        relay.take(Signal { number: SIGINT, sender: None }, start);
        assert_eq!(relay.due(start), vec![from(1, SIGTERM); MOST - 1]);
        assert_eq!(relay.held, []);
    }
}
