//! What is asked for a service, and the parts of the answer: how its program is reached, and what its confinement makes
//! necessary for that.

use megapage_launch::request::Request;
use serde::Serialize;
use std::path::PathBuf;

/// What is asked for a service.
#[derive(Clone, Debug)]
pub struct Asked {
    /// As `megapage run` would be asked; the program is filled in.
    pub request: Request,
    /// The command `megapage`, as the unit would name it.
    pub launcher: PathBuf,
}

/// How the program is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Variables alone: systemd starts the program as before.
    Environment,
    /// ExecStart= starts the launcher, which executes the program in its own place.
    Launcher,
}

/// A line that restores what the unit's confinement takes away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Addition {
    /// The line.
    pub line: String,
    /// What it is for.
    pub why: String,
}
