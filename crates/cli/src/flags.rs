//! Options that several commands have.

use crate::run::{Choice, mechanism};
use anyhow::{Result, bail};
use megapage_launch::request::{Fork, Heap, OwnThp, ReturnAfter, Shm};
use std::path::{Path, PathBuf};

/// `--root`.
#[derive(Debug, clap::Args)]
pub(crate) struct Root {
    /// Work on the files below this directory, such as an image's root
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

impl Root {
    /// Returns the directory, or an error if it is no directory.
    pub fn path(&self) -> Result<&Path> {
        if !self.root.is_dir() {
            bail!("--root '{}' is not a directory", self.root.display());
        }
        Ok(&self.root)
    }
}

/// `--dry-run` of the commands whose work shell lines can do.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct DryRun {
    /// Change nothing; print the equivalent shell lines
    #[arg(id = "dry_run", long = "dry-run")]
    pub asked: bool,
}

/// Parses a name that must not be empty: in comparisons, an empty name can match everything.
pub fn name(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("the name is empty".into()) } else { Ok(text.into()) }
}

/// Options of `run` and `enable` for the memory of a program, and for the way to reach it.
#[derive(Debug, clap::Args)]
pub(crate) struct Backing {
    /// Huge pages for the heap: auto, 1g or 2m (hugetlb), thp, or none
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub heap: Heap,
    /// Huge pages for the program's shared memory (shmget, shared mappings): auto, 2m, thp or none
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub shm: Shm,
    /// How to give the program huge pages: auto, preload, tunable, runtime or outside (docs/run.md)
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = mechanism)]
    pub mechanism: Choice,
    /// Return freed memory to the kernel after this time, such as 500ms, 1s, 2m (minutes), or never
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub return_after: ReturnAfter,
    /// Make memory huge again after forks: cheap (forks start programs), snapshot (forks save
    /// memory) or auto (never)
    #[arg(long, value_name = "WHY", default_value = "auto")]
    pub fork: Fork,
    /// Preload megapage's library in the program's children too
    #[arg(long)]
    pub children: bool,
    /// Pass huge-page options by JAVA_TOOL_OPTIONS to a JVM that a script starts
    #[arg(long)]
    pub jvm: bool,
    /// Transparent huge pages for the program and its children: settings (the machine's), never, or
    /// advised (only where requested; Linux 6.18)
    #[arg(long, value_name = "KIND", default_value = "settings")]
    pub thp: OwnThp,
}
