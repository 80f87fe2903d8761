//! Requests to a running daemon, over its socket.

use megapage_kernel::socket::{Interest, connect_to, wait_ready};
use megapage_snapshot::daemon::{DaemonSeen, DaemonStatus, Decisions};
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Longest wait for an answer, unless the caller gives another time.
const WITHIN: Duration = Duration::from_secs(30);
/// Longest answer, in bytes.
const MOST: usize = 16 << 20;

/// Reason why a daemon could not be asked.
#[derive(Debug, Error)]
pub enum ClientError {
    /// There is no socket, or no process listens there.
    #[error("no daemon answers on {path}: start one with megapage daemon, or give its socket")]
    NoDaemon {
        /// The socket.
        path: PathBuf,
    },
    /// The socket may not be used, or the connection broke.
    #[error("the daemon on {path} cannot be asked: {source}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The answer is not a daemon's.
    #[error("what answers on {path} is no megapage daemon of this version: {what}")]
    Strange {
        /// The socket.
        path: PathBuf,
        /// The fault in it.
        what: String,
    },
}

/// Asks the daemon that listens on `socket` for its status and its last decisions, at most `last`.
/// Waits for each of the two answers at most `within`.
pub fn look(socket: &Path, last: usize, within: Duration) -> Result<DaemonSeen, ClientError> {
    let decisions = format!("/decisions?last={last}");
    Ok(DaemonSeen { status: ask(socket, "/status", within)?, decisions: ask(socket, &decisions, within)? })
}

/// Asks the daemon that listens on `socket` for its status.
pub fn status(socket: &Path) -> Result<DaemonStatus, ClientError> {
    ask(socket, "/status", WITHIN)
}

/// Asks for its decisions after the one numbered `since`, at most the `last` of them.
pub fn decisions(socket: &Path, since: u64, last: usize) -> Result<Decisions, ClientError> {
    ask(socket, &format!("/decisions?since={since}&last={last}"), WITHIN)
}

/// Returns the text that the daemon answers to GET `target`, such as `/metrics`.
pub fn get(socket: &Path, target: &str) -> Result<String, ClientError> {
    fetch(socket, target, WITHIN)
}

fn fetch(socket: &Path, target: &str, within: Duration) -> Result<String, ClientError> {
    let path = socket.to_path_buf();
    let failed = |source: io::Error| match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => ClientError::NoDaemon { path: path.clone() },
        _ => ClientError::Io { path: path.clone(), source },
    };
    let until = Instant::now() + within;
    let mut stream = connect_to(socket).map_err(failed)?;
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    // Such a short request fits into any socket's buffer.
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let bytes = read(&mut stream, until).map_err(failed)?;
    let strange = |what: String| ClientError::Strange { path: path.clone(), what };
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(&bytes) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Err(strange("the answer ends early".into())),
        Err(error) => return Err(strange(format!("no HTTP: {error}"))),
    };
    let body = String::from_utf8_lossy(&bytes[head..]).into_owned();
    match response.code {
        Some(200) => Ok(body),
        code => Err(strange(format!("status {} to {target}", code.unwrap_or_default()))),
    }
}

fn ask<T: DeserializeOwned>(socket: &Path, target: &str, within: Duration) -> Result<T, ClientError> {
    let text = fetch(socket, target, within)?;
    serde_json::from_str(&text)
        .map_err(|error| ClientError::Strange { path: socket.to_path_buf(), what: error.to_string() })
}

/// Reads everything that comes before the other side hangs up.
fn read(stream: &mut UnixStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1 << 14];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(count) if bytes.len() + count > MOST => {
                return Err(io::Error::new(ErrorKind::FileTooLarge, "the answer is too long"));
            }
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::Error::new(ErrorKind::TimedOut, "no answer came in time"));
                }
                wait_ready(&[(stream.as_fd(), Interest::Read)], left)?;
            }
            Err(error) => return Err(error),
        }
    }
}
