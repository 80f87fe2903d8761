//! Kinds of programs: patterns of access in several sizes. Each has a separate executable name, so
//! that each is a separate service.

use crate::bench::Place;
use crate::child::Server;
use crate::workload::pattern::Case;
use anyhow::{Context, Result};
use megapage_kernel::spawn::Signals;
use std::process::Command;
use tempfile::TempDir;

/// A kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// The name of its executable.
    pub(super) name: &'static str,
    pub(super) case: Case,
    /// Its share of the pattern's 1 GiB.
    pub(super) scale: f64,
}

/// All of them.
pub(super) const KINDS: [Kind; 12] = [
    Kind { name: "chase-512", case: Case::Chase, scale: 0.5 },
    Kind { name: "compute", case: Case::Compute, scale: 1.0 },
    Kind { name: "random-512", case: Case::Random, scale: 0.5 },
    Kind { name: "stream-256", case: Case::Stream, scale: 0.25 },
    Kind { name: "zipf-512", case: Case::Zipf, scale: 0.5 },
    Kind { name: "hot-256", case: Case::Hot, scale: 0.25 },
    Kind { name: "map-256", case: Case::Map, scale: 0.25 },
    Kind { name: "sequential-256", case: Case::Sequential, scale: 0.25 },
    Kind { name: "update-512", case: Case::Update, scale: 0.5 },
    Kind { name: "chase-64", case: Case::Chase, scale: 0.0625 },
    Kind { name: "random-64", case: Case::Random, scale: 0.0625 },
    Kind { name: "map-32", case: Case::Map, scale: 0.03125 },
];

/// The executables: the workload program under other names, as it executes itself again by its own
/// path.
#[derive(Debug)]
pub(super) struct Programs {
    /// Directory of the executables and the recordings.
    pub(super) directory: TempDir,
}

impl Programs {
    pub(super) fn make(place: &Place) -> Result<Programs> {
        let directory = TempDir::with_prefix("megapage-lab-plan").context("a directory for programs")?;
        for kind in KINDS {
            std::fs::copy(&place.workload, directory.path().join(kind.name)).context(kind.name)?;
        }
        Ok(Programs { directory })
    }

    /// Starts a program and waits until its memory is filled.
    pub(super) fn start(&self, kind: Kind, scale: f64, signals: &Signals) -> Result<Server> {
        let mut command = Command::new(self.directory.path().join(kind.name));
        command.args(["pattern", kind.case.name(), "--serve"]).arg(format!("--scale={}", kind.scale * scale));
        Server::start(signals, &mut command).context(kind.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_kernels_and_differ() {
        let mut names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        assert!(names.iter().all(|name| name.len() <= 15), "comm has 15 bytes");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
    }
}
