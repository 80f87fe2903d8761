//! Integrity with the whole daemon. A program uses memory in every way at once, and checks every
//! byte. Meanwhile daemons promote its memory, and take back its bloat, for memory is short in its
//! control group. The daemons are killed at any moment, or stopped and undo their promotions. The
//! test runs without and with swap: 20 s by default, `MEGAPAGE_SOAK_SECONDS` for longer (`make
//! soak`).

use crate::user;

use megapage_act::execute::Executor;
use megapage_daemon::client;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::{send_signal, signal};
use megapage_kernel::{KernelRoot, meminfo};
use megapage_testing::{MachineLock, MemoryGroup, ZramSwap, require_root, skip, until_within};
use megapage_units::{Bytes, Pid};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use user::{MEGAPAGE, until_unlocked};

const SECONDS: &str = "MEGAPAGE_SOAK_SECONDS";
/// Seconds from which on the test demands, and waits, that daemons recovered and promoted. In less
/// time, all daemons that a busy machine lets do so may be killed before.
const DEMANDING: u64 = 120;
/// Longest wait: longer than anything takes on a machine that works.
const PATIENCE: Duration = Duration::from_secs(600);
/// Memory limit of the program's group. With all its memory huge, a child's copy included, the
/// program takes 330 MiB, and for moments up to 376 MiB. It is therefore not killed for lack of
/// memory. Usually it takes 250 to 320 MiB, in leaps: for a policy that looks ahead, memory is
/// short.
const LIMIT: Bytes = Bytes::mib(448);
/// Memory limit with swap: the program reaches it, and the kernel swaps out the excess.
const LIMIT_WITH_SWAP: Bytes = Bytes::mib(320);
const SWAP: Bytes = Bytes::mib(512);
/// Settings by which a daemon acts as often, and as much, as possible. It acts right after forks,
/// for the program forks all the time.
const FAST: &str = "interval = '100ms'\non_exit = 'undo'\n[observe]\nown_percent = 100.0\nown_percent_busy = 100.0\n\
                    own_percent_short = 100.0\nwindow = '50ms'\n[act]\npromoted_per_second = '64g'\n\
                    promoted_per_second_of_process = '64g'\nrecovered_per_second = '64g'\n\
                    recovered_per_second_of_process = '64g'\nlatency_guard = '10s'\npause = '1ms'\n[pressure]\nlook = '10ms'\n\
                    [limits]\nsettle = '0ms'\ncool_down = '0ms'\nchanged_pages = 0\nback_off = '0ms'\n\
                    back_off_most = '1ms'\nfork_quiet = '0ms'\n";
/// The two policies that promote most here. The second promotes by samples, and takes back bloat if
/// memory is short in a group.
const POLICIES: [&str; 2] = ["freebsd", "megapage"];

/// A process that is killed when this is dropped.
struct Running(Child);

impl Running {
    fn pid(&self) -> Pid {
        Pid(self.0.id().cast_signed())
    }

    /// Waits for its end, and returns its status.
    fn end(&mut self) -> std::process::ExitStatus {
        until_within(PATIENCE, "its end", || self.0.try_wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The running program.
struct Workload {
    running: Running,
    said: BufReader<ChildStdout>,
}

impl Workload {
    /// Starts the program in the group, if there is one, so that all its memory is charged there.
    fn start(executable: &Path, directory: &Path, group: Option<&MemoryGroup>) -> Workload {
        let mut command = Command::new("sh");
        // It waits for its group before it takes memory.
        command.args(["-c", "read go && exec \"$0\" \"$1\" </dev/null"]).arg(executable).arg(directory);
        let mut running = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let said = BufReader::new(running.0.stdout.take().unwrap());
        if let Some(group) = group {
            group.add(running.pid()).unwrap();
        }
        running.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let mut workload = Workload { running, said };
        let mut line = String::new();
        workload.said.read_line(&mut line).unwrap();
        assert_eq!(line, "started\n");
        workload
    }

    /// Checks that it has found no fault, and was not killed.
    fn check(&mut self, place: &Place) {
        if let Some(status) = self.running.0.try_wait().unwrap() {
            panic!("the program ended with {status}: {}; {}; {}", self.rest(), place.group(), place.log());
        }
    }

    /// Makes it check everything a last time, and returns its output.
    fn finish(mut self, place: &Place) -> String {
        self.check(place);
        send_signal(self.running.pid(), signal::SIGTERM).unwrap();
        let status = self.running.end();
        let text = self.rest();
        assert!(status.success() && text.contains("OK, "), "the program ended with {status}: {text}");
        text.trim().replace('\n', " ")
    }

    fn rest(&mut self) -> String {
        let mut text = String::new();
        self.said.read_to_string(&mut text).unwrap();
        text
    }

    fn huge(&self) -> Bytes {
        let mappings = read_smaps(&KernelRoot::live(), self.running.pid()).unwrap_or_default();
        mappings.iter().map(|mapping| mapping.anon_huge).sum()
    }
}

/// Files of a program and its daemons, and the program's group, which is removed after the program
/// has ended.
struct Place {
    directory: tempfile::TempDir,
    group: Option<MemoryGroup>,
}

impl Place {
    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Returns the state of the group.
    fn group(&self) -> String {
        match &self.group {
            Some(group) => format!("{:?}", group.usage()),
            None => "no group".into(),
        }
    }

    /// Starts a daemon over all processes of this name.
    fn daemon(&self, name: &str, policy: &str) -> Running {
        let directory = self.directory.path();
        let of = directory.display();
        let config = directory.join("daemon.toml");
        let text = format!(
            "lock_file = '{of}/lock'\nstate_file = '{of}/state.json'\npolicy = '{policy}'\n{FAST}[processes]\n\
             include = ['^{name}$']\nleast_resident = '1m'\n[metrics]\nsocket = '{of}/socket'\n"
        );
        std::fs::write(&config, text).unwrap();
        until_unlocked(&directory.join("lock"));
        let log = File::options().create(true).append(true).open(directory.join("log")).unwrap();
        let mut command = Command::new(MEGAPAGE);
        command.args(["daemon", "--config"]).arg(config).stdout(Stdio::null()).stderr(log);
        Running(command.spawn().unwrap())
    }

    /// Returns the daemon's total of this metric; `None` before the daemon answers.
    fn counted(&self, metric: &str) -> Option<u64> {
        let text = client::get(&self.directory.path().join("socket"), "/metrics").ok()?;
        let rows = text.lines().filter_map(|line| line.strip_prefix(metric)?.rsplit_once(' '));
        Some(rows.map(|(_, value)| value.parse::<u64>().unwrap()).sum())
    }
}

/// Results of the daemons after the first one. Bytes are those that the daemons reported shortly
/// before their end.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    killed: usize,
    stopped: usize,
    promoted: u64,
    freed: u64,
    /// The most at once.
    swapped: Bytes,
}

/// The common part of both tests.
struct Soak<'a> {
    executable: &'a Path,
    name: &'a str,
    time: Duration,
    demanding: bool,
    /// Number of daemons so far, without the first one.
    number: usize,
}

impl Soak<'_> {
    /// Makes the program's group, with a limit at which memory is short.
    fn place(&self, swap: Option<&ZramSwap>) -> Place {
        let name = format!("megapage-daemon-soak-{}", std::process::id());
        let limit = if swap.is_some() { LIMIT_WITH_SWAP } else { LIMIT };
        let group = match MemoryGroup::create(&KernelRoot::live(), &name, limit) {
            Ok(group) => {
                if swap.is_some() {
                    group.allow_swap(limit, SWAP).unwrap();
                }
                Some(group)
            }
            Err(error) => {
                skip(&format!("memory that is short: no memory group can be made here: {error}"));
                None
            }
        };
        Place { directory: tempfile::tempdir().unwrap(), group }
    }

    /// Runs the soak, with `swap`, or without swap of the test.
    fn half(&mut self, swap: Option<&ZramSwap>) {
        let root = KernelRoot::live();
        let place = self.place(swap);
        let mut workload = Workload::start(self.executable, place.directory.path(), place.group.as_ref());
        // The soak begins when some memory is huge, also on a busy machine.
        let started = Instant::now();
        let first = place.daemon(self.name, POLICIES[0]);
        while workload.huge() < Bytes::mib(8) {
            workload.check(&place);
            assert!(started.elapsed() < PATIENCE, "nothing became huge: {}; {}", place.group(), place.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(first);

        // Demand only results that this kernel can give, and that nothing else on the machine
        // prevents.
        let demanding = self.demanding;
        let can_free =
            demanding && place.group.is_some() && Executor::start(&root).unwrap().abilities().frees_zeros;
        let can_swap = swap.is_some() && meminfo(&root).unwrap().swap_total <= Some(SWAP);
        let is_enough = |sum: &Sum| {
            sum.killed > 0
                && sum.stopped > 0
                && (!demanding || sum.promoted > 0)
                && (!can_free || sum.freed > 0)
                && (!demanding || !can_swap || sum.swapped > Bytes::ZERO)
        };
        let (started, mut sum) = (Instant::now(), Sum::default());
        while started.elapsed() < self.time / 2 || !is_enough(&sum) {
            let late = started.elapsed() > self.time / 2 + PATIENCE;
            assert!(!late, "the daemons did too little: {sum:?}; {}; {}", place.group(), place.log());
            let number = self.number;
            self.number += 1;
            let mut running = place.daemon(self.name, POLICIES[number % POLICIES.len()]);
            // The end comes at any time from before the daemon's self-tests are over to some passes
            // later, as evenly as possible without chance. A second wait separates it from the
            // daemon's answer.
            std::thread::sleep(Duration::from_millis(number as u64 * 7919 % 2500));
            sum.promoted += place.counted("megapage_promoted_bytes_total").unwrap_or(0);
            sum.freed += place.counted("megapage_freed_bytes_total").unwrap_or(0);
            if let Some(swap) = swap {
                sum.swapped = sum.swapped.max(swap.used().unwrap());
            }
            std::thread::sleep(Duration::from_millis(20 + number as u64 * 31 % 100));
            workload.check(&place);
            assert_eq!(running.0.try_wait().unwrap(), None, "the daemon ended by itself: {}", place.log());
            if number % 3 == 2 {
                send_signal(running.pid(), signal::SIGTERM).unwrap();
                // Before the daemon waits for signals, SIGTERM ends it like any program.
                running.end();
                sum.stopped += 1;
            } else {
                running.0.kill().unwrap();
                running.end();
                sum.killed += 1;
            }
        }
        let (group, said) = (place.group(), workload.finish(&place));
        println!(
            "{}: {} daemons killed, {} stopped; at least {} promoted, {} freed, {} swapped out; {group}: {said}",
            if swap.is_some() { "with swap" } else { "without swap" },
            sum.killed,
            sum.stopped,
            Bytes(sum.promoted),
            Bytes(sum.freed),
            sum.swapped,
        );
        if let Some(group) = place.group.as_ref().filter(|_| demanding) {
            // The program would not notice that one of its children was killed.
            assert_eq!(
                group.usage().unwrap().oom_kills,
                0,
                "killed for want of memory: there is too little room"
            );
        }
    }
}

/// Lock of these tests: each needs the machine for itself.
static TURN: Mutex<()> = Mutex::new(());

/// Compiles the workload, by a name that no other soak's daemons look for, and soaks it.
fn soak(what: &str, swap: Option<&ZramSwap>) {
    let directory = tempfile::tempdir().unwrap();
    let name = format!("soak{}{what}", std::process::id());
    let executable = directory.path().join(&name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../act/tests/soak/workload.c");
    let compiled = Command::new("cc").args(["-O2", "-pthread", "-o"]).arg(&executable).arg(source).status();
    match compiled {
        Ok(status) => assert!(status.success(), "cc: {status}"),
        Err(error) => return skip(&format!("needs a C compiler, cc: {error}")),
    }
    let seconds = std::env::var(SECONDS).map_or(20, |text| text.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let demanding = seconds >= DEMANDING;
    Soak { executable: &executable, name: &name, time, demanding, number: 0 }.half(swap);
}

#[test]
fn no_byte_is_lost_however_daemons_end_without_swap() {
    if require_root() {
        let _turn = TURN.lock();
        soak("a", None);
    }
}

#[test]
fn no_byte_is_lost_however_daemons_end_with_swap() {
    if !require_root() {
        return;
    }
    let _turn = TURN.lock();
    // Other tests that change the machine, or count pages exactly, must not run while it has swap.
    let _lock = MachineLock::take();
    match ZramSwap::start(&KernelRoot::live(), SWAP).unwrap() {
        Some(swap) => soak("b", Some(&swap)),
        None => skip("swap: needs a kernel with zram"),
    }
}
