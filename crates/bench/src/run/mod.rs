//! The runner: every case under every peer, round after round, and what came of it.

mod build;
mod cases;
mod gates;
mod gigantic;
mod judged;
mod kept;
mod mount;
mod pool;
mod process;
mod report;
mod statistics;
mod sweep;
mod table;
mod warm;

pub use warm::{REPORTED_AFTER, warm, warm_while};

use crate::peers::{self, Peer, Start};
use crate::signals::stop_signals;
use anyhow::{Context, Result, bail, ensure};
use cases::Case;
use kept::{Kept, Prepared};
use megapage_act::pool::floor;
use megapage_kernel::spawn::Signals;
use megapage_kernel::{KernelRoot, effective_uid, meminfo};
use megapage_units::Bytes;
use process::Ran;
use std::env;
use std::path::{Path, PathBuf};

pub use build::{BuildReport, SOURCE_VARIABLE};
pub use cases::{Bench, ReleaseOptions};
pub(crate) use judged::Former;
pub use judged::{Judged, Was};
pub use kept::{Holding, PoolOrReason};
pub use mount::{Mount, empty};
pub use pool::Pool;
pub use process::command_under;
pub use report::{CaseReport, Gate, Head, MachineReport, PeerReport, Report, Row};
pub(crate) use statistics::milliseconds;
pub use statistics::{Clock, Interval, Spread};
pub use sweep::{SizeRow, SweepReport, sweep};
pub use table::human;
pub use table::{gates_table, heading};

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which bench.
    pub bench: Bench,
    /// The cases of it by name; all where none is named.
    pub cases: Vec<String>,
    /// The peers by name; all where none is named. The baseline always runs.
    pub peers: Vec<String>,
    /// Rounds that count.
    pub runs: u32,
    /// Rounds before them that do not: they warm the machine's memory (a virtual machine's host may have to
    /// find it first, which is several times more expensive than to touch it again).
    pub warm_up: u32,
    /// Multiplies sizes and work; 1 is what results are published at.
    pub scale: f64,
    /// The clock that medians, ratios and gates are taken from.
    pub clock: Clock,
}

/// The programs and the library that the runs need.
#[derive(Clone, Debug)]
pub struct Place {
    /// `megapage`.
    pub megapage: PathBuf,
    /// `megapage-workload`.
    pub workload: PathBuf,
    /// `libmegapage.so`.
    pub library: PathBuf,
}

impl Place {
    /// What belongs to `megapage`, with the workload program of that name: beside it, or where `make install` puts them
    /// (`../lib/megapage`). Fails where there is no workload program.
    pub fn of(megapage: PathBuf, workload: &str) -> Result<Place> {
        let directory = megapage.parent().unwrap_or(Path::new("/")).to_path_buf();
        let installed = directory.join("../lib/megapage");
        let find = |name: &str| {
            let beside = directory.join(name);
            if beside.exists() { beside } else { installed.join(name) }
        };
        let found = find(workload);
        ensure!(
            found.exists(),
            "{workload} is missing from {} and from {}; 'make install' puts it there, 'cargo build --release' builds it",
            directory.display(),
            installed.display()
        );
        let library = match env::var_os("MEGAPAGE_LIBRARY") {
            Some(chosen) => PathBuf::from(chosen),
            None => find("libmegapage.so"),
        };
        Ok(Place { megapage, workload: found, library })
    }

    /// What belongs to the program that is running.
    pub fn of_this_program() -> Result<Place> {
        Place::of(env::current_exe().context("where this program lies")?, "megapage-workload")
    }

    /// Why `peer` cannot run here; `None` where it can.
    pub fn absence(&self, peer: &Peer) -> Option<String> {
        match peer.start {
            Start::Preload(library) if library.find().is_none() => {
                Some(format!("{} is not installed: {}", library.file, library.how_to_install()))
            }
            Start::OwnLibrary if !self.library.exists() => {
                Some(format!("{} is missing: cargo build --release", self.library.display()))
            }
            _ if peer.needs_hugetlbfs() && effective_uid() != 0 => {
                Some("a hugetlbfs has to be mounted for it: run this as root".into())
            }
            _ => None,
        }
    }
}

/// Runs the bench: the rounds one after the other, in each every case under every peer, so that whatever
/// changes on the machine in the meantime meets all of them. `progress` is given a line for each run.
///
/// What it adds to the pool of 2 MiB pages is taken out at the end, also after a failure or a signal to stop.
pub fn run(options: &Options, place: &Place, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    ensure!((1..=1000).contains(&options.runs), "{} runs: from 1 to 1000 are possible", options.runs);
    let mut peers = peers::select(&options.peers)?;
    let mut cases = cases::select(options)?;
    if cases.iter().all(|case| case.gigantic.is_none()) {
        let is_gigantic = |name: &&String| Peer::named(name).is_some_and(Peer::is_gigantic);
        if let Some(name) = options.peers.iter().find(is_gigantic) {
            bail!("{name} is for bench access and retrieval alone, not for {}", options.bench.name());
        }
        peers.retain(|peer| !peer.is_gigantic());
    }
    let wants_mount = |peer: &&&Peer| peer.needs_hugetlbfs() && place.absence(peer).is_none();
    // Unmounted before the pool shrinks, and with the signals still held back.
    let signals = stop_signals()?;
    let mount = peers.iter().find(wants_mount).map(|_| Mount::new()).transpose();
    let absence = |peer: &Peer| match &mount {
        Err(error) if peer.needs_hugetlbfs() => place.absence(peer).or(Some(format!("{error:#}"))),
        _ => place.absence(peer),
    };
    let mut report = Report::begin(options, &cases, &peers, absence)?;
    let present: Vec<_> = peers.into_iter().filter(|peer| absence(peer).is_none()).collect();
    let hugetlbfs = mount.as_ref().ok().and_then(Option::as_ref).map(Mount::path);
    for peer in report.peers.iter().filter(|peer| peer.absent.is_some()) {
        progress(&format!("absent: {}: {}", peer.name, peer.absent.as_deref().unwrap_or_default()));
    }
    let can_give = fit(&mut cases, options)?;
    report.pool = kept::holding(&cases, &present, can_give);
    let mut pool = Kept::new(report.pool, &cases, options.warm_up > 0);
    let mut present = kept::turns(report.pool, &present);
    probe_gigantic(&mut pool, &cases, &mut present, &mut report, progress);

    let rounds = options.warm_up + options.runs;
    let total = rounds as usize * cases.len() * present.len();
    let mut done = 0;
    for round in 0..rounds {
        let counted = round >= options.warm_up;
        for (case, case_report) in cases.iter().zip(&mut report.cases) {
            for peer in &present {
                done += 1;
                let kind = if counted { "" } else { ", warm-up" };
                let mut say = |what: &str| {
                    progress(&format!("{done}/{total} {} {}{kind}: {what}", case.title, peer.name));
                };
                let note = match pool.prepare(case, peer) {
                    Prepared::Ready(note) => note,
                    Prepared::Absent(why) => {
                        say(&format!("did not run: {why}"));
                        case_report.note_absence(peer, why);
                        continue;
                    }
                };
                let ran = run_once(case, peer, place, hugetlbfs.as_deref(), &signals)?;
                match &ran {
                    Ran::Well(found) => say(&statistics::brief(found)),
                    Ran::Failed(how) => say(how),
                }
                case_report.note(peer, ran, note, counted);
            }
        }
    }
    drop(mount);
    drop(pool);
    report.finish(options);
    report.gates = gates::judge(&report, options).into_iter().map(Judged::from).collect();
    Ok(report)
}

/// Tries for each case whether the machine can provide its pages of 1 GiB, and releases them. A peer that is about them and has
/// them in no case is absent.
fn probe_gigantic(
    pool: &mut Kept,
    cases: &[Case],
    present: &mut Vec<&'static Peer>,
    report: &mut Report,
    progress: &mut dyn FnMut(&str),
) {
    let Some(peer) = present.iter().copied().find(|peer| peer.is_gigantic()) else { return };
    let probed = cases.iter().map(|case| pool.probe(case, peer));
    let Ok(refused) = probed.map(|probed| probed.err().ok_or(())).collect::<Result<Vec<_>, _>>() else {
        return;
    };
    let why = refused.into_iter().next().unwrap_or_default();
    progress(&format!("absent: {}: {why}", peer.name));
    present.retain(|other| !other.is_gigantic());
    report.set_absent(peer, why);
}

fn run_once(
    case: &Case,
    peer: &Peer,
    place: &Place,
    hugetlbfs: Option<&Path>,
    signals: &Signals,
) -> Result<Ran> {
    let mut measurements = Vec::new();
    for _ in 0..case.repeats {
        let command = command_under(peer, place, &case.arguments, case.memory, hugetlbfs)?;
        match process::run(command, case.longest, signals)? {
            Ran::Well(found) => measurements.push(found),
            failed => return Ok(failed),
        }
    }
    Ok(Ran::Well(statistics::median_measurement(measurements)))
}

/// Trims each case's pool to what the machine can give, which is the answer; refuses a case whose workload itself does not
/// fit, and says what would.
fn fit(cases: &mut [Case], options: &Options) -> Result<Bytes> {
    let mut least = Bytes(u64::MAX);
    for case in cases {
        let can_give = must_fit_or(&case.title, case.memory, |can_give| cases::instead(options, can_give))?;
        case.pool = case.pool.min(can_give);
        least = least.min(can_give);
    }
    Ok(least)
}

/// Refuses what would leave the machine with too little memory, and names what to use `instead`; else what the machine
/// can give.
pub fn must_fit(what: &str, needed: Bytes, instead: &str) -> Result<Bytes> {
    must_fit_or(what, needed, |_| format!("use {instead}"))
}

/// What the machine can give now: the memory that is available, above the safe floor.
pub fn can_give() -> Result<Bytes> {
    memory_and_floor().map(|(available, least)| available.saturating_sub(least))
}

/// The memory that is available, and what of it stays free.
fn memory_and_floor() -> Result<(Bytes, Bytes)> {
    let memory = meminfo(&KernelRoot::live())?;
    Ok((memory.available.unwrap_or_default(), floor(memory.total.unwrap_or_default())))
}

fn must_fit_or(what: &str, needed: Bytes, instead: impl FnOnce(Bytes) -> String) -> Result<Bytes> {
    let (available, least) = memory_and_floor()?;
    let can_give = available.saturating_sub(least);
    ensure!(
        can_give >= needed,
        "{what} needs {needed} of memory; {available} are available, of which {least} stay free: {}",
        instead(can_give)
    );
    Ok(can_give)
}
