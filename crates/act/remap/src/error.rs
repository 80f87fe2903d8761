//! Errors of work on a file.

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Reason that nothing could be done with a file.
#[derive(Debug, Error)]
pub enum RemapError {
    /// The file could not be opened, read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file is not suited to this.
    #[error("{path}: {what}")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The reason, and the remedy.
        what: String,
    },
    /// A kernel file could not be read.
    #[error(transparent)]
    Kernel(#[from] megapage_kernel::KernelError),
}

impl RemapError {
    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> RemapError + '_ {
        |source| RemapError::Io { path: path.to_path_buf(), source }
    }

    pub(crate) fn unfit(path: &Path, what: impl Into<String>) -> RemapError {
        RemapError::Unfit { path: path.to_path_buf(), what: what.into() }
    }
}
