//! A connection to a socket of the Unix domain that is refused instead of waited for.

use crate::system::is_confined;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Connects to the socket at `path` without waiting. Fails with EAGAIN if it listens, but too many
/// connections wait to be accepted already. Fails with ECONNREFUSED if no process listens. Reading
/// and writing do not wait either, until the caller says so.
pub fn connect_to(path: &Path) -> io::Result<UnixStream> {
    if is_confined() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let socket = unix_socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Makes a new socket of the Unix domain: a stream, not kept over execve(2), on which no call
/// waits.
pub fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}
