//! The request for a service, and the parts of the answer: the way to reach its program, and the
//! lines that its confinement makes necessary.

use megapage_launch::request::Request;
use serde::Serialize;
use std::path::PathBuf;

/// The request for a service.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The request as for `megapage run`; the program is filled in.
    pub request: Request,
    /// The path of the command `megapage` in the unit.
    pub launcher: PathBuf,
}

/// Ways to reach the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Only variables: systemd starts the program as before.
    Environment,
    /// ExecStart= starts the launcher, which executes the program in the same process.
    Launcher,
}

/// A line that restores access that the unit's confinement takes away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Addition {
    /// The line.
    pub line: String,
    /// The reason for the line.
    pub why: String,
}
