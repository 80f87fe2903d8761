//! Reasons why a program was not run.

use crate::mechanism::Refusal;
use crate::program::InspectError;
use megapage_act::promote::PromoteError;
use megapage_kernel::KernelError;
use megapage_units::Pid;
use std::io;
use thiserror::Error;

/// Reasons why a program was not run, or could not be watched to its end.
#[derive(Debug, Error)]
pub enum RunError {
    /// The program cannot be examined.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// The request is not possible.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// execve(2) failed.
    #[error("{program}: {source}")]
    Exec {
        /// The program.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A kernel file could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A system call of megapage itself failed.
    #[error("{what}: {source}")]
    System {
        /// The attempted action.
        what: &'static str,
        /// The kernel's error.
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
        /// The result of the trial.
        found: String,
    },
    /// The process is a kernel thread.
    #[error("process {pid} ({name}) is a kernel thread: it has no user memory")]
    KernelThread {
        /// The thread.
        pid: Pid,
        /// Its name.
        name: String,
    },
}

impl RunError {
    /// Returns 127 if there is no such program, and 126 if it cannot be executed. Returns 2 if the
    /// kernel cannot promote a running process, and 125 for all else.
    pub fn exit_status(&self) -> u8 {
        match self {
            RunError::Inspect(error) => error.exit_status(),
            RunError::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            // No process could be made (fork(2)): the program was not even examined.
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
