//! The programs and the library that the runs need.

use crate::peers::{Peer, Start};
use anyhow::{Context, Result, ensure};
use megapage_kernel::effective_uid;
use std::env;
use std::path::PathBuf;

/// The programs and the library that the runs need.
#[derive(Clone, Debug)]
pub struct Place {
    /// `megapage`.
    pub megapage: PathBuf,
    /// The workload program.
    pub workload: PathBuf,
    /// `libmegapage.so`.
    pub library: PathBuf,
}

impl Place {
    /// Returns the programs and the library beside the running program.
    pub fn beside_this_program() -> Result<Place> {
        let this = env::current_exe().context("where this program lies")?;
        let beside = |name: &str| this.with_file_name(name);
        let (megapage, workload) = (beside("megapage"), beside("megapage-lab-workload"));
        for program in [&megapage, &workload] {
            ensure!(program.exists(), "{} is missing; 'make lab' builds it", program.display());
        }
        let library = env::var_os("MEGAPAGE_LIBRARY").map_or_else(|| beside("libmegapage.so"), PathBuf::from);
        Ok(Place { megapage, workload, library })
    }

    /// Returns the reason for which `peer` cannot run here; `None` if it can.
    pub fn absence(&self, peer: &Peer) -> Option<String> {
        match peer.start {
            Start::Preload(library) if library.find().is_none() => {
                Some(format!("{} is not installed: {}", library.file, library.how_to_install()))
            }
            Start::OwnLibrary if !self.library.exists() => {
                Some(format!("{} is missing: cargo build --release", self.library.display()))
            }
            _ if peer.needs_hugetlbfs() && effective_uid() != 0 => {
                Some("a hugetlbfs has to be mounted for it: run this as root".into())
            }
            _ => None,
        }
    }
}
