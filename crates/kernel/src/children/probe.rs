//! Trials that ask for a huge page in a child process, to find out if a user is given one.
//!
//! A trial takes one huge page for a moment and leaves nothing behind. It runs in a child of the
//! caller. So a signal that kills the trial (SIGBUS, seccomp) kills nothing else, and the trial may
//! run as another user. The child keeps the caller's control group, namespaces and seccomp filter.
//!
//! File-level obligation: between fork and exit the child only makes system calls, and touches
//! memory that it has mapped itself or that was prepared before the fork. It allocates nothing,
//! takes no lock, and leaves by _exit(2) or a signal. Other threads of the caller may have held any
//! lock at the fork.

#![allow(unsafe_code)]

use super::child::Child;
use super::spawn::{dispose, unmask_all};
use crate::KernelRoot;
use crate::c_library::{alarm, shmget};
use crate::limits::Limit;
use crate::mapped::Mapped;
use crate::own_advice::Advice;
use crate::process_madvise::advise_directly;
use crate::smaps::read_smaps;
use crate::spare::Spare;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, PageSize, Pid};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Signal, Uid};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seconds after which a child that has not answered is killed.
const PATIENCE_S: u32 = 10;

/// Most memory that a trial takes: during a collapse a huge page takes its memory twice. Pages of a
/// pool are allocated already.
const TAKES: Bytes = Bytes::mib(4);

/// User that a trial's child becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumed {
    /// Real, effective and saved user. Becoming another user than the caller needs CAP_SETUID, and
    /// drops all capabilities unless the user is 0.
    pub uid: u32,
    /// Real, effective and saved group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// RLIMIT_MEMLOCK, which SHM_HUGETLB depends on; `None`: the caller's.
    pub locked: Option<Limit>,
}

/// Request to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// mmap(2) with MAP_HUGETLB of one private page, then a write to it.
    MapHugetlb(PageSize),
    /// shmget(2) with SHM_HUGETLB of one page, then a write to it.
    ShmHugetlb(PageSize),
    /// shmget(2) with SHM_HUGETLB and SHM_NORESERVE of `bytes`, without touching any. This asks
    /// only for the permission, whatever the pool holds.
    ShmPermission {
        /// Page size of the pool.
        size: PageSize,
        /// Size of the segment.
        bytes: Bytes,
    },
    /// New file in this directory of a hugetlbfs mount, one page long, mapped shared and written.
    /// The file is removed as soon as it is open.
    Hugetlbfs {
        /// Mount point, or a directory below it.
        directory: PathBuf,
        /// Page size of the mount.
        size: PageSize,
    },
    /// madvise(MADV_HUGEPAGE) on one aligned region of 2 MiB, then a write to it.
    MadviseThp,
    /// madvise(MADV_POPULATE_WRITE) on one base page (Linux 5.14).
    PopulateWrite,
    /// process_madvise(MADV_COLLAPSE) on one region of another process of the same user (Linux
    /// 6.1). As another user it is always refused: the target is a copy of the caller, which the
    /// other user may not access.
    CollapseOther,
}

/// Kernel's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The page is there, and it is huge if a huge one was asked for.
    Obtained,
    /// Every call succeeded, but the kernel mapped base pages.
    BasePages,
    /// A system call failed.
    Refused {
        /// Name of the call.
        call: &'static str,
        /// Error number, as in errno(3).
        errno: i32,
    },
    /// The child was killed by this signal at the first write: SIGBUS if there was no page.
    Killed(i32),
}

/// Calls that can fail, in the numbering of the child's answer.
const CALLS: [&str; 12] = [
    "setrlimit",
    "setgroups",
    "setresgid",
    "setresuid",
    "mmap",
    "shmget",
    "shmat",
    "open",
    "ftruncate",
    "madvise",
    "fork",
    "process_madvise",
];

/// Number of the first [`CALLS`] that belong to becoming another user, and say nothing about huge
/// pages.
const ASSUMING: usize = 4;

/// Answer that the child writes to its pipe: an index of [`CALLS`] and an errno, or `SUCCESS` and
/// an address.
type Record = [u64; 2];
const SUCCESS: u64 = u64::MAX;

/// Makes one trial, as the caller or as another user.
///
/// # Errors
/// If the trial could not be made at all: too little memory, no child, another user that cannot be
/// assumed, or no answer within ten seconds.
pub fn attempt(who: Option<&Assumed>, trial: &Trial) -> io::Result<Answer> {
    let spare = Spare::read(&KernelRoot::live()).map_err(io::Error::other)?;
    spare.allows(TAKES)?;
    let file = match trial {
        Trial::Hugetlbfs { directory, .. } => {
            let path = directory.join(format!(".megapage-trial.{}", std::process::id()));
            CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?
        }
        _ => CString::default(),
    };
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let groups: Vec<Gid> = who.iter().flat_map(|who| &who.groups).copied().map(Gid::from_raw).collect();
    // SAFETY: the child runs `child` alone, which keeps the file-level obligation; all its
    // arguments were made before the fork.
    let mut child = unsafe { Child::fork(None, || child(who, &groups, trial, &file, writer.as_fd())) }?;
    drop(writer);
    let mut bytes = [0; size_of::<Record>()];
    let answered = File::from(reader).read_exact(&mut bytes);
    let (first, second) = bytes.split_at(8);
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight of them"));
    let record = answered.map(|()| (number(first), number(second)));
    let huge = match record {
        // The child waits, so that its mappings can be read.
        Ok((SUCCESS, address)) if *trial == Trial::MadviseThp => {
            Some(anonymous_huge_at(&KernelRoot::live(), child.pid(), address))
        }
        _ => None,
    };
    // The pipe is at its end or holds an answer: in both cases the child has nothing left to do. If
    // a signal is already on its way to a dying child, that signal is reported.
    child.end();
    let signal = child.status().and_then(|status| status.terminating_signal());
    match record {
        Ok((SUCCESS, _)) => match huge.transpose()? {
            Some(Bytes::ZERO) => Ok(Answer::BasePages),
            _ => Ok(Answer::Obtained),
        },
        Ok((call, errno)) => {
            let errno = errno as i32;
            let call = call as usize;
            let name = CALLS[call.min(CALLS.len() - 1)];
            if call < ASSUMING {
                let error = io::Error::from_raw_os_error(errno);
                return Err(io::Error::new(error.kind(), format!("{name} for the trial: {error}")));
            }
            Ok(Answer::Refused { call: name, errno })
        }
        Err(_) if signal == Some(libc::SIGALRM) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {PATIENCE_S} s")))
        }
        Err(error) => signal.map(Answer::Killed).ok_or(error),
    }
}

/// Returns `AnonHugePages` of the mapping that holds `address`.
fn anonymous_huge_at(root: &KernelRoot, pid: Pid, address: u64) -> io::Result<Bytes> {
    let mappings = read_smaps(root, pid).map_err(io::Error::other)?;
    let mapping =
        mappings.iter().find(|mapping| (mapping.range.start()..mapping.range.end()).contains(&address));
    let missing = || io::Error::other(format!("the smaps of {pid} show no mapping at {address:x}"));
    mapping.map(|mapping| mapping.anon_huge).ok_or_else(missing)
}

/// Runs the child's whole life.
fn child(who: Option<&Assumed>, groups: &[Gid], trial: &Trial, file: &CString, answer: BorrowedFd<'_>) {
    // The Rust runtime would report a SIGBUS as a stack overflow, if it can; the parent needs the
    // signal. The alarm ends the child, whatever happens from here on.
    for signal in [libc::SIGBUS, libc::SIGSEGV, libc::SIGALRM] {
        let _ = dispose(signal, libc::SIG_DFL);
    }
    unmask_all();
    alarm(PATIENCE_S);
    let result = become_user(who, groups).and_then(|()| {
        // Another user's processes must not access this copy of the caller's memory. The kernel has
        // made it undumpable when the user changed, and it stays so. The child is expected to die,
        // and needs no core (a limit of 1 also keeps one from a core_pattern pipe).
        let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) });
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        run(trial, file)
    });
    let record: Record = match result {
        Ok(address) => [SUCCESS, address as u64],
        Err(Failure(call, errno)) => {
            let index = CALLS.iter().position(|name| *name == call).unwrap_or(CALLS.len() - 1);
            [index as u64, errno.raw_os_error() as u64]
        }
    };
    let mut bytes = [0; size_of::<Record>()];
    for (place, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(record) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let _ = rustix::io::write(answer, &bytes);
    wait_to_be_killed()
}

/// Waits until the parent has read the mappings and kills this process, or until the alarm kills
/// it.
fn wait_to_be_killed() -> ! {
    loop {
        rustix::event::pause();
    }
}

/// Name of a failed call, one of [`CALLS`], and its error.
struct Failure(&'static str, Errno);

/// Returns a conversion of the error of `call` to a [`Failure`].
fn failed<E>(call: &'static str) -> impl Fn(E) -> Failure
where
    io::Error: From<E>,
{
    move |error| Failure(call, Errno::from_io_error(&io::Error::from(error)).unwrap_or(Errno::INVAL))
}

/// Changes the child's user, groups and limit. The C library's wrappers would signal threads that
/// this child does not have.
fn become_user(who: Option<&Assumed>, groups: &[Gid]) -> Result<(), Failure> {
    let Some(who) = who else { return Ok(()) };
    if let Some(Limit(locked)) = who.locked {
        let current = locked.map(|bytes| bytes.0);
        let maximum = rustix::process::getrlimit(Resource::Memlock).maximum;
        let maximum = maximum.zip(current).map(|(maximum, current)| maximum.max(current));
        let limit = Rlimit { current, maximum };
        rustix::process::setrlimit(Resource::Memlock, limit).map_err(failed("setrlimit"))?;
    }
    if rustix::process::geteuid().is_root() {
        rustix::thread::set_thread_groups(groups).map_err(failed("setgroups"))?;
    }
    let (user, group) = (Uid::from_raw(who.uid), Gid::from_raw(who.gid));
    rustix::thread::set_thread_res_gid(group, group, group).map_err(failed("setresgid"))?;
    rustix::thread::set_thread_res_uid(user, user, user).map_err(failed("setresuid"))
}

/// Makes the trial. Returns the address that was written.
fn run(trial: &Trial, file: &CString) -> Result<usize, Failure> {
    match trial {
        Trial::MapHugetlb(size) => {
            let flags = libc::MAP_PRIVATE | libc::MAP_HUGETLB | hugetlb_size(*size);
            let len = size.bytes().0 as usize;
            Ok(write_to(Mapped::anonymous(len, BASE_PAGE, flags).map_err(failed("mmap"))?))
        }
        Trial::ShmHugetlb(size) => {
            let id = new_segment(*size, size.bytes(), 0)?;
            // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
            let address = unsafe { libc::shmat(id, ptr::null(), 0) }.cast::<u8>();
            let error = io::Error::last_os_error();
            // From here on the segment lives only while it is attached.
            remove_segment(id);
            if address.addr() == usize::MAX {
                return Err(failed("shmat")(error));
            }
            // SAFETY: the segment is writable, and nothing else knows of it.
            unsafe { address.write_volatile(1) };
            Ok(address.addr())
        }
        Trial::ShmPermission { size, bytes } => {
            remove_segment(new_segment(*size, *bytes, libc::SHM_NORESERVE)?);
            Ok(0)
        }
        Trial::Hugetlbfs { size, .. } => {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let opened = rustix::fs::open(file, flags, Mode::RUSR | Mode::WUSR).map_err(failed("open"))?;
            let _ = rustix::fs::unlink(file);
            let len = size.bytes().0;
            rustix::fs::ftruncate(&opened, len).map_err(failed("ftruncate"))?;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let mapped = Mapped::file(opened.as_fd(), len as usize, access, libc::MAP_SHARED);
            Ok(write_to(mapped.map_err(failed("mmap"))?))
        }
        Trial::MadviseThp => {
            let memory = anonymous_2m()?;
            memory.advise(0, HUGE_2M, Advice::Huge).map_err(failed("madvise"))?;
            Ok(write_to(memory))
        }
        Trial::PopulateWrite => {
            let memory =
                Mapped::anonymous(BASE_PAGE, BASE_PAGE, libc::MAP_PRIVATE).map_err(failed("mmap"))?;
            memory.advise(0, BASE_PAGE, Advice::Populate).map_err(failed("madvise"))?;
            Ok(memory.address().addr())
        }
        Trial::CollapseOther => collapse_other(),
    }
}

/// Makes a segment of hugetlb pages. Returns its number.
fn new_segment(size: PageSize, bytes: Bytes, flags: i32) -> Result<i32, Failure> {
    let flags = flags | libc::IPC_CREAT | libc::SHM_HUGETLB | hugetlb_size(size) | 0o600;
    match shmget(libc::IPC_PRIVATE, bytes.0 as usize, flags) {
        -1 => Err(failed("shmget")(io::Error::last_os_error())),
        id => Ok(id),
    }
}

/// Removes a segment once it is not attached.
fn remove_segment(id: i32) {
    // SAFETY: the command takes no memory.
    unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) };
}

/// Collapses a region of a child of this child.
fn collapse_other() -> Result<usize, Failure> {
    let memory = anonymous_2m()?;
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(failed("fork"))?;
    let target = || {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        // The parent's alarm is not inherited.
        alarm(PATIENCE_S);
        touch(&memory);
        let _ = rustix::io::write(&writer, &[0]);
        wait_to_be_killed()
    };
    let kept = [writer.as_raw_fd()];
    // SAFETY: the target runs this alone, which keeps the file-level obligation, and uses only the
    // pipe.
    let mut target = unsafe { Child::fork(Some(&kept), target) }.map_err(failed("fork"))?;
    drop(writer);
    let _ = rustix::io::read(&reader, &mut [0u8]);
    let range = libc::iovec { iov_base: memory.address().cast(), iov_len: HUGE_2M };
    let advised =
        crate::spawn::open_pidfd(target.pid()).map_err(failed("process_madvise")).and_then(|pidfd| {
            let advised = advise_directly(pidfd.as_fd(), &[range], libc::MADV_COLLAPSE);
            advised.map_err(failed("process_madvise"))
        });
    target.end();
    advised.map(|_| memory.address().addr())
}

/// Maps 2 MiB of anonymous memory at a multiple of that.
fn anonymous_2m() -> Result<Mapped, Failure> {
    Mapped::anonymous(HUGE_2M, HUGE_2M, libc::MAP_PRIVATE).map_err(failed("mmap"))
}

/// Writes to memory, which may raise SIGBUS.
fn touch(memory: &Mapped) {
    memory.slice::<AtomicU64>(0, 1)[0].store(1, Ordering::Relaxed);
}

/// Writes to memory, which stays mapped until the child ends. Returns its address.
fn write_to(memory: Mapped) -> usize {
    touch(&memory);
    let address = memory.address().addr();
    std::mem::forget(memory);
    address
}

/// Returns the bits of mmap(2)'s and shmget(2)'s flags that choose a page size (the same in both).
fn hugetlb_size(size: PageSize) -> i32 {
    (size.bytes().0.trailing_zeros() << libc::MAP_HUGE_SHIFT) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_page_size_is_refused_without_harm() {
        let size = PageSize::new(1 << 40).unwrap();
        let answer = attempt(None, &Trial::MapHugetlb(size)).unwrap();
        assert_eq!(answer, Answer::Refused { call: "mmap", errno: libc::EINVAL });
    }

    #[test]
    fn a_file_outside_of_hugetlbfs_is_only_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_path_buf();
        let trial = Trial::Hugetlbfs { directory: path.clone(), size: PageSize::HUGE_2M };
        assert_eq!(attempt(None, &trial).unwrap(), Answer::Obtained);
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "nothing is left behind");
        let trial = Trial::Hugetlbfs { directory: path.join("none"), size: PageSize::HUGE_2M };
        assert_eq!(attempt(None, &trial).unwrap(), Answer::Refused { call: "open", errno: libc::ENOENT });
    }

    #[test]
    fn becoming_another_user_needs_root() {
        let unprivileged = Assumed { uid: 65_534, gid: 65_534, groups: vec![65_534], locked: None };
        let result = attempt(Some(&unprivileged), &Trial::PopulateWrite);
        if crate::effective_uid() == 0 {
            assert_eq!(result.unwrap(), Answer::Obtained);
            // Only the assumed user is refused this: root's own directory.
            let directory = tempfile::tempdir().unwrap();
            let trial = Trial::Hugetlbfs { directory: directory.path().into(), size: PageSize::HUGE_2M };
            let answer = attempt(Some(&unprivileged), &trial).unwrap();
            assert_eq!(answer, Answer::Refused { call: "open", errno: libc::EACCES });
        } else {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
    }
}
