//! Start of a child, reports of its state, and passing signals on to it.
//!
//! File-level obligation: the code that runs between fork and exec makes async-signal-safe calls
//! only. Every structure handed to the kernel is initialised, of the kernel's size, and outlives
//! the call.

#![allow(unsafe_code)]

use crate::c_library;
use megapage_units::{Bytes, Pid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::process::{PidfdFlags, Resource, Rlimit, pidfd_open, setrlimit};
use std::ffi::{CString, OsStr};
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

/// Numbers of the signals that a launcher handles (signal(7)).
pub mod signal {
    pub use libc::{
        SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGQUIT, SIGSEGV, SIGSTOP, SIGTERM, SIGTSTP,
        SIGUSR1, SIGUSR2, SIGWINCH,
    };
}

/// Signals that were ignored at the start, a bit each. They do not reach a program by themselves.
static IGNORED: AtomicU8 = AtomicU8::new(0);
/// Signals that are noted, and their disposition in this process. A broken pipe is an error, and a
/// child that has ended waits to be collected.
const NOTED: [(u8, i32, libc::sighandler_t); 2] =
    [(1, libc::SIGPIPE, libc::SIG_IGN), (2, libc::SIGCHLD, libc::SIG_DFL)];

/// Ignores a signal (SIG_IGN), or restores its default (SIG_DFL). Returns the former disposition.
/// EINVAL: no signal has this number. Async-signal-safe.
///
/// # Panics
/// If the disposition is another one.
pub(super) fn dispose(signal: i32, disposition: libc::sighandler_t) -> io::Result<libc::sighandler_t> {
    assert!(matches!(disposition, libc::SIG_IGN | libc::SIG_DFL));
    // SAFETY: neither disposition runs code.
    match unsafe { libc::signal(signal, disposition) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        former => Ok(former),
    }
}

/// Returns the set of these signals. EINVAL: no signal has one of the numbers.
fn set_of(numbers: &[i32]) -> io::Result<libc::sigset_t> {
    // SAFETY: plain words; zeros are an empty set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    match numbers.iter().all(|number| c_library::sigaddset(&mut set, *number) == 0) {
        true => Ok(set),
        false => Err(io::Error::last_os_error()),
    }
}

/// Changes the signals that the calling thread blocks, as `how` says (SIG_BLOCK, SIG_UNBLOCK,
/// SIG_SETMASK). Returns the former ones. Async-signal-safe.
fn mask(how: i32, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut former = *set;
    match c_library::pthread_sigmask(how, set, Some(&mut former)) {
        0 => Ok(former),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Unblocks all signals in the calling thread. Async-signal-safe.
pub(super) fn unmask_all() {
    let _ = set_of(&[]).and_then(|none| mask(libc::SIG_SETMASK, &none));
}

/// Calls `spawn::note_ignored` before `main`, in the program that has this line.
#[macro_export]
macro_rules! note_ignored {
    () => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static NOTE_IGNORED: extern "C" fn() = $crate::spawn::note_ignored;
    };
}

/// Notes the ignored signals that [`execute`] and [`Signals::spawn`] restore. It runs before
/// `main`, by the macro of its name.
pub extern "C" fn note_ignored() {
    let mut ignored = 0;
    for (bit, signal, here) in NOTED {
        let was_ignored = dispose(signal, here).is_ok_and(|former| former == libc::SIG_IGN);
        ignored |= if was_ignored { bit } else { 0 };
    }
    IGNORED.store(ignored, Relaxed);
}

/// Restores the ignored signals, and resets the others of [`NOTED`], before a program is executed.
/// Async-signal-safe.
fn restore_ignored() -> io::Result<()> {
    let ignored = IGNORED.load(Relaxed);
    for (bit, signal, _) in NOTED {
        let _ = dispose(signal, if ignored & bit != 0 { libc::SIG_IGN } else { libc::SIG_DFL });
    }
    Ok(())
}

/// Executes `command` under `name` in place of this process, with the ignored signals that it has
/// inherited. Returns only if execve(2) has failed, with its error.
///
/// A path is executed by the system call itself. Otherwise libmegapage.so, if it is preloaded here
/// too, would add the variables of the run that this process is in.
pub fn execute(command: &mut Command, name: &OsStr) -> io::Error {
    let text = |name: &OsStr, value: &OsStr| [name.as_bytes(), b"=", value.as_bytes()].concat();
    let changed = |name: &OsStr| command.get_envs().any(|(other, _)| other == name);
    let kept =
        std::env::vars_os().filter(|(name, _)| !changed(name)).map(|(name, value)| text(&name, &value));
    let variables = kept.chain(command.get_envs().filter_map(|(name, value)| Some(text(name, value?))));
    let program = command.get_program();
    let words = [program, name].into_iter().chain(command.get_args());
    let words: Result<Vec<CString>, _> = words.map(|word| CString::new(word.as_bytes())).collect();
    let variables: Result<Vec<CString>, _> = variables.map(CString::new).collect();
    if let (true, Ok(words), Ok(variables)) = (program.as_bytes().contains(&b'/'), words, variables) {
        let list = |texts: &[CString]| -> Vec<*const libc::c_char> {
            texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let _ = restore_ignored();
        let (path, words, variables) = (words[0].as_ptr(), list(&words[1..]), list(&variables));
        // SAFETY: both lists end with a null pointer, and they and their texts outlive the call.
        unsafe { libc::syscall(libc::SYS_execve, path, words.as_ptr(), variables.as_ptr()) };
    }
    // A name is searched in PATH, and a script that the kernel does not know is run by the shell.
    // SAFETY: `restore_ignored` is async-signal-safe.
    unsafe { command.arg0(name).pre_exec(restore_ignored) };
    command.exec()
}

/// Signal that came, and its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Number of the signal.
    pub number: i32,
    /// Process that sent it with kill(2) or the like. `None` for the kernel's own signals, such as
    /// those of the terminal, which go to the whole foreground process group.
    pub sender: Option<Pid>,
}

/// Signals that come through a file descriptor instead of interrupting (signalfd(2)). They stay
/// blocked in this thread until the value is dropped.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    former: libc::sigset_t,
}

impl Signals {
    /// Blocks `numbers` in the calling thread and receives them. Call it before any other thread is
    /// started. A signal that is ignored stays ignored, except SIGCHLD: with it ignored, the kernel
    /// would collect the children itself, and their status would be lost.
    pub fn take(numbers: &[i32]) -> io::Result<Signals> {
        let set = set_of(numbers)?;
        if numbers.contains(&libc::SIGCHLD) {
            dispose(libc::SIGCHLD, libc::SIG_DFL)?;
        }
        let former = mask(libc::SIG_BLOCK, &set)?;
        let fd = c_library::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            let error = io::Error::last_os_error();
            let _ = mask(libc::SIG_SETMASK, &former);
            return Err(error);
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Signals { fd: unsafe { OwnedFd::from_raw_fd(fd) }, former })
    }

    /// Returns the next signal that has come; `None` if there is none at the moment.
    pub fn next(&self) -> io::Result<Option<Signal>> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut info) {
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            read => read?,
        };
        let word = |at: usize| {
            let bytes = info[at..].first_chunk().copied().unwrap_or_default();
            i32::from_ne_bytes(bytes)
        };
        let number = word(offset_of!(libc::signalfd_siginfo, ssi_signo));
        let code = word(offset_of!(libc::signalfd_siginfo, ssi_code));
        let pid = word(offset_of!(libc::signalfd_siginfo, ssi_pid));
        // Codes of at most 0 belong to signals that a process sent: SI_USER, SI_QUEUE, SI_TKILL.
        Ok(Some(Signal { number, sender: (code <= 0).then_some(Pid(pid)) }))
    }

    /// Ends the receiving. Discards signals that came in and were not read: they were meant for a
    /// program that has ended. Ignores the signal `ignored` in this process from now on, so that a
    /// late one does not end it.
    pub fn finish(self, ignored: i32) -> io::Result<()> {
        // Ignoring also discards pending signals (sigaction(2)).
        dispose(ignored, libc::SIG_IGN)?;
        while self.next()?.is_some() {}
        Ok(())
    }

    /// Starts `command` with the signal mask that the caller had before [`Signals::take`], and with
    /// the ignored signals that this process has inherited. The child stays in the caller's process
    /// group, so that the terminal's job control works on both. An error is execve(2)'s.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Pid> {
        self.start(command, None)
    }

    /// Starts `command` like [`Signals::spawn`]. The kernel also sends `last` to the child when the
    /// calling thread ends, for any reason (PR_SET_PDEATHSIG(2const)): the child does not outlive a
    /// killed caller.
    pub fn spawn_bound(&self, command: &mut Command, last: i32) -> io::Result<Pid> {
        self.start(command, Some(last))
    }

    fn start(&self, command: &mut Command, last: Option<i32>) -> io::Result<Pid> {
        let former = self.former;
        let parent = rustix::process::getpid();
        let before = move || {
            if let Some(last) = last {
                let last = rustix::process::Signal::from_named_raw(last).ok_or(rustix::io::Errno::INVAL)?;
                rustix::process::set_parent_process_death_signal(Some(last))?;
                // A parent that ended before the call sends no signal any more.
                if rustix::process::getppid() != Some(parent) {
                    return Err(rustix::io::Errno::CHILD.into());
                }
            }
            mask(libc::SIG_SETMASK, &former)?;
            restore_ignored()
        };
        // SAFETY: the closure only makes system calls, which are async-signal-safe, on values that
        // it owns.
        unsafe { command.pre_exec(before) };
        let child = Pid(command.spawn()?.id() as i32);
        // The memory that the start took counts against the program's limits while the caller keeps
        // it.
        #[cfg(target_env = "gnu")]
        c_library::malloc_trim(0);
        Ok(child)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // Nothing can be done about a failure.
        let _ = mask(libc::SIG_SETMASK, &self.former);
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until `fd` is readable, for at most `timeout`. Returns true if it is.
pub fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    wait_any_readable(&[fd], timeout)
}

/// Waits until one of `fds` is readable, or has been hung up, for at most `timeout` (poll(2)).
/// Returns true if one is.
pub fn wait_any_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Change of a child's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEvent {
    /// It exited with this status.
    Exited(i32),
    /// It died of this signal.
    Died(i32),
    /// It was stopped by this signal.
    Stopped(i32),
    /// It continues after a stop.
    Continued,
}

/// Resources that an ended child used, with the children that it waited for (getrusage(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Page faults served without input.
    pub minor_faults: u64,
    /// Page faults that waited for input.
    pub major_faults: u64,
    /// Largest resident memory of the process or of one of those children; never counts hugetlb
    /// pages.
    pub max_rss: Bytes,
}

/// Returns the change of child `pid` since the last call; `None` if there is none. Never waits.
/// After `Exited` or `Died` the child is collected, and its number may be used again.
pub fn poll_child(pid: Pid) -> io::Result<Option<(ChildEvent, Usage)>> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let options = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
    let event = match c_library::wait4(pid.0, &mut status, options, &mut usage) {
        0 => return Ok(None),
        -1 => return Err(io::Error::last_os_error()),
        _ if libc::WIFEXITED(status) => ChildEvent::Exited(libc::WEXITSTATUS(status)),
        _ if libc::WIFSIGNALED(status) => ChildEvent::Died(libc::WTERMSIG(status)),
        _ if libc::WIFSTOPPED(status) => ChildEvent::Stopped(libc::WSTOPSIG(status)),
        _ => ChildEvent::Continued,
    };
    // SAFETY: all-zero bytes are a valid `rusage`.
    let usage = unsafe { usage.assume_init() };
    let duration = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    let usage = Usage {
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
        minor_faults: usage.ru_minflt as u64,
        major_faults: usage.ru_majflt as u64,
        max_rss: Bytes::kib(usage.ru_maxrss as u64),
    };
    Ok(Some((event, usage)))
}

/// Sends a signal: kill(2). ESRCH if the process has gone, EPERM if the caller may not signal it.
pub fn send_signal(pid: Pid, number: i32) -> io::Result<()> {
    match c_library::kill(pid.0, number) {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the priority of the calling process (all threads that it starts from now on, and the
/// calling one) to `nice`, -20 to 19 (setpriority(2)). EACCES, EPERM: `nice` is below the present
/// one, without CAP_SYS_NICE.
pub fn set_nice(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, nice)?)
}

/// Stops the calling process until another process continues it, as a shell's job control expects
/// of a job.
pub fn stop_self() -> io::Result<()> {
    send_signal(Pid(std::process::id() as i32), libc::SIGSTOP)
}

/// Ends the calling process by signal `number`, without a core file. If the signal does not end a
/// process by default, exits with 128 + `number`, as a shell would put it.
pub fn die_of(number: i32) -> ! {
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = dispose(number, libc::SIG_DFL);
    let _ = set_of(&[number]).and_then(|set| mask(libc::SIG_UNBLOCK, &set));
    c_library::raise(number);
    std::process::exit(128 + number)
}

/// Returns a descriptor that stands for process `pid` and becomes readable when it ends
/// (pidfd_open(2)). ESRCH if there is none.
pub fn open_pidfd(pid: Pid) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid.0).ok_or(io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Returns the process that a pidfd stands for (proc_pid_fdinfo(5)). ESRCH if it has ended.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<Pid> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.filter(|pid| *pid > 0).map(Pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn outcome(pid: Pid) -> (ChildEvent, Usage) {
        let pidfd = open_pidfd(pid).unwrap();
        assert!(
            wait_readable(pidfd.as_fd(), Duration::from_secs(20)).unwrap(),
            "the child should have ended"
        );
        poll_child(pid).unwrap().expect("the child has ended")
    }

    #[test]
    fn a_child_is_started_heard_of_and_signalled() {
        let signals = Signals::take(&[libc::SIGUSR2]).unwrap();
        let pid = signals.spawn(Command::new("sh").args(["-c", "exit 7"])).unwrap();
        let (event, usage) = outcome(pid);
        assert_eq!(event, ChildEvent::Exited(7));
        assert!(usage.minor_faults > 0 && usage.max_rss > Bytes::ZERO);

        let pid = signals.spawn(Command::new("sleep").arg("60")).unwrap();
        assert_eq!(poll_child(pid).unwrap(), None);
        send_signal(pid, libc::SIGTERM).unwrap();
        assert_eq!(outcome(pid).0, ChildEvent::Died(libc::SIGTERM));

        // The child has the mask from before: SIGUSR2, blocked here, ends it.
        let pid = signals.spawn(Command::new("sh").args(["-c", "kill -USR2 $$; exit 3"])).unwrap();
        assert_eq!(outcome(pid).0, ChildEvent::Died(libc::SIGUSR2));

        let error = signals.spawn(&mut Command::new("/no/such/program")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn of_several_descriptors_one_is_enough() {
        let (reader, writer) = io::pipe().unwrap();
        let (silent, _held) = io::pipe().unwrap();
        let both = [silent.as_fd(), reader.as_fd()];
        assert!(!wait_any_readable(&both, Duration::from_millis(5)).unwrap());
        // A hung-up descriptor counts: a reader sees the end only by reading.
        drop(writer);
        assert!(wait_any_readable(&both, Duration::from_secs(60)).unwrap());
    }

    #[test]
    fn a_signal_names_its_sender() {
        let signals = Signals::take(&[libc::SIGWINCH]).unwrap();
        assert_eq!(signals.next().unwrap(), None);
        c_library::raise(libc::SIGWINCH);
        assert!(wait_readable(signals.as_fd(), Duration::from_secs(5)).unwrap());
        let own = Pid(std::process::id() as i32);
        assert_eq!(signals.next().unwrap(), Some(Signal { number: libc::SIGWINCH, sender: Some(own) }));
    }

    #[test]
    fn waiting_ends_with_its_time() {
        let signals = Signals::take(&[libc::SIGURG]).unwrap();
        let start = Instant::now();
        assert!(!wait_readable(signals.as_fd(), Duration::from_millis(20)).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(19));
    }
}
