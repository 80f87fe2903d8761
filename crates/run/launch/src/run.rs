//! One run: decides on it, starts the program, and reports. `running` does the part between.

mod in_place;
mod running;

use crate::applications::{Application, Needs};
use crate::broker::Broker;
use crate::jvm::Java;
use crate::machine::Machine;
use crate::mechanism::{Plan, Refusal, choose};
use crate::program::Program;
use crate::relay::Relay;
use crate::report::{RunReport, Totals};
use crate::request::{Mechanism, OwnThp, Request, Text};
pub use crate::run_error::RunError;
use crate::runtime_log::RuntimeLog;
use crate::switched_off::{SwitchedOff, THP_VARIABLE};
use crate::text::{self, TextPlan};
use crate::verdict;
use megapage_kernel::ability::THP_DISABLE_EXCEPT_ADVISED;
use megapage_kernel::process::read_own_status;
use megapage_kernel::spawn::Signals;
use megapage_kernel::spawn::signal::*;
use megapage_kernel::{KernelRoot, SharedWords, disable_own_thp, enable_own_thp};
use megapage_memory::{LEDGER_VARIABLE, Ledger};
use megapage_remap::ledger::{LEDGER_VARIABLE as TEXT_LEDGER_VARIABLE, TextLedger, pages_for};
use megapage_units::shown::shell_word;
use megapage_units::{Bytes, Pid};
use running::Running;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Signals that are taken: those by which a user, a supervisor or a terminal steers a program.
const TAKEN: [i32; 10] =
    [SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT, SIGTSTP];

/// Those of [`TAKEN`] that end a program that does not handle them.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// Longest wait of a program at its exit with `--require`, until we notice the exit. Without the
/// last values nothing is proved.
const REQUIRED_PATIENCE: Duration = Duration::from_secs(1);
/// Inaccuracy of resident memory: the kernel counts it in batches for each processor.
const ROUGHLY: Bytes = Bytes::mib(1);

/// Variable by which ld.so(8) finds libraries to load first.
const PRELOAD: &str = "LD_PRELOAD";

fn system(what: &'static str) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::System { what, source }
}

/// A run that is decided but not started.
#[derive(Debug)]
pub struct Prepared {
    program: Program,
    plan: Plan,
    text: Option<TextPlan>,
    /// The library that waits at exit, for a program in which no other library of ours does.
    waits: Option<PathBuf>,
    request: Request,
    /// The caller's LD_PRELOAD.
    preloaded: Option<String>,
    /// True if transparent huge pages are switched off for us, and so for the program, but not on
    /// purpose.
    switched_off: bool,
}

/// Plans a run by another starter, such as a service manager. `adapt` changes the caller's facts
/// into the program's. Changes nothing.
pub fn plan(
    root: &KernelRoot,
    request: &Request,
    adapt: impl FnOnce(&mut Machine),
) -> Result<(Program, Plan), RunError> {
    let (program, _, plan) = look(root, request, adapt)?;
    Ok((program, plan))
}

fn look(
    root: &KernelRoot,
    request: &Request,
    adapt: impl FnOnce(&mut Machine),
) -> Result<(Program, Machine, Plan), RunError> {
    let mut program = Program::inspect(&request.program)?;
    let mut machine = Machine::read(root)?;
    machine.broker = request.pool.as_deref().map(|socket| Broker::look(root, socket));
    if request.thp == OwnThp::Never {
        machine.collapse_off = true;
        machine.thp = Err("--thp never switches transparent huge pages off".into());
    }
    adapt(&mut machine);
    if request.jvm && program.java.is_none() {
        program.java = Java::installed(&machine.environment);
    }
    if let Some(java) = &mut program.java {
        let arguments: Vec<String> =
            request.arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
        java.read_argument_files(&arguments);
    }
    let plan = choose(&program, request, &machine)?;
    Ok((program, machine, plan))
}

/// Examines the program and the machine, and decides. Changes nothing. Returns [`RunError::Kernel`]
/// if /proc is missing or holds other files: the program can still run as without megapage.
pub fn prepare(root: &KernelRoot, request: Request) -> Result<Prepared, RunError> {
    if request.thp == OwnThp::Advised && !THP_DISABLE_EXCEPT_ADVISED.is_there(root) {
        return Err(Refusal::ThpAdvised(THP_DISABLE_EXCEPT_ADVISED.title()).into());
    }
    let (program, machine, mut plan) = look(root, &request, |_| {})?;
    if request.heed_verdict && program.privilege.is_none() {
        let own = Pid(std::process::id().cast_signed());
        if let Some(verdict) = verdict::of_program(root, own, &program.executable) {
            verdict::replay(&mut plan, request.mechanism, &verdict);
        }
    }
    let text = match request.text.kind {
        Text::None => None,
        kind => {
            let files = text::files(root, &program, &request.text)?;
            Some(text::choose(files, &program, &machine, kind, request.require)?)
        }
    };
    let preloaded = machine.variable("LD_PRELOAD").map(String::from);
    // A required result has to be seen to the program's end.
    let waits = match request.require && !plan.uses(Mechanism::Preload) {
        true => text::loadable(&program, &machine).ok(),
        false => None,
    };
    if !plan.uses(Mechanism::Preload) && (text.is_some() || waits.is_some()) {
        plan.environment.extend(machine.filters_variable());
    }
    let off = machine.switched_off.as_ref().filter(|_| request.clears_thp());
    plan.notes.extend(off.map(SwitchedOff::note));
    let switched_off = off.is_some_and(|off| !off.on_purpose);
    Ok(Prepared { program, plan, text, waits, request, preloaded, switched_off })
}

/// Switches transparent huge pages off for this process, as `--thp` requests. The program inherits
/// it.
pub fn set_thp(kind: OwnThp) -> Result<(), RunError> {
    match kind {
        OwnThp::Settings => Ok(()),
        kind => disable_own_thp(kind == OwnThp::Advised).map_err(system("PR_SET_THP_DISABLE")),
    }
}

impl Prepared {
    /// Returns the run as shell lines: the reasons as comments, then the command.
    pub fn dry_run(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .plan
            .considered
            .iter()
            .map(|it| {
                format!("# {} {}: {}", it.mechanism, if it.used { "used" } else { "not used" }, it.reason)
            })
            .collect();
        lines.extend(self.plan.pool.iter().map(|pool| {
            let used = if pool.used { "used" } else { "not used" };
            format!("# pool {} {used}: {}", pool.socket, pool.reason)
        }));
        lines.extend(self.plan.notes.iter().map(|note| format!("# {note}")));
        if self.request.thp != OwnThp::Settings {
            let kind = self.request.thp.name();
            lines.push(format!("# transparent huge pages of the program: {kind} (PR_SET_THP_DISABLE)"));
        }
        let name = self.program.executable.file_name().unwrap_or_default().to_string_lossy();
        let known = Application::of_program(&name).map(|known| known.lines(&Needs::default()));
        lines.extend(known.into_iter().flatten().map(|line| format!("# {name}: {line}")));
        if self.plan.uses(Mechanism::Outside) {
            lines.push("# while it runs: megapage run --attach its PID".into());
        }
        lines.extend(self.text.iter().flat_map(TextPlan::dry_run));
        let mut command = String::new();
        let environment = self.environment();
        if !environment.is_empty() {
            command.push_str("env ");
            for (name, value) in &environment {
                command.push_str(&format!("{name}={} ", shell_word(&value.to_string_lossy())));
            }
        }
        command.push_str(&shell_word(&self.program.executable.to_string_lossy()));
        for argument in self.arguments() {
            command.push_str(&format!(" {}", shell_word(&argument.to_string_lossy())));
        }
        lines.extend(self.remedies());
        lines.push(command);
        lines
    }

    /// Returns the lines that an administrator runs once. Then any user's JVM gets its pages.
    fn remedies(&self) -> Vec<String> {
        let Some(java) = &self.plan.java else { return Vec::new() };
        let remedies = java.obstacles.iter().flat_map(|it| &it.remedy);
        let lines: Vec<String> = remedies.map(|line| format!("#   {line}")).collect();
        match lines.is_empty() {
            true => lines,
            false => {
                let head =
                    "# for large pages, once (pools and settings as root; they stay until the next boot):";
                std::iter::once(head.to_string()).chain(lines).collect()
            }
        }
    }

    /// Returns the variables to set: those of the mechanism, and those of the library that moves
    /// text. That library is preloaded behind the allocator.
    fn environment(&self) -> Vec<(String, OsString)> {
        let mut environment = self.plan.environment.clone();
        if self.request.thp != OwnThp::Settings {
            environment.push((THP_VARIABLE.into(), self.request.thp.name().into()));
        }
        let text = self.text.as_ref().and_then(|text| text.environment(self.request.require));
        let waits = || self.waits.as_deref().map(|library| (library, Vec::new()));
        let Some((library, variables)) = text.or_else(waits) else { return environment };
        match environment.iter_mut().find(|(name, _)| name == PRELOAD) {
            Some((_, list)) => {
                list.push(":");
                list.push(library);
            }
            None => {
                let mut list = OsString::from(library);
                if let Some(others) = &self.preloaded {
                    list.push(":");
                    list.push(others);
                }
                environment.push((PRELOAD.into(), list));
            }
        }
        environment.extend(variables.into_iter().map(|(name, value)| (name.into(), value)));
        environment
    }

    /// Returns all arguments: a script's, then the mechanism's, then the user's.
    fn arguments(&self) -> Vec<OsString> {
        let own = self.program.script_arguments.iter().chain(&self.plan.arguments).map(OsString::from);
        own.chain(self.request.arguments.iter().cloned()).collect()
    }

    /// Runs the program to its end, or in place of this process; in the latter case it does not
    /// return. `live` gets a report on each SIGUSR1 of the launcher. `say` gets a line about a loss
    /// that no report can mention.
    ///
    /// Seccomp filters and old kernels may refuse calls that the launcher needs for itself. A
    /// refusal costs the report, never the run, unless `--require` asks for proof.
    pub fn run(
        mut self,
        root: &KernelRoot,
        mut live: impl FnMut(&RunReport),
        say: impl Fn(String),
    ) -> Result<RunReport, RunError> {
        if let Some(text) = &mut self.text {
            text.prime(root, self.request.require)?;
        }
        let cleared = if self.switched_off { enable_own_thp() } else { Ok(()) };
        let failed = cleared.err().map(|error| format!("PR_SET_THP_DISABLE could not be cleared: {error}"));
        self.plan.notes.extend(failed);
        set_thp(self.request.thp)?;
        // The launcher stays to make a report, or to coordinate the move of text.
        let moves = self.text.as_ref().filter(|text| text.moves());
        if !self.request.watched && moves.is_none() {
            return Err(self.replace_us(root, say));
        }
        let signals = match Signals::take(&TAKEN) {
            Ok(signals) => signals,
            Err(error) if self.request.require => return Err(system("signals")(error)),
            Err(error) => {
                if self.request.watched {
                    say(format!("no report: signals cannot be taken: {error}"));
                }
                return Err(self.replace_us(root, say));
            }
        };
        let relay = Relay::start(&TAKEN[1..]);
        let log = RuntimeLog::listen(self.plan.java.is_some() && self.request.watched);
        let mut notes = Vec::new();
        let heap_words = match self.plan.uses(Mechanism::Preload) {
            false => None,
            true => self.words(c"megapage-ledger", 1, "the heap's own account is missing", &mut notes)?,
        };
        let (ledger_file, ledger) = heap_words.map(|(file, words)| (file, Ledger::launcher(words))).unzip();
        let pages = moves.map(TextPlan::ledger_pages).or(self.waits.as_ref().map(|_| pages_for(0)));
        let text_words = match pages {
            None => None,
            Some(pages) => self.words(c"megapage-text", pages, "the text is not moved", &mut notes)?,
        };
        let (text_file, text_ledger) =
            text_words.map(|(file, words)| (file, TextLedger::launcher(words))).unzip();
        let heap = ledger.iter().map(Ledger::exit_handshake);
        for handshake in heap.chain(text_ledger.iter().map(TextLedger::exit_handshake)) {
            if !self.request.watched {
                // Final values have no reader: the program need not wait for us.
                handshake.let_go();
            }
            if self.request.require {
                handshake.ask_patience(REQUIRED_PATIENCE);
            }
        }
        let mut command = self.command(ledger_file.as_ref(), text_file.as_ref());
        let rss_at_start = read_own_status(root).map_or(Bytes::ZERO, |own| own.rss) + ROUGHLY;
        let start = Instant::now();
        let pid = signals
            .spawn(&mut command)
            .map_err(|source| RunError::Exec { program: self.program.path.display().to_string(), source })?;
        let mut running = Running::new(root, &self, pid, start, ledger, text_ledger, rss_at_start);
        (running.relay, running.notes) = (relay, notes);
        let (ended, usage) = running.watch(&signals, &mut live)?;
        let totals = Totals::of(ended, start.elapsed(), usage);
        // A signal sent during the last look would otherwise end us before the report is written.
        let _ = signals.finish(SIGUSR1);
        running.runtime_log = log.explain();
        Ok(running.report(Some(totals)))
    }

    /// Makes words that are shared with the program. If that fails, a note says what the program or
    /// its report lacks.
    fn words(
        &self,
        name: &CStr,
        pages: usize,
        lacks: &str,
        notes: &mut Vec<String>,
    ) -> Result<Option<(File, SharedWords)>, RunError> {
        match SharedWords::create(name, pages) {
            Ok(words) => Ok(Some(words)),
            Err(error) if self.request.require => Err(system("ledger")(error)),
            Err(error) => {
                notes.push(format!("{lacks}: no memory can be shared with the program: {error}"));
                Ok(None)
            }
        }
    }

    /// Returns `argv[0]`: a script's interpreter sees its path, as from the kernel; a program sees
    /// the name given.
    fn name(&self) -> &OsStr {
        match self.program.script_arguments.is_empty() {
            true => self.request.argv0.as_ref().unwrap_or(&self.request.program),
            false => self.program.executable.as_os_str(),
        }
    }

    fn command(&self, ledger: Option<&File>, text_ledger: Option<&File>) -> Command {
        let mut command = Command::new(&self.program.executable);
        command.arg0(self.name()).args(self.arguments()).envs(self.environment());
        for (variable, file) in [(LEDGER_VARIABLE, ledger), (TEXT_LEDGER_VARIABLE, text_ledger)] {
            if let Some(file) = file {
                let own = std::process::id();
                command.env(variable, KernelRoot::descriptor_path(own, file.as_raw_fd()));
            }
        }
        command
    }
}
