//! Descriptors that travel over a socket of the Unix domain (SCM_RIGHTS of unix(7)), and the
//! identity of its other end. Nothing here allocates.
//!
//! File-level obligation: each buffer handed to getsockopt(2) is writable, of the length that is
//! passed, and of a type that any bytes are valid for.

#![allow(unsafe_code)]

use crate::system::call;
use libc::{c_int, socklen_t};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Most descriptors that one message carries.
pub const MOST_DESCRIPTORS: usize = 16;

/// Sends `bytes`, and with them copies of `descriptors`, at most [`MOST_DESCRIPTORS`] (EINVAL for
/// more). Returns how many bytes went. The descriptors go with the first of them.
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

/// Receives up to `bytes.len()` bytes, and the descriptors that come with them, closed on exec,
/// into the free places of `descriptors`. Returns how many bytes came, 0 at the end. Descriptors
/// for which there is no room are closed, and are an error.
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

/// Identity of the process that connected, or listens, as it was when that happened (SO_PEERCRED of
/// unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The process; 0 where it is of a PID namespace that ours does not see.
    pub pid: i32,
}

/// Returns the process at the other end of `stream`.
pub fn peer(stream: impl AsFd) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    // SAFETY: three integers, for which any bytes are valid, and their length.
    unsafe {
        socket_option(stream.as_fd(), libc::SO_PEERCRED, (&raw mut found).cast(), size_of::<libc::ucred>())
    }?;
    Ok(Peer { uid: found.uid, gid: found.gid, pid: found.pid })
}

/// Calls getsockopt(2); returns the length of the answer.
///
/// # Safety
/// `value` is writable for `length` bytes, of a type for which any bytes are valid.
pub unsafe fn socket_option(
    stream: BorrowedFd<'_>,
    name: c_int,
    value: *mut libc::c_void,
    length: usize,
) -> io::Result<usize> {
    let mut length = length as socklen_t;
    let (descriptor, at) = (stream.as_raw_fd() as usize, (&raw mut length) as usize);
    let arguments = [descriptor, libc::SOL_SOCKET as usize, name as usize, value as usize, at];
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_getsockopt, arguments) }?;
    Ok(length as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixStream;

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
}
