//! The hugetlbfs of these experiments, and the directories of the two sides on it.

use crate::bench::{Mount, empty};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The sides.
const SIDES: [&str; 2] = ["megapage", "dpdk"];

/// A mounted hugetlbfs with pages of 2 MiB and a directory for each side. Dropping it removes its
/// contents and unmounts it.
#[derive(Debug)]
pub(super) struct Mounted {
    path: PathBuf,
    _mount: Mount,
}

impl Mounted {
    pub(super) fn new() -> Result<Mounted> {
        let mount = Mount::new()?;
        let mounted = Mounted { path: mount.path(), _mount: mount };
        for side in SIDES {
            fs::create_dir(mounted.side(side)).context("a directory on the hugetlbfs")?;
        }
        Ok(mounted)
    }

    /// Returns the directory of one side: `megapage` or `dpdk`.
    pub(super) fn side(&self, side: &str) -> PathBuf {
        self.path.join(side)
    }

    /// Returns its mount point.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes all files that both sides have left.
    pub(super) fn clear(&self) -> Result<()> {
        SIDES.into_iter().try_for_each(|side| empty(&self.side(side)))
    }
}
