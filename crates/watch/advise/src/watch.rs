//! Waits that signals and a child's end interrupt.

use megapage_kernel::spawn::{self, ChildEvent, Signal, Signals, Usage, signal};
use megapage_launch::relay::Relay;
use megapage_units::Pid;
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

/// End of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit or signal.
    pub event: ChildEvent,
    /// Resources that the child used.
    pub usage: Usage,
}

/// Waiter that keeps signals from ending megapage before it has put everything back.
#[derive(Debug)]
pub struct Watch {
    signals: Signals,
    relay: Relay,
    child: Option<Pid>,
    ended: Option<Ended>,
    interrupted: bool,
}

/// Signals that end an observation.
const ENDS: [i32; 4] = [signal::SIGINT, signal::SIGTERM, signal::SIGHUP, signal::SIGQUIT];

impl Watch {
    /// Returns a watch over no process.
    pub fn idle() -> io::Result<Watch> {
        let (signals, relay) = (Signals::take(&ENDS)?, Relay::default());
        Ok(Watch { signals, relay, child: None, ended: None, interrupted: false })
    }

    /// Starts a program, which stays in the caller's process group, and watches it. An error is
    /// execve(2)'s.
    pub fn start(command: &mut Command) -> io::Result<(Watch, Pid)> {
        let signals = Signals::take(&[&ENDS[..], &[signal::SIGCHLD]].concat())?;
        let relay = Relay::start(&ENDS);
        let pid = signals.spawn(command)?;
        Ok((Watch { signals, relay, child: Some(pid), ended: None, interrupted: false }, pid))
    }

    /// Waits for `time`. Returns true to go on: no signal has come, and the child, if any, is still
    /// there.
    pub fn wait(&mut self, time: Duration) -> bool {
        let start = Instant::now();
        loop {
            self.hear();
            if self.interrupted || self.ended.is_some() {
                return false;
            }
            let Some(left) = time.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
                return true;
            };
            // Without a descriptor to wait for, only the clock remains.
            if spawn::wait_readable(self.signals.as_fd(), left.min(LOOK)).is_err() {
                std::thread::sleep(left.min(LOOK));
            }
        }
    }

    /// Returns true if a signal has asked for the end.
    pub fn interrupted(&self) -> bool {
        self.interrupted
    }

    /// Waits for the child's end, and passes signals on to it. Returns `None` without a child.
    pub fn finish(&mut self) -> io::Result<Option<Ended>> {
        while self.child.is_some() && self.ended.is_none() {
            spawn::wait_readable(self.signals.as_fd(), LOOK)?;
            self.hear();
        }
        Ok(self.ended)
    }

    /// Asks the child to end (SIGTERM).
    pub fn stop(&mut self) {
        if let (Some(child), None) = (self.child, self.ended) {
            // The call fails only if the child has just ended.
            let _ = spawn::send_signal(child, signal::SIGTERM);
        }
    }

    /// Takes in the signals that have come.
    fn hear(&mut self) {
        let now = Instant::now();
        self.relay.look(now);
        while let Ok(Some(signal)) = self.signals.next() {
            if signal.number != signal::SIGCHLD {
                self.interrupted = true;
                self.relay.take(signal, now);
            }
        }
        for Signal { number, .. } in self.relay.due(now) {
            if let (Some(child), None) = (self.child, self.ended) {
                let _ = spawn::send_signal(child, number);
            }
        }
        if let (Some(child), None) = (self.child, self.ended)
            && let Ok(Some((event, usage))) = spawn::poll_child(child)
            && matches!(event, ChildEvent::Exited(_) | ChildEvent::Died(_))
        {
            self.ended = Some(Ended { event, usage });
        }
    }
}

/// Pause between two looks at a child: a signal of its end may have gone to another thread.
const LOOK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_child() {
        let (mut watch, _) = Watch::start(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        assert!(!watch.wait(Duration::from_secs(600)), "the child has ended");
        assert_eq!(watch.ended.unwrap().event, ChildEvent::Exited(3));
        assert_eq!(watch.finish().unwrap().unwrap().event, ChildEvent::Exited(3));
        assert!(!watch.interrupted());
    }

    #[test]
    fn a_child_is_stopped_and_heard_of() {
        let (mut watch, _) = Watch::start(Command::new("sleep").arg("60")).unwrap();
        assert!(watch.wait(Duration::from_millis(1)));
        watch.stop();
        assert_eq!(watch.finish().unwrap().unwrap().event, ChildEvent::Died(signal::SIGTERM));
    }

    #[test]
    fn a_watch_over_no_process_does_not_end() {
        let mut watch = Watch::idle().unwrap();
        assert!(watch.wait(Duration::from_millis(1)));
        assert_eq!(watch.finish().unwrap(), None);
    }
}
