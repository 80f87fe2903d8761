//! `megapage run`.

mod target;

use crate::flags::Backing;
use crate::one_process::one_process;
use crate::run::target::Target;
use megapage_broker::patience_from_environment;
use megapage_kernel::spawn::{die_of, execute};
use megapage_kernel::{KernelRoot, why_off};
use megapage_launch::attach::Attachment;
use megapage_launch::report::{Ended, RunReport};
use megapage_launch::request::{Heap, Mechanism, OwnThp, Request, Text, TextRequest};
use megapage_launch::run::{RunError, prepare, set_thp};
use megapage_memory::stock::socket_path;
use megapage_units::Bytes;
use megapage_units::shown::shell_word;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Exit status of megapage's own failures.
pub const FAILED: u8 = 125;
/// Exit status of a request that was met in part (`--attach --once`).
const PARTLY: u8 = 1;

/// Run a program on huge pages, and report what it got.
///
/// The program keeps its standard streams, its exit status and its signals; megapage prints nothing
/// unless you request a report. Exit status: the program's; 125 megapage itself failed, or
/// --require was not met; 126 the program cannot be executed; 127 there is no such program. SIGUSR1
/// to megapage writes a report at once, with --report.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    backing: Backing,
    /// Take the heap's first pages from the broker (megapage pool serve) of this name or at this
    /// path. Without a value, the name is default
    #[arg(long, value_name = "NAME|PATH", num_args = 0..=1, require_equals = true, default_missing_value = "default")]
    pool: Option<String>,
    /// Huge pages for the program's code, constants and data: auto, file, thp, 2m, 1g or none
    /// (docs/run.md)
    #[arg(long, value_name = "KIND", default_value = "none")]
    text: Text,
    /// Libraries to which --text applies too: names or paths, separated by commas
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    text_libs: Vec<String>,
    /// Fail with status 125 unless the program gets all requested huge pages
    #[arg(long)]
    require: bool,
    /// Write a report to this file at the end; - is standard output
    #[arg(long, value_name = "FILE|-")]
    report: Option<PathBuf>,
    /// Write the report as JSON (schema megapage.run/3); without --report, to standard output
    #[arg(long)]
    json: bool,
    /// Use huge pages even if megapage trial found no gain
    #[arg(long)]
    ignore_trial: bool,
    /// Name that the program sees: for drop-ins of units whose ExecStart= has the prefix @
    #[arg(long, value_name = "NAME", hide = true)]
    argv0: Option<OsString>,
    /// Print what would be done, as shell lines, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Put a running process's memory on huge pages until the process ends or megapage gets SIGINT.
    /// PROCESS is a PID, or a name (as for pgrep) that fits only one process
    #[arg(long, value_name = "PROCESS",
        conflicts_with_all = [
            "program", "heap", "pool", "shm", "text", "text_libs", "mechanism", "return_after", "children",
            "jvm", "thp", "argv0",
        ])]
    attach: Option<String>,
    /// With --attach: make the present memory huge once, then exit
    #[arg(long)]
    once: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required_unless_present = "attach", trailing_var_arg = true,
        value_hint = clap::ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// The choice of `--mechanism`; `auto` is `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice(pub Option<Mechanism>);

/// Parses `--mechanism`.
pub fn mechanism(text: &str) -> Result<Choice, String> {
    match Mechanism::parse(text.as_bytes()) {
        None if text != "auto" => {
            Err(format!("'{text}' is none of auto, preload, tunable, runtime, outside"))
        }
        chosen => Ok(Choice(chosen)),
    }
}

/// Runs the program, writes the reports, and ends as the program has ended.
pub fn main(args: Args) -> ExitCode {
    match run(args) {
        Ok(code) => code,
        Err((status, message)) => {
            crate::output::say(message);
            ExitCode::from(status)
        }
    }
}

type Failure = (u8, String);

fn failure(error: RunError) -> Failure {
    (error.exit_status(), error.to_string())
}

fn run(args: Args) -> Result<ExitCode, Failure> {
    let root = KernelRoot::live();
    if let Some(why) = why_off(&root) {
        return plainly(&args, &format!("megapage is off: {why}"));
    }
    if args.once && args.attach.is_none() {
        return Err((FAILED, "--once goes with --attach PROCESS".into()));
    }
    if !args.text_libs.is_empty() && args.text == Text::None {
        return Err((FAILED, "--text-libs goes with --text auto, file, thp, 2m or 1g".into()));
    }
    if args.pool.is_some() && args.backing.heap == Heap::None {
        return Err((FAILED, "--pool asks for huge pages, and --heap none for none: leave one out".into()));
    }
    if args.backing.shm.is_asked() && args.backing.heap == Heap::None {
        return Err((
            FAILED,
            "--shm takes the preloaded library, and --heap none leaves it out: leave one out".into(),
        ));
    }
    let path = args.report.clone().or(args.json.then(|| "-".into()));
    let form = if args.json { json } else { megapage_report::run::text };
    if let Some(process) = &args.attach {
        let pid = one_process(&root, process).map_err(|error| (FAILED, error.to_string()))?;
        let attachment = Attachment {
            pid,
            once: args.once,
            require: args.require,
            fork: args.backing.fork,
            after: Duration::ZERO,
            watched: true,
            heed_verdict: !args.ignore_trial,
        };
        if args.dry_run {
            return print(attachment.dry_run(&root).map_err(failure)?);
        }
        let mut target = Target::open(path).map_err(|message| (FAILED, message))?;
        let report = attachment.run(&root, |report| target.live(&form(report))).map_err(failure)?;
        target.write(&form(&report)).map_err(|message| (FAILED, message))?;
        required(&report, args.require)?;
        return if args.once { in_part(&report) } else { Ok(ExitCode::SUCCESS) };
    }
    let Some((program, arguments)) = args.program.split_first() else {
        return Err((FAILED, "no program is named".into()));
    };
    let pool = args.pool.as_deref().map(broker_socket).transpose()?;
    let request = Request {
        pool,
        program: program.clone(),
        arguments: arguments.to_vec(),
        argv0: args.argv0.clone(),
        thp: args.backing.thp,
        heap: heap(args.backing.heap, args.backing.thp)?,
        shm: args.backing.shm,
        mechanism: args.backing.mechanism.0,
        text: TextRequest { kind: args.text, libraries: args.text_libs.clone() },
        require: args.require,
        return_after: args.backing.return_after,
        children: args.backing.children,
        fork: args.backing.fork,
        watched: path.is_some() || args.require,
        jvm: args.backing.jvm,
        heed_verdict: !args.ignore_trial && args.backing.thp == OwnThp::Settings,
    };
    let can_be_plain = !args.require && request.mechanism.is_none();
    let prepared = match prepare(&root, request) {
        Err(RunError::Kernel(error)) if can_be_plain => {
            set_thp(args.backing.thp).map_err(failure)?;
            return plainly(&args, &error.to_string());
        }
        prepared => prepared.map_err(failure)?,
    };
    if args.dry_run {
        return print(prepared.dry_run());
    }
    let mut target = Target::open(path).map_err(|message| (FAILED, message))?;
    let live = |report: &RunReport| target.live(&form(report));
    let report = prepared.run(&root, live, crate::output::say).map_err(failure)?;
    target.write(&form(&report)).map_err(|message| (FAILED, message))?;
    required(&report, args.require)?;
    match report.totals.map(|totals| totals.ended) {
        Some(Ended::Signal(number)) => die_of(number),
        Some(Ended::Status(status)) => Ok(ExitCode::from(status as u8)),
        None => Err((FAILED, "the program's end was not seen".into())),
    }
}

/// Executes the program as without megapage, for the reason `why`. Fails if there is no program, or
/// with `--require`.
fn plainly(args: &Args, why: &str) -> Result<ExitCode, Failure> {
    let Some((program, arguments)) = args.program.split_first() else {
        return Err((FAILED, format!("{why}; nothing is promoted")));
    };
    if args.require {
        return Err((FAILED, format!("--require: {why}")));
    }
    if args.dry_run {
        let words = args.program.iter().map(|word| shell_word(&word.to_string_lossy()));
        return print(vec![format!("# {why}"), words.collect::<Vec<_>>().join(" ")]);
    }
    if args.report.is_some() || args.json {
        crate::output::say(format!("no report: {why}"));
    }
    let mut command = Command::new(program);
    let source = execute(command.args(arguments), args.argv0.as_ref().unwrap_or(program));
    Err(failure(RunError::Exec { program: program.display().to_string(), source }))
}

/// Returns the heap to request. `--thp never` turns `auto` into `none`; with `--heap thp` it is an
/// error.
pub fn heap(heap: Heap, thp: OwnThp) -> Result<Heap, Failure> {
    match (thp, heap) {
        (OwnThp::Never, Heap::Thp) => {
            Err((FAILED, "--thp never and --heap thp exclude each other: leave one out".into()))
        }
        (OwnThp::Never, Heap::Auto) => Ok(Heap::None),
        (_, heap) => Ok(heap),
    }
}

/// Returns the absolute path of the broker's socket: the program may change its directory before it
/// connects.
pub fn broker_socket(name: &str) -> Result<PathBuf, Failure> {
    if name.is_empty() {
        return Err((FAILED, "--pool: the name is empty; leave it out for the broker 'default'".into()));
    }
    patience_from_environment().map_err(|why| (FAILED, why))?;
    let path = socket_path(name);
    std::path::absolute(&path).map_err(|error| (FAILED, format!("--pool {name}: {error}")))
}

fn required(report: &RunReport, require: bool) -> Result<(), Failure> {
    if require && !report.not_obtained.is_empty() {
        return Err((FAILED, format!("--require: {}", report.not_obtained.join("; "))));
    }
    Ok(())
}

/// Fails with status 1 (done in part) and a message if one promotion did not obtain everything.
fn in_part(report: &RunReport) -> Result<ExitCode, Failure> {
    match &report.promotion {
        Some(done) if report.running && done.obtained_bytes < done.asked_bytes => {
            let (obtained, asked) = (Bytes(done.obtained_bytes), Bytes(done.asked_bytes));
            Err((PARTLY, format!("obtained {obtained} of {asked}; --report - has the reasons")))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn json(report: &RunReport) -> String {
    megapage_report::json("megapage.run/3", report) + "\n"
}

fn print(lines: Vec<String>) -> Result<ExitCode, Failure> {
    crate::output::print(&megapage_report::lines(lines))
        .map_err(|error| (FAILED, format!("standard output: {error}")))?;
    Ok(ExitCode::SUCCESS)
}
