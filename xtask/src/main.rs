//! Chores of the repository that need more than a shell line.

#![forbid(unsafe_code)]

mod abilities;
mod finding;
mod header;
mod results;
mod section;
mod tidy;
mod values;

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask tidy    check the invariants of ARCHITECTURE.md
       cargo xtask tidy --ratchet  lower the numbers of xtask/ratchet.json to the present ones
       cargo xtask header  write include/megapage.h again from crates/segment/capi
       cargo xtask abilities  write the table of kernel abilities in docs/machines.md again from crates/kernel
       cargo xtask values  write the values of bench/results in pages of docs/ again
       cargo xtask results  write the lines of where megapage leads and loses in bench/results/README.md again from the results";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy", "--ratchet"] => write(tidy::lower_ratchet),
        ["tidy"] => repository().and_then(|root| tidy::run(&root)),
        ["header"] => write(header::write),
        ["abilities"] => write(|root| abilities::section().write(root)),
        ["values"] => write(values::write),
        ["results"] => write(|root| results::section(root)?.write(root)),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::from(2)
    })
}

/// Calls `what`, which writes below the repository.
fn write(what: impl FnOnce(&Path) -> Result<()>) -> Result<ExitCode> {
    what(&repository()?).map(|()| ExitCode::SUCCESS)
}

/// Returns the root of the repository: the directory of the workspace's `Cargo.toml`.
fn repository() -> Result<PathBuf> {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").context("run this as `cargo xtask`")?;
    match Path::new(&manifest).parent() {
        Some(root) => Ok(root.to_path_buf()),
        None => bail!("{manifest} has no parent directory"),
    }
}
