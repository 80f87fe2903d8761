//! The running process: it listens for its successor, and hands its segments over.

#[cfg(test)]
use super::tests::point;
use super::wire::{self, HELLO, Kind};
use super::{Extras, MOST_SEGMENTS, SOON, failed, reason, unfinished};
use crate::error::{SegmentError, during};
use crate::segment::{Offered, Segment};
use megapage_kernel::descriptors::{MOST_DESCRIPTORS, peer};
use megapage_kernel::effective_uid;
use megapage_kernel::socket::{FileId, Interest, listen_at, wait_ready};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for a connected process to identify itself as a successor.
const HELLO_PATIENCE: Duration = Duration::from_secs(1);

/// Socket at which the running process waits for its successor. Dropping it removes the socket.
/// Handing over leaves it to the successor, whose own listener takes its place.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// `None` once the path may be the successor's.
    id: Option<FileId>,
}

/// A process of the same user that asks for the segments.
#[derive(Debug)]
pub struct Successor {
    stream: UnixStream,
    process: i32,
}

impl Successor {
    /// Returns its process number, as it was when it connected; 0 if it is of a PID namespace that
    /// ours does not see.
    pub fn process(&self) -> i32 {
        self.process
    }
}

impl Drop for Successor {
    /// Ends the wait of a successor that was handed nothing. After any other message it changes
    /// nothing.
    fn drop(&mut self) {
        let why = b"nothing was handed over";
        let _ = wire::send(&self.stream, Kind::Refused, why, &[], Instant::now());
    }
}

/// Successful hand-over: the successor owns the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// True if the successor has confirmed it. `false`: it did not answer in time after it was
    /// given the segments. It owns them all the same when it continues. If it ends instead, the
    /// next start finds those that have a name.
    pub confirmed: bool,
}

/// Failed hand-over: the segments are this process's as before.
#[derive(Debug)]
pub struct Kept {
    /// The reason.
    pub error: SegmentError,
    /// The listener, to wait for another successor.
    pub listener: Listener,
    /// All segments, to be opened as after a kill: [`crate::Heap::open`] completes an unfinished
    /// operation of a heap. One is missing only if a successor has ended and left it damaged;
    /// `error` names it.
    pub segments: Vec<Segment>,
}

impl Listener {
    /// Listens on `path`, for this user alone. Replaces an existing socket, which a predecessor
    /// left or still has. Refuses anything else at that path.
    pub fn bind(path: &Path) -> Result<Listener, SegmentError> {
        if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(SegmentError::Foreign { path: path.to_path_buf(), what: "it is no socket".into() });
        }
        let Some(name) = path.file_name() else {
            return Err(SegmentError::Request(format!("'{}' is no path for a socket", path.display())));
        };
        let mut beside = std::ffi::OsString::from(".");
        beside.push(name);
        beside.push(format!(".{}", std::process::id()));
        let beside = path.with_file_name(beside);
        // Left by an earlier process with this number, or by a failed bind of this one.
        let _ = std::fs::remove_file(&beside);
        let socket = listen_at(&beside, 0o600, None, 1).map_err(during(path, "listening"))?;
        let placed = FileId::of_path(&beside).and_then(|id| std::fs::rename(&beside, path).map(|()| id));
        match placed {
            Ok(id) => Ok(Listener { socket, path: path.to_path_buf(), id: Some(id) }),
            Err(error) => {
                let _ = std::fs::remove_file(&beside);
                Err(during(path, "putting the socket in its place")(error))
            }
        }
    }

    /// Returns the path at which it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits up to `patience` for a successor. Refuses processes of other users, and those that do
    /// not identify themselves as a successor within a second. Keep using the segments until it
    /// returns one.
    pub fn wait(&self, patience: Duration) -> Result<Option<Successor>, SegmentError> {
        let until = Instant::now() + patience;
        loop {
            match self.socket.accept() {
                Ok((stream, _)) => {
                    if let Some(successor) = self.greet(stream)? {
                        return Ok(Some(successor));
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    let more = until.saturating_duration_since(Instant::now());
                    if more.is_zero() {
                        return Ok(None);
                    }
                    let waited = wait_ready(&[(self.socket.as_fd(), Interest::Read)], more);
                    waited.map_err(during(&self.path, "waiting for a successor"))?;
                }
                // The client hung up before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(during(&self.path, "accepting a successor")(error)),
            }
        }
    }

    /// Returns a connected process if it is a successor.
    fn greet(&self, stream: UnixStream) -> Result<Option<Successor>, SegmentError> {
        stream.set_nonblocking(true).map_err(during(&self.path, "accepting a successor"))?;
        let Ok(peer) = peer(&stream) else { return Ok(None) };
        if peer.uid != effective_uid() {
            let _ = wire::send(&stream, Kind::Refused, b"it is another user's", &[], Instant::now());
            return Ok(None);
        }
        match wire::receive(&stream, Instant::now() + HELLO_PATIENCE) {
            Ok(frame) if frame.kind == Kind::Hello && frame.payload == HELLO => {
                Ok(Some(Successor { stream, process: peer.pid }))
            }
            Ok(_) => {
                let why = b"it is another version of megapage; end it, and start as usual";
                let _ = wire::send(&stream, Kind::Refused, why, &[], Instant::now());
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    }

    /// Hands `segments` and `extras` over: all, or none. Passing them by value ensures that no
    /// thread of this process uses them any more. A heap gives its segment by
    /// [`crate::Heap::into_segment`]. Waits for each step of the successor, until `patience` is
    /// over. Hands over at most [`MOST_SEGMENTS`] at once.
    pub fn hand_over(
        mut self,
        successor: Successor,
        mut segments: Vec<Segment>,
        extras: &Extras,
        patience: Duration,
    ) -> Result<HandedOver, Box<Kept>> {
        let until = Instant::now() + patience;
        let stream = &successor.stream;
        #[cfg(test)]
        point("old-accepted");
        let offered = self.offer(stream, &segments, extras, until).and_then(|()| {
            #[cfg(test)]
            point("old-mapped");
            wire::send(stream, Kind::Yours, &[], &[], until).map_err(failed(&self.path, "handing over"))
        });
        if let Err(error) = offered {
            let last = Instant::now() + SOON;
            let _ = wire::send(stream, Kind::Refused, error.to_string().as_bytes(), &[], last);
            return Err(Box::new(Kept { error, listener: self, segments }));
        }
        // The segments are the successor's, unless it closes the connection without having taken
        // them.
        #[cfg(test)]
        point("old-given");
        let answer = wire::receive(stream, until.max(Instant::now() + SOON));
        #[cfg(test)]
        point("old-taken");
        let why = match answer {
            Ok(frame) if frame.kind == Kind::Taken => None,
            Ok(frame) if frame.kind == Kind::Refused => {
                Some(unfinished(self.path.clone(), reason(&frame.payload)))
            }
            Err(error) if wire::is_closed(&error) => Some(failed(&self.path, "handing over")(error)),
            _ => {
                self.id = None;
                return Ok(HandedOver { confirmed: false });
            }
        };
        let Some(mut error) = why else {
            self.id = None;
            return Ok(HandedOver { confirmed: true });
        };
        segments.retain_mut(|segment| match segment.resume() {
            Ok(()) => true,
            Err(damaged) => {
                error = damaged;
                false
            }
        });
        Err(Box::new(Kept { error, listener: self, segments }))
    }

    /// Sends segments and extras, and waits until the successor has mapped the segments.
    fn offer(
        &self,
        stream: &UnixStream,
        segments: &[Segment],
        extras: &Extras,
        until: Instant,
    ) -> Result<(), SegmentError> {
        let failed = || failed(&self.path, "handing over");
        if extras.data.len() > wire::MOST_PAYLOAD || extras.descriptors.len() > MOST_DESCRIPTORS {
            return Err(SegmentError::Request(format!(
                "a program passes on at most {} bytes and {MOST_DESCRIPTORS} descriptors, not {} and {}",
                wire::MOST_PAYLOAD,
                extras.data.len(),
                extras.descriptors.len()
            )));
        }
        if segments.len() > MOST_SEGMENTS {
            let what = format!("at most {MOST_SEGMENTS} segments are handed over, not {}", segments.len());
            return Err(SegmentError::Request(what));
        }
        let offers: Result<Vec<_>, _> = segments.iter().map(Segment::offer).collect();
        for (offered, path) in &offers? {
            let (place, with): (u8, Vec<BorrowedFd<'_>>) = match offered {
                Offered::Named(directory) => (0, vec![directory.file().as_fd()]),
                Offered::Unlinked(directory, file) => (1, vec![directory.file().as_fd(), file.as_fd()]),
                Offered::Memory(file) => (2, vec![file.as_fd()]),
            };
            let payload = [&[place], path.as_os_str().as_bytes()].concat();
            wire::send(stream, Kind::Segment, &payload, &with, until).map_err(failed())?;
            #[cfg(test)]
            point("old-begun");
        }
        let with: Vec<BorrowedFd<'_>> = extras.descriptors.iter().map(AsFd::as_fd).collect();
        wire::send(stream, Kind::Extras, &extras.data, &with, until).map_err(failed())?;
        wire::send(stream, Kind::End, &[], &[], until).map_err(failed())?;
        #[cfg(test)]
        point("old-offered");
        let answer = wire::receive(stream, until).map_err(failed())?;
        match answer.kind {
            Kind::Mapped => Ok(()),
            Kind::Refused => Err(unfinished(self.path.clone(), reason(&answer.payload))),
            other => Err(unfinished(self.path.clone(), format!("the successor answered {other:?}"))),
        }
    }
}

impl AsFd for Listener {
    /// Returns the socket, which is readable when a successor waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let is_ours = |id: FileId| FileId::of_path(&self.path).is_ok_and(|found| found == id);
        if self.id.is_some_and(is_ours) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
