//! Samples of a process that does not run: nothing is cleared for them.

use megapage_kernel::process::read_status;
use megapage_kernel::{KernelRoot, cpu_time_of};
use megapage_observe::tracker::{RegionBits, Selected, TrackError, Tracker};
use megapage_observe::{BootClock, Leaf, Observer, Options, Snapshot, TrackerKind};
use megapage_testing::skip;
use megapage_units::{HugeRange, Pid, VirtRange};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_millis(300);
/// Longer than any step takes on a working machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Tracker that counts clearings, and finds every region accessed whole.
struct Counting(Arc<AtomicUsize>);

impl Tracker for Counting {
    fn kind(&self) -> TrackerKind {
        TrackerKind::Bpf
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[]
    }

    fn leaves_shared(&self) -> bool {
        true
    }

    fn clear(&mut self, _: Pid, _: &[VirtRange]) -> Result<(), TrackError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn read(&mut self, _: Pid, ranges: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        let pages = ranges.iter().copied().filter_map(HugeRange::within).flat_map(HugeRange::pages);
        let read = |page| RegionBits {
            page,
            leaf: Leaf::Base,
            present: 512,
            zero_page: 0,
            swapped: 0,
            accessed: Some(512),
            bits: Some([u64::MAX; 8]),
        };
        Ok(pages.map(read).collect())
    }
}

/// Process with 10 MiB that runs once for each byte of input, and answers with a line; killed when
/// dropped.
struct Sleeper(Child, BufReader<ChildStdout>);

const SCRIPT: &str = "import mmap, os
memory = mmap.mmap(-1, 10 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
while True:
    memory.seek(0)
    memory.write(b'x' * (10 << 20))
    os.write(1, b'done\\n')
    if not os.read(0, 1):
        break
";

impl Sleeper {
    /// Starts the process. Returns `None`, after a loud skip, without Python.
    fn start() -> Option<Sleeper> {
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            skip("needs python3");
            return None;
        };
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut sleeper = Sleeper(child, said);
        sleeper.wait_until_asleep();
        Some(sleeper)
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id() as i32)
    }

    /// Waits until it has answered, and sleeps.
    fn wait_until_asleep(&mut self) {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
        let start = Instant::now();
        let mut former = None;
        while start.elapsed() < PATIENCE {
            let taken = cpu_time_of(self.pid()).unwrap();
            let status = read_status(&KernelRoot::live(), self.pid()).unwrap();
            if former.replace(taken) == Some(taken) && status.state == 'S' {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("it does not sleep");
    }

    fn run(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        self.wait_until_asleep();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn observer(promotes: bool) -> (Observer, Arc<AtomicUsize>) {
    let clearings = Arc::new(AtomicUsize::new(0));
    let tracker = Box::new(Counting(clearings.clone()));
    let selected = Selected { tracker, skipped: Vec::new(), first_access_ns: 400.0 };
    let options = Options { window: WINDOW, budget: 1.0, promotes, ..Options::default() };
    let observer =
        Observer::with_parts(&KernelRoot::live(), options, Some(selected), Box::new(BootClock)).unwrap();
    (observer, clearings)
}

/// Returns the coverages of the sampled regions, and the number of samples.
fn sampled(snapshot: &Snapshot, pid: Pid) -> (Vec<u16>, u64) {
    let process = snapshot.process(pid).expect("it lives");
    let coverages = process.regions.iter().filter_map(|region| region.accessed).map(|one| one.coverage);
    (coverages.collect(), process.sampling.as_ref().map_or(0, |sampling| sampling.samples))
}

/// Returns the result of `look` at a process that takes no processor time meanwhile.
fn at_rest<T>(look: impl Fn(Pid) -> T) -> Option<T> {
    let sleeper = Sleeper::start()?;
    for _ in 0..20 {
        let before = cpu_time_of(sleeper.pid()).unwrap();
        let found = look(sleeper.pid());
        if cpu_time_of(sleeper.pid()).unwrap() == before {
            return Some(found);
        }
    }
    panic!("it waits for input, and runs");
}

#[test]
fn who_does_not_run_is_sampled_without_a_clearing() {
    let look = |pid| {
        let (mut observer, clearings) = observer(true);
        let first = observer.snapshot(&[pid]);
        assert_eq!(sampled(&first, pid), (vec![], 0));
        assert!(observer.next_read().is_some(), "a sample is under way");
        std::thread::sleep(WINDOW + WINDOW / 4);
        let is_news = observer.complete_samples();
        (observer.snapshot(&[pid]), clearings.load(Ordering::Relaxed), is_news, pid)
    };
    let Some((snapshot, clearings, is_news, pid)) = at_rest(look) else { return };
    let (coverages, samples) = sampled(&snapshot, pid);
    assert!(coverages.len() >= 4 && coverages.iter().all(|coverage| *coverage == 0), "{coverages:?}");
    assert_eq!((samples, clearings, is_news), (1, 0, false));
    let sampling = snapshot.process(pid).unwrap().sampling.clone().unwrap();
    assert!(sampling.window >= WINDOW && sampling.cost.is_zero() && sampling.bytes.0 >= 8 << 20);
}

#[test]
fn what_waits_is_cleared_once_its_process_runs() {
    let Some(mut sleeper) = Sleeper::start() else { return };
    let (mut observer, clearings) = observer(true);
    let pids = [sleeper.pid()];
    observer.snapshot(&pids);
    assert_eq!(clearings.load(Ordering::Relaxed), 0);
    sleeper.run();
    let start = Instant::now();
    while clearings.load(Ordering::Relaxed) == 0 && start.elapsed() < PATIENCE {
        std::thread::sleep(WINDOW / 10);
        observer.complete_samples();
    }
    // It sleeps in the window of that clearing, but the cleared bits are read.
    let coverages = loop {
        let (coverages, samples) = sampled(&observer.snapshot(&pids), sleeper.pid());
        if samples > 0 || start.elapsed() > PATIENCE {
            break coverages;
        }
        std::thread::sleep(WINDOW / 10);
    };
    // In a region that is partly present, all present pages are accessed.
    assert!(coverages.len() >= 4 && coverages.iter().all(|coverage| *coverage > 0), "{coverages:?}");
    assert!(coverages.contains(&512), "{coverages:?}");
    assert!(clearings.load(Ordering::Relaxed) >= 1);
}

#[test]
fn who_shows_what_is_accessed_clears_at_once() {
    let Some(sleeper) = Sleeper::start() else { return };
    let (mut observer, clearings) = observer(false);
    observer.snapshot(&[sleeper.pid()]);
    assert_eq!(clearings.load(Ordering::Relaxed), 1, "what it accesses between two looks is to be seen");
}

#[test]
fn one_look_tells_of_who_does_not_run() {
    let look = |pid| {
        let (mut observer, clearings) = observer(true);
        let found = sampled(&observer.sample_once(&[pid]), pid);
        (found, clearings.load(Ordering::Relaxed))
    };
    let Some(((coverages, samples), clearings)) = at_rest(look) else { return };
    assert!(coverages.len() >= 4 && coverages.iter().all(|coverage| *coverage == 0), "{coverages:?}");
    assert_eq!((samples, clearings), (1, 0));
}
