//! One run of a user's command: started, followed to its end, and what it took.

use super::ways::Way;
use crate::signals::SIGNAL_INTERVAL;
use crate::workload::{Spent, nanoseconds};
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

/// Between two looks at a command's memory, in the round that does not count.
const LOOK: Duration = Duration::from_millis(50);
/// A look takes at most this share of the time until the next one.
const LOOK_SHARE: u32 = 20;
/// How long a command that is asked to end may take, then it is killed.
const GRACE: Duration = Duration::from_secs(3);
/// Processes of a command that are looked at.
const MOST_PROCESSES: usize = 64;
/// A process with more threads is taken to have no children.
const MOST_THREADS: usize = 256;
/// What is read of the end of a log for its last line.
const TAIL: u64 = 4096;

/// What every run is made of.
pub(super) struct Runner<'a> {
    pub(super) megapage: &'a Path,
    pub(super) options: &'a [OsString],
    pub(super) command: &'a [OsString],
    /// The exit status with which it ends well.
    pub(super) status: i32,
    pub(super) log: PathBuf,
    pub(super) signals: &'a Signals,
}

/// What one run took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Took {
    pub(super) spent: Spent,
    /// The largest resident memory of one of its processes, without hugetlb pages.
    pub(super) max_rss: Bytes,
}

/// The command's heap at the moment at which it was largest, of the moments that were looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Heap {
    /// Resident bytes.
    pub(super) resident: u64,
    /// Those of them on huge pages of any kind.
    pub(super) huge: u64,
    /// Those of them on hugetlb pages.
    pub(super) hugetlb: u64,
}

impl Heap {
    /// The share on huge pages; `None` where nothing was seen.
    pub(super) fn huge_share(&self) -> Option<f64> {
        (self.resident > 0).then(|| self.huge as f64 / self.resident as f64)
    }
}

impl Runner<'_> {
    /// Runs the command once. An error where it does not end with the status that it should.
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

    /// Waits for its end; looks at its memory meanwhile where `heap` is given.
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
                // SIGTERM first: a launcher passes that on.
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

    /// The last line that the command wrote, for an error.
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

/// The heaps of a process and all its descendants. One that ends meanwhile has none.
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
