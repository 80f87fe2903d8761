//! Programs of other packages that the tests run, built by Cargo, once for each test program.

#![allow(dead_code, reason = "each test file uses its part")]

use megapage_testing::copied;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = Path::new(env!("CARGO_BIN_EXE_megapage-lab")).parent().unwrap();
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        build.args(["build", "--quiet"]);
        build.args(
            ["megapage-cli", "megapage-preload", "megapage-text"]
                .map(|package| format!("--package={package}")),
        );
        build.arg("--target-dir").arg(directory.parent().unwrap());
        if directory.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo starts").success(), "the programs are built");
        directory.to_path_buf()
    })
}

/// `megapage`.
pub fn megapage() -> PathBuf {
    directory().join("megapage")
}

/// `libmegapage.so`, with the one for text beside it.
pub fn library() -> PathBuf {
    directory().join("libmegapage.so")
}

/// An experiment by a copy of the laboratory in `directory`, with the programs that it needs beside it.
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
