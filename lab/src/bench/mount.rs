//! A hugetlbfs for one bench.

use anyhow::{Context, Result};
use megapage_kernel::mounts::mount_hugetlbfs;
use megapage_testing::unmount;
use megapage_units::PageSize;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A mounted hugetlbfs with pages of 2 MiB; mounting needs root. Dropping it removes its contents
/// and unmounts it.
#[derive(Debug)]
pub struct Mount {
    point: TempDir,
}

impl Mount {
    /// Mounts one on a new directory.
    pub fn new() -> Result<Mount> {
        let point = tempfile::tempdir().context("a directory to mount on")?;
        mount_hugetlbfs(point.path(), PageSize::HUGE_2M)
            .with_context(|| format!("mounting a hugetlbfs on {}", point.path().display()))?;
        Ok(Mount { point })
    }

    /// Returns its path, without symbolic links.
    pub fn path(&self) -> PathBuf {
        fs::canonicalize(self.point.path()).unwrap_or_else(|_| self.point.path().to_path_buf())
    }
}

/// Removes all that `directory` holds.
pub fn empty(directory: &Path) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let entry = entry.with_context(|| directory.display().to_string())?;
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = match is_directory {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        };
        removed.with_context(|| entry.path().display().to_string())?;
    }
    Ok(())
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = empty(self.point.path()) {
            eprintln!("megapage: what the bench made was not all removed: {error:#}");
        }
        if let Err(error) = unmount(self.point.path()) {
            eprintln!("megapage: {} was not unmounted: {error}", self.point.path().display());
        }
    }
}
