//! Helper processes: calls that take another process's mmap lock, with a deadline.
//!
//! A reader of `/proc/PID/maps`, `smaps`, `pagemap`, `cmdline`, `mem` and the like, or a caller of
//! process_madvise(2), waits for the mmap lock of that process. The process can hold the lock
//! without end: it maps a page over a dirty one of a FUSE file system that it serves itself. The
//! kernel writes the dirty page back under the lock, and the server never answers. So helper
//! processes make these calls. One that does not reply in time is killed, and the process is backed
//! off for a while. Reads wait killably (`mmap_read_lock_killable` in fs/proc), so that the helper
//! ends at once. process_madvise(2) waits uninterruptibly, and so does a page fault on FUSE memory
//! in a read of `mem`. That helper stays until the lock is free. The number of such helpers is
//! bounded, of all and of each user. A thread of this process could not be killed alone, and would
//! keep the process from exiting.
//!
//! A helper shares our memory (clone(2), CLONE_VM) but no descriptors. So starting it copies
//! nothing, and our file locks and sockets end with this process. A helper ends with this process,
//! however that ends. Handing a call over takes some 10 us.
//!
//! Own files (`/proc/self`), captured trees, and files that take no such lock are read directly. So
//! code that runs inside other programs (preload, text, capi) starts no helper.

mod body;
mod locked;
mod witness;
mod worker;

pub use locked::{Counts, Locked};
pub use witness::Witness;

use crate::KernelRoot;
use crate::helper_time;
use crate::process::{read_start_time, read_status};
use body::{DATA, PARTS, Request};
use locked::Table;
use megapage_inside::without_signals;
use megapage_units::Pid;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use worker::{Reply, Worker};

/// Most helpers at work at the same time; a further call waits for one to be free.
const MOST_AT_WORK: usize = 8;
/// Most killed helpers that have not ended. At this number, uninterruptible calls are refused.
const MOST_STUCK: usize = 16;
/// Most of these that wait for processes of one user.
const MOST_STUCK_OF_USER: usize = 2;
/// Longest time for a helper that is at work and not blocked: calls for large processes take long.
/// Also the longest wait for a free helper.
const LONGEST_WORK: Duration = Duration::from_secs(10);
/// Interval between checks of a helper that is still at work.
const LOOK: Duration = Duration::from_millis(500);
/// Most helpers that are started for one call, if each ends before it gets the request.
const MOST_STARTS: u32 = 3;
/// Stack size of the thread that starts helpers.
const STARTER: usize = 128 << 10;
/// Longest wait for the end of a killed helper: one that waits killably ends at once.
const LAST_BREATH: Duration = Duration::from_millis(100);

/// Way in which the helper that makes a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Killable: the call takes the lock killably, and waits for nothing else.
    Killable,
    /// Not killable.
    Uninterruptible,
}

/// Helpers of this process.
struct Pool {
    /// Process that the helpers belong to: a forked process has none.
    owner: u32,
    idle: Vec<Worker>,
    at_work: usize,
    /// Killed helpers that have not ended, with the user of the process that each waits for.
    stuck: Vec<(Worker, Option<u32>)>,
    table: Table,
    starter: Option<mpsc::Sender<mpsc::Sender<io::Result<Worker>>>>,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    owner: 0,
    idle: Vec::new(),
    at_work: 0,
    stuck: Vec::new(),
    table: Table::new(),
    starter: None,
});
static FREED: Condvar = Condvar::new();

/// Returns the counts so far, and the present state.
pub fn counts() -> Counts {
    let mut pool = pool();
    pool.collect();
    Counts {
        missed: pool.table.missed,
        locked: pool.table.locked(Instant::now()),
        stuck: pool.stuck.len(),
        refused: pool.table.refused,
    }
}

fn pool() -> MutexGuard<'static, Pool> {
    // No holder of the lock panics half way through a change.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Collects helpers that have ended.
    fn collect(&mut self) {
        self.stuck.retain_mut(|(worker, _)| !worker.has_ended());
    }

    /// Starts a helper in a thread that lives as long as the process: a helper ends with the thread
    /// that started it.
    fn start(&mut self) -> io::Result<Worker> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("no helper process: {error}"));
        let starter = match self.starter.take() {
            Some(starter) => starter,
            None => starter().map_err(failed)?,
        };
        let (reply, started) = mpsc::channel();
        let sent = starter.send(reply);
        self.starter = sent.is_ok().then_some(starter);
        started.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())).map_err(failed)
    }
}

/// Starts the thread that starts helpers. It takes no signal: signals are for the threads that wait
/// for them.
fn starter() -> io::Result<mpsc::Sender<mpsc::Sender<io::Result<Worker>>>> {
    let (sender, receiver) = mpsc::channel::<mpsc::Sender<io::Result<Worker>>>();
    let serve = move || {
        for reply in receiver {
            // If no caller waits for the helper any more, it is dropped.
            let _ = reply.send(Worker::start());
        }
    };
    without_signals(|| std::thread::Builder::new().name("helpers".into()).stack_size(STARTER).spawn(serve))?;
    Ok(sender)
}

/// Helper that makes the caller's calls about one process. It goes back to the pool when dropped.
pub(crate) struct Session {
    worker: Option<Worker>,
    pid: Pid,
}

/// Returns the error of a call that got no answer.
fn error(locked: Locked) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, locked)
}

impl Session {
    /// Takes a helper for calls about `pid`. The error TimedOut holds a [`Locked`]: the process is
    /// backed off, or the call is refused.
    pub(crate) fn begin(pid: Pid, wait: Wait) -> io::Result<Session> {
        let mut pool = pool();
        let own = std::process::id();
        if pool.owner != own {
            // This process was forked: the helpers belong to another process, and their sockets
            // too.
            std::mem::take(&mut pool.idle).into_iter().for_each(std::mem::forget);
            std::mem::take(&mut pool.stuck).into_iter().for_each(std::mem::forget);
            (pool.owner, pool.at_work, pool.starter) = (own, 0, None);
        }
        let start = || read_start_time(&KernelRoot::live(), pid).ok();
        if let Some(rest) = pool.table.left_alone(pid, Instant::now(), start) {
            return Err(error(Locked::LeftAlone { pid, rest }));
        }
        pool.collect();
        if wait == Wait::Uninterruptible && !pool.stuck.is_empty() {
            let user = user(pid);
            let of_user = pool.stuck.iter().filter(|(_, other)| *other == user).count();
            if pool.stuck.len() >= MOST_STUCK || of_user >= MOST_STUCK_OF_USER {
                pool.table.refused += 1;
                return Err(error(Locked::Refused { pid }));
            }
        }
        let until = Instant::now() + LONGEST_WORK;
        while pool.at_work >= MOST_AT_WORK {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                pool.table.refused += 1;
                return Err(error(Locked::Refused { pid }));
            }
            pool = FREED.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let worker = match pool.idle.pop() {
            Some(worker) => worker,
            None => pool.start()?,
        };
        pool.at_work += 1;
        Ok(Session { worker: Some(worker), pid })
    }

    /// Makes the request, and waits for the reply.
    fn ask(&mut self, request: impl Fn(&mut Worker) -> io::Result<()>) -> io::Result<Reply> {
        // A helper may have been killed while it was idle: another then gets the request. If one
        // ends at work, the request is not repeated.
        let mut starts = 0;
        loop {
            let Some(worker) = &mut self.worker else { return Err(io::ErrorKind::BrokenPipe.into()) };
            match request(worker) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe && starts < MOST_STARTS => {
                    starts += 1;
                    self.retire();
                    self.worker = Some(pool().start()?);
                }
                Err(error) => return Err(error),
            }
        }
        let deadline = pool().table.deadline(Instant::now());
        let (started, mut time) = (Instant::now(), deadline);
        loop {
            let Some(worker) = &mut self.worker else { return Err(io::ErrorKind::BrokenPipe.into()) };
            let left = time.saturating_sub(started.elapsed());
            if worker.wait(left)? {
                let reply = worker.reply();
                if let Ok(reply) = &reply {
                    helper_time::add(reply.took);
                } else {
                    self.retire();
                }
                return reply;
            }
            let waited = started.elapsed();
            if waited < time {
                continue;
            }
            // The deadline has come, but a helper that runs is not blocked.
            if waited < LONGEST_WORK && is_running(worker.pid()) {
                time = waited + LOOK;
                continue;
            }
            return Err(self.miss(waited));
        }
    }

    /// Handles a missed deadline: kills the helper, and backs the process off. Returns the error.
    fn miss(&mut self, waited: Duration) -> io::Error {
        self.retire();
        let root = KernelRoot::live();
        let Ok(start) = read_start_time(&root, self.pid) else {
            return io::Error::from_raw_os_error(libc::ESRCH);
        };
        pool().table.miss(self.pid, start, Instant::now());
        error(Locked::NoAnswer { pid: self.pid, waited })
    }

    /// Kills the helper, and keeps it among the stuck ones if it does not end soon.
    fn retire(&mut self) {
        let Some(mut worker) = self.worker.take() else { return };
        worker.kill();
        let until = Instant::now() + LAST_BREATH;
        let mut pause = Duration::from_micros(50);
        while !worker.has_ended() && Instant::now() < until {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        let user = user(self.pid);
        let mut pool = pool();
        if !worker.has_ended() {
            pool.stuck.push((worker, user));
        }
    }

    /// Opens a file of the process.
    pub(crate) fn open(&mut self, path: &Path, flags: i32) -> io::Result<OwnedFd> {
        let path = path.as_os_str().as_bytes();
        let reply = self.ask(|worker| worker.request_file(Request::Open, path, flags))?;
        reply.result()?;
        reply.descriptor.ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))
    }

    /// Reads a file of the process, and passes it to `each` piece by piece, while that returns
    /// true. A piece is 256 KiB at most.
    pub(crate) fn read_file(&mut self, path: &Path, each: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<()> {
        let path = path.as_os_str().as_bytes();
        let mut reply = self.ask(|worker| worker.request_file(Request::Read, path, 0))?;
        loop {
            let length = reply.result()?.min(DATA);
            let Some(worker) = &mut self.worker else { return Ok(()) };
            if !each(&worker.data()[..length]) || reply.ended {
                return Ok(());
            }
            reply = self.ask(Worker::request_more)?;
        }
    }

    /// Makes a system call whose first argument is `descriptor`. An argument [`Place::Data`]
    /// becomes the address of the data at that offset.
    pub(crate) fn call(
        &mut self,
        number: libc::c_long,
        descriptor: BorrowedFd<'_>,
        rest: [Place; 5],
    ) -> io::Result<usize> {
        let reply = self.ask(|worker| {
            let address = worker.data_address();
            let argument = |place: &Place| match *place {
                Place::Data(offset) => address + offset.min(DATA),
                Place::Value(value) => value,
            };
            let rest = [&rest[0], &rest[1], &rest[2], &rest[3], &rest[4]].map(argument);
            worker.request_call(number, descriptor, rest)
        })?;
        reply.result()
    }

    /// Writes `bytes` to a file of the process, in one write.
    pub(crate) fn write(&mut self, file: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
        let Some(data) = self.data().get_mut(..bytes.len()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        data.copy_from_slice(bytes);
        let zero = Place::Value(0);
        match self.call(
            libc::SYS_write,
            file,
            [Place::Data(0), Place::Value(bytes.len()), zero, zero, zero],
        )? {
            written if written == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Reads from a place in a file of the process. Returns the number of bytes read. At most
    /// [`MOST_DATA`] at once.
    pub(crate) fn read_at(
        &mut self,
        file: BorrowedFd<'_>,
        bytes: &mut [u8],
        place: u64,
    ) -> io::Result<usize> {
        let length = bytes.len().min(MOST_DATA);
        let [length_argument, place] = [length, place as usize].map(Place::Value);
        let zero = Place::Value(0);
        let arguments = [Place::Data(0), length_argument, place, zero, zero];
        let read = self.call(libc::SYS_pread64, file, arguments)?.min(length);
        bytes[..read].copy_from_slice(&self.data()[..read]);
        Ok(read)
    }

    /// Reads a part of `bytes` from each of these places in a file of the process. All parts are of
    /// the same length. Returns the number of bytes up to the end of the first part that is short.
    /// At most [`MOST_DATA`] and [`MOST_PARTS`] at once.
    pub(crate) fn read_parts(
        &mut self,
        file: BorrowedFd<'_>,
        bytes: &mut [u8],
        places: &[u64],
    ) -> io::Result<usize> {
        let length = bytes.len() / places.len().max(1);
        let reply = self.ask(|worker| worker.request_parts(file, length, places))?;
        let read = reply.result()?.min(length * places.len());
        bytes[..read].copy_from_slice(&self.data()[..read]);
        Ok(read)
    }

    /// Returns the address of the data at `offset`, for structures of a call that point to it.
    pub(crate) fn data_address(&self, offset: usize) -> usize {
        self.worker.as_ref().map_or(0, |worker| worker.data_address() + offset.min(DATA))
    }

    /// Returns the data that goes with a call and its answer.
    pub(crate) fn data(&mut self) -> &mut [u8] {
        match &mut self.worker {
            Some(worker) => worker.data(),
            None => &mut [],
        }
    }
}

/// Source of an argument of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Address of the data at this offset, in bytes.
    Data(usize),
    /// Plain value.
    Value(usize),
}

/// Most bytes that go with one call, each way.
pub(crate) const MOST_DATA: usize = DATA;
/// Most parts of a file that one call reads.
pub(crate) const MOST_PARTS: usize = PARTS;

impl Drop for Session {
    fn drop(&mut self) {
        let mut pool = pool();
        pool.at_work = pool.at_work.saturating_sub(1);
        if let Some(worker) = self.worker.take() {
            pool.idle.push(worker);
            if !pool.table.is_empty() {
                pool.table.answered(self.pid);
            }
        }
        drop(pool);
        FREED.notify_one();
    }
}

/// Returns true if the calling thread must not wait for `pid` itself.
pub(crate) fn is_foreign(root: &KernelRoot, pid: Pid) -> bool {
    root.is_live() && pid.0 as u32 != std::process::id()
}

/// Returns the process whose memory map must not be locked for `relative` to be read, such as
/// `proc/12/maps`. Returns `None` for other files, and for files of a process that take no such
/// lock.
pub(crate) fn locked_by(relative: &Path) -> Option<Pid> {
    let mut parts = relative.to_str()?.split('/').filter(|part| !part.is_empty());
    if parts.next()? != "proc" {
        return None;
    }
    let pid: i32 = parts.next()?.parse().ok()?;
    let name = match parts.next()? {
        "task" => parts.nth(1)?,
        name => name,
    };
    (!FREE.contains(&name)).then_some(Pid(pid))
}

/// Files of a process that take neither its mmap lock, nor the lock that execve(2) holds while it
/// waits for that.
const FREE: [&str; 14] = [
    "cgroup",
    "children",
    "comm",
    "fd",
    "fdinfo",
    "gid_map",
    "limits",
    "mountinfo",
    "ns",
    "sched",
    "schedstat",
    "stat",
    "status",
    "uid_map",
];

fn user(pid: Pid) -> Option<u32> {
    read_status(&KernelRoot::live(), pid).ok().map(|status| status.uids[0])
}

/// Returns true if one of our own helpers is on a processor, or ready for one.
fn is_running(pid: i32) -> bool {
    crate::process::read_stat(&KernelRoot::live(), Pid(pid)).is_ok_and(|stat| stat.state == 'R')
}
