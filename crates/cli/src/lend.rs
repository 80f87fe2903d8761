//! `megapage lend`.

use crate::output::{print, shown_path};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::ExitCode;

/// Copy megapage and its libraries to a directory that another container mounts
///
/// For an init container: the container of the program then starts with DIRECTORY/bin/megapage run -- PROGRAM. The command
/// itself starts in any container if it is the static one, of the image or the tarball.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory; it need not exist
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub fn main(args: Args) -> Result<ExitCode> {
    let program = std::env::current_exe().context("where this program lies")?;
    let lent = megapage_launch::lend::lend(&program, &args.directory)?;
    let lines: Vec<String> = lent.iter().map(|path| format!("{}\n", shown_path(path))).collect();
    print(&lines.concat())?;
    Ok(ExitCode::SUCCESS)
}
