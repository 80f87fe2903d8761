//! Why a program was not run.

use crate::mechanism::Refusal;
use crate::program::InspectError;
use megapage_act::promote::PromoteError;
use megapage_kernel::KernelError;
use megapage_units::Pid;
use std::io;
use thiserror::Error;

/// Why a program was not run, or could not be watched to its end.
#[derive(Debug, Error)]
pub enum RunError {
    /// The program cannot be looked at.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// What was asked is not possible.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// execve(2) failed.
    #[error("{program}: {source}")]
    Exec {
        /// The program.
        program: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A kernel file could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A system call of megapage's own failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A process cannot be promoted.
    #[error(transparent)]
    Promote(#[from] PromoteError),
    /// A trial has found that promotion does not pay for this build of the program.
    #[error(
        "process {pid}: {found}; nothing is promoted (--ignore-trial promotes all the same, megapage trial --forget forgets it)"
    )]
    Verdict {
        /// The process.
        pid: Pid,
        /// What was found.
        found: String,
    },
    /// A thread of the kernel's was named.
    #[error("process {pid} ({name}) is a kernel thread: it has no memory of its own")]
    KernelThread {
        /// The thread.
        pid: Pid,
        /// Its name.
        name: String,
    },
}

impl RunError {
    /// 127 where there is no such program, 126 where it cannot be executed, 2 where the kernel can promote nothing in a
    /// process that runs already, 125 for all else.
    pub fn exit_status(&self) -> u8 {
        match self {
            RunError::Inspect(error) => error.exit_status(),
            RunError::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            // No process could be made (fork(2)): the program was not even looked at.
            RunError::Exec { source, .. }
                if matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory) =>
            {
                125
            }
            RunError::Exec { .. } => 126,
            RunError::Promote(PromoteError::Unsupported(_)) => 2,
            _ => 125,
        }
    }
}
