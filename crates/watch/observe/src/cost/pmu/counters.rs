//! The counters of all threads of one process.

use megapage_kernel::perf::{Event, Group, Reading, Scope};
use megapage_kernel::process::list_threads;
use megapage_kernel::{KernelError, KernelRoot, errno};
use megapage_units::Pid;
use std::collections::BTreeMap;
use std::io;

/// Largest number of attempts to attach to all threads while new ones keep appearing.
const ATTEMPTS: usize = 5;

/// Reason why counters could not be opened.
#[derive(Debug)]
pub(super) enum OpenError {
    /// There is no such counter.
    Absent(io::Error),
    /// Counting is not allowed.
    Refused,
    /// There are no descriptors left.
    TooMany,
    /// The process has ended.
    Gone,
    /// Any other error.
    Failed(io::Error),
    /// The list of threads could not be read.
    Kernel(KernelError),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        use errno::*;
        match error.raw_os_error() {
            Some(ENOENT | ENODEV | EOPNOTSUPP | ENOSYS) => OpenError::Absent(error),
            Some(EACCES | EPERM) => OpenError::Refused,
            Some(EMFILE | ENFILE) => OpenError::TooMany,
            Some(ESRCH) => OpenError::Gone,
            _ => OpenError::Failed(error),
        }
    }
}

/// Returns the widest scope in which `events` can be counted on the calling thread. It includes
/// kernel mode and new threads, unless these are refused or unknown.
pub(super) fn usable_scope(events: &[Event]) -> Result<Scope, OpenError> {
    let mut scope = Scope { user_only: false, new_threads: true };
    loop {
        match Group::open(0, events, scope) {
            Ok(_) => return Ok(scope),
            Err(error) => match error.raw_os_error() {
                Some(errno::EINVAL) if scope.new_threads => scope.new_threads = false,
                Some(errno::EACCES | errno::EPERM) if !scope.user_only => scope.user_only = true,
                _ => return Err(error.into()),
            },
        }
    }
}

/// Counters on every thread of a process.
#[derive(Debug)]
pub(super) struct Counters {
    pid: Pid,
    events: Vec<Event>,
    scope: Scope,
    /// Group of each thread, and its counts at the last reading.
    threads: BTreeMap<i32, (Group, Reading)>,
}

impl Counters {
    /// Starts to count. With `scope.new_threads` the kernel follows the new threads of each thread.
    /// A thread may appear while the others are attached. The one that started it may then count
    /// it, or none may; this cannot be determined. So attaching is repeated until no thread
    /// appears, at most five times.
    pub(super) fn attach(
        root: &KernelRoot,
        pid: Pid,
        events: &[Event],
        scope: Scope,
    ) -> Result<Counters, OpenError> {
        let mut attempt = 1;
        loop {
            let mut counters = Counters { pid, events: events.to_vec(), scope, threads: BTreeMap::new() };
            let listed = counters.follow(root)?;
            let appeared = list(root, pid)?.iter().any(|thread| !listed.contains(thread));
            if !appeared || !scope.new_threads || attempt == ATTEMPTS {
                return Ok(counters);
            }
            attempt += 1;
        }
    }

    /// Attaches to every thread that is not attached yet. Returns all threads.
    fn follow(&mut self, root: &KernelRoot) -> Result<Vec<i32>, OpenError> {
        let listed = list(root, self.pid)?;
        for thread in &listed {
            if self.threads.contains_key(thread) {
                continue;
            }
            let opened = match Group::open(*thread, &self.events, self.scope) {
                // The kernel also answers this if the thread ends between two counters: the second
                // attempt shows its end.
                Err(error) if error.raw_os_error() == Some(errno::ENODEV) => {
                    Group::open(*thread, &self.events, self.scope)
                }
                opened => opened,
            };
            match opened {
                Ok(group) => {
                    let start = Reading { counts: vec![0; self.events.len()], ..Reading::default() };
                    self.threads.insert(*thread, (group, start));
                }
                Err(error) => match OpenError::from(error) {
                    // The thread has ended since it was listed.
                    OpenError::Gone => {}
                    error => return Err(error),
                },
            }
        }
        if self.threads.is_empty() { Err(OpenError::Gone) } else { Ok(listed) }
    }

    /// Returns the counts of each thread since the last call, or since the start. Works also after
    /// the process has ended. Counts new threads from now on if the kernel does not follow them.
    pub(super) fn advance(&mut self, root: &KernelRoot) -> Result<Vec<Reading>, OpenError> {
        let mut threads = Vec::with_capacity(self.threads.len());
        for (group, last) in self.threads.values_mut() {
            let now = group.read()?;
            threads.push(difference(last, &now));
            *last = now;
        }
        if !self.scope.new_threads {
            match self.follow(root) {
                Ok(listed) => self.threads.retain(|thread, _| listed.contains(thread)),
                Err(OpenError::Gone) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(threads)
    }
}

fn list(root: &KernelRoot, pid: Pid) -> Result<Vec<i32>, OpenError> {
    list_threads(root, pid)
        .map_err(|error| if error.is_gone() { OpenError::Gone } else { OpenError::Kernel(error) })
}

/// Returns the counts between two readings of one group.
pub(super) fn difference(before: &Reading, after: &Reading) -> Reading {
    Reading {
        enabled_ns: after.enabled_ns.saturating_sub(before.enabled_ns),
        running_ns: after.running_ns.saturating_sub(before.running_ns),
        counts: after
            .counts
            .iter()
            .zip(&before.counts)
            .map(|(after, before)| after.saturating_sub(*before))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    const EVENTS: [Event; 2] = [Event::TASK_CLOCK, Event::PAGE_FAULTS];

    /// Child that is killed even if the test fails.
    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn child(script: &str) -> (Ended, Pid) {
        let child = Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap();
        let pid = Pid(child.id() as i32);
        (Ended(child), pid)
    }

    /// Returns the scope for software events. Skips the test with the reason if they cannot be
    /// counted here.
    fn scope() -> Option<Scope> {
        match usable_scope(&EVENTS) {
            Ok(scope) => Some(scope),
            Err(error) => {
                megapage_testing::skip(&format!("perf_event_open: {error:?}"));
                None
            }
        }
    }

    /// Reads every 20 ms until `seen` returns true. A machine may be slow, but not for two minutes.
    fn read_until(counters: &mut Counters, mut seen: impl FnMut(&Counters, Vec<Reading>) -> bool) -> bool {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(20));
            let readings = counters.advance(&KernelRoot::live()).unwrap();
            if seen(counters, readings) {
                return true;
            }
        }
        false
    }

    /// Returns the count of the first event so far, by thread.
    fn so_far(counters: &Counters) -> BTreeMap<i32, u64> {
        counters.threads.iter().map(|(thread, (_, last))| (*thread, last.counts[0])).collect()
    }

    #[test]
    fn another_process_is_counted_until_it_ends() {
        let Some(scope) = scope() else { return };
        let (running, pid) = child("while :; do :; done");
        let mut counters = Counters::attach(&KernelRoot::live(), pid, &EVENTS, scope).unwrap();
        let mut sum = 0;
        let enough = read_until(&mut counters, |_, readings| {
            sum += readings.iter().map(|thread| thread.counts[0]).sum::<u64>();
            sum >= 30_000_000
        });
        assert!(enough, "{sum}");
        drop(running);
        // The counts before its end can still be read; then no more follow.
        counters.advance(&KernelRoot::live()).unwrap();
        let rest = counters.advance(&KernelRoot::live()).unwrap();
        assert!(rest.iter().all(|thread| thread.counts == [0, 0]), "{rest:?}");
        assert!(matches!(Counters::attach(&KernelRoot::live(), pid, &EVENTS, scope), Err(OpenError::Gone)));
    }

    /// Thread that works until it is dropped.
    struct Busy(Option<std::sync::mpsc::Sender<()>>, Option<std::thread::JoinHandle<u64>>);

    impl Busy {
        fn start() -> Busy {
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                let mut sum = 0u64;
                while let Err(std::sync::mpsc::TryRecvError::Empty) = stopped.try_recv() {
                    sum = std::hint::black_box(sum.wrapping_add(1));
                }
                sum
            });
            Busy(Some(stop), Some(thread))
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            drop(self.0.take());
            let _ = self.1.take().map(|thread| thread.join());
        }
    }

    // Other tests run in our process too: the counts may come from their threads, but they come.
    #[test]
    fn threads_that_start_later_are_followed_by_the_kernel() {
        let Some(scope) = scope() else { return };
        if !scope.new_threads {
            return megapage_testing::skip("the kernel follows no new threads");
        }
        let own = Pid(std::process::id() as i32);
        let attach = |new_threads| {
            Counters::attach(&KernelRoot::live(), own, &EVENTS, Scope { new_threads, ..scope }).unwrap()
        };
        let (mut alone, mut counters) = (attach(false), attach(true));
        let initial = so_far(&counters);
        let _busy = Busy::start();
        // The same clock is counted twice. The thread that started the new one counts more with it
        // than alone. `alone` is opened earlier and read later, so that the difference is too small
        // rather than too large.
        let mut most = 0;
        let seen = read_until(&mut counters, |counters, _| {
            alone.advance(&KernelRoot::live()).unwrap();
            let (together, alone) = (so_far(counters), so_far(&alone));
            assert!(together.keys().eq(initial.keys()), "no other thread is attached to");
            let more = together
                .iter()
                .filter_map(|(thread, together)| Some(together.saturating_sub(*alone.get(thread)?)));
            most = more.max().unwrap_or(0);
            most >= 60_000_000
        });
        assert!(seen, "{most} ns of the new thread");
    }

    #[test]
    fn threads_that_start_later_are_found_without_the_kernels_help() {
        let Some(scope) = scope() else { return };
        let own = Pid(std::process::id() as i32);
        let scope = Scope { new_threads: false, ..scope };
        let mut counters = Counters::attach(&KernelRoot::live(), own, &EVENTS, scope).unwrap();
        let initial = so_far(&counters);
        let _busy = Busy::start();
        let mut most = 0;
        let seen = read_until(&mut counters, |counters, _| {
            let new = so_far(counters).into_iter().filter(|(thread, _)| !initial.contains_key(thread));
            most = new.map(|(_, counted)| counted).max().unwrap_or(0);
            most >= 60_000_000
        });
        assert!(seen, "{most} ns of the new thread");
    }

    #[test]
    fn an_ended_process_is_gone() {
        let gone = Counters::attach(
            &KernelRoot::captured("/nonexistent"),
            Pid(1),
            &EVENTS,
            Scope { user_only: true, new_threads: false },
        );
        assert!(matches!(gone, Err(OpenError::Gone)));
    }
}
