//! Process beside the caller, in its process group. It gets the signals that are sent to the whole
//! group, and none that is sent to the caller alone.

use super::worker::Worker;
use crate::KernelRoot;
use crate::spawn::Signal;
use megapage_units::Pid;
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::time::Duration;

/// Offsets in the data: `siginfo_t` begins at the end of the set of signals, and its fields follow
/// (sigaction(2), 64-bit machines).
const INFO: usize = 8;
const CODE: usize = INFO + 8;
const SENDER: usize = INFO + 16;
/// Longest wait for the end of the witness, in steps of a millisecond.
const LAST_STEPS: u32 = 100;

/// Witness of the signals to the process group. It ends with this value, or with the thread that
/// started it.
#[derive(Debug)]
pub struct Witness {
    worker: Worker,
    set: u64,
}

impl Witness {
    /// Starts a witness that takes the signals of these numbers (1 to 64). All other signals stay
    /// pending with it.
    pub fn start(numbers: &[i32]) -> io::Result<Witness> {
        let set = numbers.iter().fold(0, |set, number| set | 1u64 << (number - 1).clamp(0, 63));
        let mut witness = Witness { worker: Worker::start()?, set };
        witness.worker.request_signal(set)?;
        Ok(witness)
    }

    /// Returns the next signal that has come to it; `None` if there is none at the moment. An error
    /// means that it has ended.
    pub fn take(&mut self) -> io::Result<Option<Signal>> {
        if !self.worker.wait(Duration::ZERO)? {
            return Ok(None);
        }
        let reply = self.worker.reply()?;
        let data = self.worker.data();
        let field = |at: usize| i32::from_ne_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        let sender = (field(CODE) <= 0).then_some(Pid(field(SENDER)));
        self.worker.request_signal(self.set)?;
        match reply.result() {
            Ok(number) => Ok(Some(Signal { number: number as i32, sender })),
            // A stop and a continue of the whole group interrupt the wait.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the signals that it has got and not taken yet (a bit for each number, from 1 on).
    /// Returns `None` while one may be on its way. The witness is at work then, or was stopped,
    /// which may come between taking a signal and reporting it. [`Witness::take`] returns the
    /// signals that it reported before this call.
    pub fn pending(&self) -> Option<u64> {
        // Without /proc, nothing shows pending signals.
        let Ok(text) = KernelRoot::live().read(format!("proc/{}/status", self.worker.pid())) else {
            return Some(0);
        };
        let field = |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
        let bits = field("ShdPnd:").and_then(|bits| u64::from_str_radix(bits, 16).ok());
        let bits = bits.unwrap_or(0) & self.set;
        let rests = field("State:").is_some_and(|state| state.starts_with('S'));
        (rests || bits != 0).then_some(bits)
    }
}

impl AsFd for Witness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.worker.socket()
    }
}

impl Drop for Witness {
    /// Waits for its end. A process that waits for the group to be empty then finds it empty once
    /// the caller has ended.
    fn drop(&mut self) {
        self.worker.kill();
        for _ in 0..LAST_STEPS {
            if self.worker.has_ended() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spawn::{send_signal, signal, wait_readable};

    #[test]
    fn the_witness_names_signal_and_sender() {
        let mut witness = Witness::start(&[signal::SIGWINCH, signal::SIGCONT]).unwrap();
        assert_eq!(witness.take().unwrap(), None);
        let own = Pid(std::process::id() as i32);
        for number in [signal::SIGWINCH, signal::SIGCONT, signal::SIGWINCH] {
            send_signal(Pid(witness.worker.pid()), number).unwrap();
            assert!(wait_readable(witness.as_fd(), Duration::from_secs(20)).unwrap());
            assert_eq!(witness.take().unwrap(), Some(Signal { number, sender: Some(own) }));
        }
        while witness.pending() != Some(0) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // A stopped witness still gets the signal.
        send_signal(Pid(witness.worker.pid()), signal::SIGSTOP).unwrap();
        let status = format!("proc/{}/status", witness.worker.pid());
        while !KernelRoot::live().read(&status).unwrap().contains("T (stopped)") {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(witness.pending(), None);
        send_signal(Pid(witness.worker.pid()), signal::SIGWINCH).unwrap();
        assert_eq!(witness.pending(), Some(1 << (signal::SIGWINCH - 1)));
        send_signal(Pid(witness.worker.pid()), signal::SIGCONT).unwrap();
        let mut both = Vec::new();
        while both.len() < 2 {
            both.extend(witness.take().unwrap().map(|signal| signal.number));
        }
        both.sort_unstable();
        assert_eq!(both, [signal::SIGCONT, signal::SIGWINCH]);
        // A signal that is not in the set does not end it.
        send_signal(Pid(witness.worker.pid()), signal::SIGTERM).unwrap();
        assert!(!wait_readable(witness.as_fd(), Duration::from_millis(20)).unwrap());
        assert_eq!(witness.take().unwrap(), None);
        send_signal(Pid(witness.worker.pid()), signal::SIGKILL).unwrap();
        assert!(wait_readable(witness.as_fd(), Duration::from_secs(20)).unwrap());
        assert!(witness.take().is_err());
    }
}
