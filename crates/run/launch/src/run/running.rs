//! A running program: passes signals on to it, and takes samples of its memory.

use super::{ENDING, Prepared, RunError, system};
use crate::jvm::JavaPlan;
use crate::kinds::HeapRuntime;
use crate::messages::Explained;
use crate::promoter::Promoter;
use crate::proof::proved;
use crate::relay::Relay;
use crate::report::{Asked, Ended, Pieces, ProgramFacts, RunReport, Totals};
use crate::request::{Heap, Mechanism, Shm};
use crate::sample::{Places, Samples};
use crate::text::{self, TextPieces, TextPlan};
use crate::why::Promoters;
use megapage_act::promote::{PromoteError, PromoteOutcome, SharedMemory};
use megapage_kernel::ability::PAGEMAP_SCAN;
use megapage_kernel::process::{read_exe, read_status};
use megapage_kernel::spawn::{self, ChildEvent, Signal, Signals, Usage, signal};
use megapage_kernel::{ExitHandshake, KernelRoot};
use megapage_memory::Ledger;
use megapage_memory::shared::{SMALLEST, SMALLEST_UNASKED};
use megapage_remap::ledger::TextLedger;
use megapage_units::{Bytes, Pid, VirtRange};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bounds of the time between two looks at the ledger of a watched program. The time is a fiftieth
/// of the program's age, so that the handshake at exit adds less than 2 % to the run.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);
const LONGEST_LOOK: Duration = Duration::from_millis(20);
/// Longest time between two looks without a ledger: only `/proc/PID/status` is read.
const LONGEST_STATUS_LOOK: Duration = Duration::from_millis(100);
/// Bounds of the time between two reads of that file, each of which takes some 30 us. The time is a
/// hundredth of the program's age.
const SHORTEST_STATUS_SPACING: Duration = Duration::from_millis(20);
const LONGEST_STATUS_SPACING: Duration = Duration::from_millis(500);
/// Largest cost of the last sample with which another is taken before a signal that may end the
/// program.
const MOST_EXPENSIVE_LAST_LOOK: Duration = Duration::from_millis(50);
/// Time to wait for a signal if nothing else is due.
const IDLE: Duration = Duration::from_secs(3600);

/// Delay of external promotion: a program that ends sooner gains nothing by it.
pub(super) const PROMOTE_AFTER: Duration = Duration::from_millis(200);

pub(super) struct Running<'a> {
    root: &'a KernelRoot,
    run: &'a Prepared,
    pid: Pid,
    start: Instant,
    ledger: Option<Ledger>,
    text_ledger: Option<TextLedger>,
    samples: Samples,
    /// The launcher's own resident memory at the start.
    rss_at_start: Bytes,
    promoter: Option<Promoter>,
    /// The promoter's outcome, kept for the case that it ends before the program.
    promoted: PromoteOutcome,
    /// The shared memory at the promoter's last look, kept likewise.
    shared: SharedMemory,
    /// Signals on their way to the program.
    pub(super) relay: Relay,
    /// True if the terminal, or another process, has asked the job to stop.
    stop_asked: bool,
    /// True if the final sample has been taken.
    exiting: bool,
    /// True if the process has become a program without the library: the ledger is not about it.
    replaced: bool,
    /// True if the process has become a program without the library that moves text.
    text_replaced: bool,
    /// Time of the last look at resident memory, and its size then.
    resident: (Instant, u64),
    pub(super) notes: Vec<String>,
    /// Known messages that the program printed.
    pub(super) runtime_log: Vec<Explained>,
}

impl<'a> Running<'a> {
    /// Returns the state of a program that was started at `start` as `pid`.
    pub(super) fn new(
        root: &'a KernelRoot,
        run: &'a Prepared,
        pid: Pid,
        start: Instant,
        ledger: Option<Ledger>,
        text_ledger: Option<TextLedger>,
        rss_at_start: Bytes,
    ) -> Running<'a> {
        let outside = run.plan.uses(Mechanism::Outside);
        Running {
            root,
            run,
            pid,
            start,
            ledger,
            text_ledger,
            samples: Samples::default(),
            rss_at_start,
            promoter: outside.then(|| Promoter::new(pid, PROMOTE_AFTER, run.request.fork)),
            promoted: PromoteOutcome::default(),
            shared: SharedMemory::default(),
            resident: (start, 0),
            relay: Relay::default(),
            stop_asked: false,
            exiting: false,
            replaced: false,
            text_replaced: false,
            notes: Vec::new(),
            runtime_log: Vec::new(),
        }
    }

    /// Watches the program to its end: passes signals on, and does what is due.
    pub(super) fn watch(
        &mut self,
        signals: &Signals,
        live: &mut impl FnMut(&RunReport),
    ) -> Result<(Ended, Usage), RunError> {
        loop {
            let pause = self.pause();
            let witness = self.relay.descriptor();
            let descriptors: Vec<BorrowedFd<'_>> = [signals.as_fd()].into_iter().chain(witness).collect();
            if spawn::wait_any_readable(&descriptors, pause).is_err() {
                // No call waits for descriptors here, so only the clock is left.
                std::thread::sleep(pause.min(LONGEST_LOOK));
            }
            let now = Instant::now();
            self.relay.look(now);
            while let Ok(Some(signal)) = signals.next() {
                match signal.number {
                    signal::SIGCHLD => {}
                    signal::SIGUSR1 => {
                        let size = self.size();
                        self.sample(size, true);
                        live(&self.report(None));
                    }
                    _ => self.take(signal, now),
                }
            }
            for signal in self.relay.due(now) {
                self.forward(signal);
            }
            if self.relay.open(Instant::now()) == Duration::ZERO {
                self.look();
            }
            match spawn::poll_child(self.pid).map_err(system("wait4"))? {
                Some((ChildEvent::Exited(status), usage)) => return Ok((Ended::Status(status), usage)),
                Some((ChildEvent::Died(number), usage)) => return Ok((Ended::Signal(number), usage)),
                Some((ChildEvent::Stopped(_), _)) if self.stop_asked => {
                    // The shell waits for us, not for the program: the job stops if we stop.
                    self.stop_asked = false;
                    spawn::stop_self().map_err(system("stop"))?;
                }
                Some(_) | None => {}
            }
        }
    }

    /// Records what a signal means for the job, and passes it to the relay. A signal that the
    /// program itself sent to its process group has reached it already.
    fn take(&mut self, signal: Signal, now: Instant) {
        match signal.number {
            signal::SIGTSTP => self.stop_asked = true,
            signal::SIGCONT => self.stop_asked = false,
            _ => {}
        }
        if signal.sender != Some(self.pid) {
            self.relay.take(signal, now);
        }
    }

    fn forward(&mut self, signal: Signal) {
        // A signal that ends the program leaves no time for the handshake.
        let watched = self.run.request.watched && !self.exiting;
        if watched && ENDING.contains(&signal.number) && self.samples.last_cost() <= MOST_EXPENSIVE_LAST_LOOK
        {
            let size = self.size();
            self.sample(size, false);
        }
        // It can only fail because the program has just ended.
        let _ = spawn::send_signal(self.pid, signal.number);
    }

    /// Returns the time to wait for a signal before something else is due.
    fn pause(&self) -> Duration {
        let open = self.relay.open(Instant::now());
        if open > Duration::ZERO {
            return open;
        }
        let mut pause = IDLE;
        if self.run.request.watched && !self.exiting {
            let has_ledger = self.ledger.is_some() || self.text_ledger.is_some();
            let longest = if has_ledger { LONGEST_LOOK } else { LONGEST_STATUS_LOOK };
            pause = (self.start.elapsed() / 50).clamp(SHORTEST_LOOK, longest);
        }
        if let Some(promoter) = &self.promoter {
            pause = pause.min(promoter.due().saturating_duration_since(Instant::now()));
        }
        pause
    }

    /// Does what is due: a pass of promotion, the final sample, or another sample.
    fn look(&mut self) {
        if let Some(promoter) = &mut self.promoter
            && promoter.due() <= Instant::now()
        {
            let pass = promoter.pass(self.root);
            self.promoted = promoter.outcome;
            self.shared.clone_from(&promoter.shared);
            if let Err(error) = pass {
                self.promoter = None;
                if !matches!(error, PromoteError::Gone(_)) {
                    self.notes.push(format!("external promotion ended: {error}"));
                }
            }
        }
        if !self.run.request.watched || self.exiting {
            return;
        }
        if self.handshakes().any(|it| it.is_exiting()) {
            // The program waits longer for a launcher that reads.
            self.handshakes().for_each(|it| it.notice());
            self.exiting = true;
            let size = self.size();
            self.samples.last_is_final = self.sample(size, true);
            self.handshakes().for_each(|it| it.let_go());
            return;
        }
        let size = self.size();
        if self.samples.is_due(Instant::now(), size) {
            self.sample(size, false);
        }
    }

    fn handshakes(&self) -> impl Iterator<Item = ExitHandshake<'_>> {
        let heap = self.ledger.as_ref().map(Ledger::exit_handshake);
        heap.into_iter().chain(self.text_ledger.as_ref().map(TextLedger::exit_handshake))
    }

    /// Takes a sample; returns false if the process has ended.
    fn sample(&mut self, size: u64, thorough: bool) -> bool {
        // If the text is moved by now, the program had the library mapped, and keeps it to its end.
        let done = self.text_ledger.as_ref().is_some_and(|ledger| ledger.took().is_some());
        let executable = read_exe(self.root, self.pid).ok();
        let replaced_by = executable.as_deref().filter(|now| !self.runs_as_started(now));
        let places = self.places(executable.as_deref(), replaced_by.is_some(), thorough);
        let taken = self.samples.take(self.root, self.pid, &places, size);
        if taken && done {
            self.text_replaced = self.samples.last.is_some_and(|sample| !sample.text_preloaded);
        }
        if executable.is_some() {
            self.note_replaced(replaced_by);
        }
        taken
    }

    /// Notes it if the process has replaced itself by another program (exec). The library stays if
    /// the new program's loader loads it.
    fn note_replaced(&mut self, by: Option<&Path>) {
        const START: &str = "the process has replaced itself by";
        self.notes.retain(|note| !note.starts_with(START));
        self.replaced = false;
        if let Some(now) = by {
            let preloaded = self.samples.last.is_some_and(|sample| sample.preloaded);
            self.replaced = self.run.plan.uses(Mechanism::Preload) && !preloaded;
            let loss = if self.replaced { ", which the preloaded library cannot reach" } else { "" };
            self.notes.push(format!("{START} {} (exec){loss}", now.display()));
        }
    }

    /// Returns true if this is the file that was started.
    fn runs_as_started(&self, now: &Path) -> bool {
        std::fs::canonicalize(&self.run.program.executable).is_ok_and(|path| path == now)
    }

    /// Returns the ledger, as long as it belongs to the program that the process runs.
    pub(super) fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref().filter(|ledger| ledger.pid() != 0 && !self.replaced)
    }

    /// Returns a value that grows with the program's memory and is cheap to read.
    fn size(&mut self) -> u64 {
        let now = Instant::now();
        let (looked, resident) = self.resident;
        let spacing = (self.start.elapsed() / 100).clamp(SHORTEST_STATUS_SPACING, LONGEST_STATUS_SPACING);
        if resident == 0 || now.saturating_duration_since(looked) >= spacing {
            let status = read_status(self.root, self.pid);
            self.resident = (now, status.as_ref().map_or(0, |status| (status.rss + status.hugetlb).0));
            if let Ok(status) = status {
                self.samples.note_status(&status);
            }
        }
        self.resident.1.max(self.ledger().map_or(0, Ledger::peak))
    }

    /// Returns the heap's ranges in the ledger, from any program that wrote it last. The sample
    /// checks that they count.
    fn heap(&self) -> Vec<VirtRange> {
        let ledger = self.ledger.iter().filter(|ledger| ledger.pid() != 0);
        ledger.flat_map(Ledger::ranges).filter_map(|(start, end)| VirtRange::new(start, end)).collect()
    }

    fn places(&self, executable: Option<&Path>, replaced: bool, thorough: bool) -> Places {
        let program = executable.filter(|_| !replaced).map(|_| &self.run.program);
        let library = self.run.request.heap != Heap::None
            && self.run.plan.uses(Mechanism::Preload)
            && PAGEMAP_SCAN.is_there(self.root);
        Places {
            heap: self.heap(),
            runtime: HeapRuntime::of(program.and_then(|program| program.runtime)),
            executable: executable.map(|path| path.to_string_lossy().into_owned()),
            promoters: Promoters {
                outside: self.promoter.is_some(),
                library,
                library_shared: library && self.run.request.shm != Shm::None,
            },
            least_shared: match self.run.request.shm {
                Shm::Auto => SMALLEST_UNASKED,
                _ => SMALLEST,
            } as u64,
            thorough,
            java_heap: self.run.plan.java.as_ref().map(JavaPlan::max_heap),
            text_files: self.run.text.as_ref().map_or_else(Vec::new, TextPlan::paths),
            text_ranges: self.text_ledger.as_ref().map_or_else(Vec::new, text::ranges),
            text_library: self.run.text.as_ref().and_then(TextPlan::library_name),
        }
    }

    pub(super) fn report(&self, totals: Option<Totals>) -> RunReport {
        proved(self.pieces(totals))
    }

    fn pieces(&self, totals: Option<Totals>) -> Pieces<'_> {
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
                replaced: self.text_replaced,
            }),
            promotion: self.run.plan.uses(Mechanism::Outside).then_some(self.promoted),
            shared_memory: self.shared.clone(),
            running: totals.is_none(),
            totals,
            start: self.start,
            now: Instant::now(),
            notes: self.notes.clone(),
            runtime_log: self.runtime_log.clone(),
            rss_at_start: self.rss_at_start,
        }
    }
}
