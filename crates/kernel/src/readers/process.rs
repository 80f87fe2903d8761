//! One process, as `/proc/PID` shows it (proc_pid_status(5), proc_pid_stat(5)).

use crate::identity::Capabilities;
use crate::{KernelError, KernelRoot};
use megapage_units::{Bytes, Pid};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

/// Contents of `/proc/PID/status`. Values that a kernel thread or a zombie lacks are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Swapped-out memory.
    pub swap: Bytes,
    /// Page tables.
    pub page_tables: Bytes,
    /// Locked memory.
    pub locked: Bytes,
    /// Memory that the kernel has pinned for it in the long term (RDMA, VFIO, io_uring buffers). It
    /// can be neither moved nor reclaimed.
    pub pinned: Bytes,
    /// Threads.
    pub threads: u64,
    /// The effective capabilities.
    pub capabilities: Capabilities,
    /// True if the process may have transparent huge pages (`prctl(PR_SET_THP_DISABLE)` clears it).
    /// `None` where the kernel does not say.
    pub thp_enabled: Option<bool>,
    /// True if system call filters are in force (seccomp mode 2).
    pub seccomp_filter: bool,
    /// The number of system call filters; `None` before Linux 5.9.
    pub seccomp_filters: Option<u64>,
}

impl Status {
    /// Returns true if the process has ended and waits to be collected.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Returns the processes that this one can see, ascending. Those of other users are missing where
/// `/proc` is mounted with `hidepid`.
pub fn list_processes(root: &KernelRoot) -> Result<Vec<Pid>, KernelError> {
    let mut pids: Vec<Pid> =
        root.list("proc")?.iter().filter_map(|name| name.parse().ok().map(Pid)).collect();
    pids.sort();
    Ok(pids)
}

/// Returns the threads of `pid`, ascending: `/proc/PID/task` (proc_pid_task(5)).
pub fn list_threads(root: &KernelRoot, pid: Pid) -> Result<Vec<i32>, KernelError> {
    let mut threads: Vec<i32> =
        root.list(format!("proc/{pid}/task"))?.iter().filter_map(|name| name.parse().ok()).collect();
    threads.sort();
    Ok(threads)
}

/// Reads the status of `pid`. Readable for every process unless `/proc` is mounted with `hidepid`.
pub fn read_status(root: &KernelRoot, pid: Pid) -> Result<Status, KernelError> {
    read_status_file(root, &format!("proc/{pid}/status"))
}

/// Reads the status of the calling process.
pub fn read_own_status(root: &KernelRoot) -> Result<Status, KernelError> {
    read_status_file(root, "proc/self/status")
}

fn read_status_file(root: &KernelRoot, relative: &str) -> Result<Status, KernelError> {
    let text = root.read(relative)?;
    parse_status(&text).map_err(|(line, what)| KernelError::Parse { path: root.path(relative), line, what })
}

fn parse_status(text: &str) -> Result<Status, (usize, String)> {
    let mut status = Status { state: '?', ..Status::default() };
    for (index, line) in text.lines().enumerate() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let bad = || (index + 1, format!("expected a number, found '{line}'"));
        let number = || value.parse::<u64>().map_err(|_| bad());
        let kib = || value.trim_end_matches(" kB").parse().map(Bytes::kib).map_err(|_| bad());
        let four = || -> Result<[u32; 4], (usize, String)> {
            let numbers: Option<Vec<u32>> = value.split_whitespace().map(|word| word.parse().ok()).collect();
            numbers.and_then(|numbers| numbers.try_into().ok()).ok_or_else(bad)
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
            "VmSwap" => status.swap = kib()?,
            "VmPTE" => status.page_tables = kib()?,
            "VmLck" => status.locked = kib()?,
            "VmPin" => status.pinned = kib()?,
            "Threads" => status.threads = number()?,
            "CapEff" => {
                status.capabilities = Capabilities(u64::from_str_radix(value, 16).map_err(|_| bad())?);
            }
            "THP_enabled" => status.thp_enabled = Some(number()? != 0),
            "Seccomp" => status.seccomp_filter = number()? == 2,
            "Seccomp_filters" => status.seccomp_filters = Some(number()?),
            _ => {}
        }
    }
    Ok(status)
}

/// Fields of `/proc/PID/stat` that megapage uses (proc_pid_stat(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The command name, at most 15 bytes.
    pub name: String,
    /// The state letter of proc(5): R, S, D, T, t, Z, X, I.
    pub state: char,
    /// The parent.
    pub parent: Pid,
    /// True if it is a thread of the kernel's, without user memory (`PF_KTHREAD`).
    pub is_kernel_thread: bool,
    /// Processor time, user and system, of all threads so far, in steps of a clock tick (10 ms).
    /// Without the children's.
    pub cpu: Duration,
    /// The same for its children that have ended and were waited for, and for theirs.
    pub children_cpu: Duration,
    /// Start time, in clock ticks after boot.
    pub start_ticks: u64,
    /// Start of its stack; 0 where the caller may not trace the process.
    pub start_stack: u64,
}

impl Stat {
    /// Returns true if the process has ended and waits to be collected.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Reads `/proc/PID/stat` of `pid`. Readable for every process unless `/proc` is mounted with
/// `hidepid`.
pub fn read_stat(root: &KernelRoot, pid: Pid) -> Result<Stat, KernelError> {
    let relative = format!("proc/{pid}/stat");
    let text = root.read(&relative)?;
    parse_stat(&text).ok_or_else(|| KernelError::Parse {
        path: root.path(relative),
        line: 1,
        what: "expected a name in parentheses and the fields 3 to 28".into(),
    })
}

/// The flag of a kernel thread in field 9 (linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

fn parse_stat(text: &str) -> Option<Stat> {
    // The command name is in parentheses and may hold anything: count fields from the last ')'.
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let fields: Vec<&str> = text[close + 1..].split_whitespace().collect();
    // Fields are counted from 1 in the manual page; the third is the first after the name.
    let field = |number: usize| fields.get(number - 3);
    let number = |number| field(number)?.parse::<u64>().ok();
    Some(Stat {
        name: text.get(open + 1..close)?.to_string(),
        state: field(3)?.chars().next()?,
        parent: Pid(field(4)?.parse().ok()?),
        is_kernel_thread: number(9)? & PF_KTHREAD != 0,
        cpu: ticks(number(14)?.saturating_add(number(15)?)),
        children_cpu: ticks(number(16)?.saturating_add(number(17)?)),
        start_ticks: number(22)?,
        start_stack: number(28)?,
    })
}

/// Converts clock ticks (sysconf(3), `_SC_CLK_TCK`) to time.
pub fn ticks(count: u64) -> Duration {
    let second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_nanos((u128::from(count) * 1_000_000_000 / u128::from(second)) as u64)
}

/// Returns the start time of `pid`, in clock ticks after boot. With the identifier it is a name
/// that is never used again.
pub fn read_start_time(root: &KernelRoot, pid: Pid) -> Result<u64, KernelError> {
    read_stat(root, pid).map(|stat| stat.start_ticks)
}

/// Returns the children of all threads of `pid` (proc_tid_children(5)). `Ok(None)` where the kernel
/// lists none (CONFIG_PROC_CHILDREN), or where there are more threads than `most_threads`.
/// Approximate: a thread or a child that ends during the read may hide another.
pub fn read_children(
    root: &KernelRoot,
    pid: Pid,
    most_threads: usize,
) -> Result<Option<Vec<Pid>>, KernelError> {
    let directory = format!("proc/{pid}/task");
    let threads = root.list(&directory)?;
    if threads.len() > most_threads {
        return Ok(None);
    }
    let mut children = Vec::new();
    for thread in &threads {
        match root.read(format!("{directory}/{thread}/children")) {
            Ok(text) => {
                children.extend(text.split_whitespace().filter_map(|word| word.parse().ok().map(Pid)))
            }
            // A thread that has ended meanwhile is skipped. The first thread lives as long as the
            // process: without its file the kernel has no such files.
            Err(error) if error.is_gone() && *thread == pid.to_string() => return Ok(None),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(children))
}

/// Returns the control group of `pid`, as its service manager names it. Looks in the hierarchy of
/// version 2, in systemd's own of version 1, and in the memory controller's. Takes the first in
/// which it is not in the root group. In others a service may have no group. Empty where the kernel
/// has no control groups.
pub fn read_cgroup(root: &KernelRoot, pid: Pid) -> Result<String, KernelError> {
    let text = root.read(format!("proc/{pid}/cgroup"))?;
    // `4:memory:/path` and `0::/path` (cgroups(7)); the path may hold colons.
    let path = |wanted: &dyn Fn(&str) -> bool| {
        text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            parts.next().filter(|_| wanted(controllers))
        })
    };
    let memory = path(&|controllers| controllers.split(',').any(|name| name == "memory"));
    let all = [path(&str::is_empty), path(&|name| name == "name=systemd"), memory].into_iter().flatten();
    Ok(all.min_by_key(|path| *path == "/").unwrap_or_default().to_string())
}

/// Returns the file that `pid` executes. Needs the right to trace the process.
pub fn read_exe(root: &KernelRoot, pid: Pid) -> Result<PathBuf, KernelError> {
    let path = root.path(format!("proc/{pid}/exe"));
    std::fs::read_link(&path).map_err(|source| KernelError::Io { path, source })
}

/// Returns a name by which we can open a file as `pid` knows it, whatever its mount namespace and
/// root. The file is the one at an absolute `path`, or without a path the program that `pid`
/// executes. Source: proc_pid_root(5), proc_pid_exe(5).
pub fn path_of_its_file(root: &KernelRoot, pid: Pid, path: Option<&str>) -> PathBuf {
    match path {
        None => root.path(format!("proc/{pid}/exe")),
        Some(path) => root.path(format!("proc/{pid}/root")).join(path.trim_start_matches('/')),
    }
}

/// Returns the working directory of `pid`, by its link. As for [`read_exe`], it needs the same user
/// or CAP_SYS_PTRACE.
pub fn read_cwd(root: &KernelRoot, pid: Pid) -> Result<PathBuf, KernelError> {
    let path = root.path(format!("proc/{pid}/cwd"));
    std::fs::read_link(&path).map_err(|source| KernelError::Io { path, source })
}

/// Returns the argument vector of `pid`; empty for kernel threads and zombies. Arguments beyond 256
/// KiB, which a process can give itself, are cut, and the last argument says so.
pub fn read_cmdline(root: &KernelRoot, pid: Pid) -> Result<Vec<String>, KernelError> {
    let (text, cut) = root.read_cut(format!("proc/{pid}/cmdline"))?;
    let mut arguments: Vec<String> = text.split_terminator('\0').map(str::to_string).collect();
    if cut {
        arguments.push("... (cut: longer than 256 KiB)".to_string());
    }
    Ok(arguments)
}

/// Returns the value of the variable `name` in the environment that `pid` was started with
/// (proc_pid_environ(5)). Only the first 256 KiB are read. `None` where it is not set. A change
/// that the program has made since does not show.
pub fn read_environment_variable(
    root: &KernelRoot,
    pid: Pid,
    name: &str,
) -> Result<Option<String>, KernelError> {
    let (text, _) = root.read_cut(format!("proc/{pid}/environ"))?;
    let value = text.split('\0').find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
    Ok(value.map(str::to_string))
}

/// Returns the processor time that the calling thread has used (CLOCK_THREAD_CPUTIME_ID,
/// clock_gettime(2)), and helper processes ([`crate::helper`]) for it.
pub fn own_thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32) + crate::helper_time::thread_cpu_time()
}

/// Time that one thread has waited for a processor while it could run
/// (`/proc/PID/task/TID/schedstat`, kernel documentation "Scheduler Statistics").
#[derive(Debug)]
pub struct OwnRunDelay(File);

impl OwnRunDelay {
    /// Opens the counter of the calling thread. Another thread that reads it gets this thread's
    /// time, too.
    ///
    /// # Errors
    /// Fails if the kernel counts nothing (CONFIG_SCHED_INFO).
    pub fn open() -> io::Result<OwnRunDelay> {
        let delay = OwnRunDelay(File::open("/proc/thread-self/schedstat")?);
        delay.read()?;
        Ok(delay)
    }

    /// Returns the time waited so far.
    pub fn read(&self) -> io::Result<Duration> {
        let mut bytes = [0; 64];
        let count = self.0.read_at(&mut bytes, 0)?;
        let text = str::from_utf8(&bytes[..count]).unwrap_or_default();
        let waited = text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
        waited.map(Duration::from_nanos).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
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
        let exe = std::env::current_exe().unwrap();
        assert_eq!(read_exe(&root, status.pid).unwrap(), exe);
        let id =
            |path: &std::path::Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
        for path in [None, exe.to_str()] {
            assert_eq!(id(&path_of_its_file(&root, status.pid, path)), id(&exe));
        }
        assert!(!read_cmdline(&root, status.pid).unwrap().is_empty());
        assert!(list_processes(&root).unwrap().contains(&status.pid));
        let threads = list_threads(&root, status.pid).unwrap();
        assert!(threads.contains(&status.pid.0) && threads.is_sorted());
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
    fn what_a_thread_has_waited_for_a_processor_never_falls() {
        let Ok(delay) = OwnRunDelay::open() else {
            return megapage_testing::skip("needs a kernel that counts how long threads wait");
        };
        let before = delay.read().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(delay.read().unwrap() >= before);
    }

    #[test]
    fn only_this_threads_own_work_takes_its_time() {
        // Another thread works until its own clock has gone on by 50 ms; this one waits for it,
        // asleep. A machine that takes the processor away just then charges this thread, but not
        // each of five times.
        let waited = || {
            let start = own_thread_time();
            let other = std::thread::spawn(|| {
                let start = own_thread_time();
                while own_thread_time() - start < Duration::from_millis(50) {}
            });
            other.join().unwrap();
            own_thread_time() - start
        };
        assert!((0..5).any(|_| waited() < Duration::from_millis(50)));
        let start = own_thread_time();
        while own_thread_time() - start < Duration::from_millis(2) {}
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        std::fs::create_dir_all(tree.path().join("proc/7")).unwrap();
        std::fs::write(tree.path().join("proc/7/environ"), "HOMES=no\0HOME=/root=1\0EMPTY=\0").unwrap();
        let read = |name| read_environment_variable(&root, Pid(7), name).unwrap();
        assert_eq!((read("HOME").as_deref(), read("EMPTY").as_deref()), (Some("/root=1"), Some("")));
        assert_eq!(read("HO"), None);
        assert!(read_environment_variable(&root, Pid(8), "HOME").unwrap_err().is_gone());
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
        let root = KernelRoot::captured(tree.path());
        assert_eq!(read_start_time(&root, Pid(9)).unwrap(), 22);
        let stat = read_stat(&root, Pid(9)).unwrap();
        assert_eq!((stat.name.as_str(), stat.parent, stat.start_stack), ("a) b (c", Pid(4), 28));
        assert_eq!(stat.cpu, ticks(14 + 15));
        std::fs::write(tree.path().join("proc/9/stat"), "9 (a) S 1 2\n").unwrap();
        let error = read_stat(&root, Pid(9)).unwrap_err().to_string();
        assert!(error.contains("proc/9/stat: line 1: expected a name"), "{error}");
    }

    #[test]
    fn our_own_stat_agrees_with_other_sources() {
        let root = KernelRoot::live();
        let own = Pid(std::process::id() as i32);
        let stat = read_stat(&root, own).unwrap();
        let status = read_own_status(&root).unwrap();
        assert_eq!((&stat.name, stat.parent), (&status.name, status.parent));
        assert!(stat.start_stack > 0 && !stat.is_zombie() && !stat.is_kernel_thread);
        // Two clocks of the kernel need not agree, but a wrong unit would be wrong by ten times or
        // more.
        assert!(stat.cpu <= crate::process_cpu_time() * 2 + Duration::from_secs(1));
    }

    #[test]
    fn a_child_is_listed_with_its_parent() {
        let root = KernelRoot::live();
        // A separate parent: beside other tests' threads and children, which end at any time, this
        // child might be missed.
        let mut parent = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut printed = std::io::BufReader::new(parent.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut printed, &mut line).unwrap();
        let child = Pid(line.trim().parse().unwrap());
        let pid = Pid(parent.id() as i32);
        let children = read_children(&root, pid, usize::MAX).unwrap();
        let none = read_children(&root, pid, 0).unwrap();
        let _ = std::process::Command::new("kill").arg(child.to_string()).status();
        parent.wait().unwrap();
        assert!(children.is_none_or(|list| list == [child]));
        assert_eq!(none, None);
    }

    #[test]
    fn the_control_group_is_the_service_managers() {
        let text = |text: &str| {
            let (_keep, root) = crate::root::captured_tree(&[("proc/9/cgroup", text)]);
            read_cgroup(&root, Pid(9)).unwrap()
        };
        let service = "/system.slice/redis.service";
        assert_eq!(
            text(&format!("5:memory:/system.slice\n1:name=systemd:{service}\n0::{service}\n")),
            service
        );
        assert_eq!(text(&format!("5:memory:/\n1:name=systemd:{service}\n0::/\n")), service);
        assert_eq!(text("5:devices:/\n4:cpuset,memory:/a:b/c\n1:name=systemd:/\n0::/\n"), "/a:b/c");
        assert_eq!(text("4:memory:/\n0::/\n"), "/");
        assert_eq!(text("1:name=systemd:/init\n0::/user.slice\n"), "/user.slice");
        assert_eq!(text(""), "");
    }
}
