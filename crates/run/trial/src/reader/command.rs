//! A number that a shell command prints.

use megapage_kernel::spawn::{send_signal, signal};
use megapage_units::Pid;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Largest number of bytes read from the command's output.
const MOST: u64 = 64 << 10;

/// A shell command that runs once for each reading. At the end of a reading, or if that takes too
/// long, it is killed with all processes that it has started.
pub(crate) struct Command {
    shell: String,
    patience: Duration,
}

impl Command {
    pub fn new(shell: &str, patience: Duration) -> Command {
        Command { shell: shell.into(), patience }
    }

    /// Runs the command and returns the first word of its output that is a number.
    pub fn read(&mut self) -> Result<f64, String> {
        let mut command = std::process::Command::new("/bin/sh");
        command.arg("-c").arg(&self.shell).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // A separate process group: all processes that the command has started end with it.
        let mut child = command.process_group(0).spawn().map_err(|error| format!("/bin/sh: {error}"))?;
        let output = child.stdout.take();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = output.map(|output| output.take(MOST).read_to_end(&mut bytes));
            // The send fails if the reader has stopped waiting; that is no error.
            let _ = sender.send(read.is_some_and(|read| read.is_ok()).then_some(bytes));
        });
        let read = receiver.recv_timeout(self.patience);
        // Now the command has closed its output or printed all that counts, or the time is up.
        let ended = if read.is_ok() { child.try_wait().ok().flatten() } else { None };
        let status = match ended {
            Some(status) => Some(status),
            None if read.is_ok() => wait_briefly(&mut child, self.patience),
            None => None,
        };
        end(&mut child);
        let bytes = match read {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Err("its output could not be read".into()),
            Err(_) => {
                return Err(format!(
                    "it printed nothing within {:.0} s",
                    self.patience.as_secs_f64().max(1.0)
                ));
            }
        };
        match status {
            // A command whose output was cut may fail, for it wrote into a closed pipe.
            Some(status) if !status.success() && (bytes.len() as u64) < MOST => {
                let status = status.code().map_or("a signal".into(), |code| format!("status {code}"));
                return Err(format!("it ended with {status}"));
            }
            _ => {}
        }
        let text = String::from_utf8_lossy(&bytes);
        let number = text.split_whitespace().find_map(|word| word.parse::<f64>().ok());
        number.ok_or_else(|| "it printed no number".into())
    }
}

/// Waits for its end and returns its status; `None` if it does not end within the time.
fn wait_briefly(child: &mut Child, patience: Duration) -> Option<std::process::ExitStatus> {
    const STEP: Duration = Duration::from_millis(2);
    for _ in 0..(patience.as_millis() / STEP.as_millis()).max(1) {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::sleep(STEP);
    }
    None
}

/// Kills all that is left of its process group, and reaps it.
fn end(child: &mut Child) {
    // Fails if no process of the group is left.
    let _ = send_signal(Pid(-(child.id().cast_signed())), signal::SIGKILL);
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn read(shell: &str) -> Result<f64, String> {
        Command::new(shell, Duration::from_secs(10)).read()
    }

    #[test]
    fn the_first_number_counts() {
        assert_eq!(read("echo requests 12.5 7"), Ok(12.5));
        assert_eq!(read("printf 3"), Ok(3.0));
        assert!(read("echo none").unwrap_err().contains("no number"));
        assert!(read("echo 1; exit 3").unwrap_err().contains("status 3"));
    }

    #[test]
    fn one_that_hangs_is_ended_with_what_it_has_started() {
        let start = Instant::now();
        let error = Command::new("sleep 600 & sleep 600", Duration::from_millis(100)).read().unwrap_err();
        assert!(error.contains("printed nothing"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn endless_output_is_cut() {
        assert_eq!(read("yes 5"), Ok(5.0));
    }
}
