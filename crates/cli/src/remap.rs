//! `megapage remap`: code and constants of programs on huge pages.

mod check;
pub mod prime;

use anyhow::Result;
use std::process::ExitCode;

/// Put code and constants of programs on huge pages
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Check(check::Args),
    Prime(prime::Args),
}

pub fn main(command: Command) -> Result<ExitCode> {
    match command {
        Command::Check(args) => check::main(args),
        Command::Prime(args) => prime::main(args),
    }
}

/// Runs `work` on each file, in order. Returns the results, and true if a file failed. A failure
/// prints one line, and does not stop the others.
pub fn each<T, E: std::fmt::Display>(
    files: &[std::path::PathBuf],
    mut work: impl FnMut(&std::path::Path) -> Result<T, E>,
) -> (Vec<T>, bool) {
    let (mut done, mut failed) = (Vec::new(), false);
    for (number, file) in files.iter().enumerate() {
        let name = megapage_report::shown_path(file);
        crate::output::progress(format!("{name} ({} of {})", number + 1, files.len()));
        match work(file) {
            Ok(result) => done.push(result),
            Err(error) => {
                crate::output::say(error);
                failed = true;
            }
        }
    }
    (done, failed)
}

/// Returns 2 if nothing was done, 1 if a part was done, 0 if everything was done.
fn status(done: usize, failed: bool, complete: bool) -> ExitCode {
    ExitCode::from(match (done, failed) {
        (0, true) => 2,
        (_, true) => 1,
        (_, false) => u8::from(!complete),
    })
}
