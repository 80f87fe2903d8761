//! `megapage daemon`.

use crate::flags::name;
use crate::output::{print, say};
use anyhow::Result;
use megapage_daemon::config::Config;
use megapage_daemon::service::{Options, Overrides, Source, run};
use megapage_daemon::{Pass, PassDocument};
use megapage_decide::POLICIES;
use megapage_kernel::{KernelRoot, why_off};
use megapage_launch::verdict::{self, Forbidden};
use megapage_report::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Make hot memory of unmodified programs huge, and free unused huge memory
///
/// Watches processes; a policy decides which memory to make huge, split or free. The daemon acts
/// within budgets, through the kernel's own interfaces. SIGHUP rereads the configuration, SIGTERM
/// ends the daemon cleanly. Arguments override the configuration.
///
/// Exit status: 0 stopped as requested; 1 an action of --once failed; 2 bad input, or it cannot
/// run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these processes: PIDs, or regular expressions for names [default: as configured]
    #[arg(value_name = "PROCESS", value_parser = name)]
    processes: Vec<String>,
    /// The policy for huge pages: megapage, hawkeye-pmu, hawkeye-g, ingens, freebsd, linux, or a
    /// variant (docs/policies.md)
    #[arg(long, value_name = "NAME", value_parser = policy)]
    policy: Option<String>,
    /// The configuration file [default: /etc/megapage/daemon.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Make one round (observe, decide, act), show the result, and exit
    #[arg(long)]
    once: bool,
    /// Show what would be done, and change nothing. Still samples accesses, unless a running daemon
    /// samples them
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema megapage.daemon/2), one document for each round
    #[arg(long)]
    json: bool,
    /// Check the configuration, print every value in effect, and exit
    #[arg(long, conflicts_with_all = ["once", "dry_run", "json"])]
    check_config: bool,
}

fn policy(text: &str) -> Result<String, String> {
    match POLICIES.iter().any(|known| known.name == text) {
        true => Ok(text.into()),
        false => {
            let names: Vec<&str> = POLICIES.iter().map(|known| known.name).collect();
            Err(format!("the policies are {}", names.join(", ")))
        }
    }
}

impl Args {
    fn source(&self) -> Source {
        let (policy, processes) = (self.policy.clone(), self.processes.clone());
        let overrides: Overrides = Box::new(move |config: &mut Config| {
            if let Some(policy) = &policy {
                config.policy.clone_from(policy);
            }
            config.choose(&processes);
        });
        Source { path: self.config.clone(), overrides: Some(overrides) }
    }
}

/// Runs the daemon. Returns 0 if it was stopped, or its one pass obtained everything; 1 if the one
/// pass did not obtain everything.
pub fn main(args: Args) -> Result<ExitCode> {
    let source = args.source();
    if args.check_config {
        let config = source.load()?;
        config.ignored.iter().for_each(say);
        print(&config.to_toml())?;
        return Ok(ExitCode::SUCCESS);
    }
    let off = why_off(&KernelRoot::live());
    if let Some(why) = &off {
        say(format!("megapage is off: {why}; the daemon looks and does not act"));
    }
    // A service prints nothing of each pass on standard output, unless the user asks for it.
    let shows = args.once || args.dry_run || args.json;
    let options = Options { source, once: args.once, dry_run: args.dry_run || off.is_some() };
    let (mut failed, mut lost) = (false, None);
    let mut report = |pass: &Pass| {
        failed = pass.failed() > 0;
        let text = match args.json {
            true => json(megapage_daemon::SCHEMA, &PassDocument::new(pass)) + "\n",
            false => megapage_report::daemon::pass(pass, args.once),
        };
        match if shows { print(&text) } else { Ok(true) } {
            Ok(goes_on) => goes_on,
            Err(error) => {
                lost = Some(error);
                false
            }
        }
    };
    let mut trials = Forbidden::new(verdict::store().ok());
    let veto = Box::new(move |root: &KernelRoot, pid| trials.why(root, pid));
    run(&KernelRoot::live(), &options, veto, &mut report)?;
    if let Some(error) = lost {
        return Err(error.into());
    }
    Ok(ExitCode::from(u8::from(args.once && failed)))
}
