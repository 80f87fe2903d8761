//! Reasons why clients cannot be served.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use thiserror::Error;

/// Reason why reports cannot be served.
#[derive(Debug, Error)]
pub enum ReporterError {
    /// The socket cannot be opened.
    #[error(
        "metrics.socket: {path}: {source}; give a path in a directory that the daemon may write to, or \"\" for none"
    )]
    Socket {
        /// The path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The path of the socket holds something else.
    #[error("metrics.socket: {path} is there and no socket: remove it, or give another path")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// Another process answers there.
    #[error("metrics.socket: {path}: another daemon answers there: stop that one, or give another path")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The address cannot be listened on.
    #[error("metrics.listen: {address}: {source}; give another port, or \"\" for none")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// There is no such group.
    #[error("metrics.socket_group: no group '{name}'{}: give the name of one in /etc/group, or a number", source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default())]
    Group {
        /// The name.
        name: String,
        /// Reason why groups could not be looked up.
        source: Option<io::Error>,
    },
    /// The textfile cannot be written.
    #[error(
        "metrics.textfile: {path}: {source}; give a file in a directory that the daemon may write to, or \"\" for none"
    )]
    Textfile {
        /// The path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The thread that answers cannot be started.
    #[error("the thread that answers clients cannot be started: {0}")]
    Thread(io::Error),
}
