//! Reports of the daemon's state to the service manager (sd_notify(3)): a datagram to the socket
//! that `NOTIFY_SOCKET` names. Without that variable, nothing is reported. A few lines: no library
//! is needed for that.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notify {
    /// Reads the environment. A wrong variable counts as a missing one.
    pub fn from_environment() -> Notify {
        let socket = std::env::var_os("NOTIFY_SOCKET");
        let micros = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse::<u64>().ok());
        // The watchdog may be meant for another process of the service.
        let pid = std::env::var("WATCHDOG_PID").ok();
        let ours = pid.is_none_or(|pid| pid == std::process::id().to_string());
        Notify::to(socket.as_deref(), micros.filter(|micros| ours && *micros > 0).map(Duration::from_micros))
    }

    fn to(socket: Option<&OsStr>, watchdog: Option<Duration>) -> Notify {
        let address = socket.and_then(|name| match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [b'/', ..] => SocketAddr::from_pathname(name).ok(),
            _ => None,
        });
        let bound = || {
            let socket = UnixDatagram::unbound().ok()?;
            // A manager that does not read must not delay the daemon.
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        Notify { to: address.and_then(|address| Some((bound()?, address))), watchdog }
    }

    /// Sends `state`, lines of `KEY=value`.
    pub fn send(&self, state: &str) {
        if let Some((socket, address)) = &self.to {
            // If no process listens there, there is none to notify.
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }

    /// Returns the longest time between two reports that the watchdog allows; `None` without a
    /// watchdog.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.to.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_arrive_at_paths_and_abstract_names_and_without_a_listener_nothing_fails() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixDatagram::bind(&path).unwrap();
        let notify = Notify::to(Some(path.as_os_str()), Some(Duration::from_secs(3)));
        notify.send("READY=1\n");
        let mut buffer = [0; 64];
        let length = listener.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1\n");
        assert_eq!(notify.watchdog(), Some(Duration::from_secs(3)));

        let name = format!("megapage-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixDatagram::bind_addr(&address).unwrap();
        Notify::to(Some(OsStr::new(&format!("@{name}"))), None).send("STOPPING=1");
        assert_eq!(listener.recv(&mut buffer).unwrap(), 10);

        drop(listener);
        notify.send("STOPPING=1");
        for wrong in ["", "relative", "vsock:1"] {
            let notify = Notify::to(Some(OsStr::new(wrong)), Some(Duration::from_secs(1)));
            notify.send("READY=1");
            assert_eq!(notify.watchdog(), None, "{wrong}");
        }
    }
}
