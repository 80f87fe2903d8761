//! Programs of other packages that the tests run, built by cargo.

#![allow(dead_code, reason = "each test file uses its part")]

use megapage_testing::{build_programs, copied};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn directory() -> &'static Path {
    let directory = Path::new(env!("CARGO_BIN_EXE_megapage-lab")).parent().unwrap();
    build_programs(directory);
    directory
}

/// Returns the path of `megapage`.
pub fn megapage() -> PathBuf {
    directory().join("megapage")
}

/// Returns the path of `libmegapage.so`, with the one for text beside it.
pub fn library() -> PathBuf {
    directory().join("libmegapage.so")
}

/// Runs an experiment by a copy of the laboratory in `directory`, with the programs that it needs
/// beside it.
pub fn experiment(directory: &Path, name: &str, arguments: &[&str]) -> Output {
    let lab = directory.join("megapage-lab");
    // /proc/self/exe leads to the file, not to the link: the file itself has to have a neighbour.
    if !lab.exists() {
        copied(env!("CARGO_BIN_EXE_megapage-lab"), &lab);
        copied(megapage(), directory.join("megapage"));
        let workload = env!("CARGO_BIN_EXE_megapage-lab-workload");
        symlink(workload, directory.join("megapage-lab-workload")).unwrap();
    }
    let mut command = Command::new(lab);
    command.arg(name).args(arguments).env("MEGAPAGE_LIBRARY", library());
    command.stdin(Stdio::null()).output().unwrap()
}
