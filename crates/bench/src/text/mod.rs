//! `megapage bench text`: what a program gains from code on huge pages, by each way to get it there.
//!
//! Architecture invariant: a run's figures are of processor time, ratios are taken within a round, each row says what
//! the kernel said was mapped, and real programs are also compared with themselves: where code comes to lie is chance,
//! and what chance does has to be known before anything is said of the rest.

mod compiler;
mod judge;
mod placement;
mod program;
mod real;
mod table;
mod walks;

use crate::child::{Child, check, stop_signals};
use crate::install;
use crate::peers::{FOREIGN_VARIABLES, Library, Package};
use crate::run::{Gate, Head, Place, Pool, Spread, warm};
use crate::workload::random::Random;
use anyhow::{Context, Result, bail, ensure};
use megapage_kernel::spawn::Signals;
use megapage_units::Bytes;
use serde::Serialize;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub use judge::{Finding, Shown};
pub use table::human;
pub use walks::Walks;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cases by name; all where none is named.
    pub cases: Vec<String>,
    /// Rounds, 1 to 100. With fewer than 6, no interval of 95 % can be given.
    pub runs: u32,
    /// Multiplies the calls of a run, above 0.
    pub scale: f64,
    /// Install what is absent first (apt-get).
    pub install: bool,
}

/// The cases.
pub const CASES: [&str; 5] = ["generated", "cc1plus", "mariadb", "node", "postgres"];

/// Calls of one measurement at scale 1.
const CALLS: f64 = 4e6;
/// What the pool is given for hugetlb text: 64 MiB, and what lies around it.
const POOL: Bytes = Bytes::mib(80);
/// No run takes longer.
const LONGEST_RUN: Duration = Duration::from_secs(120);
/// Rounds of a real program for each that was asked for: they are short, and each is a new draw of where code lies.
const SHORT_ROUNDS: u32 = 2;

const LIBHUGETLBFS: Library =
    Library { file: "libhugetlbfs.so.0", package: Package::Debian("libhugetlbfs0") };

/// A way to get code onto huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `megapage run --text` with this value; `none` is the baseline.
    Run(&'static str),
    /// As `none`, of a copy of the file where there is one: what chance alone does.
    Again,
    /// libhugetlbfs' own remapping.
    Libhugetlbfs,
    /// glibc's tunable glibc.elf.thp.
    Glibc,
    /// The program's own option.
    Own,
}

impl Way {
    const ALL: [Way; 6] =
        [Way::Run("none"), Way::Run("file"), Way::Run("thp"), Way::Run("2m"), Way::Libhugetlbfs, Way::Glibc];
    const BASELINE: Way = Way::Run("none");

    const fn name(self) -> &'static str {
        match self {
            Way::Run(text) => text,
            Way::Again => "again",
            Way::Libhugetlbfs => "libhugetlbfs",
            Way::Glibc => "glibc",
            Way::Own => "own",
        }
    }

    /// What `megapage run --text` is given.
    const fn text(self) -> &'static str {
        if let Way::Run(text) = self { text } else { "none" }
    }
}

/// A whole bench: `megapage.bench/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What every report begins with.
    #[serde(flatten)]
    pub head: Head,
    /// Rounds.
    pub runs: u32,
    /// What the calls were multiplied by.
    pub scale: f64,
    /// Each case under each way.
    pub rows: Vec<Row>,
    /// Ways that did not run, and why.
    pub absent: Vec<Absent>,
    /// What can be said of real programs: whether a gain was shown, with the intervals.
    pub findings: Vec<Finding>,
    /// How much of their time translations of code take, and so could at most be gained, as it was measured.
    pub walks: Vec<Walks>,
    /// What is demanded, and whether it holds.
    pub gates: Vec<Gate>,
}

/// A way that did not run.
#[derive(Clone, Debug, Serialize)]
pub struct Absent {
    /// The way.
    pub way: &'static str,
    /// Why.
    pub why: String,
}

/// One way of one case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The case.
    pub case: &'static str,
    /// The way.
    pub way: &'static str,
    /// What was measured: nanoseconds of a call by the number of hot pages, or of user time (`user`).
    pub ns: BTreeMap<String, Vec<f64>>,
    /// How many times faster than the baseline in the same round.
    pub gains: BTreeMap<String, Gain>,
    /// Bytes of the process on pages of 2 MiB, as the kernel said of each run.
    pub huge_bytes: Vec<u64>,
    /// Milliseconds before `main` in which segments were moved.
    pub moving_ms: Vec<f64>,
    /// The part of them that it took to get the pages.
    pub pages_ms: Vec<f64>,
    /// What went wrong.
    pub failures: Vec<String>,
}

/// How many times faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// The median over the rounds.
    pub median: f64,
    /// The 95 % interval of the sign test; the extremes, where there are fewer than 6 rounds.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Gain {
    /// Of what one way and another took in each round; `None` where there is no round, or one lacks some.
    pub fn of(baseline: &[f64], other: &[f64]) -> Option<Gain> {
        if baseline.len() != other.len() {
            return None;
        }
        let mut ratios: Vec<f64> =
            baseline.iter().zip(other).map(|(baseline, other)| baseline / other).collect();
        ratios.sort_by(f64::total_cmp);
        let out = left_out(ratios.len());
        let median = Spread::of(ratios.iter().copied())?.median;
        Some(Gain { median, low: ratios[out], high: ratios[ratios.len() - 1 - out] })
    }
}

/// How many of `count` ordered values may be left out at each end, so that the rest holds the median with at least
/// 95 % (the sign test).
fn left_out(count: usize) -> usize {
    let (mut choose, mut below) = (1.0, 0.0);
    for out in 0..count {
        below += choose * 0.5f64.powi(count as i32);
        if 2.0 * below > 0.05 {
            return out.saturating_sub(1);
        }
        choose *= (count - out) as f64 / (out + 1) as f64;
    }
    0
}

impl Report {
    /// Whether every gate holds and every run ended as it should.
    pub fn is_clean(&self) -> bool {
        self.gates.iter().all(|gate| gate.holds) && self.rows.iter().all(|row| row.failures.is_empty())
    }
}

/// Runs the bench. `progress` is given a line for each run. The pool is put back at the end.
pub fn run(options: &Options, place: &Place, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    ensure!((1..=100).contains(&options.runs), "{} runs: from 1 to 100 are possible", options.runs);
    if let Some(unknown) = options.cases.iter().find(|case| !CASES.contains(&case.as_str())) {
        bail!("'{unknown}' is no case of bench text; its cases are {}", CASES.join(", "));
    }
    if options.install {
        let lacking = real::lacking(&options.cases);
        if !lacking.is_empty() {
            install::debian(&lacking, progress)?;
        }
    }
    let mut report = Report {
        head: Head::begin("text")?,
        runs: options.runs,
        scale: options.scale,
        rows: Vec::new(),
        absent: Vec::new(),
        findings: Vec::new(),
        walks: Vec::new(),
        gates: Vec::new(),
    };
    let signals = stop_signals()?;
    let asked = |case: &str| options.cases.is_empty() || options.cases.iter().any(|it| it == case);
    let (directory, mount) = (scratch(place)?, real::Mount::new());
    let mut bench = Bench {
        place,
        signals,
        directory,
        mount,
        progress,
        walk_ns: None,
        random: RefCell::new(Random::new(1)),
    };
    if asked(CASES[0]) {
        bench.generated(options, &mut report)?;
    }
    if asked(CASES[1]) {
        bench.compiler(options, &mut report)?;
    }
    for case in CASES.into_iter().skip(2).filter(|case| asked(case)) {
        bench.real(case, options, &mut report)?;
    }
    let baselines: Vec<Row> =
        report.rows.iter().filter(|row| row.way == Way::BASELINE.name()).cloned().collect();
    for row in &mut report.rows {
        let Some(baseline) = baselines.iter().find(|baseline| baseline.case == row.case) else { continue };
        row.gains = row
            .ns
            .iter()
            .filter_map(|(figure, ns)| Some((figure.clone(), Gain::of(baseline.ns.get(figure)?, ns)?)))
            .collect();
    }
    report.findings = judge::findings(&report);
    report.gates = judge::gates(&report);
    Ok(report)
}

/// A directory on the disk that megapage lies on: the usual place of temporary files may be in memory, where a file
/// cannot be primed.
fn scratch(place: &Place) -> Result<tempfile::TempDir> {
    let beside = place.megapage.parent().unwrap_or(Path::new("/"));
    // By the name that the kernel knows it by.
    let usual = fs::canonicalize("/var/tmp").unwrap_or_else(|_| "/var/tmp".into());
    let made = tempfile::Builder::new().prefix("megapage-bench-text").tempdir_in(usual);
    made.or_else(|_| tempfile::tempdir_in(beside)).context("a directory for the programs")
}

struct Bench<'a> {
    place: &'a Place,
    signals: Signals,
    directory: tempfile::TempDir,
    /// A hugetlbfs for libhugetlbfs, or why there is none.
    mount: Result<real::Mount, String>,
    progress: &'a mut dyn FnMut(&str),
    /// Nanoseconds that a look-up of code in the page table takes, once it was measured.
    walk_ns: Option<f64>,
    /// For where code comes to lie.
    random: RefCell<Random>,
}

/// What one run gave.
struct Ran {
    printed: String,
    complaint: String,
    report: Value,
}

impl Bench<'_> {
    /// The generated program, in two copies: one that is never primed, and one that is.
    fn generated(&mut self, options: &Options, report: &mut Report) -> Result<()> {
        (self.progress)("generating 64 MiB of code");
        let plain = program::build(self.directory.path(), "plain")?;
        let primed = program::build(self.directory.path(), "primed")?;
        // What the linker has written may lie in large folios.
        self.undo(&plain)?;
        let pool = Pool::take().and_then(|mut pool| pool.set(POOL).map(|()| pool));
        let mut ways = Vec::new();
        for way in Way::ALL {
            match self.absence(way, pool.as_ref().err()) {
                Some(why) => report.absent.push(Absent { way: way.name(), why }),
                None => ways.push(way),
            }
        }
        let first = report.rows.len();
        report.rows.extend(ways.iter().map(|way| row(CASES[0], way.name())));
        let calls = ((CALLS * options.scale) as u64).max(1).to_string();
        let hot = program::HOT.map(|hot| hot.to_string());
        for round in 0..options.runs {
            for (number, way) in ways.iter().enumerate() {
                check(&self.signals)?;
                // Memory that the host has not backed would be the price of whoever comes by it.
                warm(POOL, false);
                let program = if *way == Way::Run("file") { &primed } else { &plain };
                let mut arguments = vec![program.to_string_lossy().into_owned(), calls.clone()];
                arguments.extend(hot.iter().cloned());
                let ran = self.start(*way, &arguments)?;
                let row = &mut report.rows[first + number];
                note(row, &ran.report);
                // What libhugetlbfs says where it remaps nothing.
                if *way == Way::Libhugetlbfs && row.huge_bytes.last() == Some(&0) {
                    row.failures.extend(real::warning(&ran.complaint));
                }
                let mut brief = Vec::new();
                for line in ran.printed.lines() {
                    let Some((hot, ns)) = line.split_once(' ') else { continue };
                    let ns: f64 = ns.parse().with_context(|| format!("the program printed '{line}'"))?;
                    brief.push(format!("{hot}: {ns:.1} ns"));
                    row.ns.entry(hot.into()).or_default().push(ns);
                }
                (self.progress)(&format!("round {}: {}: {}", round + 1, way.name(), brief.join(", ")));
            }
        }
        // Dropped with the pool's value: others may hold pages of it, which is no failure.
        Ok(())
    }

    fn absence(&self, way: Way, pool: Option<&anyhow::Error>) -> Option<String> {
        match (way, pool) {
            (Way::Run("2m") | Way::Libhugetlbfs, Some(why)) => Some(format!("{why:#}")),
            (Way::Libhugetlbfs, None) if LIBHUGETLBFS.find().is_none() => {
                Some(format!("it is not installed: {}", LIBHUGETLBFS.how_to_install()))
            }
            (Way::Libhugetlbfs, None) => self.mount.as_ref().err().cloned(),
            (Way::Glibc, _) if !real::glibc_has_tunable() => {
                Some("this glibc has no tunable glibc.elf.thp (2.44 does)".into())
            }
            _ => None,
        }
    }

    /// Lets go of a file's pages, so that they come back in small folios: the bytes that stay in huge ones, where that can
    /// be told.
    fn undo(&self, file: &Path) -> Result<Option<u64>> {
        let mut command = Command::new(&self.place.megapage);
        command.args(["remap", "prime", "--undo", "--json"]).arg(file);
        let (printed, said) = Child::output(&self.signals, &mut command, LONGEST_RUN)?;
        let report: Value = serde_json::from_slice(&printed)
            .with_context(|| format!("remap prime --undo: {}", said.lines().next().unwrap_or("no report")))?;
        Ok(report["files"][0]["left_bytes"].as_u64())
    }

    fn start(&self, way: Way, program: &[String]) -> Result<Ran> {
        let file = self.directory.path().join("report.json");
        let mut command = Command::new(&self.place.megapage);
        for variable in FOREIGN_VARIABLES {
            command.env_remove(variable);
        }
        command
            .args(["run", "--no-profile", "--heap", "none", "--text", way.text(), "--json", "--report"])
            .arg(&file);
        command.arg("--");
        if let (Way::Libhugetlbfs, Some(library)) = (way, LIBHUGETLBFS.find()) {
            // Through env(1): the launcher itself has nothing to remap.
            command.arg("env").arg("HUGETLB_ELFMAP=R").arg("HUGETLB_VERBOSE=2");
            command.arg(format!("LD_PRELOAD={}", library.display()));
            if let Ok(mount) = &self.mount {
                command.arg(format!("HUGETLB_PATH={}", mount.path().display()));
            }
        }
        if way == Way::Glibc {
            command.arg("env").arg("GLIBC_TUNABLES=glibc.elf.thp=1");
        }
        command.args(program);
        let (printed, complaint) = Child::output(&self.signals, &mut command, LONGEST_RUN)?;
        let report = fs::read_to_string(&file).unwrap_or_default();
        let report = serde_json::from_str(&report).with_context(|| {
            format!("{}: {}", way.name(), complaint.lines().next().unwrap_or("no report"))
        })?;
        Ok(Ran { printed: String::from_utf8_lossy(&printed).into_owned(), complaint, report })
    }
}

/// The ways of a round, one after the other: each comes at each place.
fn turns(ways: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..ways).map(move |turn| (round + turn) % ways)
}

fn row(case: &'static str, way: &'static str) -> Row {
    Row {
        case,
        way,
        ns: BTreeMap::new(),
        gains: BTreeMap::new(),
        huge_bytes: Vec::new(),
        moving_ms: Vec::new(),
        pages_ms: Vec::new(),
        failures: Vec::new(),
    }
}

/// Enters what the launcher's report says of a run.
fn note(row: &mut Row, report: &Value) {
    let huge = |moment: &str| {
        let resident = &report[moment]["resident"];
        let figures = ["hugetlb_2m_bytes", "thp_bytes", "shmem_pmd_bytes", "file_pmd_bytes"];
        figures.iter().filter_map(|figure| resident[figure].as_u64()).sum::<u64>()
    };
    row.huge_bytes.push(huge("peak").max(huge("end")));
    row.moving_ms.extend(report["text"]["moving_ms"].as_f64());
    row.pages_ms.extend(report["text"]["pages_ms"].as_f64());
    if report["totals"]["ended"]["status"] != 0 {
        row.failures.push(format!("ended with {}", report["totals"]["ended"]));
    }
    let missing = report["not_obtained"].as_array().into_iter().flatten();
    for missing in missing.filter_map(Value::as_str).map(String::from) {
        if !row.failures.contains(&missing) {
            row.failures.push(missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_the_sign_tests() {
        // 2 * (1 + 9) / 512 = 3.9 %, 2 * (1 + 9 + 36) / 512 = 18 %.
        assert_eq!(left_out(9), 1);
        assert_eq!((left_out(5), left_out(6), left_out(8), left_out(12)), (0, 0, 0, 2));
        let baseline: Vec<f64> = (1..=9).map(f64::from).collect();
        let gain = Gain::of(&baseline, &[1.0; 9]).unwrap();
        assert_eq!(gain, Gain { median: 5.0, low: 2.0, high: 8.0 });
        assert_eq!(Gain::of(&[], &[]), None);
    }
}
