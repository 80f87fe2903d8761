//! The thread that fills the stock. It lets the kernel clear pages at a limited rate, and pauses
//! while memory is short.
//!
//! It does not clear them itself, past the caches, as HawkEye's kernel does: [`extent::fill`] says
//! why that would be a second clearing. The rate limits the effect on programs beside it;
//! `megapage-lab interference` measures it, beside other ways.

use megapage_kernel::hugetlb::{PoolScope, counts};
use megapage_kernel::pressure::Trigger;
use megapage_kernel::spawn::set_nice;
use megapage_kernel::{KernelRoot, extent};
use megapage_units::PageSize;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for which nothing is taken after tasks have waited for memory.
const AFTER_PRESSURE: Duration = Duration::from_secs(5);
/// Time for which nothing is taken after the pool was found short.
const AFTER_SHORTAGE: Duration = Duration::from_millis(500);
/// Time that tasks have to wait for memory within a window to count as pressure; and the windows
/// with, and without, CAP_SYS_RESOURCE.
const STALL: Duration = Duration::from_millis(100);
const WINDOWS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];
/// Longest wait of the watch for an event, and its pause after a wait without one. Nothing depends
/// on either.
const LONGEST_WATCH: Duration = Duration::from_secs(3600);
const WATCH_PAUSE: Duration = Duration::from_millis(100);
/// Niceness of clearing, which gives way to programs.
const NICE: i32 = 10;

/// Work that the filler has to do.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub root: KernelRoot,
    pub size: PageSize,
    /// Pages of an extent.
    pub pages: u64,
    /// Bytes in a second.
    pub rate: u64,
    /// Pages of the pool that are left to others.
    pub leave: u64,
    /// True if it is not to be notified of memory pressure.
    pub ignore_pressure: bool,
}

/// Reason for which it waits although extents are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    Pressure,
    PoolShort,
}

#[derive(Debug, Default)]
struct State {
    missing: usize,
    /// Extents made, and not yet fetched: not in the stock, and no longer missing.
    on_the_way: usize,
    stop: bool,
    waits: Option<Waits>,
    /// Time at which tasks last waited for memory.
    pressed: Option<Instant>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until `end`. Returns true if it is to stop.
    fn pause_until(&self, end: Instant, waits: Option<Waits>) -> bool {
        let mut state = self.lock();
        state.waits = waits;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if state.stop || left.is_zero() {
                return state.stop;
            }
            state = match self.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// The thread that fills, and one that waits for notifications of memory pressure. Dropping it
/// stops both.
#[derive(Debug)]
pub(crate) struct Filler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The thread that watches, and the connection that keeps it running.
    watch: Option<(JoinHandle<()>, UnixStream)>,
}

impl Filler {
    /// Starts it. Each extent goes to `made`, with a byte to `wake`. Whenever tasks have waited for
    /// memory, a byte goes to `wake`, too.
    pub(crate) fn start(order: Order, made: Sender<File>, wake: UnixStream) -> io::Result<Filler> {
        wake.set_nonblocking(true)?;
        let windows = if order.ignore_pressure { &[][..] } else { &WINDOWS };
        let trigger = windows.iter().find_map(|window| Trigger::on_memory(&order.root, STALL, *window).ok());
        let mut filler = Filler { shared: Arc::new(Shared::default()), thread: None, watch: None };
        if let Some(trigger) = trigger {
            let (kept, gone) = UnixStream::pair()?;
            let (shared, wake) = (Arc::clone(&filler.shared), wake.try_clone()?);
            let thread = std::thread::Builder::new().name("megapage-watch".into());
            let thread = thread.spawn(move || watch(&trigger, &gone, &shared, &wake))?;
            filler.watch = Some((thread, kept));
        }
        let shared = Arc::clone(&filler.shared);
        let thread = std::thread::Builder::new().name("megapage-clear".into()).spawn(move || {
            // If that is refused, it only competes with programs at the usual priority.
            let _ = set_nice(NICE);
            let mut work = Work { order, shared, made, wake, next: Instant::now() };
            while work.make_one() {}
        })?;
        filler.thread = Some(thread);
        Ok(filler)
    }

    /// Returns true if the kernel reports memory pressure, and it is watched.
    pub(crate) fn watches_pressure(&self) -> bool {
        self.watch.is_some()
    }

    /// Returns the time at which tasks last waited for memory.
    pub(crate) fn pressed(&self) -> Option<Instant> {
        self.shared.lock().pressed
    }

    /// Sets the number of extents that are missing from the stock. `fetched` is the number of its
    /// extents that went into the stock since the last call.
    pub(crate) fn want(&self, missing: usize, fetched: usize) {
        let mut state = self.shared.lock();
        state.on_the_way = state.on_the_way.saturating_sub(fetched);
        state.missing = missing.saturating_sub(state.on_the_way);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Returns the reason for which it waits.
    pub(crate) fn waits(&self) -> Option<Waits> {
        self.shared.lock().waits
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It panics if the machine is out of threads or memory; the stock then stays as it is.
            let _ = thread.join();
        }
        if let Some((thread, kept)) = self.watch.take() {
            drop(kept);
            let _ = thread.join();
        }
    }
}

/// Notes each event, until the connection that keeps it running is closed.
fn watch(trigger: &Trigger, gone: &UnixStream, shared: &Shared, mut wake: &UnixStream) {
    loop {
        match trigger.wait(&[gone.as_fd()], LONGEST_WATCH) {
            Ok((true, false)) => {
                shared.lock().pressed = Some(Instant::now());
                shared.changed.notify_all();
                let _ = wake.write(b"p");
            }
            // A signal, or the time is up. If the kernel reports nothing at all, the pause keeps
            // this from a busy loop.
            Ok((false, false)) => std::thread::sleep(WATCH_PAUSE),
            Ok((_, true)) | Err(_) => return,
        }
    }
}

struct Work {
    order: Order,
    shared: Arc<Shared>,
    made: Sender<File>,
    wake: UnixStream,
    /// Time from which the next page may be cleared.
    next: Instant,
}

impl Work {
    /// Waits until an extent is missing, and makes it. Returns true if it is to go on.
    fn make_one(&mut self) -> bool {
        {
            let mut state = self.shared.lock();
            while !state.stop && state.missing == 0 {
                state.waits = None;
                state = match self.shared.changed.wait(state) {
                    Ok(state) => state,
                    Err(poisoned) => poisoned.into_inner(),
                };
            }
            if state.stop {
                return false;
            }
        }
        if !self.has_room(self.order.pages) {
            return !self.shared.pause_until(Instant::now() + AFTER_SHORTAGE, Some(Waits::PoolShort));
        }
        match self.fill() {
            Ok(Some(extent)) => {
                {
                    let mut state = self.shared.lock();
                    state.missing = state.missing.saturating_sub(1);
                    state.on_the_way += 1;
                    state.waits = None;
                }
                // If the socket is full, the bytes in it wake the reader without this one.
                let sent = self.made.send(extent).is_ok();
                let _ = self.wake.write(b"m");
                sent
            }
            Ok(None) => false,
            Err(_) => !self.shared.pause_until(Instant::now() + AFTER_SHORTAGE, Some(Waits::PoolShort)),
        }
    }

    /// Returns true if taking this many pages leaves enough to others.
    fn has_room(&self, pages: u64) -> bool {
        let available = counts(&self.order.root, self.order.size, PoolScope::Machine)
            .ok()
            .and_then(|counts| counts.available());
        available.is_some_and(|available| available >= pages.saturating_add(self.order.leave))
    }

    /// Makes an extent, page by page. Returns `None` if it is to stop. On an error the pages taken
    /// have been released.
    fn fill(&mut self) -> io::Result<Option<File>> {
        let file = extent::create(self.order.size, self.order.pages)?;
        for page in 0..self.order.pages {
            while let Some(end) = self.calm_from() {
                if self.shared.pause_until(end, Some(Waits::Pressure)) {
                    return Ok(None);
                }
            }
            if self.shared.pause_until(self.next, None) {
                return Ok(None);
            }
            let spent = Duration::from_secs_f64(self.order.size.bytes().0 as f64 / self.order.rate as f64);
            self.next = self.next.max(Instant::now()) + spent;
            // Checked before each page: if others have taken pages meanwhile, the kernel would
            // allocate one beyond the pool.
            if !self.has_room(self.order.pages - page) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            extent::fill(&file, self.order.size, page)?;
        }
        extent::seal(&file)?;
        Ok(Some(file))
    }

    /// Returns the time from which clearing may go on, if tasks have just waited for memory.
    fn calm_from(&self) -> Option<Instant> {
        let end = self.shared.lock().pressed? + AFTER_PRESSURE;
        (end > Instant::now()).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_testing::{PoolGuard, wait_for};
    use std::io::Read;
    use std::sync::mpsc::channel;

    const SIZE: PageSize = PageSize::HUGE_2M;

    fn order(leave: u64) -> Order {
        Order { root: KernelRoot::live(), size: SIZE, pages: 2, rate: 1 << 40, leave, ignore_pressure: true }
    }

    #[test]
    fn extents_are_made_as_wanted_and_are_whole() {
        let Some(pool) = PoolGuard::reserve(SIZE, 4) else { return };
        let (made, extents) = channel();
        let (wake, mut woken) = UnixStream::pair().unwrap();
        let filler = Filler::start(order(0), made, wake).unwrap();
        filler.want(2, 0);
        for _ in 0..2 {
            let extent = extents.recv_timeout(Duration::from_secs(120)).unwrap();
            assert_eq!(extent::present(&extent).unwrap(), 2 * SIZE.bytes().0);
            assert_eq!(extent::length(&extent, SIZE).unwrap(), Some(2 * SIZE.bytes().0));
            woken.read_exact(&mut [0]).unwrap();
            // Any number of times: extents on the way are not made again.
            filler.want(2, 0);
        }
        drop(filler);
        assert!(extents.try_recv().is_err(), "no more than wanted");
        drop(pool);
    }

    #[test]
    fn a_short_pool_is_waited_for_and_what_is_others_is_left() {
        let Some(pool) = PoolGuard::reserve(SIZE, 3) else { return };
        let (made, extents) = channel();
        let (wake, _woken) = UnixStream::pair().unwrap();
        let filler = Filler::start(order(u64::MAX / 2), made, wake).unwrap();
        filler.want(1, 0);
        wait_for("the pool to be short", || filler.waits() == Some(Waits::PoolShort));
        drop(filler);
        assert!(extents.try_recv().is_err());
        drop(pool);
    }
}
