//! One client: a request in, an answer out, bounded in bytes and time.

use super::answer::{Answer, Answers, Body};
use super::client::{Client, Origin};
use megapage_kernel::effective_uid;
use megapage_kernel::socket::{Interest, peer_uid};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Most bytes of a request; longer ones are answered with 431.
pub(super) const MOST_REQUEST: usize = 8192;
/// Most reads for a request: one that trickles in is not parsed without end.
const MOST_PIECES: u32 = 64;
/// Most bytes that a client may send after its request; they are discarded, so that it gets to read
/// the answer.
const MOST_AFTER: usize = 1 << 16;

/// Times that a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    /// Time to send its request.
    pub read: Duration,
    /// Time to take its answer.
    pub write: Duration,
    /// Time to hang up after that.
    pub close: Duration,
    /// Time to do nothing, if others want its place.
    pub idle: Duration,
}

impl Deadlines {
    pub(super) const USUAL: Deadlines = Deadlines {
        read: Duration::from_secs(5),
        write: Duration::from_secs(10),
        close: Duration::from_secs(1),
        idle: Duration::from_millis(500),
    };
}

#[derive(Debug)]
enum State {
    Reading { request: Vec<u8>, pieces: u32 },
    Writing { head: Vec<u8>, body: Body, written: usize },
    Closing { read: usize },
}

/// Client that is being answered.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    client: Client,
    state: State,
    /// Time by which the present state must end.
    until: Instant,
    /// Time of its last activity.
    moved: Instant,
    deadlines: Deadlines,
}

/// Next step for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for it to become ready.
    Wait,
    /// Nothing: it was answered.
    Done,
    /// Nothing: it was dropped unanswered.
    Dropped,
}

impl Connection {
    /// Creates a connection. `stream` must be nonblocking. It may hold a TCP socket: reads and
    /// writes are the same.
    pub(super) fn new(stream: UnixStream, origin: Origin, deadlines: Deadlines, now: Instant) -> Connection {
        let is_ours = |uid| uid == 0 || uid == effective_uid();
        let trusted = origin == Origin::Unix && peer_uid(&stream).is_ok_and(is_ours);
        let state = State::Reading { request: Vec::new(), pieces: 0 };
        let client = Client { origin, trusted };
        Connection { stream, client, state, until: now + deadlines.read, moved: now, deadlines }
    }

    pub(super) fn origin(&self) -> Origin {
        self.client.origin
    }

    pub(super) fn waits_for(&self) -> (BorrowedFd<'_>, Interest) {
        let fd = self.stream.as_fd();
        match self.state {
            State::Writing { .. } => (fd, Interest::Write),
            State::Reading { .. } | State::Closing { .. } => (fd, Interest::Read),
        }
    }

    /// Returns the time at which its present state expires.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Returns the time from which on its place may be given to another client.
    pub(super) fn idle_from(&self) -> Instant {
        self.moved + self.deadlines.idle
    }

    /// Ends it because its time is up. A client that has begun its request gets an answer about it.
    pub(super) fn expire(&mut self, answers: &mut Answers, now: Instant) -> Next {
        match &self.state {
            State::Reading { request, .. } if !request.is_empty() => {
                self.answer(answers, Answer::error(408, "the request did not come in time"), now);
                self.step(answers, now)
            }
            State::Reading { .. } | State::Writing { .. } => Next::Dropped,
            State::Closing { .. } => Next::Done,
        }
    }

    /// Goes on as far as possible without waiting.
    pub(super) fn step(&mut self, answers: &mut Answers, now: Instant) -> Next {
        loop {
            let moved = match &mut self.state {
                State::Reading { .. } => self.read(answers, now),
                State::Writing { .. } => self.write(now),
                State::Closing { .. } => self.close(),
            };
            match moved {
                Ok(None) => self.moved = now,
                Ok(Some(next)) => return next,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Next::Wait,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The client has gone.
                Err(_) if matches!(self.state, State::Closing { .. }) => return Next::Done,
                Err(_) => return Next::Dropped,
            }
        }
    }

    fn read(&mut self, answers: &mut Answers, now: Instant) -> io::Result<Option<Next>> {
        let client = self.client;
        let State::Reading { request, pieces } = &mut self.state else { return Ok(None) };
        let mut bytes = [0; MOST_REQUEST];
        let room = MOST_REQUEST - request.len();
        let count = self.stream.read(&mut bytes[..room])?;
        if count == 0 {
            return Ok(Some(Next::Dropped));
        }
        request.extend_from_slice(&bytes[..count]);
        *pieces += 1;
        let full = request.len() >= MOST_REQUEST || *pieces >= MOST_PIECES;
        let answer = match answers.answer(request, client) {
            Some(answer) => answer,
            None if full => Answer::error(431, "the request is too large, or in too many pieces"),
            None => return Ok(None),
        };
        self.answer(answers, answer, now);
        Ok(None)
    }

    fn answer(&mut self, answers: &mut Answers, answer: Answer, now: Instant) {
        answers.count(answer.code());
        let (head, body) = answer.into_parts();
        self.state = State::Writing { head, body, written: 0 };
        self.until = now + self.deadlines.write;
    }

    fn write(&mut self, now: Instant) -> io::Result<Option<Next>> {
        let State::Writing { head, body, written } = &mut self.state else { return Ok(None) };
        let left = match written.checked_sub(head.len()) {
            None => &head[*written..],
            Some(of_body) => &body[of_body..],
        };
        if !left.is_empty() {
            *written += self.stream.write(left)?;
            return Ok(None);
        }
        if *written < head.len() + body.len() {
            return Ok(None);
        }
        // A client that has gone already is no failure.
        let _ = self.stream.shutdown(Shutdown::Write);
        self.state = State::Closing { read: 0 };
        self.until = now + self.deadlines.close;
        Ok(None)
    }

    /// Reads on up to the end of the client's data: a close with unread bytes would discard the
    /// answer.
    fn close(&mut self) -> io::Result<Option<Next>> {
        let State::Closing { read } = &mut self.state else { return Ok(None) };
        let count = self.stream.read(&mut [0; 4096])?;
        *read += count;
        Ok((count == 0 || *read > MOST_AFTER).then_some(Next::Done))
    }
}
