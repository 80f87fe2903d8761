//! The handshake at exit: a program that is about to exit waits, for a bounded time, until its
//! launcher has read the kernel's final values.

use crate::futex::sleep;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// Interval at which the program looks for the launcher's answer.
const POLL: Duration = Duration::from_millis(1);
/// Time that the program waits until the launcher notices, if the launcher asks for nothing else.
const PATIENCE: Duration = Duration::from_millis(100);
/// Longest time of this kind, whatever the launcher asks for.
const LONGEST_PATIENCE: Duration = Duration::from_secs(2);
/// Further time that the program waits while a launcher that has noticed reads.
const LONGEST_READING: Duration = Duration::from_secs(2);

/// Values of the launcher's answer besides 0.
const DONE: u64 = 1;
const NOTICED: u64 = 2;

/// Three words of memory that program and launcher share.
#[derive(Clone, Copy, Debug)]
pub struct ExitHandshake<'a> {
    /// Written by the program.
    pub exiting: &'a AtomicU64,
    /// Written by the launcher.
    pub answer: &'a AtomicU64,
    /// Written by the launcher before the start, in milliseconds; 0 for the default.
    pub patience: &'a AtomicU64,
}

impl ExitHandshake<'_> {
    /// Asks the program to wait `patience` long until it is noticed; 2 s at most. The launcher
    /// calls this.
    pub fn ask_patience(&self, patience: Duration) {
        self.patience.store(patience.as_millis() as u64, Relaxed);
    }

    /// Returns true if the program has announced that it is about to exit.
    pub fn is_exiting(&self) -> bool {
        self.exiting.load(Acquire) != 0
    }

    /// Notes that the launcher has seen the program wait, and reads the final values now.
    pub fn notice(&self) {
        self.answer.store(NOTICED, Relaxed);
    }

    /// Lets the program go: the launcher has taken the final values, or takes none.
    pub fn let_go(&self) {
        self.answer.store(DONE, Relaxed);
    }

    /// Announces that the program is about to exit, and waits until the launcher notices: 100 ms,
    /// or the time that the launcher has asked for. Waits 2 s more at most while the launcher
    /// reads. Allocates nothing.
    pub fn announce_and_wait(&self) {
        // A reader that sees this also sees all that the program has counted before.
        self.exiting.store(1, Release);
        let mut waited = Duration::ZERO;
        while self.waits_for().is_some_and(|longest| waited < longest) {
            sleep(POLL);
            waited += POLL;
        }
    }

    /// Returns how long the program waits altogether, as far as the launcher has answered; `None`
    /// once it is let go.
    fn waits_for(&self) -> Option<Duration> {
        let patience = match self.patience.load(Relaxed) {
            0 => PATIENCE,
            asked => Duration::from_millis(asked).min(LONGEST_PATIENCE),
        };
        match self.answer.load(Relaxed) {
            DONE => None,
            NOTICED => Some(patience + LONGEST_READING),
            _ => Some(patience),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_program_waits_longer_for_a_launcher_that_has_noticed_and_never_for_ever() {
        let words = [const { AtomicU64::new(0) }; 3];
        let handshake = ExitHandshake { exiting: &words[0], answer: &words[1], patience: &words[2] };
        assert_eq!(handshake.waits_for(), Some(PATIENCE));
        handshake.ask_patience(Duration::from_secs(1));
        assert_eq!(handshake.waits_for(), Some(Duration::from_secs(1)));
        handshake.notice();
        assert_eq!(handshake.waits_for(), Some(Duration::from_secs(3)));
        words[2].store(u64::MAX, Relaxed);
        assert_eq!(handshake.waits_for(), Some(Duration::from_secs(4)));
        handshake.let_go();
        assert_eq!(handshake.waits_for(), None);
    }

    #[test]
    fn the_program_goes_when_it_is_let_go() {
        let words = [const { AtomicU64::new(0) }; 3];
        let handshake = ExitHandshake { exiting: &words[0], answer: &words[1], patience: &words[2] };
        handshake.ask_patience(LONGEST_PATIENCE);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let program = scope.spawn(|| handshake.announce_and_wait());
            while !handshake.is_exiting() {
                std::thread::yield_now();
            }
            handshake.notice();
            std::thread::sleep(Duration::from_millis(20));
            assert!(!program.is_finished(), "it waits while it is read");
            handshake.let_go();
        });
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
}
