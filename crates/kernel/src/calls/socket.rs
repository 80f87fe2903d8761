//! Sockets beyond those of the standard library. A listener's path has its rights before any
//! process can connect. A connection to a listener with a full queue is refused, not waited for.
//! Also a wait for several sockets.

pub use megapage_inside::connect::connect_to;
use megapage_inside::connect::unix_socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, chmod, chownat};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind, listen};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// Event to wait for on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data to read, or a connection to accept.
    Read,
    /// Room to write.
    Write,
}

/// Waits until one of `fds` is ready, has failed, or was hung up, for at most `timeout` (poll(2)).
/// Returns for each if it is. A signal ends the wait early, with none.
pub fn wait_ready(fds: &[(BorrowedFd<'_>, Interest)], timeout: Duration) -> io::Result<Vec<bool>> {
    let timeout = Timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let flags = |interest: Interest| match interest {
        Interest::Read => PollFlags::IN,
        Interest::Write => PollFlags::OUT,
    };
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|(fd, interest)| PollFd::from_borrowed_fd(*fd, flags(*interest))).collect();
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) => Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(errno) => Err(errno.into()),
    }
}

/// Listens on `path`, which must not exist, with the rights `mode` (such as 0o600), for the group
/// `group`. At most `backlog` connections may wait. No process can connect before the rights are
/// set. The listener and its connections are closed on execve(2), and accepting does not wait.
pub fn listen_at(path: &Path, mode: u32, group: Option<u32>, backlog: i32) -> io::Result<UnixListener> {
    let socket = unix_socket()?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Refused before any process can send any. An older kernel lacks this: a caller that needs it
    // calls it again and checks the error.
    let _ = crate::descriptors::refuse(&socket);
    let made = || -> io::Result<()> {
        set_rights(path, mode, group, None)?;
        Ok(listen(&socket, backlog)?)
    };
    if let Err(error) = made() {
        // A socket file left behind would only block the next attempt.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(UnixListener::from(socket))
}

/// Identity of a file: its device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity of the file at `path`. A symbolic link counts as a file itself.
    pub fn of_path(path: &Path) -> io::Result<FileId> {
        std::fs::symlink_metadata(path).map(|found| FileId { device: found.dev(), inode: found.ino() })
    }
}

/// Gives the socket at `path` the rights `mode`, and the group `group` if there is one. They decide
/// who may connect from now on. Follows no link, and touches only a socket: ENOTSOCK for any other
/// file, ESTALE for a file that is not `expected`.
pub fn set_rights(path: &Path, mode: u32, group: Option<u32>, expected: Option<FileId>) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(Errno::NOTSOCK.into());
    }
    let found = FileId { device: found.st_dev, inode: found.st_ino };
    if expected.is_some_and(|expected| expected != found) {
        return Err(Errno::STALE.into());
    }
    if let Some(group) = group {
        chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    }
    // fchmod(2) does not change a file by a descriptor opened with O_PATH; chmod(2) by its name in
    // /proc does.
    let own = crate::KernelRoot::own_descriptor_path(file.as_raw_fd());
    Ok(chmod(own, Mode::from_raw_mode(mode))?)
}

/// Returns the user as whom the other side of `stream` connected (SO_PEERCRED of unix(7)).
pub fn peer_uid(stream: &UnixStream) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_listener_has_its_rights_and_answers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        assert_eq!(connect_to(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let own_group = crate::effective_gid();
        let listener = listen_at(&path, 0o620, Some(own_group), 4).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.permissions().mode() & 0o7777, found.gid()), (0o620, own_group));
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(listen_at(&path, 0o600, None, 4).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists(), "what another listens on is not removed");

        let mut client = connect_to(&path).unwrap();
        let ready = wait_ready(&[(listener.as_fd(), Interest::Read), (client.as_fd(), Interest::Read)], SOON)
            .unwrap();
        assert_eq!(ready, [true, false]);
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(peer_uid(&server).unwrap(), crate::effective_uid());
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        server.write_all(b"yes").unwrap();
        let ready =
            wait_ready(&[(client.as_fd(), Interest::Read), (client.as_fd(), Interest::Write)], SOON).unwrap();
        assert_eq!(ready, [true, true]);
        drop(listener);
        // Children of other tests may hold it for a while: they are copies of this process.
        megapage_testing::wait_for("the end of the listener", || {
            connect_to(&path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        });
    }

    #[test]
    fn rights_are_set_on_the_socket_itself_and_through_no_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("s"), directory.path().join("victim"));
        let _listener = listen_at(&path, 0o600, None, 1).unwrap();
        let id = FileId::of_path(&path).unwrap();
        set_rights(&path, 0o620, None, Some(id)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o620);
        std::fs::write(&victim, "").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(&path, directory.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        let refused = set_rights(&path, 0o666, None, Some(id)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOTSOCK));
        std::fs::remove_file(&path).unwrap();
        let _other = listen_at(&path, 0o600, None, 1).unwrap();
        let refused = set_rights(&path, 0o666, None, Some(id)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ESTALE), "another socket");
        for untouched in [&victim, &path] {
            assert_eq!(std::fs::metadata(untouched).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_full_queue_refuses_instead_of_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _listener = listen_at(&path, 0o600, None, 1).unwrap();
        let mut waiting = Vec::new();
        let refused = (0..8).find_map(|_| match connect_to(&path) {
            Ok(stream) => {
                waiting.push(stream);
                None
            }
            Err(error) => Some(error),
        });
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error() {
        let path = Path::new("/").join("x".repeat(200));
        assert!(listen_at(&path, 0o600, None, 1).is_err() && connect_to(&path).is_err());
    }

    const SOON: Duration = Duration::from_secs(10);
}
