//! Pressure stall information: the time that tasks wait for memory
//! (Documentation/accounting/psi.rst).

use crate::{KernelError, KernelRoot};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub use megapage_snapshot::Pressure;

const PRESSURE: &str = "proc/pressure/memory";

/// Reads the machine's memory pressure. `Ok(None)` where the kernel does not measure it: built
/// without PSI, or started with `psi=0`.
pub fn memory_pressure(root: &KernelRoot) -> Result<Option<Pressure>, KernelError> {
    let text = match root.read(PRESSURE) {
        // EOPNOTSUPP: built in and switched off.
        Err(error) if error.is_gone() || error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(None),
        text => text?,
    };
    parse(&text).map(Some).ok_or_else(|| KernelError::Parse {
        path: root.path(PRESSURE),
        line: 1,
        what: "expected lines 'some' and 'full' with avg10, avg60 and total".into(),
    })
}

/// A watch on the machine's memory pressure: the kernel reports when tasks have waited for long.
#[derive(Debug)]
pub struct Trigger {
    file: OwnedFd,
}

impl Trigger {
    /// Asks to be notified when some task has waited for memory for `stall` within `window`, at
    /// most once in a window. The window is 500 ms to 10 s. Without CAP_SYS_RESOURCE it must be a
    /// multiple of 2 s (since Linux 6.5; before, none is allowed).
    ///
    /// Errors: ENOENT, EOPNOTSUPP: the kernel does not measure pressure; EPERM, EACCES: the
    /// capability is missing; EINVAL: out of range.
    pub fn on_memory(root: &KernelRoot, stall: Duration, window: Duration) -> Result<Trigger, KernelError> {
        let path = root.path(PRESSURE);
        let text = format!("some {} {}\0", stall.as_micros(), window.as_micros());
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(&path);
        let asked =
            opened.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()).map(|()| file));
        match asked {
            Ok(file) => Ok(Trigger { file: file.into() }),
            Err(source) => Err(KernelError::Io { path, source }),
        }
    }

    /// Waits for at most `timeout` until the pressure is reached or one of `others` is readable.
    /// The first value is true if the pressure was reached, the second if another is readable.
    pub fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) -> std::io::Result<(bool, bool)> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::PRI)];
        fds.extend(others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => {
                let any = fds[1..].iter().any(|fd| !fd.revents().is_empty());
                Ok((fds[0].revents().contains(PollFlags::PRI), any))
            }
            Err(rustix::io::Errno::INTR) => Ok((false, false)),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Returns the time for which some task has waited so far, by the text of a pressure file.
pub(crate) fn stalled(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = line.split_whitespace().find_map(|field| field.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

/// Parses `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, then the same with `full`.
fn parse(text: &str) -> Option<Pressure> {
    let field = |kind: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.split_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    Some(Pressure {
        some_10s: field("some ", "avg10")?.parse().ok()?,
        some_60s: field("some ", "avg60")?.parse().ok()?,
        full_10s: field("full ", "avg10")?.parse().ok()?,
        some_total_us: field("some ", "total")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    #[test]
    fn both_lines_are_read() {
        let (_keep, root) = captured_tree(&[(
            PRESSURE,
            "some avg10=12.50 avg60=3.00 avg300=0.70 total=81234567\n\
             full avg10=4.25 avg60=1.00 avg300=0.20 total=23456789\n",
        )]);
        let expected = Pressure { some_10s: 12.5, some_60s: 3.0, full_10s: 4.25, some_total_us: 81_234_567 };
        assert_eq!(memory_pressure(&root).unwrap(), Some(expected));
    }

    #[test]
    fn a_trigger_waits_and_sees_others() {
        let root = KernelRoot::live();
        let (stall, window) = (Duration::from_millis(1900), Duration::from_secs(2));
        let trigger = match Trigger::on_memory(&root, stall, window) {
            Ok(trigger) => trigger,
            // Not measured, or not allowed.
            Err(error) => return megapage_testing::skip(&format!("needs memory pressure: {error}")),
        };
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert!(!trigger.wait(&[reader.as_fd()], Duration::from_millis(1)).unwrap().1);
        rustix::io::write(&writer, b"x").unwrap();
        assert!(trigger.wait(&[reader.as_fd()], Duration::from_secs(5)).unwrap().1);
        let wrong = Trigger::on_memory(&root, Duration::from_secs(3), window).unwrap_err();
        assert_eq!(wrong.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn a_kernel_without_has_none_and_nonsense_is_an_error() {
        let (_keep, root) = captured_tree(&[("proc/x", "")]);
        assert_eq!(memory_pressure(&root).unwrap(), None);
        let (_keep, root) = captured_tree(&[(PRESSURE, "some avg10=0.00\n")]);
        assert!(memory_pressure(&root).unwrap_err().to_string().contains("expected lines 'some' and 'full'"));
        memory_pressure(&KernelRoot::live()).unwrap();
    }
}
