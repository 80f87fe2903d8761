//! One run of a user's command: starts it, follows it to its end, and measures its time and memory.

use super::ways::Way;
use crate::signals::SIGNAL_INTERVAL;
use crate::statistics::{Spent, nanoseconds};
use anyhow::{Context, Result, bail};
use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_children;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::{
    ChildEvent, Signals, Usage, open_pidfd, poll_child, send_signal, signal, wait_readable,
};
use megapage_kernel::trusted::{create_report, open_regular};
use megapage_units::{Bytes, Pid};
use std::ffi::OsString;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Time between two looks at a command's memory, in the uncounted round.
const LOOK: Duration = Duration::from_millis(50);
/// Least ratio of the pause after a look to the look's own time; the pause is at most a second.
const LOOK_SHARE: u32 = 20;
/// Longest time that a command may take to end on request; then it is killed.
const GRACE: Duration = Duration::from_secs(3);
/// Largest number of a command's processes that a look covers.
const MOST_PROCESSES: usize = 64;
/// Largest number of threads: a process with more is taken to have no children.
const MOST_THREADS: usize = 256;
/// Bytes read from the end of a log to find its last line.
const TAIL: u64 = 4096;

/// Parts that all runs share.
pub(super) struct Runner<'a> {
    pub(super) megapage: &'a Path,
    pub(super) options: &'a [OsString],
    pub(super) command: &'a [OsString],
    /// The exit status of a command that ends well.
    pub(super) status: i32,
    pub(super) log: PathBuf,
    pub(super) signals: &'a Signals,
}

/// Time and memory of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Took {
    pub(super) spent: Spent,
    /// The largest resident memory of any one of its processes, without hugetlb pages.
    pub(super) max_rss: Bytes,
}

/// The command's heap in the look that found it largest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Heap {
    /// Resident bytes.
    pub(super) resident: u64,
    /// Resident bytes on huge pages of any kind.
    pub(super) huge: u64,
    /// Resident bytes on hugetlb pages.
    pub(super) hugetlb: u64,
}

impl Heap {
    /// Returns the share on huge pages; `None` if no look saw a heap.
    pub(super) fn huge_share(&self) -> Option<f64> {
        (self.resident > 0).then(|| self.huge as f64 / self.resident as f64)
    }
}

impl Runner<'_> {
    /// Runs the command once. Fails if it does not end with the expected status.
    pub(super) fn run(&self, way: &Way, heap: Option<&mut Heap>) -> Result<Took> {
        let log = create_report(&self.log).with_context(|| self.log.display().to_string())?;
        let both = log.try_clone().context("the log")?;
        let mut command = way.command(self.megapage, self.options, self.command)?;
        command.stdin(Stdio::null()).stdout(log).stderr(both);
        let program = self.command.first().map(|word| word.to_string_lossy().into_owned());
        let program = program.unwrap_or_default();
        let start = Instant::now();
        let pid = self
            .signals
            .spawn(&mut command)
            .with_context(|| format!("'{program}' did not start ({})", way.name))?;
        drop(command);
        let (event, usage, wall) = self.follow(pid, start, heap)?;
        match event {
            ChildEvent::Exited(status) if status == self.status => {}
            event => {
                let how = match event {
                    ChildEvent::Exited(status) => format!("ended with status {status}, not {}", self.status),
                    ChildEvent::Died(number) => format!("was ended by signal {number}"),
                    other => format!("did {other:?}"),
                };
                bail!("'{program}' {how} in way '{}'{}", way.name, self.last_words());
            }
        }
        let spent = Spent { wall_ns: nanoseconds(wall), cpu_ns: nanoseconds(usage.user + usage.system) };
        Ok(Took { spent, max_rss: usage.max_rss })
    }

    /// Waits for the process to end. If `heap` is given, looks at the memory meanwhile and keeps
    /// the largest heap.
    fn follow(
        &self,
        pid: Pid,
        start: Instant,
        mut heap: Option<&mut Heap>,
    ) -> Result<(ChildEvent, Usage, Duration)> {
        let ended = open_pidfd(pid).context("pidfd_open")?;
        let mut pause = SIGNAL_INTERVAL;
        loop {
            if let Some(heap) = heap.as_deref_mut() {
                let began = Instant::now();
                let now = look(pid);
                if now.resident > heap.resident {
                    *heap = now;
                }
                pause = LOOK.max(began.elapsed() * LOOK_SHARE).min(SIGNAL_INTERVAL * 10);
            }
            let ready = wait_readable(ended.as_fd(), pause).context("poll")?;
            let wall = start.elapsed();
            if ready
                && let Some((event, usage)) = poll_child(pid).context("wait4")?
                && matches!(event, ChildEvent::Exited(_) | ChildEvent::Died(_))
            {
                return Ok((event, usage, wall));
            }
            if let Err(stopped) = crate::signals::check(self.signals) {
                // SIGTERM goes first: a launcher passes it on.
                for number in [signal::SIGTERM, signal::SIGKILL] {
                    send_signal(pid, number).ok();
                    if wait_readable(ended.as_fd(), GRACE).unwrap_or(false) {
                        break;
                    }
                }
                poll_child(pid).ok();
                return Err(stopped);
            }
        }
    }

    /// Returns the last line that the command wrote, for an error.
    fn last_words(&self) -> String {
        let tail = || -> std::io::Result<Vec<u8>> {
            let mut file = open_regular(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
            let mut bytes = Vec::new();
            file.take(TAIL).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = tail().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        match text.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
            Some(line) => format!(": {line}"),
            None => ", and wrote nothing".into(),
        }
    }
}

/// Returns the sum of the heaps of a process and all its descendants. A process that ends meanwhile
/// counts as 0.
fn look(pid: Pid) -> Heap {
    let root = KernelRoot::live();
    let mut sum = Heap::default();
    let mut processes = vec![pid];
    let mut at = 0;
    while let Some(&process) = processes.get(at).filter(|_| at < MOST_PROCESSES) {
        at += 1;
        let children = read_children(&root, process, MOST_THREADS).ok().flatten();
        processes.extend(children.unwrap_or_default());
        for mapping in read_smaps(&root, process).unwrap_or_default() {
            if mapping.is_heap_like() {
                let backing = mapping.backing();
                sum.resident += backing.total().0;
                sum.huge += backing.huge().0;
                sum.hugetlb += backing.hugetlb_1g.0 + backing.hugetlb_2m.0 + backing.hugetlb_other.0;
            }
        }
    }
    sum
}
