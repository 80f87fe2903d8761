//! What undoes a change to the machine if its owner is killed: a shell that waits for that.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The shell. Dropping the value, like the end of the calling process however it comes about, has it run its script;
/// [`Undo::release`] has it end without.
#[derive(Debug)]
pub(crate) struct Undo {
    shell: Child,
    word: &'static str,
}

impl Undo {
    /// Starts a shell with `script`, for which `arguments` are `$1` and so on. Errors are those of starting it.
    pub(crate) fn start(script: &str, arguments: &[&OsStr]) -> io::Result<Undo> {
        // A key that ends the owner is for the whole group of processes of its terminal.
        let shell = Command::new("sh")
            .args([
                "-c",
                &format!("trap '' HUP INT TERM; read word; [ \"$word\" = release ] || {{ {script}; }}"),
            ])
            .arg("sh")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Undo { shell, word: "undo\n" })
    }

    /// There is nothing left to undo.
    pub(crate) fn release(mut self) {
        self.word = "release\n";
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // A child of another thread may hold the pipe open until it executes its program: its end is not waited for.
        if let Some(mut owner) = self.shell.stdin.take() {
            let _ = owner.write_all(self.word.as_bytes());
        }
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_runs_when_it_is_dropped_and_not_when_it_is_released() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state");
        let undo = || Undo::start("echo off > \"$1\"", &[file.as_os_str()]).unwrap();
        undo().release();
        assert!(!file.exists());
        drop(undo());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "off\n");
        // Of an owner that is killed nothing comes but the end of the pipe.
        std::fs::remove_file(&file).unwrap();
        let mut killed = undo();
        drop(killed.shell.stdin.take());
        drop(killed);
        assert!(file.exists());
    }
}
