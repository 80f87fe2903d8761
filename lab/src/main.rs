//! The laboratory's command: one experiment, its report, and its status.

#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use megapage_bench::save::Save;
use megapage_kernel::trusted::write_report;
use megapage_lab::experiment::{self, Experiment, Found, Plan};
use megapage_lab::peers;
use megapage_lab::{
    bench, fault, fork, install, interference, live, observe, papers, persistent, plan, simulate, snapshot,
    text, trial,
};
use megapage_units::shown;
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Experiments that judge megapage itself; see docs/lab.md.
#[derive(Debug, Parser)]
#[command(name = "megapage-lab", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The subcommands of experiments, and how each is conducted.
macro_rules! experiments {
    ($($name:ident: $experiment:path,)*) => {
        #[derive(Debug, Subcommand)]
        enum OneExperiment {
            $($name(Run<$experiment>),)*
        }

        impl OneExperiment {
            fn conduct(self) -> Result<ExitCode> {
                match self {
                    OneExperiment::Retrieval(run) if run.experiment.sizes.is_some() => {
                        run.map(|of| bench::Sweep { of }).conduct()
                    }
                    $(OneExperiment::$name(run) => run.conduct(),)*
                }
            }
        }
    };
}

experiments! {
    Access: bench::Access,
    Retrieval: bench::Retrieval,
    Release: bench::Release,
    Idle: bench::Idle,
    Startup: bench::Startup,
    Observe: observe::Observe,
    Plan: plan::PlanExperiment,
    Promote: live::PromoteExperiment,
    Bloat: live::BloatExperiment,
    Fair: live::FairExperiment,
    Cost: live::CostExperiment,
    Fault: fault::Fault,
    Interference: interference::Interference,
    Restart: persistent::RestartExperiment,
    Malloc: persistent::MallocExperiment,
    Text: text::Text,
    Fork: fork::Fork,
    Snapshot: snapshot::Snapshot,
    Trial: trial::TrialExperiment,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Experiment(OneExperiment),
    Simulate(simulate::Args),
    /// Simulate what the HawkEye and Ingens papers publish, and compare value by value; 1 where a
    /// gate is not met
    Papers {
        /// Print JSON (schema megapage.simulate.papers/1)
        #[arg(long)]
        json: bool,
    },
    /// Install the libraries of peers (apt-get, pip, cargo)
    Install {
        /// Peers by name [default: all]
        peers: Vec<String>,
    },
}

// An experiment, and how it is run.
#[derive(Debug, clap::Args)]
struct Run<E: Experiment + clap::Args> {
    #[command(flatten)]
    experiment: E,
    /// Rounds that medians are taken of [default: the experiment's own]
    // Not a default of clap's: its derive keeps one for all instances of a generic type.
    #[arg(long)]
    runs: Option<u32>,
    /// Install first what is absent (apt-get)
    #[arg(long)]
    install: bool,
    /// Print what would be run, and how the machine would be set, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Exit with 1 unless every gate holds and every run ended well
    #[arg(long)]
    check: bool,
    /// Print JSON (megapage.bench/1)
    #[arg(long)]
    json: bool,
    /// Write the JSON to this file as well, and pictures beside it
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

/// Exits with 0 if done; 1 with `--check` if a gate fails or a run did; 2 on bad input or if it is
/// not possible.
fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) if !error.use_stderr() => {
            // Help or the version. A reader that has gone away is no failure.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.render().to_string();
            // The first paragraph names the error; the usage after it is for --help.
            let what: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            say(format!("{} (see megapage-lab --help)", what.join(" ").trim_start_matches("error: ")));
            return ExitCode::from(2);
        }
    };
    let done = match command {
        Command::Experiment(experiment) => experiment.conduct(),
        Command::Simulate(args) => {
            let printed = simulate::simulate(args, &mut |line| say(line));
            printed.and_then(|text| print(&text)).map(|()| ExitCode::SUCCESS)
        }
        Command::Papers { json } => simulate_papers(json),
        Command::Install { peers } => {
            let install = |peers: &[String]| install::install(&peers::select(peers)?, &mut |line| say(line));
            install(&peers).map(|()| ExitCode::SUCCESS)
        }
    };
    done.unwrap_or_else(|error| {
        say(shown::error(error.as_ref()));
        ExitCode::from(2)
    })
}

impl<E: Experiment + clap::Args> Run<E> {
    fn map<F: Experiment + clap::Args>(self, to: impl FnOnce(E) -> F) -> Run<F> {
        let Run { experiment, runs, install, dry_run, check, json, save } = self;
        Run { experiment: to(experiment), runs, install, dry_run, check, json, save }
    }

    fn conduct(self) -> Result<ExitCode> {
        let plan = Plan { runs: self.runs.unwrap_or(E::RUNS[0]), install: self.install };
        experiment::validate(&self.experiment, &plan)?;
        if self.dry_run {
            print(&(self.experiment.dry_run(&plan).join("\n") + "\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        let place = bench::Place::beside_this_program()?;
        let former = bench::Former::of(self.save.as_deref());
        let save = Save::open(self.save.as_deref())?;
        let on_terminal = std::io::stderr().is_terminal();
        // Without a terminal it prints only the parts that are skipped because a package is absent.
        let mut progress = |line: &str| {
            if on_terminal || line.starts_with("absent:") {
                say(line);
            }
        };
        let mut report = experiment::conduct(&self.experiment, &plan, &place, &mut progress)?;
        former.carry(E::NAME, &mut report.gates);
        let json = megapage_report::bench::json(&report);
        save.write(&json)?;
        if let Some(path) = &self.save {
            save_charts(path, &report.found)?;
        }
        print(&if self.json { json } else { report.human() })?;
        Ok(ExitCode::from(u8::from(self.check && !report.is_clean())))
    }
}

fn simulate_papers(as_json: bool) -> Result<ExitCode> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let on_terminal = std::io::stderr().is_terminal();
    let found = papers::papers(threads, |done, of| {
        if on_terminal && done % 10 == 0 {
            say(format!("{done}/{of} simulated"));
        }
    });
    let json = || megapage_report::json("megapage.simulate.papers/1", &found) + "\n";
    print(&if as_json { json() } else { papers::human(&found) })?;
    Ok(ExitCode::from(u8::from(!found.passed())))
}

/// Writes the pictures beside `path`.
fn save_charts(path: &Path, found: &impl Found) -> Result<()> {
    for (name, chart) in found.charts() {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let path = path.with_file_name(format!("{stem}-{name}.svg"));
        write_report(&path, megapage_lab::chart::svg(&chart).as_bytes())
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Prints text, without characters that steer the terminal. A reader that has gone away is no
/// failure.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(shown::lines(text).as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

/// Prints one line on standard error.
fn say(what: impl Display) {
    let line = format!("megapage-lab: {}\n", shown::message(&what.to_string()));
    let _ = std::io::stderr().write_all(line.as_bytes());
}
