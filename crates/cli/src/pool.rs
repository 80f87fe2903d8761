//! `megapage pool`: see, size and keep the pools of hugetlb pages.

mod list;
mod persist;
mod serve;
mod set;

use anyhow::Result;
use std::process::ExitCode;

/// Show, size and keep the pools of hugetlb pages.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(list::Args),
    Set(set::Args),
    Persist(persist::Args),
    Serve(serve::Args),
    Stock(serve::StockArgs),
}

impl Args {
    /// Whether pools are sized, which compaction may take long for.
    pub fn changes(&self) -> bool {
        matches!(self.command, Command::Set(_))
    }
}

pub fn main(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::List(args) => list::main(args),
        Command::Set(args) => set::main(args),
        Command::Persist(args) => persist::main(args),
        Command::Serve(args) => serve::main(args),
        Command::Stock(args) => serve::stock(args),
    }
}
