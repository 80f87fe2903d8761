//! The programs and the library that the runs need.

use crate::peers::{Peer, Start};
use anyhow::{Result, ensure};
use megapage_kernel::effective_uid;
use std::env;
use std::path::{Path, PathBuf};

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
    /// What belongs to `megapage`, with the workload program of that name: beside it, or where `make install` puts them
    /// (`../lib/megapage`). Fails where there is no workload program.
    pub fn of(megapage: PathBuf, workload: &str) -> Result<Place> {
        let directory = megapage.parent().unwrap_or(Path::new("/")).to_path_buf();
        let installed = directory.join("../lib/megapage");
        let find = |name: &str| {
            let beside = directory.join(name);
            if beside.exists() { beside } else { installed.join(name) }
        };
        let found = find(workload);
        ensure!(
            found.exists(),
            "{workload} is missing from {} and from {}; 'make lab' builds it",
            directory.display(),
            installed.display()
        );
        let library = match env::var_os("MEGAPAGE_LIBRARY") {
            Some(chosen) => PathBuf::from(chosen),
            None => find("libmegapage.so"),
        };
        Ok(Place { megapage, workload: found, library })
    }

    /// Why `peer` cannot run here; `None` where it can.
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
