//! The reports of a running daemon, which exist as long as it runs.

use crate::user;

use megapage_daemon::client;
use megapage_kernel::spawn::{send_signal, signal};
use megapage_testing::require_root;
use megapage_units::Pid;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use user::{MEGAPAGE, until};

/// A program that holds 24 MiB until this is dropped.
struct Holder(Child);

impl Holder {
    fn start() -> Holder {
        let script = "my $text = 'x' x (24 << 20); $| = 1; print qq(ready\\n); sleep 600;";
        let mut child = Command::new("perl").args(["-e", script]).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        Holder(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon over one process, with all its files in one directory.
struct Daemon {
    child: Child,
    config: PathBuf,
}

impl Daemon {
    fn start(directory: &Path) -> Daemon {
        Daemon::start_with(directory, &[])
    }

    fn start_with(directory: &Path, environment: &[(&str, &str)]) -> Daemon {
        let config = directory.join("daemon.toml");
        let child = Command::new(MEGAPAGE)
            .args(["daemon", "--config", config.to_str().unwrap()])
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Daemon { child, config }
    }

    fn signal(&self, number: i32) {
        send_signal(Pid(self.child.id() as i32), number).unwrap();
    }

    /// Stops it, and waits for its end.
    fn stop(&mut self) {
        self.signal(signal::SIGTERM);
        let status = until("end", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configure(directory: &Path, socket: &str, pid: u32) -> PathBuf {
    let path = |name: &str| directory.join(name).to_str().unwrap().to_string();
    let text = format!(
        "lock_file = '{}'\nstate_file = ''\n[processes]\ninclude = ['^no-such-name$']\npids = [{pid}]\n\
         [metrics]\nsocket = '{}'\ntextfile = '{}'\n",
        path("lock"),
        path(socket),
        path("m.prom"),
    );
    std::fs::write(directory.join("daemon.toml"), text).unwrap();
    directory.join(socket)
}

#[test]
fn a_daemon_tells_of_its_passes_until_it_is_stopped() {
    if !require_root() {
        return;
    }
    let (holder, directory) = (Holder::start(), tempfile::tempdir().unwrap());
    let pid = holder.0.id();
    let socket = configure(directory.path(), "first", pid);
    let mut daemon = Daemon::start(directory.path());
    let passed = |socket: &Path| client::status(socket).ok().filter(|status| status.passes > 0);
    let status = until("pass", || passed(&socket));
    assert_eq!((status.pid, status.policy.as_str()), (daemon.child.id(), "megapage"));
    let watched = until("process", || {
        let status = client::status(&socket).ok()?;
        status.processes.into_iter().find(|process| process.pid as u32 == pid)
    });
    assert!(watched.name == "perl" && watched.resident_bytes >= 24 << 20, "{watched:?}");
    let metrics = client::get(&socket, "/metrics").unwrap();
    assert!(metrics.contains("\nmegapage_policy_info{policy=\"megapage\",dry_run=\"false\"} 1"), "{metrics}");
    assert!(metrics.contains(&format!("megapage_process_resident_bytes{{pid=\"{pid}\",name=\"perl\"}} ")));
    let textfile = directory.path().join("m.prom");
    let text = until("file", || std::fs::read_to_string(&textfile).ok());
    assert!(text.contains("\nmegapage_passes_total "), "{text}");

    // A reload brings another socket; a bad configuration after that changes nothing.
    let second = configure(directory.path(), "second", pid);
    daemon.signal(signal::SIGHUP);
    let after = until("answer on the new socket", || passed(&second));
    assert!(after.passes >= status.passes && !socket.exists());
    std::fs::write(&daemon.config, "[metrics]\nlisten = '0.0.0.0:80'\n").unwrap();
    daemon.signal(signal::SIGHUP);
    until("further pass", || passed(&second).filter(|status| status.passes >= after.passes + 2));

    daemon.stop();
    assert!(!second.exists() && !textfile.exists());
}

#[test]
fn the_service_manager_is_told_of_each_change_and_that_it_lives() {
    if !require_root() {
        return;
    }
    let (holder, directory) = (Holder::start(), tempfile::tempdir().unwrap());
    configure(directory.path(), "s", holder.0.id());
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(180))).unwrap();
    let hear = || {
        let mut text = [0; 256];
        let length = manager.recv(&mut text).expect("no message");
        String::from_utf8(text[..length].to_vec()).unwrap()
    };
    // Every message before the expected one is a watchdog's.
    let until_told = |what: &str| {
        let mut told = hear();
        while told.lines().next() != Some(what) {
            assert_eq!(told, "WATCHDOG=1", "before {what}");
            told = hear();
        }
    };
    let environment = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "3000000")];
    let mut daemon = Daemon::start_with(directory.path(), &environment);
    until_told("READY=1");
    // Watchdog messages continue between passes.
    (0..3).for_each(|_| assert_eq!(hear(), "WATCHDOG=1"));
    daemon.signal(signal::SIGHUP);
    until_told("RELOADING=1");
    until_told("READY=1");
    daemon.signal(signal::SIGTERM);
    until_told("STOPPING=1");
    let status = until("end", || daemon.child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}

#[test]
fn a_socket_that_a_killed_daemon_left_is_taken_over() {
    if !require_root() {
        return;
    }
    let (holder, directory) = (Holder::start(), tempfile::tempdir().unwrap());
    let socket = configure(directory.path(), "s", holder.0.id());
    let mut killed = Daemon::start(directory.path());
    // Before its first pass, a child of its self-tests may outlive the daemon for a moment, and
    // hold the lock.
    until("pass", || client::status(&socket).ok().filter(|status| status.passes > 0));
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert!(socket.exists() && client::status(&socket).is_err());
    let mut next = Daemon::start(directory.path());
    let status = until("answer", || client::status(&socket).ok());
    assert_eq!(status.pid, next.child.id());
    next.stop();
}
