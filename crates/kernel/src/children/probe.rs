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
use crate::KernelRoot;
use crate::limits::Limit;
use crate::smaps::read_smaps;
use crate::spare::Spare;
use megapage_units::{Bytes, HUGE_2M, PageSize, Pid};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;

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
    // SAFETY: the child runs `child` alone, which keeps the file-level obligation; all its
    // arguments were made before the fork.
    let mut child = unsafe { Child::fork(|| child(who, trial, &file, writer.as_raw_fd())) }?;
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
///
/// # Safety
/// To be called in a newly forked child, with a descriptor that it may write to.
unsafe fn child(who: Option<&Assumed>, trial: &Trial, file: &CString, answer: RawFd) -> ! {
    // SAFETY: for the whole block, system calls with valid arguments, and writes to memory mapped
    // here.
    unsafe {
        // The Rust runtime would report a SIGBUS as a stack overflow, if it can; the parent needs
        // the signal.
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        // The alarm ends the child, whatever happens from here on.
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        libc::alarm(PATIENCE_S);
        let result = match become_user(who) {
            Ok(()) => {
                // Another user's processes must not access this copy of the caller's memory. The
                // kernel has made it undumpable when the user changed, and it stays so. The child
                // is expected to die, and needs no core (a limit of 1 also keeps one from a
                // core_pattern pipe).
                let core = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
                libc::setrlimit(libc::RLIMIT_CORE, &core);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                run(trial, file, answer)
            }
            Err(failure) => Err(failure),
        };
        let record: Record = match result {
            Ok(address) => [SUCCESS, address as u64],
            Err(Failure(call, errno)) => [call, errno as u64],
        };
        libc::write(answer, record.as_ptr().cast(), size_of::<Record>());
        // The child waits until the parent has read its mappings and kills it, or until the alarm
        // does.
        loop {
            libc::pause();
        }
    }
}

/// Index of a failed call in [`CALLS`], and its errno.
struct Failure(u64, i32);

/// Turns a call's result into a [`Failure`] if it is -1.
fn check<T: PartialEq + From<i8>>(call: &str, result: T) -> Result<T, Failure> {
    if result != T::from(-1) {
        return Ok(result);
    }
    let index = CALLS.iter().position(|name| *name == call).unwrap_or(CALLS.len() - 1);
    // SAFETY: the C library's own errno, which always exists by its own documentation.
    Err(Failure(index as u64, unsafe { *libc::__errno_location() }))
}

/// Changes the child's user, groups and limit.
///
/// # Safety
/// As [`child`].
unsafe fn become_user(who: Option<&Assumed>) -> Result<(), Failure> {
    let Some(who) = who else { return Ok(()) };
    // SAFETY: for the whole block, system calls whose pointers are to values that live here. They
    // are made directly: the C library's wrappers would signal threads that this child does not
    // have.
    unsafe {
        if let Some(Limit(locked)) = who.locked {
            let cur = locked.map_or(libc::RLIM_INFINITY, |bytes| bytes.0);
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit);
            limit = libc::rlimit { rlim_cur: cur, rlim_max: limit.rlim_max.max(cur) };
            check("setrlimit", libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit))?;
        }
        if libc::geteuid() == 0 {
            check("setgroups", libc::syscall(libc::SYS_setgroups, who.groups.len(), who.groups.as_ptr()))?;
        }
        check("setresgid", libc::syscall(libc::SYS_setresgid, who.gid, who.gid, who.gid))?;
        check("setresuid", libc::syscall(libc::SYS_setresuid, who.uid, who.uid, who.uid))?;
    }
    Ok(())
}

/// Makes the trial. Returns the address that was written.
///
/// # Safety
/// As [`child`].
unsafe fn run(trial: &Trial, file: &CString, answer: RawFd) -> Result<usize, Failure> {
    const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: for the whole block, mappings at addresses of the kernel's choice overlap nothing.
    // Only they are written to, within their length; the file's name is a C string.
    unsafe {
        match trial {
            Trial::MapHugetlb(size) => {
                let flags = ANONYMOUS | libc::MAP_HUGETLB | hugetlb_size(*size);
                let address = map(size.bytes(), flags, -1)?;
                write_to(address);
                Ok(address)
            }
            Trial::ShmHugetlb(size) => {
                let flags = libc::IPC_CREAT | libc::SHM_HUGETLB | hugetlb_size(*size) | 0o600;
                let id = check("shmget", libc::shmget(libc::IPC_PRIVATE, size.bytes().0 as usize, flags))?;
                let attached = check("shmat", libc::shmat(id, ptr::null(), 0) as isize);
                // From here on the segment lives only while it is attached.
                libc::shmctl(id, libc::IPC_RMID, ptr::null_mut());
                let address = attached? as usize;
                write_to(address);
                Ok(address)
            }
            Trial::ShmPermission { size, bytes } => {
                let flags =
                    libc::IPC_CREAT | libc::SHM_HUGETLB | libc::SHM_NORESERVE | hugetlb_size(*size) | 0o600;
                let id = check("shmget", libc::shmget(libc::IPC_PRIVATE, bytes.0 as usize, flags))?;
                libc::shmctl(id, libc::IPC_RMID, ptr::null_mut());
                Ok(0)
            }
            Trial::Hugetlbfs { size, .. } => {
                let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
                let descriptor = check("open", libc::open(file.as_ptr(), flags, 0o600))?;
                libc::unlink(file.as_ptr());
                check("ftruncate", libc::ftruncate(descriptor, size.bytes().0 as i64))?;
                let address = map(size.bytes(), libc::MAP_SHARED, descriptor)?;
                write_to(address);
                Ok(address)
            }
            Trial::MadviseThp => {
                let address = map(Bytes(2 * HUGE_2M as u64), ANONYMOUS, -1)?.next_multiple_of(HUGE_2M);
                let pointer = ptr::without_provenance_mut(address);
                check("madvise", libc::madvise(pointer, HUGE_2M, libc::MADV_HUGEPAGE))?;
                write_to(address);
                Ok(address)
            }
            Trial::PopulateWrite => {
                let address = map(Bytes(4096), ANONYMOUS, -1)?;
                let pointer = ptr::without_provenance_mut(address);
                check("madvise", libc::madvise(pointer, 4096, libc::MADV_POPULATE_WRITE))?;
                Ok(address)
            }
            Trial::CollapseOther => collapse_other(answer),
        }
    }
}

/// Collapses a region of a child of this child.
///
/// # Safety
/// As [`child`].
unsafe fn collapse_other(answer: RawFd) -> Result<usize, Failure> {
    // SAFETY: for the whole block, as in `run`; the descriptors are this process's own.
    unsafe {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let address = map(Bytes(2 * HUGE_2M as u64), anonymous, -1)?.next_multiple_of(HUGE_2M);
        let mut ready = [-1; 2];
        check("fork", libc::pipe2(ready.as_mut_ptr(), libc::O_CLOEXEC))?;
        let target = check("fork", libc::fork())?;
        if target == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The parent's alarm is not inherited.
            libc::alarm(PATIENCE_S);
            libc::close(answer);
            write_to(address);
            libc::write(ready[1], ptr::from_ref(&0u8).cast(), 1);
            loop {
                libc::pause();
            }
        }
        libc::close(ready[1]);
        let mut byte = 0u8;
        libc::read(ready[0], ptr::from_mut(&mut byte).cast(), 1);
        let descriptor = libc::syscall(libc::SYS_pidfd_open, target, 0);
        let range = libc::iovec { iov_base: ptr::without_provenance_mut(address), iov_len: HUGE_2M };
        let range = ptr::from_ref(&range);
        let result = check("process_madvise", descriptor).and_then(|descriptor| {
            let advised =
                libc::syscall(libc::SYS_process_madvise, descriptor, range, 1, libc::MADV_COLLAPSE, 0);
            check("process_madvise", advised)
        });
        libc::kill(target, libc::SIGKILL);
        libc::waitpid(target, ptr::null_mut(), 0);
        result.map(|_| address)
    }
}

/// Maps new memory, readable and writable. Returns its address.
///
/// # Safety
/// `flags` without MAP_FIXED.
unsafe fn map(length: Bytes, flags: i32, descriptor: RawFd) -> Result<usize, Failure> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let address = unsafe { libc::mmap(ptr::null_mut(), length.0 as usize, protection, flags, descriptor, 0) };
    check("mmap", address as isize).map(|address| address as usize)
}

/// Writes one byte.
///
/// # Safety
/// `address` must be that of a writable mapping which nothing else uses. The write may raise
/// SIGBUS.
unsafe fn write_to(address: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(address).write_volatile(1) };
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
