//! The running service, as a trial sees it.

use crate::processor::Processor;
use crate::reader::Reader;
use megapage_act::{RemoteError, Reversible};
use megapage_decide::judge::{Cost, Reading, Service, Stop};
use megapage_kernel::process::own_thread_time;
use megapage_kernel::spawn::{self, Signals};
use megapage_units::{Bytes, HUGE_2M};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Least share of the requested bytes that has to become huge; with less, the trial fails.
const LEAST_OBTAINED: f64 = 0.5;

/// One process.
pub(crate) struct Part {
    pub memory: Reversible,
    /// Descriptor that becomes readable when the process ends.
    pub pidfd: OwnedFd,
}

/// Processes whose memory is switched together.
pub(crate) struct Live<'a> {
    pub parts: Vec<Part>,
    pub reader: Reader,
    pub processor: Processor,
    pub signals: &'a Signals,
    start: Instant,
    origin: Duration,
    /// Bytes of zeros that splits have freed.
    pub freed: Bytes,
    /// Smallest share of the requested bytes that became huge, over all switches.
    pub least_obtained: f64,
}

impl<'a> Live<'a> {
    pub fn new(parts: Vec<Part>, reader: Reader, mut processor: Processor, signals: &'a Signals) -> Live<'a> {
        let origin = processor.now();
        Live {
            parts,
            reader,
            processor,
            signals,
            start: Instant::now(),
            origin,
            freed: Bytes::ZERO,
            least_obtained: 1.0,
        }
    }

    fn promote(&mut self) -> Result<Duration, Stop> {
        let (mut held, mut asked, mut obtained) = (Duration::ZERO, 0, 0);
        let mut why = String::new();
        for part in &mut self.parts {
            match part.memory.promote() {
                Ok(None) => {}
                Ok(Some(outcome)) => {
                    held += Duration::from_nanos(outcome.busy_ns);
                    asked += outcome.asked_bytes;
                    obtained += outcome.obtained_bytes;
                    if outcome.no_memory > 0 {
                        why = ": no huge page is free, or the control group is full".into();
                    } else if outcome.shared > 0 {
                        why = ": a forked process shares it".into();
                    }
                }
                // The process has ended: `forget_ended` removes it below.
                Err(RemoteError::Gone(_)) => {}
                Err(error) => return Err(Stop::Failed(error.to_string())),
            }
        }
        self.forget_ended()?;
        let share = if asked > 0 { obtained as f64 / asked as f64 } else { 1.0 };
        self.least_obtained = self.least_obtained.min(share);
        if share < LEAST_OBTAINED {
            let (asked, obtained) = (Bytes(asked), Bytes(obtained));
            return Err(Stop::Failed(format!("of {asked} only {obtained} could be made huge{why}")));
        }
        Ok(held)
    }

    fn demote(&mut self) -> Result<Duration, Stop> {
        let (mut held, mut left) = (Duration::ZERO, 0);
        for part in &mut self.parts {
            let undone = part.memory.undo();
            held += undone.busy;
            left += undone.left;
            self.freed += Bytes(undone.freed_bytes);
        }
        match left {
            0 => Ok(held),
            left => Err(Stop::Failed(format!(
                "{} could not be split again (shared by a fork, or busy)",
                Bytes(left * HUGE_2M as u64)
            ))),
        }
    }

    /// Removes processes that have ended. Fails if none is left.
    fn forget_ended(&mut self) -> Result<(), Stop> {
        self.parts.retain(|part| part.memory.is_there());
        if self.parts.is_empty() { Err(Stop::Ended) } else { Ok(()) }
    }
}

impl Service for Live<'_> {
    fn switch(&mut self, huge: bool) -> Result<Cost, Stop> {
        let before = own_thread_time();
        let held = if huge { self.promote() } else { self.demote() }?;
        Ok(Cost { processor: own_thread_time().saturating_sub(before), held })
    }

    fn wait(&mut self, time: Duration) -> Result<(), Stop> {
        if self.parts.is_empty() {
            return Err(Stop::Ended);
        }
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut all: Vec<BorrowedFd<'_>> = vec![self.signals.as_fd()];
            all.extend(self.parts.iter().map(|part| part.pidfd.as_fd()));
            let ready = spawn::wait_any_readable(&all, left);
            let is_asked = matches!(self.signals.next(), Ok(Some(_)));
            match ready {
                _ if is_asked => return Err(Stop::Asked),
                Ok(true) => self.forget_ended()?,
                Ok(false) => {}
                Err(error) => return Err(Stop::Failed(format!("poll: {error}"))),
            }
            if left.is_zero() {
                return Ok(());
            }
        }
    }

    fn read(&mut self) -> Result<Reading, Stop> {
        self.reader.read().map_err(|why| Stop::Failed(format!("the metric cannot be read any more: {why}")))
    }

    fn now(&mut self) -> Duration {
        self.start.elapsed()
    }

    fn processor(&mut self) -> Result<Duration, Stop> {
        Ok(self.processor.now().saturating_sub(self.origin))
    }
}
