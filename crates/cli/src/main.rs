//! The megapage command: arguments in, one call, report out.
//!
//! Architecture invariant: no logic. A module here turns arguments into values, makes one call into the
//! crate that does the work, and prints what it returns.

#![forbid(unsafe_code)]

mod advise;
mod bench;
mod daemon;
mod doctor;
mod enable;
mod generate;
mod lend;
mod map;
mod one_process;
mod output;
mod pool;
mod prime;
mod profile;
mod reclaim;
mod remap;
mod run;
mod sampling;
mod segments;
mod simulate;
mod status;
mod thp;
mod top;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use megapage_kernel::{KernelRoot, OtherBasePages, require_base_pages};
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
    Advise(advise::Args),
    Map(map::Args),
    Top(top::Args),
    Daemon(daemon::Args),
    Simulate(simulate::Args),
    Segments(segments::Args),
    Bench(bench::Args),
    Remap(remap::Args),
    Prime(prime::Args),
    Profile(profile::Args),
    Enable(enable::Args),
    Disable(enable::DisableArgs),
    Status(status::Args),
    Thp(thp::Args),
    Reclaim(reclaim::Args),
    Lend(lend::Args),
    #[command(hide = true)]
    Generate(generate::Args),
}

/// 0 done; 1 done in part, or findings; 2 bad input or not possible. `run` has its own (see [`run`]).
fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return refuse(&error),
    };
    if let Err(other) = base_pages(&command) {
        output::say(other);
        return ExitCode::from(if matches!(command, Command::Run(_)) { run::FAILED } else { 2 });
    }
    let result = match command {
        // `run` answers with the status of the program that it ran, or 125 to 127 for its own failures.
        Command::Run(args) => return run::main(args),
        Command::Pool(args) => pool::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Advise(args) => advise::main(args),
        Command::Map(args) => map::main(args),
        Command::Top(args) => top::main(args),
        Command::Daemon(args) => daemon::main(args),
        Command::Simulate(args) => simulate::main(args),
        Command::Segments(args) => segments::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Remap(args) => remap::main(args),
        Command::Prime(args) => prime::main(args),
        Command::Profile(args) => profile::main(args),
        Command::Enable(args) => enable::main(args),
        Command::Disable(args) => enable::disable_main(args),
        Command::Status(args) => status::main(args),
        Command::Thp(args) => thp::main(args),
        Command::Reclaim(args) => reclaim::main(args),
        Command::Lend(args) => lend::main(args),
        Command::Generate(args) => generate::main(args, Cli::command()),
    };
    result.unwrap_or_else(|error| {
        output::say_error(&error);
        ExitCode::from(2)
    })
}

/// Refuses what would look at or act on page sizes that are not those of this kernel: all but what looks at no running
/// machine, and `doctor`, which reports it as what it found.
fn base_pages(command: &Command) -> Result<(), OtherBasePages> {
    let is_independent = match command {
        Command::Simulate(args) => !args.records(),
        Command::Doctor(args) => !args.looks_at_a_process(),
        Command::Generate(_) | Command::Lend(_) => true,
        _ => false,
    };
    if is_independent { Ok(()) } else { require_base_pages(&KernelRoot::live()) }
}

/// Prints the help that was asked for, or one line that says what is wrong with the arguments.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Help or the version. A reader that has gone away is no failure.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && std::env::args().len() < 2 {
        output::show_aside(&error.render().to_string());
        return ExitCode::from(2);
    }
    let command = std::env::args().nth(1).filter(|name| !name.starts_with('-')).unwrap_or_default();
    let text = error.render().to_string();
    // The first paragraph is what is wrong; the usage after it is what --help is for.
    let what: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let what = what.join(" ");
    let help =
        ["megapage", &command, "--help"].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>();
    output::say(format!("{} (see {})", what.trim_start_matches("error: "), help.join(" ")));
    ExitCode::from(if command == "run" { run::FAILED } else { 2 })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_arguments_of_all_commands_are_sound() {
        use clap::CommandFactory as _;
        super::Cli::command().debug_assert();
    }
}
