//! Why a service is not switched on or off.

use crate::name::{BadName, UnitName};
use megapage_launch::run::RunError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Nothing has been written.
#[derive(Debug, Error)]
pub enum SystemdError {
    /// No name of a service.
    #[error(transparent)]
    Name(#[from] BadName),
    /// Neither a unit nor a program of one.
    #[error(
        "there is no service '{0}', and none starts a program of that name; systemctl list-unit-files names them"
    )]
    Unknown(String),
    /// Several services start it.
    #[error("several services start '{program}': name one of {units}")]
    Several {
        /// As given.
        program: String,
        /// Their names.
        units: String,
    },
    /// A link to /dev/null, or an empty file.
    #[error("{unit}: is masked by {}; systemctl unmask {unit}", .path.display())]
    Masked {
        /// The unit.
        unit: UnitName,
        /// What masks it.
        path: PathBuf,
    },
    /// A unit without a program.
    #[error("{unit}: has no ExecStart=: there is no program to put on huge pages")]
    NoProgram {
        /// The unit.
        unit: UnitName,
    },
    /// A line that systemd would not read either.
    #[error("{}: {what}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It cannot be reached, or not without harm.
    #[error("{unit}: {why}")]
    Refused {
        /// The unit.
        unit: UnitName,
        /// Why, and what helps.
        why: String,
    },
    /// The program cannot be looked at, or the options do not fit it.
    #[error("{unit}: {source}")]
    Run {
        /// The unit.
        unit: UnitName,
        /// What `megapage run` would say.
        source: RunError,
    },
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
    /// The journal is empty, or kept from the caller.
    #[error(
        "the journal shows nothing of {0} since the machine has started; root, and the group systemd-journal, see all of it"
    )]
    NothingLogged(UnitName),
    /// systemctl could not be run, or has refused.
    #[error("{command}: {what}")]
    Manager {
        /// The command.
        command: String,
        /// Its output.
        what: String,
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
