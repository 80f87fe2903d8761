//! `megapage pool`.

use anyhow::Result;
use std::process::ExitCode;

/// (pool: being built)
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn main(_args: Args) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
