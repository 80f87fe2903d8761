//! Frames over a stream socket: kind and length in eight bytes, then the payload. Descriptors come
//! with the first byte.

use megapage_kernel::descriptors::{self, MOST_DESCRIPTORS};
use megapage_kernel::socket::{Interest, wait_ready};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// The largest payload, in bytes.
pub const MOST_PAYLOAD: usize = 64 << 10;
/// First message of a successor: another version of the protocol is refused.
pub const HELLO: &[u8] = b"megapage-upgrade/1";
const HEAD: usize = 8;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// From the successor: the version of the protocol.
    Hello,
    /// From the predecessor: one segment, with its descriptors.
    Segment,
    /// From the predecessor: the data and descriptors that the program itself passes on.
    Extras,
    /// From the predecessor: the end of its offer.
    End,
    /// From the successor: all segments are mapped, and nothing was written to them.
    Mapped,
    /// From the predecessor: the successor owns them from here on.
    Yours,
    /// From the successor: it owns them.
    Taken,
    /// From either: nothing changes hands, and the reason.
    Refused,
}

const KINDS: [Kind; 8] = [
    Kind::Hello,
    Kind::Segment,
    Kind::Extras,
    Kind::End,
    Kind::Mapped,
    Kind::Yours,
    Kind::Taken,
    Kind::Refused,
];

/// One message.
#[derive(Debug)]
pub(crate) struct Frame {
    pub kind: Kind,
    pub payload: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Returns true if the error means that the other side has closed the connection.
pub fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Sends a frame. `TimedOut` if the other side has not made room by `until`.
pub fn send(
    stream: &UnixStream,
    kind: Kind,
    payload: &[u8],
    with: &[BorrowedFd<'_>],
    until: Instant,
) -> io::Result<()> {
    let number = KINDS.iter().position(|one| *one == kind).unwrap_or_default() as u32;
    let length = u32::try_from(payload.len()).map_err(|_| ErrorKind::InvalidInput)?;
    let bytes = [&number.to_le_bytes()[..], &length.to_le_bytes(), payload].concat();
    let (mut unsent, mut with) = (&bytes[..], with);
    while !unsent.is_empty() {
        match descriptors::send(stream, unsent, with) {
            Ok(count) => (unsent, with) = (&unsent[count..], &[]),
            Err(error) => wait_after(error, stream, Interest::Write, until)?,
        }
    }
    Ok(())
}

/// Receives a frame. `TimedOut` if none is complete by `until`; see [`is_closed`] for the end;
/// `InvalidData` for bytes that are no frame.
pub fn receive(stream: &UnixStream, until: Instant) -> io::Result<Frame> {
    let mut with = [const { None }; MOST_DESCRIPTORS];
    let mut head = [0; HEAD];
    fill(stream, &mut head, &mut with, until)?;
    let (number, length) = head.split_at(HEAD / 2);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
    let kind = KINDS.get(word(number)).copied();
    let length = Some(word(length)).filter(|length| *length <= MOST_PAYLOAD);
    let (Some(kind), Some(length)) = (kind, length) else { return Err(ErrorKind::InvalidData.into()) };
    let mut payload = vec![0; length];
    fill(stream, &mut payload, &mut with, until)?;
    Ok(Frame { kind, payload, descriptors: with.into_iter().flatten().collect() })
}

fn fill(
    stream: &UnixStream,
    mut bytes: &mut [u8],
    with: &mut [Option<OwnedFd>; MOST_DESCRIPTORS],
    until: Instant,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match descriptors::receive(stream, bytes, with) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) => wait_after(error, stream, Interest::Read, until)?,
        }
    }
    Ok(())
}

/// Waits after a call that would block; returns any other error to the caller.
fn wait_after(error: io::Error, stream: &UnixStream, what: Interest, until: Instant) -> io::Result<()> {
    match error.kind() {
        ErrorKind::Interrupted => return Ok(()),
        ErrorKind::WouldBlock => {}
        _ => return Err(error),
    }
    let more = until.saturating_duration_since(Instant::now());
    if more.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    wait_ready(&[(stream.as_fd(), what)], more).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (ours, theirs)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn frames_keep_their_payload_and_descriptors_apart() {
        let (ours, theirs) = pair();
        let file = tempfile::tempfile().unwrap();
        send(&ours, Kind::Segment, b"one", &[file.as_fd()], soon()).unwrap();
        send(&ours, Kind::Segment, b"two", &[file.as_fd(), file.as_fd()], soon()).unwrap();
        send(&ours, Kind::End, b"", &[], soon()).unwrap();
        for (kind, payload, count) in
            [(Kind::Segment, &b"one"[..], 1), (Kind::Segment, b"two", 2), (Kind::End, b"", 0)]
        {
            let frame = receive(&theirs, soon()).unwrap();
            assert_eq!((frame.kind, &frame.payload[..], frame.descriptors.len()), (kind, payload, count));
        }
        assert_eq!(receive(&theirs, Instant::now()).unwrap_err().kind(), ErrorKind::TimedOut);
        drop(ours);
        assert!(is_closed(&receive(&theirs, soon()).unwrap_err()));
        assert!(is_closed(&send(&theirs, Kind::Taken, b"", &[], soon()).unwrap_err()));
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        for (bytes, kind) in [
            (&[9, 0, 0, 0, 0, 0, 0, 0][..], ErrorKind::InvalidData),
            (&[0, 0, 0, 0, 1, 0, 1, 0], ErrorKind::InvalidData),
            (&[0, 0, 0, 0, 0, 0, 0, 255], ErrorKind::InvalidData),
            (&[0, 0, 0, 0, 4, 0, 0, 0, 1], ErrorKind::UnexpectedEof),
            (&[0, 0, 0], ErrorKind::UnexpectedEof),
        ] {
            let (mut ours, theirs) = pair();
            ours.write_all(bytes).unwrap();
            drop(ours);
            assert_eq!(receive(&theirs, soon()).unwrap_err().kind(), kind, "{bytes:?}");
        }
    }

    #[test]
    fn a_full_socket_ends_in_time() {
        let (ours, _theirs) = pair();
        let payload = vec![1; MOST_PAYLOAD];
        let until = Instant::now() + Duration::from_millis(20);
        let error = (0..100).find_map(|_| send(&ours, Kind::Extras, &payload, &[], until).err()).unwrap();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
