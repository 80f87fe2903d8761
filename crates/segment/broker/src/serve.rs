//! Main loop of the broker, over the signals, the socket, the clients, and the processes that have
//! memory of it.

use crate::clients::{Client, Clients, Heard, Processes};
use crate::filler::{Filler, Order, Waits};
use crate::give_back::{GiveBack, MOST_WAITING};
use crate::leases::{Leases, Rules};
use crate::options::{BrokerError, Options};
use crate::recovery::Recovery;
use crate::status::{Holder, MOST_HOLDERS, MOST_TEXT, Status};
use megapage_act::pool::Loan;
use megapage_kernel::descriptors::{MOST_DESCRIPTORS, has_hung_up, raise_limit, refuse, send};
use megapage_kernel::service::{Notify, SocketFile, SocketLock};
use megapage_kernel::socket::{Interest, wait_ready};
use megapage_kernel::spawn::{Signals, signal};
use megapage_kernel::trusted::trusted_directory;
use megapage_kernel::{KernelRoot, extent};
use megapage_memory::stock::wire::{Answer, Request, Verdict};
use megapage_units::shown::one_line;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Time for which no client is accepted after accepting has failed, for lack of descriptors, say.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The longest wait; nothing depends on it.
const LONGEST: Duration = Duration::from_secs(60);
/// Descriptors that are reserved for all uses but extents that are out or in stock. They are for
/// connections, processes, the filler, the standard streams, and extents that are being released.
const OTHER_DESCRIPTORS: u64 = 512 + MOST_WAITING as u64;

fn system(what: &'static str) -> impl Fn(io::Error) -> BrokerError {
    move |source| BrokerError::System { what, source }
}

/// Returns the shell lines for the changes that starting the broker would make, after the same
/// checks as at a start. Changes nothing.
pub fn dry_run(root: &KernelRoot, options: &Options) -> Result<Vec<String>, BrokerError> {
    options.check()?;
    trust(options)?;
    let mut lines = vec![format!(
        "# listens on {}, mode {:04o}; keeps {} pages of {} ready, in extents of {}",
        // An end of a line in it would end the comment.
        one_line(&options.socket.display().to_string()),
        options.mode,
        options.stock,
        options.size,
        options.extent
    )];
    let loan = Loan::take_over(root, &options.socket, options.size);
    if loan.pages() > 0 {
        lines.push(format!("# {} pages of a former broker are in the pool still", loan.pages()));
    }
    lines.extend(loan.commands(options.grow)?);
    Ok(lines)
}

fn trust(options: &Options) -> Result<(), BrokerError> {
    trusted_directory(&options.socket)
        .map_err(|source| BrokerError::Socket { path: options.socket.clone(), source: source.into() })
}

/// Runs a broker until SIGTERM or SIGINT comes. The memory that is out then stays with its
/// processes; the stock, and the pages that the pool was grown by, go back. `notice` gets a line
/// now and then.
pub fn run(root: &KernelRoot, options: &Options, notice: &mut dyn FnMut(&str)) -> Result<(), BrokerError> {
    options.check()?;
    trust(options)?;
    // Blocked from here on: every thread must be started with these signals blocked.
    let signals = Signals::take(&[signal::SIGTERM, signal::SIGINT]).map_err(system("signals"))?;
    let limit = raise_limit().map_err(system("the limit on descriptors"))?;
    let lock = SocketLock::take(&options.socket)
        .map_err(|source| BrokerError::Socket { path: options.socket.clone(), source })?;
    let socket = SocketFile::open(&options.socket, options.mode, None, BACKLOG)
        .map_err(|source| BrokerError::Socket { path: options.socket.clone(), source })?;
    if refuse(socket.listener()).is_err() && options.mode & 0o077 != 0 {
        // Closing the descriptors that a client passes can take any time that the client chooses.
        let what = "this kernel cannot keep clients from passing descriptors (Linux 6.16 can), by which one could hold \
                    up all others: serve your own user alone (--mode 0600)";
        return Err(BrokerError::Options(what.into()));
    }
    let mut loan = Loan::take_over(root, &options.socket, options.size);
    loan.set(options.grow, loan.pages() > options.grow)?;
    let served =
        Serving::start(root, options, &signals, &socket, &mut loan, limit).and_then(|mut serving| {
            let ready = format!("serves pages of {} on {}", options.size, options.socket.display());
            notice(&ready);
            Notify::from_environment().send("READY=1");
            while serving.round().map_err(system("waiting for clients"))? {}
            Notify::from_environment().send("STOPPING=1");
            Ok(())
        });
    // The stock has gone with the loop. Forced: pages that programs hold turn into surplus, and go
    // when the programs end.
    if let Err(error) = loan.set(0, true) {
        notice(&format!("{} pages were not taken out of the pool: {error}", loan.pages()));
    }
    drop((socket, lock));
    served
}

struct Serving<'a> {
    options: &'a Options,
    signals: &'a Signals,
    socket: &'a SocketFile,
    loan: &'a mut Loan,
    recovery: Recovery,
    leases: Leases<File>,
    filler: Filler,
    made: Receiver<File>,
    woken: UnixStream,
    clients: Clients,
    processes: Processes,
    give_back: GiveBack,
    /// Time before which no client is accepted.
    not_before: Instant,
    handed_out: u64,
    ended: u64,
    refused: BTreeMap<String, u64>,
}

impl<'a> Serving<'a> {
    fn start(
        root: &KernelRoot,
        options: &'a Options,
        signals: &'a Signals,
        socket: &'a SocketFile,
        loan: &'a mut Loan,
        limit: u64,
    ) -> Result<Serving<'a>, BrokerError> {
        let stock = options.stock / options.extent;
        // One descriptor for the extent, and one for its process.
        let most_leases = limit.saturating_sub(OTHER_DESCRIPTORS + stock) / 2;
        if most_leases == 0 {
            let what = format!(
                "this process may have {limit} descriptors, and each leased extent takes up to two: raise the limit (ulimit -n), \
                 make extents larger (--extent), or the stock smaller"
            );
            return Err(BrokerError::Options(what));
        }
        let leases = Leases::new(Rules {
            page_bytes: options.size.bytes().0,
            extent_pages: options.extent,
            stock: stock as usize,
            quota: options.quota.map(|quota| quota.0),
            most_leases: usize::try_from(most_leases).unwrap_or(usize::MAX),
            most_at_once: MOST_DESCRIPTORS,
        });
        let (wake, woken) = UnixStream::pair().map_err(system("a pair of sockets"))?;
        woken.set_nonblocking(true).map_err(system("a pair of sockets"))?;
        let (send_made, made) = channel();
        let order = Order {
            root: root.clone(),
            size: options.size,
            pages: options.extent,
            rate: options.rate.0,
            leave: options.leave,
            ignore_pressure: options.ignore_pressure,
        };
        let filler = Filler::start(order, send_made, wake).map_err(system("a thread"))?;
        filler.want(leases.missing(), 0);
        Ok(Serving {
            options,
            signals,
            socket,
            loan,
            recovery: Recovery::default(),
            leases,
            filler,
            made,
            woken,
            clients: Clients::default(),
            processes: Processes::default(),
            give_back: GiveBack::start().map_err(system("a thread"))?,
            not_before: Instant::now(),
            handed_out: 0,
            ended: 0,
            refused: BTreeMap::new(),
        })
    }

    /// Waits once, and handles all events. Returns true if it is to go on.
    fn round(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        self.clients.expire(now);
        let accepts_from = self.clients.room_from(now).max(self.not_before);
        let mut until = self.clients.next_end().unwrap_or(now + LONGEST).min(now + LONGEST);
        until = self.recovery.next().map_or(until, |next| until.min(next));
        let mut fds = vec![(self.signals.as_fd(), Interest::Read), (self.woken.as_fd(), Interest::Read)];
        let accepts = accepts_from <= now;
        match accepts {
            true => fds.push((self.socket.listener().as_fd(), Interest::Read)),
            false => until = until.min(accepts_from),
        }
        let first = fds.len();
        fds.extend(self.clients.fds().map(|fd| (fd, Interest::Read)));
        let clients = fds.len();
        fds.extend(self.processes.fds().map(|fd| (fd, Interest::Read)));
        let ready = wait_ready(&fds, until.saturating_duration_since(now))?;
        if ready[0] && self.signals.next()?.is_some() {
            return Ok(false);
        }
        // First: processes that have ended make room in quotas.
        let ended = self.processes.ended(&ready[clients..]);
        ended.into_iter().for_each(|process| self.end(process));
        let fetched = if ready[1] { self.stock_up() } else { 0 };
        if !self.options.keep {
            let pressed = self.filler.pressed();
            self.recovery.work(Instant::now(), pressed, &mut self.leases, self.loan);
        }
        for (client, bytes) in self.clients.heard(&ready[first..clients]) {
            self.answer(client, Request::decode(&bytes));
        }
        if accepts && ready[2] {
            self.accept(Instant::now());
        }
        self.filler.want(self.leases.missing(), fetched);
        Ok(true)
    }

    /// Takes the filler's extents into stock. Returns their number.
    fn stock_up(&mut self) -> usize {
        // One byte for each extent and event, or fewer.
        while matches!((&self.woken).read(&mut [0; 64]), Ok(64)) {}
        let mut fetched = 0;
        while let Ok(extent) = self.made.try_recv() {
            self.leases.add(extent);
            fetched += 1;
        }
        fetched
    }

    fn accept(&mut self, now: Instant) {
        // A limited number at a time: in between, the clients that have a place are read.
        for _ in 0..BACKLOG {
            if self.clients.room_from(now) > now {
                return;
            }
            match self.socket.listener().accept().and_then(|(stream, _)| Client::new(stream, now)) {
                Ok(client) => self.welcome(client, now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // One that hung up before it was accepted is no failure of ours.
                Err(error)
                    if [ErrorKind::Interrupted, ErrorKind::ConnectionAborted].contains(&error.kind()) => {}
                Err(_) => {
                    self.not_before = now + AFTER_FAILURE;
                    return;
                }
            }
        }
    }

    /// Answers a client whose request is there already, as most are. Any other gets a place.
    fn welcome(&mut self, mut client: Client, now: Instant) {
        if !self.clients.admits(client.peer.uid, now) {
            return;
        }
        client.allowed = client.is_allowed(&self.options.uids, &self.options.gids);
        match client.hear() {
            Heard::Request(bytes) => self.answer(client, Request::decode(&bytes)),
            Heard::Gone => self.clients.dropped += 1,
            Heard::Wait => {
                if self.clients.is_full_for(&client) {
                    for (client, bytes) in self.clients.heard(&[]) {
                        self.answer(client, Request::decode(&bytes));
                    }
                }
                self.clients.add(client);
            }
        }
    }

    /// Answers a client, which ends the connection. A client that does not take its answer at once
    /// does not get it.
    fn answer(&mut self, client: Client, request: Option<Request>) {
        let verdict = match request {
            _ if !client.allowed => Verdict::Denied,
            Some(Request::Status) => {
                self.tell(&client);
                return;
            }
            Some(Request::Take { size, .. }) if size != self.options.size => Verdict::OtherSize,
            // A process that has given up may have asked again meanwhile, and been answered. Its
            // older request must not end the leases that it was given then.
            Some(Request::Take { .. }) if has_hung_up(client.stream()).unwrap_or(false) => {
                self.clients.dropped += 1;
                return;
            }
            Some(Request::Take { pages, fresh, .. }) => match self.hand_out(&client, pages, fresh) {
                Ok(()) => return,
                Err(verdict) => verdict,
            },
            None => Verdict::Malformed,
        };
        *self.refused.entry(verdict.name().into()).or_default() += 1;
        // If the client is gone, there is none to notify.
        let _ = send(client.stream(), &self.head(verdict, 0, 0).encode(), &[]);
    }

    fn head(&self, verdict: Verdict, extents: u64, text: u64) -> Answer {
        let (page_bytes, extent_pages) = (self.options.size.bytes().0, self.options.extent);
        Answer { verdict, page_bytes, extent_pages, extents, text }
    }

    fn hand_out(&mut self, client: &Client, pages: u64, fresh: bool) -> Result<(), Verdict> {
        let process = self.processes.of(client).ok_or(Verdict::Unseen)?;
        // Its mappings went with execve(2). Without a quota a false claim gains nothing.
        if fresh && (self.options.quota.is_none() || self.processes.has_executed(process)) {
            self.end(process);
        }
        let head = self.head(Verdict::Done, 0, 0);
        let taken = self.leases.take(client.peer.uid, process, pages);
        let count = match taken {
            Ok(extents) => {
                let count = extents.len();
                let head = Answer { extents: count as u64, ..head };
                let fds: Vec<_> = extents.iter().map(|extent| extent.as_fd()).collect();
                let bytes = head.encode();
                let sent = send(client.stream(), &bytes, &fds).is_ok_and(|sent| sent == bytes.len());
                if sent {
                    self.handed_out += count as u64;
                } else {
                    // They are not handed out again, even if the client did not get them.
                    let extents = self.leases.take_back(process, count);
                    self.give_back(extents);
                }
                Ok(())
            }
            Err(verdict) => Err(verdict),
        };
        // A process that has no lease is not watched.
        let leases = &self.leases;
        self.processes.retain(|process| leases.has(process));
        count
    }

    fn end(&mut self, process: u64) {
        let extents = self.leases.end(process);
        self.give_back(extents);
    }

    fn give_back(&mut self, extents: Vec<File>) {
        for extent in extents {
            self.ended += 1;
            self.give_back.give(extent);
        }
    }

    fn tell(&mut self, client: &Client) {
        let mut status = self.status();
        if !client.is_trusted() {
            status.holders.retain(|holder| holder.uid == client.peer.uid);
        }
        let text = serde_json::to_vec(&status).unwrap_or_default();
        if text.len() > MOST_TEXT {
            return;
        }
        let mut bytes = self.head(Verdict::Done, 0, text.len() as u64).encode().to_vec();
        bytes.extend(text);
        // A client that does not take it has gone.
        let _ = send(client.stream(), &bytes, &[]);
    }

    fn status(&self) -> Status {
        let mut holders: Vec<Holder> = self
            .leases
            .held(weigh)
            .into_iter()
            .map(|(uid, held)| Holder {
                uid,
                processes: held.processes,
                extents: held.extents,
                bytes: held.bytes,
            })
            .collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        holders.truncate(MOST_HOLDERS);
        let waits = self.filler.waits().map(|waits| match waits {
            Waits::Pressure => "memory-pressure".to_string(),
            Waits::PoolShort => "pool-short".to_string(),
        });
        Status {
            pid: std::process::id(),
            page_bytes: self.options.size.bytes().0,
            extent_pages: self.options.extent,
            stock_pages: self.options.stock,
            ready_pages: self.leases.ready() as u64 * self.options.extent,
            added_pages: self.loan.pages(),
            given_back_pages: self.recovery.pages(self.options.extent),
            leave_pages: self.options.leave,
            rate_bytes: self.options.rate.0,
            quota_bytes: self.options.quota.map(|quota| quota.0),
            watches_pressure: self.filler.watches_pressure(),
            waits,
            holders,
            handed_out: self.handed_out,
            ended: self.ended,
            refused: self.refused.clone(),
            dropped: self.clients.dropped,
        }
    }
}

/// Returns the bytes of an extent that are there.
fn weigh(extent: &File) -> u64 {
    extent::present(extent).unwrap_or(u64::MAX)
}
