//! `megapage-lab simulate`: policies on a modelled machine.

mod curve;
mod human;
mod plots;
mod record;

use crate::arguments::number;
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use megapage_kernel::trusted::{read_bounded, write_report};
use megapage_report::json;
use megapage_simulate::hardware::Hardware;
use megapage_simulate::testbed::Speed;
use megapage_simulate::trace::{Trace, read, write};
use megapage_simulate::workload::{WORKLOADS, by_name};
use megapage_simulate::{CompareError, HostPages, Setup, all_policies, compare};
use megapage_units::Bytes;
use std::path::PathBuf;
use std::thread::available_parallelism;

/// Try policies on a modelled machine: on a recorded program, or on the workloads of the papers
///
/// The policies are those that the daemon runs. The same arguments give the same output, to the
/// byte.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<SimulateCommand>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum SimulateCommand {
    /// Record what running processes do with their memory, as a trace
    Record(record::Args),
    Curve(Box<curve::Args>),
    /// List workloads and policies
    List,
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// Policies, separated by commas [default: all but those named after released code]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    policy: Vec<String>,
    /// Write memory.svg, cost.svg and huge-pages.svg to this directory
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<PathBuf>,
    /// Write the workload as a trace to this file, and simulate nothing
    #[arg(long, value_name = "FILE", requires = "workload")]
    save_trace: Option<PathBuf>,
    /// Print JSON (schema megapage.simulate/1)
    #[arg(long)]
    json: bool,
}

/// Options for the simulated workload and machine.
#[derive(Debug, clap::Args)]
struct MachineArgs {
    /// A generated workload (see megapage-lab simulate list)
    #[arg(long, value_name = "NAME", conflicts_with = "trace")]
    workload: Option<String>,
    /// A trace, as `megapage-lab simulate record` writes it
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The machine's memory [default: the workload's]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// The free memory fragmentation index at the start, 0 to 1 [default: the workload's]
    #[arg(long, value_name = "INDEX", value_parser = number(0.0, 1.0, "an index from 0 to 1"))]
    fragmentation: Option<f64>,
    /// Run the programs in a virtual machine: each page walk is nested
    #[arg(long)]
    virtualized: bool,
    /// The pages that the host backs the virtual machine's memory by: `same` as the guest's,
    /// whatever the policy makes of them, or always `base` or `huge`
    #[arg(long, value_name = "PAGES", default_value = "same", requires = "virtualized")]
    host_pages: HostPagesArg,
    /// Regions that every policy may promote in a second (8: the papers' testbed), or `own`: each
    /// policy's default (Linux: 0.8)
    #[arg(long, value_name = "REGIONS|own", default_value = "8", value_parser = speed)]
    speed: Pace,
    /// Simulated seconds from one step to the next
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = number(0.1, 60.0, "seconds from 0.1 to 60"))]
    step: f64,
    /// Stop after this many simulated seconds
    #[arg(long, value_name = "SECONDS", default_value = "100000", value_parser = number(1.0, 1e7, "seconds from 1 to 10000000"))]
    longest: f64,
    /// Source of all randomness
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// `--host-pages`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum HostPagesArg {
    /// Pages of the guest's size
    Same,
    /// Base pages
    Base,
    /// Huge pages
    Huge,
}

impl From<HostPagesArg> for HostPages {
    fn from(pages: HostPagesArg) -> HostPages {
        match pages {
            HostPagesArg::Same => HostPages::Same,
            HostPagesArg::Base => HostPages::Base,
            HostPagesArg::Huge => HostPages::Huge,
        }
    }
}

/// Speed of promotions: the same for all policies, or each policy's default.
#[derive(Clone, Copy, Debug)]
struct Pace(Option<Speed>);

fn speed(text: &str) -> Result<Pace, String> {
    match text.parse() {
        Ok(speed) if Speed::RANGE.contains(&speed) => Ok(Pace(Some(Speed(speed)))),
        _ if text == "own" => Ok(Pace(None)),
        _ => Err("give regions a second, from 0.0003 to 10000, or 'own'".into()),
    }
}

/// Simulates, and returns the text to print. `say` takes warnings, one line each.
pub fn simulate(args: Args, say: &mut dyn FnMut(String)) -> Result<String> {
    match args.command {
        None => run(args.run),
        Some(SimulateCommand::Record(args)) => record::record(&args, say),
        Some(SimulateCommand::Curve(args)) => curve::curve(&args),
        Some(SimulateCommand::List) => Ok(human::list()),
    }
}

fn run(args: RunArgs) -> Result<String> {
    let (trace, setup) = prepare(&args.machine)?;
    if let Some(file) = &args.save_trace {
        write_report(file, write(&trace).as_bytes()).with_context(|| file.display().to_string())?;
        return Ok(String::new());
    }
    let policies = if args.policy.is_empty() { all_policies() } else { args.policy.clone() };
    let comparison = compare(&trace, &setup, &policies, args.machine.speed.0, threads())?;
    if let Some(directory) = &args.svg {
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        for (name, svg) in plots::all(&comparison) {
            let file = directory.join(name);
            write_report(&file, svg.as_bytes()).with_context(|| file.display().to_string())?;
        }
    }
    Ok(match args.json {
        true => json("megapage.simulate/1", &comparison) + "\n",
        false => human::comparison(&comparison),
    })
}

/// The longest trace that is read, in bytes.
const LONGEST: u64 = 256 << 20;

fn prepare(args: &MachineArgs) -> Result<(Trace, Setup)> {
    let (trace, setup) = match (&args.workload, &args.trace) {
        (Some(name), _) => {
            let Some(workload) = by_name(name) else {
                let known: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
                bail!("no workload is named '{name}'; known: {}", known.join(", "));
            };
            (workload.trace(&Hardware::haswell()), workload.setup())
        }
        (None, Some(file)) => {
            let name = || file.display().to_string();
            let bytes =
                std::fs::File::open(file).and_then(|file| read_bounded(file, LONGEST)).with_context(name)?;
            let text = String::from_utf8(bytes).with_context(name)?;
            let trace = read(&text).with_context(|| file.display().to_string())?;
            let memory = args.memory.or(trace.memory).ok_or(CompareError::NoMemory)?;
            let setup = Setup { fragmentation: trace.fragmentation.unwrap_or(0.0), ..Setup::new(memory) };
            (trace, setup)
        }
        (None, None) => {
            bail!("give --workload NAME or --trace FILE (megapage-lab simulate list shows workloads)")
        }
    };
    let setup = Setup {
        memory: args.memory.unwrap_or(setup.memory),
        fragmentation: args.fragmentation.unwrap_or(setup.fragmentation),
        host_pages: args.virtualized.then_some(args.host_pages.into()),
        step: args.step,
        longest: args.longest,
        seed: args.seed,
        ..setup
    };
    Ok((trace, setup))
}

fn threads() -> usize {
    available_parallelism().map_or(1, usize::from)
}
