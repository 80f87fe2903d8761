//! HTTP server for clients: one thread, which never waits for any of them.
//!
//! A client can neither stall the loop (it has no part in this thread) nor make this grow.
//! Connections, bytes of a request, pieces of it, and the time for each step are bounded.
//! Connections are accepted at a bounded rate, and the place of an idle one goes to the next. Each
//! listener has separate places, so that no client on the loopback address can keep out users of
//! the socket.

mod answer;
mod client;
mod connection;
mod listeners;
mod textfile;

pub(crate) use listeners::Listeners;

use crate::shared::Shared;
use answer::Answers;
use client::{Client, Origin};
use connection::{Connection, Deadlines, Next};
use megapage_kernel::service::Pace;
use megapage_kernel::socket::{Interest, wait_ready};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use textfile::Textfile;

/// Most connections by each listener, at once.
const MOST_CONNECTIONS: usize = 8;
/// Most connections a second: by the socket, and by the loopback address, where all users on this
/// machine may ask.
const MOST_A_SECOND: [u32; 2] = [50, 10];
/// Time for which no client is accepted after a failure to accept, for lack of descriptors, say.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Longest wait; nothing depends on it.
const LONGEST: Duration = Duration::from_secs(60);

/// Messages to the thread.
const NOTED: u8 = b'n';
const STOP: u8 = b's';

/// Returns the answer to the bytes of a request, for [`crate::fuzzing::http`].
pub(crate) fn answer_to(
    shared: Arc<Shared>,
    request: &[u8],
    trusted: bool,
    loopback: bool,
) -> Option<(u16, Vec<u8>, Vec<u8>)> {
    let origin = if loopback { Origin::Loopback } else { Origin::Unix };
    let answer = Answers::new(shared).answer(request, Client { origin, trusted })?;
    let code = answer.code();
    let (head, body) = answer.into_parts();
    Some((code, head, body.to_vec()))
}

/// Returns everything that a client gets which sends its request in these pieces and then nothing
/// more, for [`crate::fuzzing::converse`].
pub(crate) fn converse(shared: Arc<Shared>, pieces: &[&[u8]]) -> io::Result<Vec<u8>> {
    let (mut theirs, ours) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let now = Instant::now();
    let mut connection = Connection::new(ours, Origin::Unix, Deadlines::USUAL, now);
    let mut answers = Answers::new(shared);
    let mut next = Next::Wait;
    for piece in pieces {
        if next != Next::Wait {
            break;
        }
        theirs.write_all(piece)?;
        next = connection.step(&mut answers, now);
    }
    theirs.shutdown(std::net::Shutdown::Write)?;
    if next == Next::Wait {
        connection.step(&mut answers, now);
    }
    drop(connection);
    let mut answer = Vec::new();
    // Bytes that the server did not read do not matter: its answer was sent already.
    match theirs.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => Err(error),
        _ => Ok(answer),
    }
}

/// Thread that answers.
#[derive(Debug)]
pub(crate) struct Server {
    tell: UnixStream,
    thread: Option<JoinHandle<Listeners>>,
}

impl Server {
    /// Starts the thread. `textfile`, unless empty, is written now and then.
    pub(crate) fn start(shared: &Arc<Shared>, listeners: Listeners, textfile: PathBuf) -> io::Result<Server> {
        let (tell, wakeups) = UnixStream::pair()?;
        tell.set_nonblocking(true)?;
        wakeups.set_nonblocking(true)?;
        let mut serving = Serving::new(shared, listeners, wakeups, textfile, Deadlines::USUAL);
        let thread = std::thread::Builder::new().name("megapage-serve".into()).spawn(move || {
            while serving.round() {}
            if let Some(textfile) = serving.textfile {
                textfile.remove();
            }
            serving.listeners
        })?;
        Ok(Server { tell, thread: Some(thread) })
    }

    /// Notifies the thread that there is something new.
    pub(crate) fn noted(&mut self) {
        // If the socket's buffer is full of such messages, the thread will learn of this one with
        // them.
        let _ = self.tell.write(&[NOTED]);
    }

    /// Stops the thread. Its listeners stay open, unanswered, for as long as the caller keeps them.
    pub(crate) fn stop(mut self) -> Listeners {
        self.join()
    }

    fn join(&mut self) -> Listeners {
        let Some(thread) = self.thread.take() else { return Listeners::default() };
        // Closing our end stops it as well, if there is no room for a byte.
        let _ = self.tell.write(&[STOP]);
        let _ = self.tell.shutdown(std::net::Shutdown::Both);
        thread.join().unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.join();
    }
}

struct Serving {
    shared: Arc<Shared>,
    answers: Answers,
    wakeups: UnixStream,
    listeners: Listeners,
    /// Rates of accepting by the socket, and by the loopback address.
    paces: [Pace; 2],
    connections: Vec<Connection>,
    deadlines: Deadlines,
    textfile: Option<Textfile>,
}

impl Serving {
    fn new(
        shared: &Arc<Shared>,
        listeners: Listeners,
        wakeups: UnixStream,
        textfile: PathBuf,
        deadlines: Deadlines,
    ) -> Serving {
        Serving {
            shared: Arc::clone(shared),
            answers: Answers::new(Arc::clone(shared)),
            wakeups,
            listeners,
            paces: MOST_A_SECOND.map(|most| Pace::new(most, Instant::now())),
            connections: Vec::new(),
            deadlines,
            textfile: (!textfile.as_os_str().is_empty()).then(|| Textfile::new(textfile)),
        }
    }

    /// Waits once, and does the work that is due. Returns true to go on.
    fn round(&mut self) -> bool {
        let now = Instant::now();
        self.expire(now);
        let mut until = now + LONGEST;
        if let Some(textfile) = &self.textfile {
            until = until.min(textfile.due(now));
        }
        for connection in &self.connections {
            until = until.min(connection.until());
        }
        let mut ways = Vec::new();
        for origin in [Origin::Unix, Origin::Loopback] {
            match self.accepts(origin, now) {
                Some(from) if from <= now => ways.push(origin),
                Some(from) => until = until.min(from),
                None => {}
            }
        }
        let mut fds = vec![(self.wakeups.as_fd(), Interest::Read)];
        for way in &ways {
            match (way, &self.listeners.unix, &self.listeners.loopback) {
                (Origin::Unix, Some(socket), _) => fds.push((socket.listener().as_fd(), Interest::Read)),
                (Origin::Loopback, _, Some((_, listener))) => fds.push((listener.as_fd(), Interest::Read)),
                _ => {}
            }
        }
        let first = fds.len();
        fds.extend(self.connections.iter().map(Connection::waits_for));
        let ready = match wait_ready(&fds, until.saturating_duration_since(now)) {
            Ok(ready) => ready,
            Err(error) => {
                tracing::warn!(%error, "waiting for clients failed");
                std::thread::sleep(AFTER_FAILURE);
                return true;
            }
        };
        let now = Instant::now();
        self.go_on(&ready[first..], now);
        for (way, _) in ways.iter().zip(&ready[1..first]).filter(|(_, ready)| **ready) {
            self.accept(*way, now);
        }
        if ready[0] && !self.listen_to_orders() {
            return false;
        }
        if let Some(textfile) = &mut self.textfile {
            textfile.write_if_due(&self.shared, now);
        }
        true
    }

    /// Ends connections that have taken too long.
    fn expire(&mut self, now: Instant) {
        let answers = &mut self.answers;
        let dropped = &self.shared.dropped;
        self.connections.retain_mut(|connection| {
            connection.until() > now || keep(connection.expire(answers, now), dropped)
        });
    }

    /// Lets the connections that are ready go on.
    fn go_on(&mut self, ready: &[bool], now: Instant) {
        let answers = &mut self.answers;
        let dropped = &self.shared.dropped;
        let mut ready = ready.iter();
        self.connections.retain_mut(|connection| {
            !ready.next().copied().unwrap_or(false) || keep(connection.step(answers, now), dropped)
        });
    }

    /// Returns the time from which on a connection can be accepted; `None` if there is no such
    /// listener. If all places are taken, it is the time at which the first of them is idle.
    fn accepts(&mut self, origin: Origin, now: Instant) -> Option<Instant> {
        let listens = match origin {
            Origin::Unix => self.listeners.unix.is_some(),
            Origin::Loopback => self.listeners.loopback.is_some(),
        };
        let from = listens.then(|| self.paces[origin as usize].next(now))?;
        let own = || self.connections.iter().filter(|connection| connection.origin() == origin);
        if own().count() < MOST_CONNECTIONS {
            return Some(from);
        }
        own().map(Connection::idle_from).min().map(|idle| idle.max(from))
    }

    fn accept(&mut self, origin: Origin, now: Instant) {
        while self.accepts(origin, now).is_some_and(|from| from <= now) {
            let accepted = match (origin, &self.listeners.unix, &self.listeners.loopback) {
                (Origin::Unix, Some(socket), _) => {
                    socket.listener().accept().map(|(stream, _)| OwnedFd::from(stream))
                }
                (Origin::Loopback, _, Some((_, listener))) => {
                    listener.accept().map(|(stream, _)| OwnedFd::from(stream))
                }
                _ => return,
            };
            let pace = &mut self.paces[origin as usize];
            let accepted = accepted.and_then(|stream| {
                let stream = UnixStream::from(stream);
                stream.set_nonblocking(true).map(|()| stream)
            });
            match accepted {
                Ok(stream) => {
                    pace.note();
                    self.make_room(origin, now);
                    let mut connection = Connection::new(stream, origin, self.deadlines, now);
                    // Most requests are there already.
                    if keep(connection.step(&mut self.answers, now), &self.shared.dropped) {
                        self.connections.push(connection);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // A client that hung up before it was accepted is no failure of ours.
                Err(error)
                    if [ErrorKind::Interrupted, ErrorKind::ConnectionAborted].contains(&error.kind()) =>
                {
                    pace.note();
                }
                Err(error) => {
                    tracing::warn!(%error, "a client cannot be accepted");
                    pace.pause_until(now + AFTER_FAILURE);
                    return;
                }
            }
        }
    }

    /// Drops the connection that was idle for longest, if all places are taken.
    fn make_room(&mut self, origin: Origin, now: Instant) {
        let own = self.connections.iter().enumerate().filter(|(_, one)| one.origin() == origin);
        if own.clone().count() < MOST_CONNECTIONS {
            return;
        }
        let idlest = own.min_by_key(|(_, connection)| connection.idle_from()).map(|(at, _)| at);
        if let Some(at) = idlest.filter(|at| self.connections[*at].idle_from() <= now) {
            self.connections.swap_remove(at);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads the loop's messages. Returns true to go on.
    fn listen_to_orders(&mut self) -> bool {
        let mut orders = [0; 64];
        match self.wakeups.read(&mut orders) {
            Ok(0) => false,
            Ok(count) => {
                if let Some(textfile) = &mut self.textfile {
                    textfile.noted();
                }
                !orders[..count].contains(&STOP)
            }
            Err(error) => [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()),
        }
    }
}

/// Returns true if a connection stays open; counts one that is dropped unanswered.
fn keep(next: Next, dropped: &std::sync::atomic::AtomicU64) -> bool {
    if next == Next::Dropped {
        dropped.fetch_add(1, Ordering::Relaxed);
    }
    next == Next::Wait
}

#[cfg(test)]
mod tests;
