//! Clients: one request each, limited in number, bytes and time; and the processes that have memory
//! of the broker.

use megapage_kernel::descriptors::{Peer, peer, peer_groups, peer_process, process_identity};
use megapage_kernel::process::read_stat;
use megapage_kernel::service::Pace;
use megapage_kernel::spawn::wait_readable;
use megapage_kernel::{KernelRoot, effective_uid};
use megapage_memory::stock::wire::REQUEST;
use megapage_units::Pid;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The most connections at one time: in all, and of one user.
const MOST: usize = 256;
const MOST_OF_ONE: usize = 64;
/// The most connections of users who are not served, in all. They wait for their refusal.
const MOST_DENIED: usize = 8;
/// The most connections of one user in a second, and the most users whose connections are counted.
const MOST_A_SECOND: u32 = 1000;
const MOST_PACES: usize = 4096;
/// Time for which a client keeps its place while all places are taken.
const GRACE: Duration = Duration::from_millis(100);
/// Time in which a client has to send its request.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection whose request is not there yet.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    pub(crate) peer: Peer,
    bytes: [u8; REQUEST],
    length: usize,
    until: Instant,
    /// True if its user is served.
    pub(crate) allowed: bool,
}

/// State of a client's request.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Not complete yet.
    Wait,
    /// A request.
    Request([u8; REQUEST]),
    /// Nothing more will come.
    Gone,
}

impl Client {
    /// Makes a client of a connection. Neither reading nor writing waits.
    pub(crate) fn new(stream: UnixStream, now: Instant) -> io::Result<Client> {
        stream.set_nonblocking(true)?;
        let peer = peer(&stream)?;
        Ok(Client { stream, peer, bytes: [0; REQUEST], length: 0, until: now + PATIENCE, allowed: false })
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Reads the bytes that are there. No descriptors come along: the socket refuses them.
    pub(crate) fn hear(&mut self) -> Heard {
        loop {
            match (&self.stream).read(&mut self.bytes[self.length..]) {
                Ok(0) => return Heard::Gone,
                Ok(got) => {
                    self.length += got;
                    if self.length == REQUEST {
                        return Heard::Request(self.bytes);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Wait,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Heard::Gone,
            }
        }
    }

    /// Returns true if it may know of other users.
    pub(crate) fn is_trusted(&self) -> bool {
        self.peer.uid == 0 || self.peer.uid == effective_uid()
    }

    /// Returns true if it is served. Root and the broker's own user always are. Without names, any
    /// client that can connect is.
    pub(crate) fn is_allowed(&self, uids: &[u32], gids: &[u32]) -> bool {
        let in_group = || {
            let groups = peer_groups(&self.stream).unwrap_or_default();
            gids.iter().any(|gid| *gid == self.peer.gid || groups.contains(gid))
        };
        self.is_trusted()
            || (uids.is_empty() && gids.is_empty())
            || uids.contains(&self.peer.uid)
            || (!gids.is_empty() && in_group())
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    all: Vec<Client>,
    paces: BTreeMap<u32, Pace>,
    /// Connections that were dropped without an answer.
    pub(crate) dropped: u64,
}

impl Clients {
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().map(|client| client.stream.as_fd())
    }

    /// Returns the time at which the next client has taken too long.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.all.iter().map(|client| client.until).min()
    }

    /// Drops clients that have taken too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        let before = self.all.len();
        self.all.retain(|client| client.until > now);
        self.dropped += (before - self.all.len()) as u64;
    }

    /// Returns true if another connection of this user may come in this second.
    pub(crate) fn admits(&mut self, uid: u32, now: Instant) -> bool {
        if self.paces.len() >= MOST_PACES && !self.paces.contains_key(&uid) {
            self.paces.clear();
        }
        let pace = self.paces.entry(uid).or_insert_with(|| Pace::new(MOST_A_SECOND, now));
        let admits = pace.next(now) <= now;
        pace.note();
        self.dropped += u64::from(!admits);
        admits
    }

    /// Returns the time from which there is a place, or one can be taken from another client.
    pub(crate) fn room_from(&self, now: Instant) -> Instant {
        let oldest = || self.all.iter().map(|client| client.until).min();
        if self.all.len() < MOST { now } else { oldest().map_or(now, |until| until - PATIENCE + GRACE) }
    }

    /// Returns true if another client has to go before this client gets a place. The caller first
    /// reads the clients that have sent a request.
    pub(crate) fn is_full_for(&self, client: &Client) -> bool {
        self.all.len() >= MOST || self.goes_before(client).is_some()
    }

    /// Returns the place of the oldest client of this client's kind, if there are too many of that
    /// kind.
    fn goes_before(&self, client: &Client) -> Option<usize> {
        let own = |one: &Client| one.allowed && one.peer.uid == client.peer.uid;
        let (kind, most): (&dyn Fn(&Client) -> bool, usize) =
            if client.allowed { (&own, MOST_OF_ONE) } else { (&|one| !one.allowed, MOST_DENIED) };
        (self.all.iter().filter(|one| kind(one)).count() >= most)
            .then(|| self.all.iter().position(kind))
            .flatten()
    }

    /// Takes a client in. If there are too many, the oldest goes.
    pub(crate) fn add(&mut self, client: Client) {
        let at = self.goes_before(&client).or((self.all.len() >= MOST).then_some(0));
        if let Some(at) = at {
            self.all.remove(at);
            self.dropped += 1;
        }
        self.all.push(client);
    }

    /// Removes clients that have sent a request, or are gone, and returns the former. `ready` is by
    /// place; clients beyond its end are read, too.
    pub(crate) fn heard(&mut self, ready: &[bool]) -> Vec<(Client, [u8; REQUEST])> {
        let mut heard = Vec::new();
        let mut kept = Vec::new();
        for (place, mut client) in std::mem::take(&mut self.all).into_iter().enumerate() {
            if !ready.get(place).copied().unwrap_or(true) {
                kept.push(client);
                continue;
            }
            match client.hear() {
                Heard::Wait => kept.push(client),
                Heard::Request(bytes) => heard.push((client, bytes)),
                Heard::Gone => self.dropped += 1,
            }
        }
        self.all = kept;
        heard
    }
}

/// Identity that distinguishes a process from all others that live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// Number from its pidfd: it works in any PID namespace.
    Identity(u64),
    /// Its PID, on a kernel that has no better identity.
    Pid(i32),
}

/// A process that has extents.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) id: u64,
    who: Who,
    uid: u32,
    fd: OwnedFd,
    pid: i32,
    image: Option<u64>,
}

/// The processes that have extents.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    all: Vec<Process>,
    next: u64,
}

impl Processes {
    /// Returns the number under which the living process at the other end is known. Returns `None`
    /// if it has ended, or cannot be seen from here.
    pub(crate) fn of(&mut self, client: &Client) -> Option<u64> {
        let Peer { pid, uid, .. } = client.peer;
        let fd = peer_process(client.stream()).ok().filter(is_alive)?;
        let who = match process_identity(&fd).ok()? {
            Some(identity) => Who::Identity(identity),
            // 0 stands for all processes that are not seen from here.
            None if pid > 0 => Who::Pid(pid),
            None => return None,
        };
        // While the known process lives, its number is no other's.
        let known = self.all.iter().find(|known| (known.who, known.uid) == (who, uid) && is_alive(&known.fd));
        if let Some(known) = known {
            return Some(known.id);
        }
        self.next += 1;
        self.all.push(Process { id: self.next, who, uid, fd, pid, image: image_of(pid) });
        Some(self.next)
    }

    /// Returns true if a process has executed another program since it was first seen, or since
    /// this last returned true. Its mappings are then gone. A process's own claim does not count:
    /// it could keep its mappings and get as much again.
    pub(crate) fn has_executed(&mut self, id: u64) -> bool {
        let Some(process) = self.all.iter_mut().find(|process| process.id == id) else { return false };
        let now = image_of(process.pid);
        // The number is no other process's while this one lives.
        let has = now.is_some() && process.image.is_some() && now != process.image && is_alive(&process.fd);
        if has {
            process.image = now;
        }
        has
    }

    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().map(|process| process.fd.as_fd())
    }

    /// Removes the processes that have ended, and returns their numbers; `ready` is by place.
    pub(crate) fn ended(&mut self, ready: &[bool]) -> Vec<u64> {
        let mut ready = ready.iter();
        let mut ended = Vec::new();
        self.all.retain(|process| {
            let has_ended = ready.next().copied().unwrap_or(false);
            if has_ended {
                ended.push(process.id);
            }
            !has_ended
        });
        ended
    }

    /// Removes the processes for which `keep` returns false.
    pub(crate) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.all.retain(|process| keep(process.id));
    }
}

/// Returns a value that differs between two programs of a process: the start of its stack
/// (proc_pid_stat(5)), which the kernel chooses at each execve(2). `None` if the process is not
/// seen from here, or may not be inspected.
fn image_of(pid: i32) -> Option<u64> {
    let stat = (pid > 0).then(|| read_stat(&KernelRoot::live(), Pid(pid)).ok()).flatten()?;
    // 0 or 1 if the caller may not know.
    Some(stat.start_stack).filter(|start| *start > 1)
}

fn is_alive(process: &OwnedFd) -> bool {
    wait_readable(process.as_fd(), Duration::ZERO).is_ok_and(|ended| !ended)
}
