//! A hugetlbfs for one bench, and the directories of the two sides on it.

use anyhow::{Context, Result};
use megapage_kernel::mounts::{mount_hugetlbfs, unmount};
use megapage_units::PageSize;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// A mounted hugetlbfs with pages of 2 MiB. Dropping it removes what is in it and unmounts it.
#[derive(Debug)]
pub(super) struct Mounted {
    point: TempDir,
}

impl Mounted {
    pub(super) fn new() -> Result<Mounted> {
        let point = tempfile::tempdir().context("a directory to mount on")?;
        mount_hugetlbfs(point.path(), PageSize::HUGE_2M)
            .with_context(|| format!("mounting a hugetlbfs on {}", point.path().display()))?;
        let mounted = Mounted { point };
        for side in ["megapage", "dpdk"] {
            fs::create_dir(mounted.path().join(side)).context("a directory on the hugetlbfs")?;
        }
        Ok(mounted)
    }

    fn path(&self) -> PathBuf {
        // What is opened in it follows no symbolic links.
        fs::canonicalize(self.point.path()).unwrap_or_else(|_| self.point.path().to_path_buf())
    }

    /// The directory of one side: `megapage` or `dpdk`.
    pub(super) fn side(&self, side: &str) -> PathBuf {
        self.path().join(side)
    }

    /// Removes all that both sides have left.
    pub(super) fn clear(&self) -> Result<()> {
        for side in ["megapage", "dpdk"] {
            let path = self.side(side);
            let entries = fs::read_dir(&path).with_context(|| path.display().to_string())?;
            for entry in entries {
                let entry = entry.with_context(|| path.display().to_string())?;
                let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                let removed = match is_directory {
                    true => fs::remove_dir_all(entry.path()),
                    false => fs::remove_file(entry.path()),
                };
                removed.with_context(|| entry.path().display().to_string())?;
            }
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("megapage: what the bench made was not all removed: {error:#}");
        }
        if let Err(error) = unmount(self.point.path()) {
            eprintln!("megapage: {} was not unmounted: {error}", self.point.path().display());
        }
    }
}
