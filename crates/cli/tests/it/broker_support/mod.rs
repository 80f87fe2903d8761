//! Shared parts of the broker's tests: a private broker, and users who own nothing.

#![allow(dead_code, reason = "each test file uses its part")]

use megapage_memory::stock::set_patience;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Two users that own nothing.
pub const USERS: [u32; 2] = [64_123, 64_124];

/// Returns a directory that any user may pass through, but only the caller may write to, and a path
/// in it.
pub fn place() -> (tempfile::TempDir, PathBuf) {
    let tree = tempfile::tempdir().unwrap();
    fs::set_permissions(tree.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = fs::canonicalize(tree.path()).unwrap().join("broker");
    (tree, path)
}

pub fn serve(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
    command.args(["pool", "serve"]).args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Time-out for answers of the broker, which may be slow on a busy machine. This process bounds its
/// own waits.
const PATIENCE: (&str, &str) = ("MEGAPAGE_POOL_PATIENCE_MS", "60000");
/// Longest wait for something that has to come, also on a busy machine.
const LONGEST: Duration = Duration::from_secs(300);

/// A broker that runs until this is dropped.
pub struct Broker {
    pub child: Child,
    pub path: PathBuf,
}

impl Broker {
    /// Returns the option of `megapage run` that names this broker.
    pub fn option(&self) -> String {
        format!("--pool={}", self.path.display())
    }

    /// Starts a broker that serves all users, unless the arguments give a mode, and waits until it
    /// answers. Memory pressure on the machine does not stop it.
    ///
    /// # Panics
    /// If the broker ends. The message is its standard error.
    pub fn start(path: &Path, arguments: &[&str]) -> Broker {
        assert!(set_patience(PATIENCE.1.as_bytes()));
        let socket = path.to_str().unwrap();
        let mode: &[&str] = if arguments.contains(&"--mode") { &[] } else { &["--mode", "0666"] };
        let mut command = serve(&["--socket", socket, "--ignore-pressure"]);
        let child = command.args(mode).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut broker = Broker { child, path: path.into() };
        let start = Instant::now();
        while broker.status().is_none() {
            if let Some(status) = broker.child.try_wait().unwrap() {
                let mut said = String::new();
                let _ = broker.child.stderr.take().unwrap().read_to_string(&mut said);
                panic!("the broker has ended, {status}: {said}");
            }
            assert!(start.elapsed() < LONGEST, "it does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        broker
    }

    pub fn status(&self) -> Option<Value> {
        let output = Command::new(env!("CARGO_BIN_EXE_megapage"))
            .args(["pool", "stock", self.path.to_str().unwrap(), "--json"])
            .env(PATIENCE.0, PATIENCE.1)
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Waits until its status meets a condition.
    pub fn wait(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let status = self.status();
            if let Some(status) = status.clone().filter(|status| holds(status)) {
                return status;
            }
            assert!(start.elapsed() < LONGEST, "in vain: {what}: {status:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn full(&self) -> Value {
        self.wait("the stock is full", |status| status["ready_pages"] == status["stock_pages"])
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it as an administrator does, and returns its exit status.
    pub fn stop(mut self) -> Option<i32> {
        self.terminate();
        let status = self.child.wait().unwrap();
        status.code()
    }

    pub fn terminate(&self) {
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Ends it as an administrator does, so that it restores the pool that it grew. Kills it if
        // it does not end within a minute.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.terminate();
            let start = Instant::now();
            while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
                if start.elapsed() > Duration::from_secs(60) {
                    let _ = self.child.kill();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
