//! One run: starts the program, passes signals on to it, watches it, and reports.

use crate::broker::Broker;
use crate::fix::Added;
use crate::jvm::{Java, JavaPlan};
use crate::machine::Machine;
use crate::mechanism::{Plan, Refusal, choose};
use crate::messages::Explained;
use crate::program::{InspectError, Program};
use crate::promoter::Promoter;
use crate::report::{Asked, Ended, Pieces, ProgramFacts, RunReport, Totals};
use crate::request::Text;
use crate::request::{Mechanism, Request};
use crate::said::Said;
use crate::sample::{Places, Samples};
use crate::symbols::{self, MapReport, PerfMap};
use crate::text::{self, TextPieces, TextPlan};
use megapage_act::pool::AdditionError;
use megapage_act::promote::{PromoteError, PromoteOutcome};
use megapage_kernel::process::{read_exe, read_status};
use megapage_kernel::spawn::{self, ChildEvent, Signal, Signals, Usage, signal};
use megapage_kernel::{KernelError, KernelRoot, SharedWords};
use megapage_memory::{LEDGER_VARIABLE, Ledger};
use megapage_remap::ledger::{LEDGER_VARIABLE as TEXT_LEDGER_VARIABLE, TextLedger};
use megapage_units::{Pid, VirtRange};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Signals that are taken: all that a user, a supervisor or a terminal sends to steer a program.
const TAKEN: [i32; 10] = [
    signal::SIGCHLD,
    signal::SIGHUP,
    signal::SIGINT,
    signal::SIGQUIT,
    signal::SIGTERM,
    signal::SIGUSR1,
    signal::SIGUSR2,
    signal::SIGWINCH,
    signal::SIGCONT,
    signal::SIGTSTP,
];

/// Those of them that end a program that does not handle them.
const ENDING: [i32; 4] = [signal::SIGHUP, signal::SIGINT, signal::SIGQUIT, signal::SIGTERM];

/// While a program is watched, the launcher looks at the ledger this often: a fiftieth of the program's age,
/// so that what the handshake at exit adds stays below 2 % of the run, within these limits.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);
const LONGEST_LOOK: Duration = Duration::from_millis(20);
/// Without a ledger there is nothing to look at but `/proc/PID/status`,
const LONGEST_STATUS_LOOK: Duration = Duration::from_millis(100);
/// which takes some 30 us to read: it is read at intervals of a hundredth of the program's age, within these
/// limits.
const SHORTEST_STATUS_SPACING: Duration = Duration::from_millis(20);
const LONGEST_STATUS_SPACING: Duration = Duration::from_millis(500);
/// How long to wait for a signal when there is nothing else to do.
const IDLE: Duration = Duration::from_secs(3600);
/// Promotion from outside begins after this time: a program that ends sooner gains nothing by it.
const PROMOTE_AFTER: Duration = Duration::from_millis(200);

/// A text that is not moved by then never is: the library was not loaded, or the program was replaced.
const LONGEST_MOVE: Duration = Duration::from_secs(60);

/// Where ld.so(8) finds libraries to load first.
const PRELOAD: &str = "LD_PRELOAD";

/// Why a program was not run, or could not be watched to its end.
#[derive(Debug, Error)]
pub enum RunError {
    /// The program cannot be looked at.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// What was asked is not possible.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// execve(2) failed.
    #[error("{program}: {source}")]
    Exec {
        /// The program.
        program: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A kernel file could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A system call of megapage's own failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// `--fix` could not make the pages.
    #[error("--fix: {0}")]
    Fix(#[from] AdditionError),
    /// A signal came before the program was started.
    #[error("ended by signal {0} before the start")]
    Interrupted(i32),
    /// `--fix` cannot mend what is in the way.
    #[error("--fix: {0}")]
    Unfixed(String),
    /// A process cannot be promoted.
    #[error(transparent)]
    Promote(#[from] PromoteError),
    /// A thread of the kernel's was named.
    #[error("process {pid} ({name}) is a kernel thread: it has no memory of its own")]
    KernelThread {
        /// The thread.
        pid: Pid,
        /// Its name.
        name: String,
    },
}

impl RunError {
    /// 127 where there is no such program, 126 where it cannot be executed, 125 for all else.
    pub fn exit_status(&self) -> u8 {
        match self {
            RunError::Inspect(error) => error.exit_status(),
            RunError::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            // No process could be made (fork(2)): the program was not even looked at.
            RunError::Exec { source, .. }
                if matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory) =>
            {
                125
            }
            RunError::Exec { .. } => 126,
            _ => 125,
        }
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::System { what, source }
}

/// A run that is decided on and not started.
#[derive(Debug)]
pub struct Prepared {
    program: Program,
    plan: Plan,
    text: Option<TextPlan>,
    request: Request,
    /// LD_PRELOAD of the caller.
    preloaded: Option<String>,
}

/// Looks at the program and the machine and decides. Changes nothing.
pub fn prepare(root: &KernelRoot, request: Request) -> Result<Prepared, RunError> {
    let mut program = Program::inspect(&request.program)?;
    let mut machine = Machine::read(root)?;
    machine.broker = request.pool.as_deref().map(Broker::look);
    if request.jvm && program.java.is_none() {
        program.java = Java::installed(&machine.environment);
    }
    if let Some(java) = &mut program.java {
        let arguments: Vec<String> =
            request.arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
        java.read_argument_files(&arguments);
    }
    let plan = choose(&program, &request, &machine)?;
    let text = match request.text.kind {
        Text::None => None,
        kind => {
            let files = text::files(root, &program, &request.text)?;
            Some(text::choose(files, &program, &machine, kind, request.require)?)
        }
    };
    let preloaded = machine.variable("LD_PRELOAD").map(String::from);
    Ok(Prepared { program, plan, text, request, preloaded })
}

impl Prepared {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The decision.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The run as shell lines: the reasons as comments, then the command.
    pub fn dry_run(&self, root: &KernelRoot) -> Result<Vec<String>, RunError> {
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
        if self.plan.uses(Mechanism::Outside) {
            lines.push("# while it runs: megapage run --attach its PID".into());
        }
        lines.extend(self.text.iter().flat_map(TextPlan::dry_run));
        let mut command = String::new();
        let environment = self.environment();
        if !environment.is_empty() {
            command.push_str("env ");
            for (name, value) in &environment {
                command.push_str(&format!("{name}={} ", quoted(&value.to_string_lossy())));
            }
        }
        command.push_str(&quoted(&self.program.executable.to_string_lossy()));
        for argument in self.arguments() {
            command.push_str(&format!(" {}", quoted(&argument.to_string_lossy())));
        }
        let add = self.plan.java.as_ref().map(|java| java.add.as_slice()).unwrap_or_default();
        let (before, after) = Added::commands(root, add)?;
        lines.extend(self.plan.unfixed.iter().map(|why| format!("# --fix would refuse: {why}")));
        lines.extend(self.remedies());
        lines.extend(before);
        lines.push(command);
        lines.extend(after);
        Ok(lines)
    }

    /// What an administrator runs once, so that any user's JVM gets its pages from then on.
    fn remedies(&self) -> Vec<String> {
        let Some(java) = &self.plan.java else { return Vec::new() };
        let open = java.obstacles.iter().filter(|it| it.missing.is_none_or(|it| !java.add.contains(&it)));
        let lines: Vec<String> = open.flat_map(|it| &it.remedy).map(|line| format!("#   {line}")).collect();
        match lines.is_empty() {
            true => lines,
            false => {
                let head =
                    "# for large pages, once (pools and settings as root; they stay until the next boot):";
                std::iter::once(head.to_string()).chain(lines).collect()
            }
        }
    }

    /// The variables to set: the mechanism's, and those of the library that moves text, which is preloaded behind the
    /// allocator.
    fn environment(&self) -> Vec<(String, OsString)> {
        let mut environment = self.plan.environment.clone();
        let text = self.text.as_ref().and_then(|text| text.environment(self.request.require));
        let Some((library, variables)) = text else { return environment };
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

    /// All arguments: a script's, then the mechanism's, then the user's.
    fn arguments(&self) -> Vec<OsString> {
        let own = self.program.script_arguments.iter().chain(&self.plan.arguments).map(OsString::from);
        own.chain(self.request.arguments.iter().cloned()).collect()
    }

    /// Runs the program to its end. `live` is given a report whenever the launcher receives SIGUSR1.
    pub fn run(mut self, root: &KernelRoot, mut live: impl FnMut(&RunReport)) -> Result<RunReport, RunError> {
        if let Some(why) = &self.plan.unfixed {
            return Err(RunError::Unfixed(why.clone()));
        }
        if let Some(text) = &mut self.text {
            text.prime(root, self.request.require)?;
        }
        // Before anything is added: what would end us is taken, so that it is taken out again.
        let signals = Signals::take(&TAKEN).map_err(system("signals"))?;
        let add = self.plan.java.as_ref().map(|java| java.add.as_slice()).unwrap_or_default();
        let mut added = Added::make(root, add)?;
        while let Some(signal) = signals.next().map_err(system("signalfd"))? {
            if ENDING.contains(&signal.number) {
                added.take_out();
                return Err(RunError::Interrupted(signal.number));
            }
        }
        let said = Said::listen(self.plan.java.is_some() && self.request.watched);
        let (ledger_file, ledger) = match self.plan.uses(Mechanism::Preload) {
            false => (None, None),
            true => {
                let (file, words) = SharedWords::create(c"megapage-ledger").map_err(system("ledger"))?;
                (Some(file), Some(Ledger::launcher(words)))
            }
        };
        if let Some(ledger) = ledger.as_ref().filter(|_| !self.request.watched) {
            // Nobody waits for final figures: the program need not wait for us.
            ledger.acknowledge_exit();
        }
        let (text_file, text_ledger) = match self.text.as_ref().is_some_and(TextPlan::moves) {
            false => (None, None),
            true => {
                let (file, words) = SharedWords::create(c"megapage-text").map_err(system("ledger"))?;
                (Some(file), Some(TextLedger::launcher(words)))
            }
        };
        if let Some(ledger) = text_ledger.as_ref().filter(|_| !self.request.watched) {
            ledger.acknowledge_exit();
        }
        if let Some(ledger) = text_ledger.as_ref().filter(|_| self.request.text.map) {
            ledger.leave_unnamed();
        }
        let mut command = self.command(ledger_file.as_ref(), text_file.as_ref());
        let start = Instant::now();
        let pid = signals
            .spawn(&mut command)
            .map_err(|source| RunError::Exec { program: self.program.path.display().to_string(), source })?;
        let mut running = Running {
            root,
            run: &self,
            pid,
            start,
            ledger,
            text_ledger,
            samples: Samples::default(),
            promoter: self
                .plan
                .uses(Mechanism::Outside)
                .then(|| Promoter::new(pid, PROMOTE_AFTER, self.request.fork)),
            promoted: PromoteOutcome::default(),
            resident: (start, 0),
            stop_asked: false,
            exiting: false,
            replaced: false,
            text_replaced: false,
            map: Map::None,
            notes: Vec::new(),
            said: Vec::new(),
        };
        if self.request.text.map {
            running.map = Map::Due;
            if running.text_ledger.is_none() {
                running.no_map("nothing is moved: perf finds the names in the files");
            }
        }
        let (ended, usage) = running.watch(&signals, &mut live)?;
        running.finish_map();
        let totals = Totals::of(ended, start.elapsed(), usage);
        // One that was sent while the last look was taken would end us before the report is written.
        signals.finish(signal::SIGUSR1).map_err(system("signals"))?;
        running.notes.extend(added.take_out());
        running.said = said.explain();
        Ok(running.report(Some(totals)))
    }

    fn command(&self, ledger: Option<&File>, text_ledger: Option<&File>) -> Command {
        let program = &self.program;
        let mut command = Command::new(&program.executable);
        // A script's interpreter sees its own name first, as from the kernel; a program, the name given.
        if program.script_arguments.is_empty() {
            command.arg0(&self.request.program);
        }
        command.args(self.arguments());
        command.envs(self.environment());
        for (variable, file) in [(LEDGER_VARIABLE, ledger), (TEXT_LEDGER_VARIABLE, text_ledger)] {
            if let Some(file) = file {
                let own = std::process::id();
                command.env(variable, KernelRoot::descriptor_path(own, file.as_raw_fd()));
            }
        }
        command
    }
}

/// A word as the shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The map for profilers.
enum Map {
    /// Not asked for.
    None,
    /// It waits for the text to be moved.
    Due,
    /// A thread reads the names, and writes them.
    Making(JoinHandle<(MapReport, Option<PerfMap>)>),
    /// What is said of it, and the file itself.
    Made(MapReport, Option<PerfMap>),
}

struct Running<'a> {
    root: &'a KernelRoot,
    run: &'a Prepared,
    pid: Pid,
    start: Instant,
    ledger: Option<Ledger>,
    text_ledger: Option<TextLedger>,
    samples: Samples,
    promoter: Option<Promoter>,
    /// What the promoter obtained, kept when it ends before the program.
    promoted: PromoteOutcome,
    /// The terminal, or somebody, has asked the job to stop.
    stop_asked: bool,
    /// The final sample has been taken.
    exiting: bool,
    /// The process has become a program without the library: the ledger is not its own.
    replaced: bool,
    /// The same of the library that has moved text.
    text_replaced: bool,
    /// What is said of the map for profilers, and the file itself.
    map: Map,
    /// Resident memory when it was last looked at.
    resident: (Instant, u64),
    notes: Vec<String>,
    /// Messages of the program that are known.
    said: Vec<Explained>,
}

impl Running<'_> {
    fn watch(
        &mut self,
        signals: &Signals,
        live: &mut impl FnMut(&RunReport),
    ) -> Result<(Ended, Usage), RunError> {
        loop {
            spawn::wait_readable(signals.as_fd(), self.pause()).map_err(system("poll"))?;
            while let Some(signal) = signals.next().map_err(system("signalfd"))? {
                match signal.number {
                    signal::SIGCHLD => {}
                    signal::SIGUSR1 => {
                        let size = self.size();
                        self.sample(size);
                        live(&self.report(None));
                    }
                    _ => self.forward(signal),
                }
            }
            self.look();
            match spawn::poll_child(self.pid).map_err(system("wait4"))? {
                Some((ChildEvent::Exited(status), usage)) => return Ok((Ended::Status(status), usage)),
                Some((ChildEvent::Died(number), usage)) => return Ok((Ended::Signal(number), usage)),
                Some((ChildEvent::Stopped(_), _)) if self.stop_asked => {
                    // The shell waits for us, not for the program: the job stops when we do.
                    self.stop_asked = false;
                    spawn::stop_self().map_err(system("stop"))?;
                }
                Some(_) | None => {}
            }
        }
    }

    /// Signals of the kernel and of the program itself go to the whole process group: it has them already.
    fn forward(&mut self, signal: Signal) {
        match signal.number {
            signal::SIGTSTP => self.stop_asked = true,
            signal::SIGCONT => self.stop_asked = false,
            _ => {}
        }
        if signal.sender.is_some_and(|sender| sender != self.pid) {
            // It can only fail because the program has just ended.
            let _ = spawn::send_signal(self.pid, signal.number);
        }
    }

    /// How long to wait for a signal before something else is due.
    fn pause(&self) -> Duration {
        let mut pause = IDLE;
        if self.run.request.watched && !self.exiting {
            let has_ledger = self.ledger.is_some() || self.text_ledger.is_some();
            let longest = if has_ledger { LONGEST_LOOK } else { LONGEST_STATUS_LOOK };
            pause = (self.start.elapsed() / 50).clamp(SHORTEST_LOOK, longest);
        }
        if self.map_is_due() {
            pause = pause.min((self.start.elapsed() / 50).clamp(SHORTEST_LOOK, LONGEST_LOOK));
        }
        if let Some(promoter) = &self.promoter {
            pause = pause.min(promoter.due().saturating_duration_since(Instant::now()));
        }
        pause
    }

    /// Whether a map for profilers was asked for, and the text is not moved yet.
    fn map_is_due(&self) -> bool {
        matches!(self.map, Map::Due) && self.start.elapsed() < LONGEST_MOVE
    }

    /// Has the map for profilers made once the text is moved: by a thread, for reading all names of a large program takes
    /// longer than the program waits at its end.
    fn make_map(&mut self) {
        let (Some(plan), Some(ledger)) = (&self.run.text, &self.text_ledger) else { return };
        if matches!(self.map, Map::Due) && ledger.took().is_some() {
            let (files, pid) = (text::moved_of(plan, ledger), self.pid);
            let make = move || symbols::make(Path::new(symbols::DIRECTORY), pid, &files);
            self.map = Map::Making(std::thread::spawn(make));
        } else if matches!(self.map, Map::Due) && !self.map_is_due() {
            self.no_map("the text was not moved in time");
        }
        if matches!(&self.map, Map::Making(thread) if thread.is_finished()) {
            self.finish_map();
        }
    }

    fn no_map(&mut self, why: &str) {
        let path = PerfMap::path(Path::new(symbols::DIRECTORY), self.pid);
        self.map = Map::Made(MapReport::none(path, why), None);
    }

    /// Waits for the thread that makes the map.
    fn finish_map(&mut self) {
        match std::mem::replace(&mut self.map, Map::None) {
            Map::Making(thread) => match thread.join() {
                Ok((report, map)) => self.map = Map::Made(report, map.filter(|_| !self.text_replaced)),
                Err(_) => self.no_map("the thread that makes it has failed"),
            },
            Map::Due => self.no_map("the text was not moved"),
            other => self.map = other,
        }
    }

    /// Does what is due: the final sample, one on the way, a pass of promotion.
    fn look(&mut self) {
        self.make_map();
        if let Some(promoter) = &mut self.promoter
            && promoter.due() <= Instant::now()
        {
            let pass = promoter.pass(self.root);
            self.promoted = promoter.outcome;
            if let Err(error) = pass {
                self.promoter = None;
                if !matches!(error, PromoteError::Gone(_)) {
                    self.notes.push(format!("promotion from outside ended: {error}"));
                }
            }
        }
        if !self.run.request.watched || self.exiting {
            return;
        }
        let size = self.size();
        let heap_ends = self.ledger.as_ref().is_some_and(Ledger::is_exiting);
        if heap_ends || self.text_ledger.as_ref().is_some_and(TextLedger::is_exiting) {
            self.exiting = true;
            self.samples.last_is_final = self.sample(size);
            if let Some(ledger) = &self.ledger {
                ledger.acknowledge_exit();
            }
            if let Some(ledger) = &self.text_ledger {
                ledger.acknowledge_exit();
            }
        } else if self.samples.is_due(Instant::now(), size) {
            self.sample(size);
        }
    }

    /// Takes a sample; `false` where the process has ended.
    fn sample(&mut self, size: u64) -> bool {
        // What is done by now was done by a program that had the library mapped, and keeps it until it ends.
        let done = self.text_ledger.as_ref().is_some_and(|ledger| ledger.took().is_some());
        let places = self.places();
        let taken = self.samples.take(self.root, self.pid, &places, size);
        if taken && done {
            self.text_replaced = self.samples.last.is_some_and(|sample| !sample.text_preloaded);
            if let (true, Map::Made(_, map)) = (self.text_replaced, &mut self.map) {
                // What another program has at those addresses has other names.
                *map = None;
            }
        }
        self.note_replaced();
        taken
    }

    /// Says so where the process has replaced itself by another program (exec). The library goes along
    /// where the new program's loader takes it.
    fn note_replaced(&mut self) {
        const START: &str = "the process has replaced itself by";
        let Ok(now) = read_exe(self.root, self.pid) else { return };
        let same = |path: &Path| std::fs::canonicalize(path).is_ok_and(|path| path == now);
        self.notes.retain(|note| !note.starts_with(START));
        self.replaced = false;
        if !same(&self.run.program.executable) {
            let preloaded = self.samples.last.is_some_and(|sample| sample.preloaded);
            self.replaced = self.run.plan.uses(Mechanism::Preload) && !preloaded;
            let loss = if self.replaced { ", which the preloaded library cannot reach" } else { "" };
            self.notes.push(format!("{START} {} (exec){loss}", now.display()));
        }
    }

    /// The ledger, as long as it is of the program that the process runs.
    fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref().filter(|ledger| ledger.pid() != 0 && !self.replaced)
    }

    /// A figure that grows with the program's memory, cheap to read.
    fn size(&mut self) -> u64 {
        let now = Instant::now();
        let (looked, resident) = self.resident;
        let spacing = (self.start.elapsed() / 100).clamp(SHORTEST_STATUS_SPACING, LONGEST_STATUS_SPACING);
        if resident == 0 || now.saturating_duration_since(looked) >= spacing {
            let resident =
                read_status(self.root, self.pid).map_or(0, |status| (status.rss + status.hugetlb).0);
            self.resident = (now, resident);
        }
        self.resident.1.max(self.ledger().map_or(0, Ledger::peak))
    }

    /// The heap's range by the ledger, of whatever program wrote it last: whether it counts is for the sample to see.
    fn span(&self) -> Option<VirtRange> {
        let (start, end) = self.ledger.as_ref().filter(|ledger| ledger.pid() != 0)?.span()?;
        VirtRange::new(start, end)
    }

    fn places(&self) -> Places {
        Places {
            heap: self.span(),
            java_heap: self.run.plan.java.as_ref().map(JavaPlan::max_heap),
            text_files: self.run.text.as_ref().map_or_else(Vec::new, TextPlan::paths),
            text_ranges: self.text_ledger.as_ref().map_or_else(Vec::new, text::ranges),
            text_library: self.run.text.as_ref().and_then(TextPlan::library_name),
        }
    }

    fn report(&self, totals: Option<Totals>) -> RunReport {
        Pieces {
            program: ProgramFacts::of(&self.run.program, self.pid),
            asked: Asked::of(&self.run.request),
            plan: &self.run.plan,
            samples: &self.samples,
            ledger: self.ledger(),
            text: self.run.text.as_ref().map(|text| TextPieces {
                plan: text,
                ledger: self.text_ledger.as_ref(),
                end: self.samples.last.map(|last| last.text.into()),
                huge: &self.samples.text_huge,
                map: match &self.map {
                    Map::Made(report, _) => Some(report),
                    _ => None,
                },
                replaced: self.text_replaced,
            }),
            promotion: self.run.plan.uses(Mechanism::Outside).then_some(self.promoted),
            totals,
            start: self.start,
            now: Instant::now(),
            notes: self.notes.clone(),
            said: self.said.clone(),
        }
        .report()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(quoted("plain-1.2/x=y"), "plain-1.2/x=y");
        assert_eq!(quoted("two words"), "'two words'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
