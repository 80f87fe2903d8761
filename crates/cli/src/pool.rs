//! `megapage pool`: see, size and keep the pools of hugetlb pages.

mod list;
mod persist;
mod serve;
mod set;

use anyhow::Result;
use std::process::ExitCode;

/// Show, size and persist the pools of hugetlb pages.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    List(list::Args),
    Set(set::Args),
    Persist(persist::Args),
    Serve(serve::Args),
    Stock(serve::StockArgs),
}

impl Command {
    /// Returns true if it sizes pools: compaction may take long.
    pub fn changes(&self) -> bool {
        matches!(self, Command::Set(_))
    }
}

pub fn main(command: Command) -> Result<ExitCode> {
    match command {
        Command::List(args) => list::main(args),
        Command::Set(args) => set::main(args),
        Command::Persist(args) => persist::main(args),
        Command::Serve(args) => serve::main(args),
        Command::Stock(args) => serve::stock(args),
    }
}
