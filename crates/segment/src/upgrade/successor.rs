//! The started process: it takes over the segments of its predecessor.

#[cfg(test)]
use super::tests::point;
use super::wire::{self, HELLO, Kind};
use super::{Extras, MOST_SEGMENTS, SOON, failed, reason, unfinished};
use crate::error::{SegmentError, during};
use crate::segment::{Offered, Segment};
use megapage_kernel::descriptors::{peer, peer_process};
use megapage_kernel::directory::Directory;
use megapage_kernel::effective_uid;
use megapage_kernel::socket::connect_to;
use megapage_kernel::spawn::wait_readable;
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between attempts to connect to a busy predecessor.
const PAUSE: Duration = Duration::from_millis(5);

/// Result of a take-over.
#[derive(Debug)]
pub struct TakenOver {
    /// The segments, in the order in which the predecessor gave them. This process owns them.
    pub segments: Vec<Segment>,
    /// Data and descriptors that the predecessor passed on besides.
    pub extras: Extras,
    /// True if the predecessor gave them. `false`: it ended after it had offered them all. It used
    /// none of them any more, so that their contents are as it left them either way.
    pub orderly: bool,
}

/// Takes over the segments of the process that listens on `path`. Returns `None` if no process
/// listens, or if it has ended before it had offered all; then start as usual. Waits for every step
/// of the predecessor, until `patience` is over.
///
/// # Errors
/// Nothing was taken, and the predecessor goes on as the owner. It has refused, did not answer in
/// time, or one of its segments could not be mapped.
pub fn take_over(path: &Path, patience: Duration) -> Result<Option<TakenOver>, SegmentError> {
    let until = Instant::now() + patience;
    let failed = || failed(path, "taking over");
    // Declared before the mappings: on every way out the connection is closed last.
    let Some(stream) = connect(path, until)? else { return Ok(None) };
    let peer = peer(&stream).map_err(during(path, "looking at who listens"))?;
    if peer.uid != effective_uid() {
        let what = format!("it is a socket of user {}", peer.uid);
        return Err(SegmentError::Foreign { path: path.to_path_buf(), what });
    }
    let predecessor = peer_process(&stream).ok();
    // The kernel closes the descriptors of a process last of all.
    let has_ended =
        || predecessor.as_ref().is_some_and(|pidfd| wait_readable(pidfd.as_fd(), SOON).unwrap_or(false));
    // If it has ended already there may be data to read all the same.
    let _ = wire::send(&stream, Kind::Hello, HELLO, &[], until);
    #[cfg(test)]
    point("new-connected");
    let (mut offered, mut extras) = (Vec::new(), Extras::default());
    loop {
        let frame = match wire::receive(&stream, until) {
            Ok(frame) => frame,
            Err(error) if wire::is_closed(&error) && has_ended() => return Ok(None),
            Err(error) => return Err(failed()(error)),
        };
        match frame.kind {
            Kind::Segment if offered.len() < MOST_SEGMENTS => {
                offered.push(offer(path, &frame.payload, frame.descriptors)?)
            }
            Kind::Extras => extras = Extras { data: frame.payload, descriptors: frame.descriptors },
            Kind::End => break,
            Kind::Refused => return Err(refusal(path, &frame.payload)),
            other => return Err(unfinished(path.to_path_buf(), format!("the predecessor sent {other:?}"))),
        }
        #[cfg(test)]
        point("new-begun");
    }
    #[cfg(test)]
    point("new-received");
    let mapped = offered.into_iter().map(|(offered, path)| Segment::of_offer(offered, path)).collect();
    let mut segments: Vec<Segment> = match mapped {
        Ok(segments) => segments,
        Err(error) => {
            let said: SegmentError = error;
            let last = Instant::now() + SOON;
            let _ = wire::send(&stream, Kind::Refused, said.to_string().as_bytes(), &[], last);
            return Err(said);
        }
    };
    #[cfg(test)]
    point("new-ready");
    // The predecessor's last message counts, even if it cannot receive any more.
    let _ = wire::send(&stream, Kind::Mapped, &[], &[], until);
    #[cfg(test)]
    point("new-mapped");
    let orderly = match wire::receive(&stream, until) {
        Ok(frame) if frame.kind == Kind::Yours => true,
        Ok(frame) if frame.kind == Kind::Refused => return Err(refusal(path, &frame.payload)),
        Ok(frame) => {
            return Err(unfinished(path.to_path_buf(), format!("the predecessor sent {:?}", frame.kind)));
        }
        Err(error) if wire::is_closed(&error) && has_ended() => false,
        Err(error) => return Err(failed()(error)),
    };
    #[cfg(test)]
    point("new-given");
    segments.iter_mut().for_each(Segment::adopt);
    #[cfg(test)]
    point("new-adopted");
    let _ = wire::send(&stream, Kind::Taken, &[], &[], Instant::now() + SOON);
    #[cfg(test)]
    point("new-taken");
    Ok(Some(TakenOver { segments, extras, orderly }))
}

/// Returns a connection to the listening process; `None` if no process listens.
fn connect(path: &Path, until: Instant) -> Result<Option<UnixStream>, SegmentError> {
    loop {
        match connect_to(path) {
            Ok(stream) => return Ok(Some(stream)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if Instant::now() >= until {
                    let what = "the process that listens is busy with another successor".into();
                    return Err(unfinished(path.to_path_buf(), what));
                }
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(during(path, "connecting")(error)),
        }
    }
}

fn refusal(path: &Path, why: &[u8]) -> SegmentError {
    unfinished(path.to_path_buf(), format!("the predecessor keeps its segments: {}", reason(why)))
}

/// Returns one segment of a predecessor, as it was sent.
fn offer(
    socket: &Path,
    payload: &[u8],
    descriptors: Vec<OwnedFd>,
) -> Result<(Offered, PathBuf), SegmentError> {
    let strange = || unfinished(socket.to_path_buf(), "the predecessor offered what is no segment".into());
    let (place, path) = payload.split_first().ok_or_else(strange)?;
    let path = PathBuf::from(OsStr::from_bytes(path));
    let mut files = descriptors.into_iter().map(File::from);
    let mut next = || files.next().ok_or_else(strange);
    let directory = |file: File, path: &Path| {
        Directory::received(file, path).map_err(during(path, "looking at its directory"))
    };
    let offered = match place {
        0 => Offered::Named(directory(next()?, &path)?),
        1 => {
            let parent = path.parent().ok_or_else(strange)?;
            Offered::Unlinked(directory(next()?, parent)?, next()?)
        }
        2 => Offered::Memory(next()?),
        _ => return Err(strange()),
    };
    if files.next().is_some() {
        return Err(strange());
    }
    Ok((offered, path))
}
