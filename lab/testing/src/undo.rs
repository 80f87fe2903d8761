//! Undo of a change to the machine if its owner is killed: by a shell that waits for that.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The shell. Dropping the value lets it run its script, as does any end of the calling process.
/// [`Undo::release`] lets it end without.
#[derive(Debug)]
pub(crate) struct Undo {
    shell: Child,
    word: &'static str,
}

impl Undo {
    /// Starts a shell with `script`, for which `arguments` are `$1` and so on. Errors are those of
    /// starting it.
    pub(crate) fn start(script: &str, arguments: &[&OsStr]) -> io::Result<Undo> {
        Undo::with_output(Stdio::null(), script, arguments)
    }

    /// Starts a shell as [`Undo::start`] does. Its standard output is the file of `lock`, so that
    /// the shell keeps the flock(2) until its end. The script must print nothing.
    pub(crate) fn holding(lock: &File, script: &str, arguments: &[&OsStr]) -> io::Result<Undo> {
        Undo::with_output(lock.try_clone()?.into(), script, arguments)
    }

    fn with_output(output: Stdio, script: &str, arguments: &[&OsStr]) -> io::Result<Undo> {
        let script = format!(
            "trap '' HUP INT QUIT TERM USR1 USR2 ALRM PIPE; echo >&2; exec 2>/dev/null; \
             read word; [ \"$word\" = release ] || {{ {script}; }}"
        );
        // In a separate process group: a key that ends the owner ends the whole group of its
        // terminal.
        let shell = Command::new("sh")
            .args(["-c", &script])
            .arg("sh")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let mut undo = Undo { shell, word: "undo\n" };
        // The shell ignores signals once it has written this byte. Before, one would end it.
        if let Some(mut ready) = undo.shell.stderr.take() {
            ready.read_exact(&mut [0])?;
        }
        Ok(undo)
    }

    /// Ends the shell without running its script: there is nothing left to undo.
    pub(crate) fn release(mut self) {
        self.word = "release\n";
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // A child of another thread may hold the pipe open until it executes its program: so this
        // does not wait for the end of the pipe.
        if let Some(mut owner) = self.shell.stdin.take() {
            let _ = owner.write_all(self.word.as_bytes());
        }
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::spawn::send_signal;
    use megapage_kernel::spawn::signal::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
    use megapage_units::Pid;

    #[test]
    fn the_script_runs_when_it_is_dropped_and_not_when_it_is_released() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state");
        let undo = || Undo::start("echo off > \"$1\"", &[file.as_os_str()]).unwrap();
        undo().release();
        assert!(!file.exists());
        drop(undo());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "off\n");
        // A killed owner leaves only the end of the pipe, and signals to both may come before.
        std::fs::remove_file(&file).unwrap();
        let mut killed = undo();
        for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE] {
            send_signal(Pid(killed.shell.id().cast_signed()), number).unwrap();
        }
        drop(killed.shell.stdin.take());
        drop(killed);
        assert!(file.exists());
    }

    #[test]
    fn a_lock_stays_until_the_script_has_run() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state");
        std::fs::write(&file, "on").unwrap();
        let lock = File::open(&file).unwrap();
        lock.lock().unwrap();
        let mut undo = Undo::holding(&lock, "echo off > \"$1\"", &[file.as_os_str()]).unwrap();
        // After this only the shell holds the lock, as if the owner was killed.
        drop(lock);
        let other = File::open(&file).unwrap();
        assert!(other.try_lock().is_err());
        drop(undo.shell.stdin.take());
        other.lock().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "off\n");
    }
}
