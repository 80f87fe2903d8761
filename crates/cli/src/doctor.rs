//! `megapage doctor`.

use anyhow::Result;
use std::process::ExitCode;

/// (doctor: being built)
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn main(_args: Args) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
