//! Reasons why a service is not switched on or off.

use crate::name::UnitName;
use std::fmt;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Errors of this crate. Those of `enable` and `disable` leave all files as they were.
#[derive(Debug, Error)]
pub enum SystemdError {
    /// The unit starts no program.
    #[error("{unit}: has no ExecStart=: there is no program to put on huge pages")]
    NoProgram {
        /// The unit.
        unit: UnitName,
    },
    /// The name or service does not exist, or it cannot be reached, or not without harm.
    #[error("{0}")]
    Refused(String),
    /// The drop-in is a file of another program.
    #[error("{}: was not written by megapage; move it away first", .0.display())]
    NotOurs(PathBuf),
    /// The drop-in is ours, but was changed by hand.
    #[error("{}: was changed after megapage wrote it; keep what you need of it elsewhere, then remove it", .0.display())]
    Changed(PathBuf),
    /// There is no drop-in to remove.
    #[error("{unit}: is not enabled: there is no {}", .path.display())]
    NotEnabled {
        /// The unit.
        unit: UnitName,
        /// The drop-in.
        path: PathBuf,
    },
    /// A file could not be read or written.
    #[error("{}: {source}{}", .path.display(), if .source.kind() == io::ErrorKind::PermissionDenied { "; run as root (sudo)" } else { "" })]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Returns the error that refuses an action on a unit or a file.
pub(crate) fn refused(of: impl fmt::Display, why: impl fmt::Display) -> SystemdError {
    SystemdError::Refused(format!("{of}: {why}"))
}
