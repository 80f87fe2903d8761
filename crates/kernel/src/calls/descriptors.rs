//! Descriptors that are sent over a socket of the Unix domain (SCM_RIGHTS of unix(7)), and the
//! process at its other end. Only [`peer_groups`] allocates here.
//!
//! File-level obligation: each buffer handed to getsockopt(2) is writable, of the length that is
//! passed, and of a type that any bytes are valid for.

#![allow(unsafe_code)]

use libc::{c_int, socklen_t};
use megapage_inside::passing::socket_option;
pub use megapage_inside::passing::{MOST_DESCRIPTORS, Peer, peer, receive, send};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;

/// `SO_PEERGROUPS` and `SO_PEERPIDFD` of socket(7). The C library's headers of older systems lack
/// them.
const SO_PEERGROUPS: c_int = 59;
const SO_PEERPIDFD: c_int = 77;
const SO_PASSRIGHTS: c_int = 83;
/// `PID_FS_MAGIC` of statfs(2).
const PIDFS_MAGIC: u64 = 0x5049_4446;

/// Returns true if the other side of `stream` is closed, both for reading and for writing (POLLHUP
/// of poll(2)).
pub fn has_hung_up(stream: impl AsFd) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut waited = [PollFd::new(&stream, PollFlags::empty())];
    poll(&mut waited, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(waited[0].revents().contains(PollFlags::HUP))
}

/// Forbids passing descriptors over this socket, and over those that it accepts (SO_PASSRIGHTS,
/// Linux 6.16). A sender that tries gets EPERM. Closing a passed descriptor can take as long as its
/// sender wishes (SO_LINGER of socket(7)). Reading the message that it came with, or closing the
/// connection, closes it. ENOPROTOOPT: the kernel lacks the option.
pub fn refuse(socket: impl AsFd) -> io::Result<()> {
    let none: c_int = 0;
    // SAFETY: an integer that lives through the call, and its length.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const none).cast(),
            size_of::<c_int>() as socklen_t,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns a number that no two processes share while the machine runs (the inode of a pidfd, Linux
/// 6.9). Returns `None` if the kernel has no such number.
pub fn process_identity(pidfd: impl AsFd) -> io::Result<Option<u64>> {
    if rustix::fs::fstatfs(&pidfd)?.f_type as u64 != PIDFS_MAGIC {
        return Ok(None);
    }
    Ok(Some(rustix::fs::fstat(&pidfd)?.st_ino))
}

/// Returns the supplementary groups of the process at the other end, as of its connect
/// (SO_PEERGROUPS).
pub fn peer_groups(stream: impl AsFd) -> io::Result<Vec<u32>> {
    // NGROUPS_MAX: the most groups that a process can have.
    const MOST_GROUPS: usize = 65_536;
    let mut groups = vec![0u32; 64];
    loop {
        let got = read_option(stream.as_fd(), SO_PEERGROUPS, &mut groups);
        match got {
            Ok(length) => {
                groups.truncate(length);
                return Ok(groups);
            }
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) && groups.len() < MOST_GROUPS => {
                groups.resize(groups.len() * 4, 0);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads an option of a socket, in words; returns their number.
fn read_option(stream: BorrowedFd<'_>, name: c_int, words: &mut [u32]) -> io::Result<usize> {
    let bytes = size_of_val(words);
    // SAFETY: integers, and their length in bytes.
    let length = unsafe { socket_option(stream, name, words.as_mut_ptr().cast(), bytes) }?;
    Ok(length / size_of::<u32>())
}

/// Returns a descriptor of the process at the other end, which becomes readable when it ends
/// (SO_PEERPIDFD, Linux 6.5). On an older kernel it opens the process by its number, which another
/// process may have by then. ESRCH: the process has ended, or is not visible from here.
pub fn peer_process(stream: impl AsFd) -> io::Result<OwnedFd> {
    let mut descriptor = [u32::MAX];
    let got = read_option(stream.as_fd(), SO_PEERPIDFD, &mut descriptor);
    let descriptor = descriptor[0].cast_signed();
    match got {
        // SAFETY: the descriptor is new and has no other owner.
        Ok(_) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => Err(error),
        _ => crate::spawn::open_pidfd(megapage_units::Pid(peer(stream)?.pid)),
    }
}

/// Raises the limit of descriptors of this process to its hard limit (RLIMIT_NOFILE of
/// getrlimit(2)). Returns the new limit.
pub fn raise_limit() -> io::Result<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_dropped_client_is_distinguished_from_one_that_finished() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!has_hung_up(&ours).unwrap());
        (&theirs).write_all(b"request").unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!has_hung_up(&ours).unwrap(), "it waits for the answer");
        drop(theirs);
        assert!(has_hung_up(&ours).unwrap(), "though its bytes are still there");
    }

    #[test]
    fn the_other_end_is_known() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let found = peer(&ours).unwrap();
        assert_eq!((found.uid, found.gid), (crate::effective_uid(), crate::effective_gid()));
        assert_eq!(found.pid, std::process::id() as i32);
        let process = peer_process(&ours).unwrap();
        assert!(!crate::spawn::wait_readable(process.as_fd(), std::time::Duration::ZERO).unwrap());
        peer_groups(&ours).unwrap();
    }

    #[test]
    fn descriptors_can_be_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = crate::socket::listen_at(&path, 0o600, None, 4).unwrap();
        match refuse(&listener) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT));
                return megapage_testing::skip("needs SO_PASSRIGHTS (Linux 6.16)");
            }
        }
        let client = crate::socket::connect_to(&path).unwrap();
        let error = send(&client, b"x", &[listener.as_fd()]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "before it is accepted");
        let (server, _) = listener.accept().unwrap();
        assert!(send(&client, b"x", &[listener.as_fd()]).is_err(), "and after");
        // The other direction still works.
        send(&server, b"x", &[listener.as_fd()]).unwrap();
    }

    #[test]
    fn processes_are_distinguished() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let identity = |fd: &OwnedFd| process_identity(fd).unwrap();
        let own = identity(&peer_process(&ours).unwrap());
        assert_eq!(own, identity(&peer_process(&ours).unwrap()));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = crate::spawn::open_pidfd(megapage_units::Pid(child.id() as i32)).unwrap();
        let received = identity(&other);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(own.is_none() || own != received);
    }

    #[test]
    fn the_limit_goes_as_far_as_it_may() {
        let most = raise_limit().unwrap();
        assert!(most > 0);
        assert_eq!(raise_limit().unwrap(), most);
    }
}
