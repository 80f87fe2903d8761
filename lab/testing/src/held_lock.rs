//! A process that holds its own mmap lock for the time that a test needs.

use crate::{PATIENCE, skip};
use megapage_kernel::{KernelRoot, process::read_stat};
use megapage_units::Pid;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The process; it ends when this is dropped. See `tests/hostile/held_lock.c`.
#[derive(Debug)]
pub struct HeldLock {
    child: Child,
    pid: Pid,
}

impl HeldLock {
    /// Starts it with `mib` MiB of anonymous memory on base pages, and waits until the lock is
    /// held. Returns `None`, with the skip reported, if the machine has no FUSE, no user namespaces
    /// or no C compiler.
    ///
    /// # Panics
    /// If the lock is not held within ten seconds.
    pub fn start(mib: usize) -> Option<HeldLock> {
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/hostile/held_lock.c");
        let name = format!("megapage-held-lock-{}-{:?}", std::process::id(), std::thread::current().id());
        let program = std::env::temp_dir().join(name);
        let compiled = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(&source).status();
        let Ok(status) = compiled else {
            skip("needs a C compiler");
            return None;
        };
        assert!(status.success(), "{} does not compile", source.display());
        let mut command = Command::new(&program);
        command.arg(mib.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a program that was just compiled");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a pipe");
        std::fs::remove_file(&program).ok();
        let Some(pid) = line.trim().strip_prefix("held ").and_then(|pid| pid.parse().ok()) else {
            let error = child.wait_with_output().expect("a child").stderr;
            skip(&format!("needs FUSE in a user namespace: {}", String::from_utf8_lossy(&error).trim()));
            return None;
        };
        let held = HeldLock { child, pid: Pid(pid) };
        let root = KernelRoot::live();
        let started = Instant::now();
        while read_stat(&root, held.pid).expect("the process").state != 'D' {
            assert!(started.elapsed() < PATIENCE, "the lock is not held");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(held)
    }

    /// Returns the process whose lock is held.
    pub fn pid(&self) -> Pid {
        self.pid
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
