//! One process, as `/proc/PID` shows it (proc_pid_status(5), proc_pid_stat(5)).

use crate::identity::Capabilities;
use crate::{KernelError, KernelRoot};
use megapage_units::{Bytes, Pid};
use std::path::PathBuf;
use std::time::Duration;

/// What `/proc/PID/status` says. Figures that a kernel thread or a zombie lacks are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The command name, at most 15 bytes.
    pub name: String,
    /// The state letter of proc(5): R, S, D, T, t, Z, X, I.
    pub state: char,
    /// The process (its thread group).
    pub pid: Pid,
    /// The parent.
    pub parent: Pid,
    /// Real, effective, saved and file-system user identifiers.
    pub uids: [u32; 4],
    /// Real, effective, saved and file-system group identifiers.
    pub gids: [u32; 4],
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The largest resident memory so far; never counts hugetlb pages.
    pub peak_rss: Bytes,
    /// Resident memory; never counts hugetlb pages.
    pub rss: Bytes,
    /// The anonymous part of `rss`.
    pub rss_anonymous: Bytes,
    /// Mapped hugetlb memory of all sizes.
    pub hugetlb: Bytes,
    /// Page tables.
    pub page_tables: Bytes,
    /// Locked memory.
    pub locked: Bytes,
    /// Memory that the kernel has pinned for it in the long term (RDMA, VFIO, io_uring buffers): it can be
    /// neither moved nor reclaimed.
    pub pinned: Bytes,
    /// Threads.
    pub threads: u64,
    /// The effective capabilities.
    pub capabilities: Capabilities,
    /// Whether the process may have transparent huge pages (`prctl(PR_SET_THP_DISABLE)` clears it). `None`
    /// where the kernel does not say.
    pub thp_enabled: Option<bool>,
    /// Whether system call filters are in force (seccomp mode 2).
    pub seccomp_filter: bool,
}

impl Status {
    /// Whether the process has ended and waits to be collected.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The processes that this one can see, ascending. Those of other users are missing where `/proc` is mounted
/// with `hidepid`.
pub fn list_processes(root: &KernelRoot) -> Result<Vec<Pid>, KernelError> {
    let mut pids: Vec<Pid> =
        root.list("proc")?.iter().filter_map(|name| name.parse().ok().map(Pid)).collect();
    pids.sort();
    Ok(pids)
}

/// The status of `pid`. Readable for every process unless `/proc` is mounted with `hidepid`.
pub fn read_status(root: &KernelRoot, pid: Pid) -> Result<Status, KernelError> {
    read_status_file(root, &format!("proc/{pid}/status"))
}

/// The status of the calling process.
pub fn read_own_status(root: &KernelRoot) -> Result<Status, KernelError> {
    read_status_file(root, "proc/self/status")
}

fn read_status_file(root: &KernelRoot, relative: &str) -> Result<Status, KernelError> {
    let text = root.read(relative)?;
    parse_status(&text).map_err(|(line, what)| KernelError::Parse { path: root.path(relative), line, what })
}

fn parse_status(text: &str) -> Result<Status, (usize, String)> {
    let mut status = Status {
        name: String::new(),
        state: '?',
        pid: Pid(0),
        parent: Pid(0),
        uids: [0; 4],
        gids: [0; 4],
        groups: Vec::new(),
        peak_rss: Bytes::ZERO,
        rss: Bytes::ZERO,
        rss_anonymous: Bytes::ZERO,
        hugetlb: Bytes::ZERO,
        page_tables: Bytes::ZERO,
        locked: Bytes::ZERO,
        pinned: Bytes::ZERO,
        threads: 0,
        capabilities: Capabilities::NONE,
        thp_enabled: None,
        seccomp_filter: false,
    };
    for (index, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let bad = || (index + 1, format!("expected a figure, found '{line}'"));
        let number = || value.parse::<u64>().map_err(|_| bad());
        let kib = || value.trim_end_matches(" kB").parse().map(Bytes::kib).map_err(|_| bad());
        let four = || -> Result<[u32; 4], (usize, String)> {
            let figures: Option<Vec<u32>> = value.split_whitespace().map(|word| word.parse().ok()).collect();
            figures.and_then(|figures| figures.try_into().ok()).ok_or_else(bad)
        };
        match key {
            "Name" => status.name = value.to_string(),
            "State" => status.state = value.chars().next().ok_or_else(bad)?,
            "Tgid" => status.pid = Pid(value.parse().map_err(|_| bad())?),
            "PPid" => status.parent = Pid(value.parse().map_err(|_| bad())?),
            "Uid" => status.uids = four()?,
            "Gid" => status.gids = four()?,
            "Groups" => {
                let groups: Result<_, _> = value.split_whitespace().map(str::parse).collect();
                status.groups = groups.map_err(|_| bad())?;
            }
            "VmHWM" => status.peak_rss = kib()?,
            "VmRSS" => status.rss = kib()?,
            "RssAnon" => status.rss_anonymous = kib()?,
            "HugetlbPages" => status.hugetlb = kib()?,
            "VmPTE" => status.page_tables = kib()?,
            "VmLck" => status.locked = kib()?,
            "VmPin" => status.pinned = kib()?,
            "Threads" => status.threads = number()?,
            "CapEff" => {
                status.capabilities = Capabilities(u64::from_str_radix(value, 16).map_err(|_| bad())?);
            }
            "THP_enabled" => status.thp_enabled = Some(number()? != 0),
            "Seccomp" => status.seccomp_filter = number()? == 2,
            _ => {}
        }
    }
    Ok(status)
}

/// When `pid` started, in clock ticks after boot: with the identifier, a name that is never used again.
pub fn read_start_time(root: &KernelRoot, pid: Pid) -> Result<u64, KernelError> {
    let relative = format!("proc/{pid}/stat");
    let text = root.read(&relative)?;
    // The command name is in parentheses and may hold anything: count fields from the last ')'.
    let after_name = text.rfind(')').map(|at| &text[at + 1..]);
    after_name.and_then(|rest| rest.split_whitespace().nth(19)?.parse().ok()).ok_or_else(|| {
        KernelError::Parse {
            path: root.path(relative),
            line: 1,
            what: "expected field 22, the start time".into(),
        }
    })
}

/// The file that `pid` executes. Needs the right to trace the process.
pub fn read_exe(root: &KernelRoot, pid: Pid) -> Result<PathBuf, KernelError> {
    let path = root.path(format!("proc/{pid}/exe"));
    std::fs::read_link(&path).map_err(|source| KernelError::Io { path, source })
}

/// The argument vector of `pid`; empty for kernel threads and zombies.
pub fn read_cmdline(root: &KernelRoot, pid: Pid) -> Result<Vec<String>, KernelError> {
    let text = root.read(format!("proc/{pid}/cmdline"))?;
    Ok(text.split_terminator('\0').map(str::to_string).collect())
}

/// Processor time that the calling thread has used (CLOCK_THREAD_CPUTIME_ID, clock_gettime(2)).
pub fn own_thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_status_is_read() {
        let root = KernelRoot::live();
        let status = read_own_status(&root).unwrap();
        assert_eq!(status.pid.0 as u32, std::process::id());
        assert!(status.rss > Bytes::kib(100) && status.peak_rss >= status.rss_anonymous);
        assert!(status.threads >= 1 && !status.is_zombie());
        assert!(read_start_time(&root, status.pid).unwrap() > 0);
        assert_eq!(read_exe(&root, status.pid).unwrap(), std::env::current_exe().unwrap());
        assert!(!read_cmdline(&root, status.pid).unwrap().is_empty());
        assert!(list_processes(&root).unwrap().contains(&status.pid));
    }

    #[test]
    fn fields_that_a_kernel_thread_lacks_are_zero() {
        let status =
            parse_status("Name:\tkthreadd\nState:\tS (sleeping)\nTgid:\t2\nPPid:\t0\nCapEff:\t800000\n")
                .unwrap();
        assert_eq!((status.rss, status.thp_enabled), (Bytes::ZERO, None));
        assert!(status.capabilities.sys_nice() && !status.capabilities.sys_ptrace());
        assert_eq!(parse_status("VmRSS:\tmuch kB\n").unwrap_err().0, 1);
    }

    #[test]
    fn work_takes_processor_time_and_sleep_does_not() {
        let start = own_thread_time();
        std::thread::sleep(Duration::from_millis(50));
        let slept = own_thread_time() - start;
        while own_thread_time() - start - slept < Duration::from_millis(2) {}
        assert!(slept < Duration::from_millis(40), "{slept:?}");
    }

    #[test]
    fn a_process_that_is_not_there_is_gone() {
        let tree = tempfile::tempdir().unwrap();
        assert!(read_status(&KernelRoot::captured(tree.path()), Pid(1)).unwrap_err().is_gone());
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("proc/9")).unwrap();
        let fields = (3..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        std::fs::write(tree.path().join("proc/9/stat"), format!("9 (a) b (c) {fields}\n")).unwrap();
        assert_eq!(read_start_time(&KernelRoot::captured(tree.path()), Pid(9)).unwrap(), 22);
    }
}
