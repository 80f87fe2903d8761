//! Options that several commands have.

use crate::run::{Choice, mechanism};
use anyhow::{Result, bail};
use megapage_launch::request::{Fork, Heap, OwnThp, ReturnAfter, Shm};
use std::path::{Path, PathBuf};

/// `--root`.
#[derive(Debug, clap::Args)]
pub(crate) struct Root {
    /// Take the files below this directory, such as an image's root
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
    /// The backing of the heap: auto, 1g, 2m, thp or none
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub heap: Heap,
    /// The backing of its shared memory (shmget, shared mappings): 2m, thp, auto or none
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub shm: Shm,
    /// How the program is reached: auto, preload, tunable, runtime or outside
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = mechanism)]
    pub mechanism: Choice,
    /// Give freed memory back after this time, such as 500ms, 1s, 2m, or never
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub return_after: ReturnAfter,
    /// The program's reason to fork: auto, cheap (to start programs) or snapshot (to save its
    /// memory)
    #[arg(long, value_name = "WHY", default_value = "auto")]
    pub fork: Fork,
    /// Let the program's children run with the preloaded library too
    #[arg(long)]
    pub children: bool,
    /// Pass options to a JVM by JAVA_TOOL_OPTIONS, for start scripts
    #[arg(long)]
    pub jvm: bool,
    /// Transparent huge pages of the program and its children: settings (the machine's), never, or
    /// advised (only where asked for; Linux 6.18)
    #[arg(long, value_name = "KIND", default_value = "settings")]
    pub thp: OwnThp,
}
