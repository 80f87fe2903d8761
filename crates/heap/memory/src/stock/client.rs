//! Requests to a broker. Bounded in time: a broker that hangs counts as one that is not there.

use super::wire::{ANSWER, Answer, Request, Verdict};
use megapage_inside::passing::{MOST_DESCRIPTORS, peer, receive, send};
use megapage_inside::runtime_file::runtime_file;
use megapage_inside::{connect::connect_to, effective_uid, extent};
use megapage_units::PageSize;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time that a broker may take for each step, in milliseconds, until [`set_patience`] changes it.
static PATIENCE_MS: AtomicU64 = AtomicU64::new(500);
/// Longest such time, in milliseconds.
const MOST_PATIENCE_MS: u64 = 60_000;

/// Reason why there are no pages.
#[derive(Debug)]
pub enum TakeError {
    /// No process answers there in time, or not as a broker does.
    Io(io::Error),
    /// The socket belongs to another user than root or the caller, who could read what is put into
    /// the memory.
    Stranger(u32),
    /// The broker refuses.
    Refused(Answer),
}

impl From<io::Error> for TakeError {
    fn from(error: io::Error) -> TakeError {
        TakeError::Io(error)
    }
}

impl std::error::Error for TakeError {}

impl std::fmt::Display for TakeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TakeError::Io(error) => write!(f, "{error}"),
            TakeError::Stranger(uid) => {
                write!(
                    f,
                    "user {uid} answers there, whom megapage does not trust: only root, or the user itself"
                )
            }
            TakeError::Refused(answer) if answer.verdict == Verdict::OtherSize => {
                write!(f, "the broker has pages of {} KiB", answer.page_bytes >> 10)
            }
            TakeError::Refused(answer) => f.write_str(answer.verdict.explain()),
        }
    }
}

/// Extents, whose pages are present and zero. An extent's memory belongs to its process until that
/// ends, or until its pages are released ([`megapage_inside::extent::empty`]). Closing the
/// descriptor does not give it back.
#[derive(Debug)]
pub struct Granted {
    /// Descriptors of the extents, from the first place on.
    pub extents: [Option<OwnedFd>; MOST_DESCRIPTORS],
    /// Number of extents.
    pub count: usize,
    /// Bytes of each extent.
    pub bytes: u64,
}

impl Granted {
    /// Gives the pages of all extents, which are of `size`, back to the pool.
    pub fn give_back(&self, size: PageSize) {
        empty(&self.extents, size);
    }
}

/// Releases the pages of all extents. If one is no extent, or if that fails, the memory goes when
/// the process ends.
fn empty(extents: &[Option<OwnedFd>], size: PageSize) {
    for file in extents.iter().flatten() {
        if let Ok(Some(bytes)) = extent::length(file, size) {
            let _ = extent::empty(file, 0, bytes);
        }
    }
}

/// Returns the path at which the broker of this name listens: a NAME stands for
/// `/run/megapage/pool-NAME.sock`, a path for itself.
pub fn socket_path(name: &str) -> PathBuf {
    if name.contains('/') { name.into() } else { runtime_file(&format!("pool-{name}.sock")) }
}

/// Returns the time that a broker may take for each step of this process's requests.
pub(crate) fn patience() -> Duration {
    Duration::from_millis(PATIENCE_MS.load(Relaxed))
}

/// Takes the value of [`super::POOL_PATIENCE_VARIABLE`] for all of this process's requests. Returns
/// false if it is no number of milliseconds from 1 to 60,000; then nothing changes.
pub fn set_patience(value: &[u8]) -> bool {
    let milliseconds = milliseconds(value);
    if let Some(milliseconds) = milliseconds {
        PATIENCE_MS.store(milliseconds, Relaxed);
    }
    milliseconds.is_some()
}

fn milliseconds(value: &[u8]) -> Option<u64> {
    let number = std::str::from_utf8(value).ok()?.parse().ok()?;
    (1..=MOST_PATIENCE_MS).contains(&number).then_some(number)
}

/// Connects to the broker at `path`, which must be root's or the caller's own.
pub fn connect(path: &Path) -> Result<UnixStream, TakeError> {
    let stream = connect_to(path)?;
    let uid = peer(&stream)?.uid;
    if uid != 0 && uid != effective_uid() {
        return Err(TakeError::Stranger(uid));
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(patience()))?;
    stream.set_write_timeout(Some(patience()))?;
    Ok(stream)
}

/// Asks for `pages` pages of `size`: see [`Request::Take`]. Checks that the answer is memory on
/// such pages, which cannot shrink.
pub fn take(path: &Path, size: PageSize, pages: u64, fresh: bool) -> Result<Granted, TakeError> {
    take_noting(path, size, pages, &mut { fresh })
}

/// Does the same as [`take`]. Sets `fresh` to false before the request goes, whatever its result. A
/// broker may still read a request that was given up, and the next one must not end what that one
/// was granted. Gives back what a failed attempt received.
pub(crate) fn take_noting(
    path: &Path,
    size: PageSize,
    pages: u64,
    fresh: &mut bool,
) -> Result<Granted, TakeError> {
    take_from(&connect(path)?, size, pages, fresh)
}

fn take_from(
    stream: &UnixStream,
    size: PageSize,
    pages: u64,
    fresh: &mut bool,
) -> Result<Granted, TakeError> {
    let mut extents = [const { None }; MOST_DESCRIPTORS];
    let request = Request::Take { size, pages, fresh: std::mem::take(fresh) };
    let granted = ask(stream, request, &mut extents)
        .map_err(TakeError::from)
        .and_then(|answer| check(&answer, size, &extents));
    match granted {
        Ok((count, bytes)) => Ok(Granted { extents, count, bytes }),
        Err(error) => {
            empty(&extents, size);
            Err(error)
        }
    }
}

/// Checks an answer. Returns the number of its extents, and the bytes of each.
fn check(
    answer: &Answer,
    size: PageSize,
    extents: &[Option<OwnedFd>; MOST_DESCRIPTORS],
) -> Result<(usize, u64), TakeError> {
    if answer.verdict != Verdict::Done {
        return Err(TakeError::Refused(*answer));
    }
    let count = extents.iter().flatten().count();
    let bytes = answer.extent_pages.checked_mul(size.bytes().0).filter(|bytes| *bytes > 0);
    let all =
        extents.iter().flatten().all(|file| extent::length(file, size).is_ok_and(|length| length == bytes));
    match bytes {
        Some(bytes) if all && count > 0 && count as u64 == answer.extents => Ok((count, bytes)),
        _ => Err(TakeError::Io(io::ErrorKind::InvalidData.into())),
    }
}

/// Sends a request, and receives the answer with its descriptors. Does not read the text that
/// follows.
pub fn ask(
    stream: &UnixStream,
    request: Request,
    extents: &mut [Option<OwnedFd>; MOST_DESCRIPTORS],
) -> io::Result<Answer> {
    let message = request.encode();
    if send(stream, &message, &[])? != message.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let mut bytes = [0; ANSWER];
    let mut length = 0;
    // The time is for the whole answer: a broker that sends single bytes, or signals that
    // interrupt, do not make it longer.
    let end = Instant::now() + patience();
    while length < ANSWER {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match receive(stream, &mut bytes[length..], extents) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => length += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Answer::decode(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn patience_is_a_number_of_milliseconds() {
        for (value, expected) in [("1", Some(1)), ("60000", Some(60_000)), ("60001", None), ("0", None)] {
            assert_eq!(milliseconds(value.as_bytes()), expected, "{value}");
        }
        for value in [&b""[..], b"-1", b"1s", b" 1", b"\xff", b"99999999999999999999"] {
            assert_eq!(milliseconds(value), None, "{value:?}");
            assert!(!set_patience(value));
        }
        assert_eq!(patience(), Duration::from_millis(500), "nothing has changed it");
    }

    #[test]
    fn what_comes_with_a_wrong_answer_goes_back() {
        const SIZE: PageSize = PageSize::HUGE_2M;
        let Some(_pool) = megapage_testing::PoolGuard::reserve(SIZE, 3) else { return };
        let file = extent::create(SIZE, 2).unwrap();
        (0..2).for_each(|page| extent::fill(&file, SIZE, page).unwrap());
        extent::seal(&file).unwrap();
        let (ours, mut broker) = UnixStream::pair().unwrap();
        // The answer names two extents, and one comes. It is there before the request: no wait is
        // needed.
        let answer = Answer {
            verdict: Verdict::Done,
            page_bytes: SIZE.bytes().0,
            extent_pages: 2,
            extents: 2,
            text: 0,
        };
        send(&broker, &answer.encode(), &[std::os::fd::AsFd::as_fd(&file)]).unwrap();
        let mut fresh = true;
        let error = take_from(&ours, SIZE, 2, &mut fresh).unwrap_err();
        let is_invalid = matches!(&error, TakeError::Io(error) if error.kind() == io::ErrorKind::InvalidData);
        assert!(is_invalid, "{error}");
        assert_eq!(extent::present(&file).unwrap(), 0);
        assert!(!fresh, "it was sent");
        let mut request = [0; crate::stock::wire::REQUEST];
        std::io::Read::read_exact(&mut broker, &mut request).unwrap();
        let sent = Request::decode(&request).unwrap();
        assert!(matches!(sent, Request::Take { fresh: true, pages: 2, .. }), "{sent:?}");
    }

    #[test]
    fn without_a_listener_nothing_was_sent() {
        let path = std::env::temp_dir().join(format!("megapage-no-broker-{}", std::process::id()));
        let mut fresh = true;
        assert!(take_noting(&path, PageSize::HUGE_2M, 2, &mut fresh).is_err() && fresh);
    }

    #[test]
    fn extents_that_cannot_be_used_go_back() {
        const SIZE: PageSize = PageSize::HUGE_2M;
        let Some(_pool) = megapage_testing::PoolGuard::reserve(SIZE, 3) else { return };
        let file = extent::create(SIZE, 2).unwrap();
        (0..2).for_each(|page| extent::fill(&file, SIZE, page).unwrap());
        extent::seal(&file).unwrap();
        let mut extents = [const { None }; MOST_DESCRIPTORS];
        extents[0] = Some(file.try_clone().unwrap().into());
        Granted { extents, count: 1, bytes: 2 * SIZE.bytes().0 }.give_back(SIZE);
        assert_eq!(extent::present(&file).unwrap(), 0);
    }

    #[test]
    fn a_broker_that_trickles_is_given_up() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let trickle = std::thread::spawn(move || {
            let answer =
                Answer { verdict: Verdict::Empty, page_bytes: 0, extent_pages: 0, extents: 0, text: 0 };
            answer.encode().iter().all(|byte| {
                std::thread::sleep(patience() / 10);
                theirs.write_all(&[*byte]).is_ok()
            })
        });
        let answer = ask(&ours, Request::Status, &mut [const { None }; MOST_DESCRIPTORS]);
        let kind = answer.unwrap_err().kind();
        assert!([io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock].contains(&kind), "{kind}");
        drop(ours);
        assert!(!trickle.join().unwrap(), "the client did not wait for the end");
    }
}
