//! Descriptors that travel over a socket of the Unix domain (SCM_RIGHTS of unix(7)), and who is at its other end.
//! Nothing here allocates but [`peer_groups`].
//!
//! File-level obligation: each buffer handed to getsockopt(2) is writable, of the length that is said, and of a type
//! that any bytes are valid for.

#![allow(unsafe_code)]

use libc::{c_int, socklen_t};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Descriptors that one message carries at most.
pub const MOST_DESCRIPTORS: usize = 16;

/// `SO_PEERGROUPS` and `SO_PEERPIDFD` of socket(7); the C library's headers of older systems lack them.
const SO_PEERGROUPS: c_int = 59;
const SO_PEERPIDFD: c_int = 77;
const SO_PASSRIGHTS: c_int = 83;
/// `PID_FS_MAGIC` of statfs(2).
const PIDFS_MAGIC: u64 = 0x5049_4446;

/// Sends `bytes` and with them copies of `descriptors`, at most [`MOST_DESCRIPTORS`] (EINVAL for more); how many bytes
/// went. The descriptors go with the first of them.
pub fn send(stream: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if descriptors.len() > MOST_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives up to `bytes.len()` bytes, and the descriptors that come with them into the free places of `descriptors`,
/// closed on exec; how many bytes came, 0 at the end. More descriptors than there is room for are closed, and an error.
pub fn receive(
    stream: impl AsFd,
    bytes: &mut [u8],
    descriptors: &mut [Option<OwnedFd>; MOST_DESCRIPTORS],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fits = !got.flags.contains(ReturnFlags::CTRUNC);
    for message in control.drain() {
        let RecvAncillaryMessage::ScmRights(received) = message else { continue };
        for descriptor in received {
            match descriptors.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(descriptor),
                None => fits = false,
            }
        }
    }
    if fits { Ok(got.bytes) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Whether the other side of `stream` is closed, both for reading and for writing (POLLHUP of poll(2)).
pub fn has_hung_up(stream: impl AsFd) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut waited = [PollFd::new(&stream, PollFlags::empty())];
    poll(&mut waited, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(waited[0].revents().contains(PollFlags::HUP))
}

/// Has nobody pass descriptors over this socket, or those that it accepts (SO_PASSRIGHTS, Linux 6.16): who tries gets EPERM.
/// To close a descriptor that was passed can take as long as its sender wishes (SO_LINGER of socket(7)), and reading what
/// it came with, or closing the connection, closes it. ENOPROTOOPT: the kernel cannot.
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

/// What no two processes have in common as long as the machine runs (the inode of a pidfd, Linux 6.9); `None` where the
/// kernel has nothing of the kind.
pub fn process_identity(pidfd: impl AsFd) -> io::Result<Option<u64>> {
    if rustix::fs::fstatfs(&pidfd)?.f_type as u64 != PIDFS_MAGIC {
        return Ok(None);
    }
    Ok(Some(rustix::fs::fstat(&pidfd)?.st_ino))
}

/// Who connected, or listens, as it was when that happened (SO_PEERCRED of unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The process; 0 where it is of a PID namespace that ours does not see.
    pub pid: i32,
}

/// The process at the other end of `stream`.
pub fn peer(stream: impl AsFd) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    // SAFETY: three integers, for which any bytes are valid, and their length.
    unsafe { option(stream.as_fd(), libc::SO_PEERCRED, (&raw mut found).cast(), size_of::<libc::ucred>()) }?;
    Ok(Peer { uid: found.uid, gid: found.gid, pid: found.pid })
}

/// The supplementary groups of the process at the other end (SO_PEERGROUPS), when it connected.
pub fn peer_groups(stream: impl AsFd) -> io::Result<Vec<u32>> {
    // NGROUPS_MAX: a process can't have more.
    const MOST_GROUPS: usize = 65_536;
    let mut groups = vec![0u32; 64];
    loop {
        let bytes = size_of_val(&groups[..]);
        // SAFETY: integers, and their length in bytes.
        let got = unsafe { option(stream.as_fd(), SO_PEERGROUPS, groups.as_mut_ptr().cast(), bytes) };
        match got {
            Ok(length) => {
                groups.truncate(length / size_of::<u32>());
                return Ok(groups);
            }
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) && groups.len() < MOST_GROUPS => {
                groups.resize(groups.len() * 4, 0);
            }
            Err(error) => return Err(error),
        }
    }
}

/// A descriptor of the process at the other end, which becomes readable when it ends (SO_PEERPIDFD, Linux 6.5; before, by
/// its number, which another process may have by then). ESRCH: it has ended, or is not seen from here.
pub fn peer_process(stream: impl AsFd) -> io::Result<OwnedFd> {
    let mut descriptor: c_int = -1;
    // SAFETY: an integer, and its length.
    let got =
        unsafe { option(stream.as_fd(), SO_PEERPIDFD, (&raw mut descriptor).cast(), size_of::<c_int>()) };
    match got {
        // SAFETY: the descriptor is new and nobody else's.
        Ok(_) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => Err(error),
        _ => crate::spawn::open_pidfd(megapage_units::Pid(peer(stream)?.pid)),
    }
}

/// Raises the number of descriptors that this process may have to as many as it may give itself (RLIMIT_NOFILE of
/// getrlimit(2)); how many that is.
pub fn raise_limit() -> io::Result<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// getsockopt(2); the length of the answer.
///
/// # Safety
/// `value` is writable for `length` bytes, of a type for which any bytes are valid.
unsafe fn option(
    stream: BorrowedFd<'_>,
    name: c_int,
    value: *mut libc::c_void,
    length: usize,
) -> io::Result<usize> {
    let mut length = length as socklen_t;
    // SAFETY: the caller's promise.
    let answer = unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, name, value, &mut length) };
    if answer == 0 { Ok(length as usize) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn who_hangs_up_is_told_from_who_has_said_all() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!has_hung_up(&ours).unwrap());
        (&theirs).write_all(b"request").unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!has_hung_up(&ours).unwrap(), "it waits for the answer");
        drop(theirs);
        assert!(has_hung_up(&ours).unwrap(), "though its bytes are still there");
    }

    #[test]
    fn descriptors_arrive_with_their_bytes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        assert_eq!(send(&ours, b"two", &[file.as_fd(), file.as_fd()]).unwrap(), 3);
        assert_eq!(send(&ours, b"none", &[]).unwrap(), 4);
        let mut bytes = [0; 64];
        let mut descriptors = [const { None }; MOST_DESCRIPTORS];
        assert_eq!(
            receive(&theirs, &mut bytes, &mut descriptors).unwrap(),
            3,
            "a message does not mix with the next"
        );
        assert_eq!(descriptors.iter().flatten().count(), 2);
        let mut got = File::from(descriptors[0].take().unwrap());
        got.rewind().unwrap();
        let mut text = String::new();
        got.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        assert_eq!(receive(&theirs, &mut bytes, &mut descriptors).unwrap(), 4);
        drop(ours);
        assert_eq!(receive(&theirs, &mut bytes, &mut descriptors).unwrap(), 0);
    }

    #[test]
    fn too_many_are_refused_on_both_sides() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        assert!(send(&ours, b"x", &[file.as_fd(); MOST_DESCRIPTORS + 1]).is_err());
        send(&ours, b"x", &[file.as_fd(); MOST_DESCRIPTORS]).unwrap();
        let mut descriptors = [const { None }; MOST_DESCRIPTORS];
        descriptors[3] = Some(file.try_clone().unwrap().into());
        assert!(receive(&theirs, &mut [0; 8], &mut descriptors).is_err());
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
                return;
            }
        }
        let client = crate::socket::connect_to(&path).unwrap();
        let error = send(&client, b"x", &[listener.as_fd()]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "before it is accepted");
        let (server, _) = listener.accept().unwrap();
        assert!(send(&client, b"x", &[listener.as_fd()]).is_err(), "and after");
        // The other way it goes.
        send(&server, b"x", &[listener.as_fd()]).unwrap();
    }

    #[test]
    fn processes_are_told_apart() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let identity = |fd: &OwnedFd| process_identity(fd).unwrap();
        let own = identity(&peer_process(&ours).unwrap());
        assert_eq!(own, identity(&peer_process(&ours).unwrap()));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = crate::spawn::open_pidfd(megapage_units::Pid(child.id() as i32)).unwrap();
        let told = identity(&other);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(own.is_none() || own != told);
    }

    #[test]
    fn the_limit_goes_as_far_as_it_may() {
        let most = raise_limit().unwrap();
        assert!(most > 0);
        assert_eq!(raise_limit().unwrap(), most);
    }
}
