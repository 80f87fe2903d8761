//! Integrity: memory is promoted and recovered as fast as the kernel can, while a program uses it
//! in every way at once and checks every byte. The acting process is killed at any moment. It takes
//! a minute by default; `MEGAPAGE_SOAK_SECONDS` sets a longer time (`make soak`).

use megapage_act::execute::{Actuator, Done, Executor};
use megapage_decide::{Action, Budgets, Latency, Limits, Obtained, Promotions, Reason};
use megapage_kernel::maps::read_maps;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::{KernelRoot, boot_time, process, spawn};
use megapage_snapshot::ProcessId;
use megapage_testing::ZramSwap;
use megapage_testing::{MachineLock, require_root, skip};
use megapage_units::{Bytes, HUGE_2M, PageSize, Pid};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const SECONDS: &str = "MEGAPAGE_SOAK_SECONDS";
/// Environment variable of the process that acts until it is killed: the process that it acts on.
const TARGET: &str = "MEGAPAGE_SOAK_TARGET";
/// Longer than anything takes on a machine that works.
const PATIENCE: Duration = Duration::from_secs(600);

/// Returns promotions without bounds, for the highest speed.
fn unbound() -> Promotions {
    let much = Bytes::gib(1 << 20);
    let (pause, pause_most) = (Duration::ZERO, Duration::ZERO);
    let mut promotions =
        Promotions::new(Limits { back_off: pause, back_off_most: pause, ..Limits::default() });
    promotions.configure(Budgets {
        moved: much,
        moved_per_process: much,
        scanned: much,
        scanned_per_process: much,
        latency: Latency { slow: PATIENCE, pause, pause_most, ..Latency::default() },
        ..Budgets::default()
    });
    promotions
}

/// Returns `pid` and its descendants.
fn family(root: &KernelRoot, pid: Pid) -> Vec<Pid> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        next += 1;
        // One that has ended meanwhile has no children.
        family.extend(process::read_children(root, parent, 4096).ok().flatten().unwrap_or_default());
    }
    family
}

/// Returns the recoveries and promotions that are possible in the anonymous memory of a process
/// now: for each region, the opposite of its state.
fn actions(root: &KernelRoot, pid: Pid) -> Option<(Vec<Action>, Vec<Action>)> {
    let stat = process::read_stat(root, pid).ok()?;
    let process = ProcessId { pid, start_ticks: stat.start_ticks, start_stack: stat.start_stack };
    let mut pagemap = Pagemap::open(root, pid).ok()?;
    let (mut recover, mut promote) = (Vec::new(), Vec::new());
    for mapping in read_maps(root, pid).ok()? {
        if !mapping.write || mapping.shared || mapping.inode != 0 {
            continue;
        }
        for region in pagemap.regions(mapping.range).ok()? {
            let (page, reason) = (region.page, Reason::Period);
            if region.huge == Some(true) {
                recover.push(Action::Recover { process, region: page, reason });
            } else if region.present > 0 || region.swapped > 0 {
                let size = PageSize::HUGE_2M;
                promote.push(Action::Promote { process, region: page, size, reason });
            }
        }
    }
    Some((recover, promote))
}

/// Work done on the program.
#[derive(Debug, Default)]
struct Sum {
    promotions: u64,
    promoted: Bytes,
    recoveries: u64,
    freed: Bytes,
}

impl Sum {
    fn add(&mut self, done: &Done) {
        let obtained = u64::from(done.outcome.obtained == Obtained::Done);
        match done.outcome.action {
            Action::Promote { .. } => self.promotions += obtained,
            _ => self.recoveries += obtained,
        }
        self.promoted += done.promoted;
        self.freed += done.freed;
    }
}

/// Does one round over the whole family, and adds it to `sum`.
fn round(
    root: &KernelRoot,
    executor: &mut Executor,
    promotions: &mut Promotions,
    target: Pid,
    sum: &mut Sum,
) {
    for pid in family(root, target) {
        let Some((recover, promote)) = actions(root, pid) else { continue };
        for actions in [recover, promote] {
            for done in executor.carry_out(boot_time(), &actions, promotions) {
                let obtained = done.outcome.obtained;
                assert!(!matches!(obtained, Obtained::Denied | Obtained::Unsupported), "{done:?}");
                sum.add(&done);
            }
        }
    }
}

/// Not a test: the test starts it to have it killed.
#[test]
#[ignore = "acts until it is killed; started by the other test"]
fn act_until_killed() {
    let Some(target) = std::env::var_os(TARGET).and_then(|pid| pid.to_str()?.parse().ok().map(Pid)) else {
        return;
    };
    let root = KernelRoot::live();
    let (mut executor, mut promotions) = (Executor::start(&root).unwrap(), unbound());
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        round(&root, &mut executor, &mut promotions, target, &mut Sum::default());
        eprintln!("round");
    }
}

/// The program, killed when the value is dropped.
struct Workload(Child);

impl Workload {
    fn start(executable: &Path, directory: &Path) -> Workload {
        let mut command = Command::new(executable);
        command.arg(directory).stdin(Stdio::null()).stdout(Stdio::piped());
        Workload(command.spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id().cast_signed())
    }

    fn check_alive(&mut self) {
        if let Some(status) = self.0.try_wait().unwrap() {
            panic!("the program ended with {status}: {}", self.output());
        }
    }

    fn output(&mut self) -> String {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Has it check everything a last time, and returns its output.
    fn finish(mut self) -> String {
        self.check_alive();
        spawn::send_signal(self.pid(), spawn::signal::SIGTERM).unwrap();
        let started = Instant::now();
        let status = loop {
            match self.0.try_wait().unwrap() {
                Some(status) => break status,
                None if started.elapsed() > PATIENCE => panic!("the program does not end"),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let output = self.output();
        assert!(status.success(), "the program ended with {status}: {output}");
        output
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs one half: acts on the program for `time`, a third of it undisturbed, then in processes that
/// are killed.
fn soak(executable: &Path, time: Duration, what: &str) {
    let root = KernelRoot::live();
    let directory = tempfile::tempdir().unwrap();
    let mut workload = Workload::start(executable, directory.path());
    let target = workload.pid();
    let (mut executor, mut promotions) = (Executor::start(&root).unwrap(), unbound());
    let started = Instant::now();
    // Enough work must be done on the program, however busy the machine is.
    let frees_zeros = executor.abilities().frees_zeros;
    let worked = |sum: &Sum| {
        sum.promoted.0 > 8 * HUGE_2M as u64 && sum.recoveries > 8 && (!frees_zeros || sum.freed > Bytes::ZERO)
    };
    let mut sum = Sum::default();
    while started.elapsed() < time / 3 || (!worked(&sum) && started.elapsed() < PATIENCE) {
        round(&root, &mut executor, &mut promotions, target, &mut sum);
        workload.check_alive();
    }
    assert!(worked(&sum), "{sum:?}, {:?}", executor.counters());
    let (mut kills, mut rounds) = (0, 0);
    while started.elapsed() < time || kills == 0 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "soak::act_until_killed", "--nocapture"])
            .env(TARGET, target.to_string());
        let mut actor = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(actor.stderr.take().unwrap());
        // The kills come between the self-test and some rounds later, spread evenly without chance.
        std::thread::sleep(Duration::from_millis(20 + kills * 7919 % 1200));
        actor.kill().unwrap();
        let status = actor.wait().unwrap();
        let lines: Vec<String> = stderr.lines().map_while(Result::ok).collect();
        assert!(status.code().is_none(), "it should have been killed, not {status}: {lines:?}");
        rounds += lines.iter().filter(|line| line.contains("round")).count();
        kills += 1;
        workload.check_alive();
    }
    // Nothing that the killed processes left hinders the next.
    round(&root, &mut executor, &mut promotions, target, &mut sum);
    let output = workload.finish();
    println!(
        "{what}: {} promoted, {} recovered ({} MiB freed), then {kills} kills after {rounds} rounds: {}",
        sum.promotions,
        sum.recoveries,
        sum.freed.0 >> 20,
        output.replace('\n', " "),
    );
    assert!(output.contains("OK, "), "{output}");
    if output.contains("no O_DIRECT") {
        skip("the file system of temporary files has no O_DIRECT");
    }
}

/// Lock for one test at a time: each wants the machine to itself.
static TURN: Mutex<()> = Mutex::new(());

/// Compiles the workload. Returns `None`, after a loud skip, if it cannot be run.
fn workload(directory: &Path) -> Option<PathBuf> {
    if !require_root() {
        return None;
    }
    let executable = directory.join("workload");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/soak/workload.c");
    let compiled = Command::new("cc").args(["-O2", "-pthread", "-o"]).arg(&executable).arg(source).status();
    match compiled {
        Ok(status) => assert!(status.success(), "cc: {status}"),
        Err(error) => {
            skip(&format!("needs a C compiler, cc: {error}"));
            return None;
        }
    }
    Some(executable)
}

/// Returns half of the time that is asked for.
fn half() -> Duration {
    Duration::from_secs(std::env::var(SECONDS).map_or(60, |text| text.parse().unwrap())) / 2
}

#[test]
fn no_byte_is_lost_and_nobody_dies_without_swap() {
    let directory = tempfile::tempdir().unwrap();
    let Some(executable) = workload(directory.path()) else { return };
    let _turn = TURN.lock();
    soak(&executable, half(), "without swap");
}

#[test]
fn no_byte_is_lost_and_nobody_dies_with_swap() {
    let directory = tempfile::tempdir().unwrap();
    let Some(executable) = workload(directory.path()) else { return };
    let _turn = TURN.lock();
    // Tests that change the machine, or count pages exactly, must not run while it has swap.
    let _lock = MachineLock::take();
    match ZramSwap::start(&KernelRoot::live(), Bytes::mib(512)).unwrap() {
        Some(swap) => {
            soak(&executable, half(), "with swap");
            drop(swap);
        }
        None => skip("swap: needs a kernel with zram"),
    }
}
