//! The megapage command: arguments in, one call, report out.
//!
//! Architecture invariant: no logic. A module here turns arguments into values, makes one call into
//! the crate that does the work, and prints what it returns.

#![forbid(unsafe_code)]

mod advise;
mod bench;
mod daemon;
mod doctor;
mod enable;
mod flags;
mod generate;
mod gone;
mod map;
mod one_process;
mod output;
mod plan;
mod pool;
mod prime;
mod reclaim;
mod record;
mod remap;
mod run;
mod sampling;
mod segments;
mod status;
mod terminal;
mod thp;
mod top;
mod trial;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use megapage_kernel::{KernelRoot, OtherBasePages, require_base_pages};
use std::process::ExitCode;

megapage_kernel::note_ignored!();

/// Run any Linux program on huge pages, and see what it got.
#[derive(Debug, Parser)]
#[command(name = "megapage", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    #[command(subcommand)]
    Pool(pool::Command),
    Doctor(doctor::Args),
    Advise(advise::Args),
    Map(map::Args),
    Top(top::Args),
    Daemon(daemon::Args),
    Record(record::Args),
    Plan(plan::Args),
    #[command(subcommand)]
    Segments(segments::Command),
    Bench(bench::Args),
    #[command(subcommand)]
    Remap(remap::Command),
    Prime(prime::Args),
    Enable(enable::Args),
    Disable(enable::DisableArgs),
    Status(status::Args),
    #[command(subcommand)]
    Thp(thp::Command),
    Reclaim(reclaim::Args),
    Trial(trial::Args),
    #[command(hide = true)]
    Generate(generate::Args),
}

/// Runs the command. Exit status: 0 done; 1 done in part, or with findings; 2 bad input or not
/// possible. `run` has its own statuses (see [`run`]).
fn main() -> ExitCode {
    output::fit_terminal();
    let (words, warnings) = match gone::take_out(gone::GONE, Cli::command, std::env::args_os().collect()) {
        Ok(kept) => kept,
        Err(where_it_went) => {
            output::say(where_it_went);
            return ExitCode::from(2);
        }
    };
    warnings.iter().for_each(output::say);
    let command = match Cli::try_parse_from(words) {
        Ok(cli) => cli.command,
        Err(error) => return refuse(&error),
    };
    if let Err(other) = base_pages(&command) {
        output::say(other);
        return ExitCode::from(if matches!(command, Command::Run(_)) { run::FAILED } else { 2 });
    }
    if let Some(what) = command.takes_long() {
        output::progress(what);
    }
    let result = match command {
        // `run` returns the status of the program that it ran, or 125 to 127 for its own failures.
        Command::Run(args) => return run::main(args),
        Command::Pool(args) => pool::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Advise(args) => advise::main(args),
        Command::Map(args) => map::main(args),
        Command::Top(args) => top::main(args),
        Command::Daemon(args) => daemon::main(args),
        Command::Record(args) => record::main(args),
        Command::Plan(args) => plan::main(args),
        Command::Segments(args) => segments::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Remap(args) => remap::main(args),
        Command::Prime(args) => prime::main(args),
        Command::Enable(args) => enable::main(args),
        Command::Disable(args) => enable::disable_main(args),
        Command::Status(args) => status::main(args),
        Command::Thp(args) => thp::main(args),
        Command::Reclaim(args) => reclaim::main(args),
        Command::Trial(args) => trial::main(args),
        Command::Generate(args) => generate::main(args, Cli::command()),
    };
    output::end_progress();
    result.unwrap_or_else(|error| {
        output::say_error(&error);
        ExitCode::from(2)
    })
}

impl Command {
    /// Returns what the progress line says of a command that may take more than two seconds. The
    /// command may change the line later. Returns `None` for commands that write to the terminal
    /// all the time.
    fn takes_long(&self) -> Option<&'static str> {
        Some(match self {
            Command::Doctor(_) => "looking at the machine",
            Command::Advise(args) if !args.starts_a_program() => "observing",
            Command::Map(_) => "sampling",
            Command::Pool(args) if args.changes() => "sizing pools",
            Command::Plan(_) => "reading recordings",
            Command::Trial(_) => "switching a few huge pages on and off, to learn what that costs",
            Command::Segments(_) => "reading segments",
            Command::Bench(_) => "measuring",
            Command::Remap(_) => "looking at files",
            Command::Prime(_) => "priming files",
            Command::Reclaim(_) => "taking back bloat",
            Command::Enable(_) | Command::Disable(_) | Command::Status(_) => "asking systemd",
            _ => return None,
        })
    }
}

/// Refuses a command if the kernel has other base pages than megapage is built for. Commands that
/// look at no running machine are exempt. So is `doctor` for the machine, which reports the page
/// size as a finding.
fn base_pages(command: &Command) -> Result<(), OtherBasePages> {
    let is_independent = match command {
        Command::Doctor(args) => !args.looks_at_a_process(),
        Command::Generate(_) | Command::Plan(_) => true,
        _ => false,
    };
    if is_independent { Ok(()) } else { require_base_pages(&KernelRoot::live()) }
}

/// Prints the help that was asked for, or one line that says what is wrong with the arguments.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Help or version. Not a failure if the reader has gone away.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && std::env::args().len() < 2 {
        output::show_aside(&error.render().to_string());
        return ExitCode::from(2);
    }
    let is_command = |name: &String| Cli::command().get_subcommands().any(|known| known.get_name() == name);
    let command = std::env::args().nth(1).filter(is_command).unwrap_or_default();
    let what = what_is_wrong(&error.render().to_string()) + &transposed(error).unwrap_or_default();
    let help =
        ["megapage", &command, "--help"].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>();
    output::say(format!("{what} (see {})", help.join(" ")));
    ExitCode::from(if command == "run" { run::FAILED } else { 2 })
}

/// Joins clap's error, which has several paragraphs, into one line. The first paragraph says what
/// is wrong; lines that begin with `tip:` say what may have been meant. Drops the usage: `--help`
/// shows it.
fn what_is_wrong(text: &str) -> String {
    let first: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let parts = std::iter::once(first.join(" ").trim_start_matches("error: ").to_string());
    parts.chain(tips.map(str::to_string)).collect::<Vec<_>>().join("; ")
}

/// Returns the command that was probably meant, if two adjacent letters are transposed and clap has
/// no suggestion. clap compares letters at equal positions, and a transposition leaves few of them
/// equal.
fn transposed(error: &clap::Error) -> Option<String> {
    let typed = match (error.kind(), error.get(ContextKind::InvalidSubcommand)?) {
        (ErrorKind::InvalidSubcommand, ContextValue::String(typed)) => typed,
        _ => return None,
    };
    if error.get(ContextKind::SuggestedSubcommand).is_some() {
        return None;
    }
    let commands = Cli::command();
    let names = commands.get_subcommands().filter(|known| !known.is_hide_set()).map(clap::Command::get_name);
    let near = |name: &&str| strsim::osa_distance(name, typed) == 1;
    names.into_iter().find(near).map(|name| format!("; a similar subcommand exists: '{name}'"))
}

#[cfg(test)]
mod tests {
    use super::{Cli, transposed, what_is_wrong};
    use clap::{CommandFactory as _, Parser as _};

    #[test]
    fn what_may_have_been_meant_is_said() {
        let said = |arguments: &[&str]| {
            let error = Cli::try_parse_from(arguments).unwrap_err();
            what_is_wrong(&error.render().to_string()) + &transposed(&error).unwrap_or_default()
        };
        assert_eq!(said(&["megapage", "docter"]).matches("'doctor'").count(), 1);
        assert_eq!(said(&["megapage", "frobnicate"]), "unrecognized subcommand 'frobnicate'");
        assert_eq!(
            said(&["megapage", "rnu"]),
            "unrecognized subcommand 'rnu'; a similar subcommand exists: 'run'"
        );
        let said = said(&["megapage", "top", "--onse"]);
        assert!(said.contains("'--onse' found; a similar argument exists: '--once'"), "{said}");
    }

    #[test]
    fn the_arguments_of_all_commands_are_sound() {
        Cli::command().debug_assert();
    }
}
