//! Why a service is not switched on or off.

use crate::name::UnitName;
use std::fmt;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Nothing has been written.
#[derive(Debug, Error)]
pub enum SystemdError {
    /// A unit without a program.
    #[error("{unit}: has no ExecStart=: there is no program to put on huge pages")]
    NoProgram {
        /// The unit.
        unit: UnitName,
    },
    /// There is no such name or service, it cannot be reached, or not without harm.
    #[error("{0}")]
    Refused(String),
    /// Another program's file.
    #[error("{}: was not written by megapage; move it away first", .0.display())]
    NotOurs(PathBuf),
    /// Ours, and edited by hand.
    #[error("{}: was changed after megapage wrote it; keep what you need of it elsewhere, then remove it", .0.display())]
    Changed(PathBuf),
    /// Nothing to take away.
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
        /// What the kernel answered.
        source: io::Error,
    },
}

/// Refuses what is asked for a unit, or a file.
pub(crate) fn refused(of: impl fmt::Display, why: impl fmt::Display) -> SystemdError {
    SystemdError::Refused(format!("{of}: {why}"))
}
