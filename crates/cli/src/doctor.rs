//! `megapage doctor`.

mod log;

use crate::one_process::one_process;
use crate::output::answer;
use anyhow::{Result, bail};
use megapage_doctor::{ParseTargetError, Request, SCHEMA, Target, WHY_SCHEMA, diagnosis, why};
use megapage_kernel::KernelRoot;
use megapage_report::doctor as human;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Find and explain what keeps a user or a program from getting huge pages
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check for this user, by login name or number; trials as another user need root
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Also check this program, by path or by name in PATH
    #[arg(long = "for", value_name = "PROGRAM")]
    program: Option<OsString>,
    /// Only read files: do not try to get a huge page
    #[arg(long)]
    only_read: bool,
    /// Explain notes (minor findings) too, and list what the kernel lacks
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// Explain why memory of this running process is not on huge pages; with ADDRESS (hexadecimal),
    /// only the range around that address
    #[arg(long, value_name = "PROCESS[:ADDRESS]", conflicts_with_all = ["user", "program", "only_read"])]
    why: Option<String>,
    /// Explain messages about huge pages in this log; - is standard input. Without FILE, read the
    /// journal of --unit
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, conflicts_with_all = ["user", "program", "only_read", "why"])]
    log: Option<Option<PathBuf>>,
    /// With --log: read the journal of this service since the last boot
    #[arg(short, long, value_name = "UNIT", requires = "log")]
    unit: Option<String>,
    /// Print JSON (schema megapage.doctor/1; with --why, megapage.doctor-why/1; with --log,
    /// megapage.doctor-log/1)
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Returns true if the command examines a running process.
    pub fn looks_at_a_process(&self) -> bool {
        self.why.is_some()
    }
}

/// Runs the command. Returns 0 if no finding is weightier than a note, else 1.
pub fn main(args: Args) -> Result<ExitCode> {
    match (args.log, args.unit) {
        (Some(None), Some(unit)) => return log::main(&log::Source::Unit(unit), args.json),
        (Some(Some(path)), None) => return log::main(&log::Source::File(path), args.json),
        (Some(Some(_)), Some(_)) => bail!("--log takes a file or --unit, not both"),
        (Some(None), None) => bail!("--log: give a file, - for standard input, or --unit UNIT"),
        (None, _) => {}
    }
    if let Some(text) = args.why {
        let root = KernelRoot::live();
        let target = target(&root, &text)?;
        let why = why(&root, target)?;
        answer(args.json, WHY_SCHEMA, &why, || human::why(&why))?;
        return Ok(ExitCode::from(u8::from(why.has_findings())));
    }
    let request = Request { user: args.user, program: args.program, only_read: args.only_read };
    let diagnosis = diagnosis(&KernelRoot::live(), &request)?;
    answer(args.json, SCHEMA, &diagnosis, || human::human(&diagnosis, args.verbose))?;
    Ok(ExitCode::from(u8::from(diagnosis.has_findings())))
}

/// Parses a process, by its number or by a name that matches no other process, and optionally an
/// address in it.
fn target(root: &KernelRoot, text: &str) -> Result<Target> {
    match text.parse() {
        Ok(target) => return Ok(target),
        Err(ParseTargetError::Pid) => {}
        Err(error) => return Err(error.into()),
    }
    let (name, address) = text.split_at(text.find(':').unwrap_or(text.len()));
    let pid = one_process(root, name)?;
    Ok(format!("{pid}{address}").parse::<Target>()?)
}
