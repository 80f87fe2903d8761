//! `megapage bench fork`: what starting a child costs a process with a large heap, by the pages that the heap lies on;
//! and what the process notices while a child lives. The same for the JVM.
//!
//! Architecture invariant: what a heap really lay on is read from the kernel, and the pool is as before in the end.

mod gates;
mod jvm;
mod latency;
mod native;
mod table;

use crate::child::{Stopped, check, stop_signals};
use crate::run::{Gate, Head, Place, PoolOrReason, must_fit};
use anyhow::{Result, bail, ensure};
use megapage_kernel::spawn::Signals;
use megapage_units::{Bytes, HUGE_2M};
use serde::Serialize;

pub use jvm::{JvmReport, JvmRow};
pub use latency::Latency;
pub use native::{AfterReport, NativeRow};
pub use table::human;

/// What there is to run: programs of our own, and the JVM.
pub const CASES: [&str; 2] = ["native", "jvm"];

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// [`CASES`] by name; all where none is named.
    pub cases: Vec<String>,
    /// Heaps of our own programs, 2 MiB to 16 GiB, in whole 2 MiB.
    pub sizes: Vec<Bytes>,
    /// Heaps of the JVM, 8 MiB to 16 GiB, in whole 2 MiB.
    pub jvm_sizes: Vec<Bytes>,
    /// Rounds that medians are taken of, 1 to 100.
    pub runs: u32,
    /// Children that are started in each way in each run, 1 to 1000.
    pub launches: u32,
    /// Install the JVM first where it is absent (apt-get).
    pub install: bool,
}

impl Options {
    fn wants(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|name| name == case)
    }

    fn validate(&self) -> Result<()> {
        if let Some(unknown) = self.cases.iter().find(|name| !CASES.contains(&name.as_str())) {
            bail!("'{unknown}' is no case of bench fork; its cases are {}", CASES.join(", "));
        }
        ensure!((1..=100).contains(&self.runs), "{} runs: from 1 to 100 are possible", self.runs);
        ensure!(
            (1..=1000).contains(&self.launches),
            "{} launches: from 1 to 1000 are possible",
            self.launches
        );
        for (sizes, least, what) in
            [(&self.sizes, Bytes::mib(2), "a heap"), (&self.jvm_sizes, Bytes::mib(8), "the JVM's heap")]
        {
            for size in sizes {
                let fits = *size >= least && *size <= Bytes::gib(16) && size.0 % HUGE_2M as u64 == 0;
                ensure!(fits, "{what} of {size}: it is {least} to {} in whole 2 MiB", Bytes::gib(16));
            }
        }
        Ok(())
    }

    /// The most that a run takes at once.
    fn memory(&self) -> Bytes {
        let native = self.sizes.iter().filter(|_| self.wants("native")).map(|size| native::memory(*size));
        let jvm = self.jvm_sizes.iter().filter(|_| self.wants("jvm")).map(|size| jvm::memory(*size));
        native.chain(jvm).max().unwrap_or(Bytes::ZERO)
    }
}

/// The whole bench: `megapage.bench/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What every report begins with.
    #[serde(flatten)]
    pub head: Head,
    /// Rounds.
    pub runs: u32,
    /// Children started in each way in each run.
    pub launches: u32,
    /// Programs of our own: a row for each heap and kind of pages.
    pub native: Vec<NativeRow>,
    /// The JVM; `None` where it was not asked for.
    pub jvm: Option<JvmReport>,
    /// What is demanded, and whether it holds.
    pub gates: Vec<Gate>,
}

impl Report {
    /// Whether every gate holds and every run ended as it should.
    pub fn is_clean(&self) -> bool {
        let jvm_notes = self.jvm.iter().flat_map(|jvm| jvm.rows.iter().flat_map(|row| &row.notes));
        self.gates.iter().all(|gate| gate.holds)
            && self.native.iter().flat_map(|row| &row.notes).chain(jvm_notes).next().is_none()
            && self.jvm.iter().all(|jvm| jvm.absent.is_none())
    }
}

/// What would be done, as lines for people: `--dry-run`.
pub fn dry_run(options: &Options) -> Result<Vec<String>> {
    options.validate()?;
    let mut lines = vec![format!("# {} rounds, each:", options.runs)];
    if options.wants("native") {
        lines.extend(native::lines(options));
    }
    if options.wants("jvm") {
        lines.extend(jvm::lines(options));
    }
    Ok(lines)
}

/// The lines for one run that takes `pool` bytes from the pool.
fn with_pool(pool: Bytes, command: String) -> Vec<String> {
    let pages = pool.0 / HUGE_2M as u64;
    if pages == 0 {
        return vec![command];
    }
    vec![format!("megapage pool set 2MB:+{pages}"), command, format!("megapage pool set 2MB:-{pages}")]
}

/// What a run works with.
struct Stage<'a> {
    options: &'a Options,
    place: &'a Place,
    signals: Signals,
    pool: PoolOrReason,
    progress: &'a mut dyn FnMut(&str),
    done: usize,
    total: usize,
}

impl Stage<'_> {
    /// Tells of one run.
    fn say(&mut self, what: &str, found: &str) {
        self.done += 1;
        (self.progress)(&format!("{}/{} {what}: {found}", self.done, self.total));
    }
}

/// An error ends the bench where it is the user's wish; any other is a note on the row.
fn note<T>(found: Result<T>, notes: &mut Vec<String>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is::<Stopped>() => Err(error),
        Err(error) => {
            add_note(notes, format!("{error:#}"));
            Ok(None)
        }
    }
}

/// Adds a note that is not there already.
fn add_note(notes: &mut Vec<String>, text: String) {
    if !notes.contains(&text) {
        notes.push(text);
    }
}

/// Runs the bench: round after round, in each every heap on every kind of pages. `progress` is given a line for each
/// run. What is added to the pool of 2 MiB pages is taken out at the end, also after a failure or a signal to stop.
pub fn run(options: &Options, place: &Place, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    options.validate()?;
    must_fit("bench fork", options.memory(), "smaller --sizes")?;
    if options.install && options.wants("jvm") {
        jvm::install(progress)?;
    }
    let head = Head::begin("fork")?;
    let mut jvm = if options.wants("jvm") { Some(jvm::Jvm::prepare(options)?) } else { None };
    if let Some(why) = jvm.as_ref().and_then(|jvm| jvm.report.absent.as_ref()) {
        progress(&format!("absent: {why}"));
    }
    let mut native =
        if options.wants("native") { native::Rows::new(options) } else { native::Rows::default() };
    let signals = stop_signals()?;
    let runs = native.len() + jvm.as_ref().map_or(0, jvm::Jvm::len);
    let mut stage = Stage {
        options,
        place,
        signals,
        pool: PoolOrReason::take(),
        progress,
        done: 0,
        total: runs * options.runs as usize,
    };
    for _ in 0..options.runs {
        check(&stage.signals)?;
        native.round(&mut stage)?;
        if let Some(jvm) = &mut jvm {
            jvm.round(&mut stage)?;
        }
    }
    drop(stage);
    let mut report = Report {
        head,
        runs: options.runs,
        launches: options.launches,
        native: native.finish(),
        jvm: jvm.map(jvm::Jvm::finish),
        gates: Vec::new(),
    };
    report.gates = gates::judge(&report);
    Ok(report)
}
