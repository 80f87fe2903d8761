//! Common parts of actions on another process's memory: the rights needed, the bounds, the errors.

use megapage_kernel::ability::{Ability, COLLAPSE, THP};
use megapage_kernel::{KernelError, KernelRoot, process};
use megapage_snapshot::ProcessId;
use megapage_units::Pid;
use std::io;
use std::time::Duration;
use thiserror::Error;

/// Reason that no memory of another process was acted on, or that an action ended early.
#[derive(Debug, Error)]
pub enum RemoteError {
    /// The caller lacks a right. The text says which.
    #[error("process {pid}: {lacking}")]
    NotAllowed {
        /// The process.
        pid: Pid,
        /// Right that the caller would need, and how to get it.
        lacking: String,
    },
    /// There is no such process.
    #[error("process {0}: no such process")]
    Gone(Pid),
    /// The kernel lacks an ability.
    #[error("{}: {}", .0.lacking(), remedy(.0))]
    Unsupported(&'static Ability),
    /// The caller cannot see which regions are huge, and so cannot see the effect of an action.
    #[error(
        "the kernel does not show which regions are huge, and the page frames cannot be read: that takes Linux 6.7 \
         (PAGEMAP_SCAN), or CAP_SYS_ADMIN and the kernel option CONFIG_PROC_PAGE_MONITOR"
    )]
    Unseen,
    /// An action on anything but the running machine.
    #[error("a captured tree cannot be acted on")]
    NotLive,
    /// Another answer of the kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Another answer of process_madvise.
    #[error("process {pid}: process_madvise: {source}")]
    Call {
        /// The process.
        pid: Pid,
        /// The answer.
        source: io::Error,
    },
}

/// Returns the advice for a missing ability.
fn remedy(ability: &Ability) -> &'static str {
    match ability.id {
        "collapse" => {
            "nothing can be promoted on request; transparent_hugepage/enabled = always lets khugepaged promote it, or \
             start the program with megapage run"
        }
        _ => ability.without,
    }
}

/// Bounds on the cost of an action on another process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most regions in one call; [`megapage_decide::Latency`] may allow fewer. A batch bounds the
    /// time for which the caller reacts to nothing else.
    pub batch: usize,
    /// Time after which no further call is made.
    pub time: Duration,
    /// Pause after each call, in hundredths of the call's time, so that the process gets its mmap
    /// lock and the processor. At most 50 ms, and at least the pause of
    /// [`megapage_decide::Latency`].
    pub pause_percent: u32,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { batch: 16, time: Duration::from_secs(10), pause_percent: 0 }
    }
}

/// Returns the ability that the kernel lacks for promoting memory of another process on request;
/// `None` if it lacks none.
pub fn lacking_ability(root: &KernelRoot) -> Option<&'static Ability> {
    [&THP, &COLLAPSE].into_iter().find(|ability| !ability.is_there(root))
}

/// Returns the right that the caller lacks to promote memory of `pid`; `None` if none is known to
/// be missing.
pub fn lacking_right(root: &KernelRoot, pid: Option<Pid>) -> Result<Option<String>, KernelError> {
    let own = process::read_own_status(root)?;
    if !own.capabilities.sys_nice() {
        return Ok(Some(
            "external promotion needs CAP_SYS_NICE: run as root, or setcap cap_sys_nice,cap_sys_ptrace=ep on a copy of megapage that only those may execute whom you trust with it (mode 0750): it reads others' memory maps"
                .into(),
        ));
    }
    let Some(pid) = pid else { return Ok(None) };
    let other = process::read_status(root, pid)?;
    if other.uids[..3].iter().any(|&uid| uid != own.uids[1]) && !own.capabilities.sys_ptrace() {
        return Ok(Some(format!(
            "it belongs to user {}: external promotion needs CAP_SYS_PTRACE as well as CAP_SYS_NICE",
            other.uids[1]
        )));
    }
    Ok(None)
}

/// Returns the process that has this number now: a later action on its memory can check that it is
/// the same.
pub fn identify(root: &KernelRoot, pid: Pid) -> Result<ProcessId, RemoteError> {
    let stat = process::read_stat(root, pid).map_err(|error| refusal(root, pid, error))?;
    match stat.is_zombie() {
        true => Err(RemoteError::Gone(pid)),
        false => Ok(ProcessId { pid, start_ticks: stat.start_ticks, start_stack: stat.start_stack }),
    }
}

/// Returns a reader's error as the user should see it.
pub(crate) fn refusal(root: &KernelRoot, pid: Pid, error: KernelError) -> RemoteError {
    match error.raw_os_error() {
        _ if error.is_gone() => RemoteError::Gone(pid),
        // EACCES and EPERM.
        Some(13 | 1) => RemoteError::NotAllowed {
            pid,
            lacking: lacking_right(root, Some(pid)).ok().flatten().unwrap_or_else(|| {
                "its memory map cannot be read: CAP_SYS_PTRACE lacks, or a security module forbids it".into()
            }),
        },
        _ => RemoteError::Kernel(error),
    }
}

/// Returns the error that ends the action, for an answer of process_madvise that is not about a
/// single region. Returns `None` if the process has ended, which is normal.
pub(crate) fn call_failed(
    root: &KernelRoot,
    pid: Pid,
    error: io::Error,
    ability: &'static Ability,
) -> Option<RemoteError> {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let lacking = "process_madvise was refused though CAP_SYS_NICE is held: a security module, a seccomp \
                           filter or a user namespace forbids it";
            Some(RemoteError::NotAllowed { pid, lacking: lacking.into() })
        }
        io::ErrorKind::Unsupported if ability.is_there(root) => {
            let lacking = "a filter of system calls (seccomp) refuses process_madvise, which this kernel has";
            Some(RemoteError::NotAllowed { pid, lacking: lacking.into() })
        }
        io::ErrorKind::Unsupported => Some(RemoteError::Unsupported(ability)),
        // ESRCH has no `io::ErrorKind`. A process that ends has no memory any more some time
        // before it is a zombie.
        _ if error.raw_os_error() == Some(3) => None,
        _ if process::read_status(root, pid).is_ok_and(|status| !status.is_zombie()) => {
            Some(RemoteError::Call { pid, source: error })
        }
        _ => None,
    }
}
