//! The megapage command: arguments in, one call, report out.
//!
//! Architecture invariant: no logic. A module here turns arguments into values, makes one call into the
//! crate that does the work, and prints what it returns.

#![forbid(unsafe_code)]

mod bench;
mod doctor;
mod pool;
mod run;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Huge pages for any Linux program: run on them, prove it, or say why not.
#[derive(Debug, Parser)]
#[command(name = "megapage", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Pool(pool::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
}

/// 0 done; 1 done in part, or findings; 2 bad input or not possible. `run` has its own (see [`run`]).
fn main() -> ExitCode {
    let result = match Cli::parse().command {
        // `run` answers with the status of the program that it ran, or 125 to 127 for its own failures.
        Command::Run(args) => return run::main(args),
        Command::Pool(args) => pool::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Bench(args) => bench::main(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("megapage: {error:#}");
        ExitCode::from(2)
    })
}
