//! `megapage run`.

use std::process::ExitCode;

/// (run: being built)
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn main(_args: Args) -> ExitCode {
    ExitCode::SUCCESS
}
