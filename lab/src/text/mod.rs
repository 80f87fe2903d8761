//! `megapage-lab text`: the gain of a program by code on huge pages, for each way to get it there.
//!
//! Architecture invariant: a run's values are of processor time, ratios are taken within a round,
//! and each row has the mapped pages as the kernel reported them. Real programs are also compared
//! with themselves: the place of code is chance, and the effect of chance has to be known before
//! the others are judged.

mod compiler;
mod judge;
mod loader;
mod placement;
mod program;
mod real;
mod table;
mod walks;

use crate::arguments::scale;
use crate::bench::{Gate, Interval, Place, Pool, warm};
use crate::child::{Child, check};
use crate::experiment::{Experiment, Found, Needs, Order, Plan, Section, Stage};
use crate::install::glibc;
use crate::peers::FOREIGN_VARIABLES;
use anyhow::{Context, Result};
use megapage_bench::libraries::{Library, Package};
use megapage_bench::random::Random;
use megapage_kernel::effective_uid;
use megapage_kernel::spawn::Signals;
use megapage_units::Bytes;
use serde::Serialize;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use loader::Loader;

pub use judge::{Finding, Shown};
pub use walks::Walks;

/// Code on huge pages: 64 MiB of functions called at random, a compiler, servers, by each way to
/// get there
#[derive(Clone, Debug, clap::Args)]
pub struct Text {
    /// generated, cc1plus, mariadb, node, postgres [default: all]
    pub cases: Vec<String>,
    /// Multiply the number of calls, and of transactions, by this
    #[arg(long, default_value_t = 1.0, value_parser = scale(4.0))]
    pub scale: f64,
    /// Another glibc with glibc.elf.thp (2.44), as 'dpkg -x' has unpacked it, for the way glibc
    /// [default: what --install found]
    #[arg(long, value_name = "DIRECTORY")]
    pub glibc: Option<PathBuf>,
}

impl Text {
    /// Returns the loader of the directory that was named.
    fn loader(&self) -> Result<Option<Loader>> {
        self.glibc.as_deref().map(Loader::below).transpose()
    }

    /// Returns true if the way glibc needs another glibc than the system's, and none was named.
    fn lacks_glibc(&self) -> bool {
        self.glibc.is_none() && self.wants(CASES[0]) && !loader::systems_has_tunable()
    }

    /// Returns the named loader, or else the one that was installed.
    fn loader_or_installed(&self) -> Result<Option<Loader>> {
        let directory = glibc::directory();
        // Only our own directory: the programs in it are run.
        let own = || fs::metadata(&directory).is_ok_and(|it| it.uid() == effective_uid());
        if self.lacks_glibc() && own() { Ok(Loader::below(&directory).ok()) } else { self.loader() }
    }
}

/// The cases.
pub const CASES: [&str; 5] = ["generated", "cc1plus", "mariadb", "node", "postgres"];

/// Calls of one measurement at scale 1.
const CALLS: f64 = 4e6;
/// Size of the pool for hugetlb text: 64 MiB, and the memory around it.
const POOL: Bytes = Bytes::mib(80);
/// Longest time of a run.
const LONGEST_RUN: Duration = Duration::from_secs(120);
/// Rounds of a real program for each requested one: they are short, and each is a new draw of the
/// place of code.
const SHORT_ROUNDS: u32 = 2;

const LIBHUGETLBFS: Library =
    Library { file: "libhugetlbfs.so.0", package: Package::Debian("libhugetlbfs0") };

/// A way to get code onto huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `megapage run --text` with this value; `none` is the baseline.
    Run(&'static str),
    /// The same as `none`, on a copy of the file if there is one: the effect of chance alone.
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

    /// Returns the argument of `megapage run --text`.
    const fn text(self) -> &'static str {
        if let Way::Run(text) = self { text } else { "none" }
    }
}

/// Findings of the experiment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TextFound {
    /// Factor for the number of calls.
    pub scale: f64,
    /// The other glibc that the way of that name ran, by its loader's version; `None`: the
    /// system's.
    pub glibc: Option<String>,
    /// Each case under each way.
    pub rows: Vec<Row>,
    /// Ways that did not run, with the reasons.
    pub absent: Vec<Absent>,
    /// The verdict on real programs: if a gain was shown, with the intervals.
    pub findings: Vec<Finding>,
    /// The share of their time that translations of code take, as measured: the most that could be
    /// gained.
    pub walks: Vec<Walks>,
}

/// A way that did not run.
#[derive(Clone, Debug, Serialize)]
pub struct Absent {
    /// The way.
    pub way: &'static str,
    /// The reason.
    pub why: String,
}

/// One way of one case.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// The case.
    pub case: &'static str,
    /// The way.
    pub way: &'static str,
    /// The measurements: nanoseconds of a call by the number of hot pages, or of user time
    /// (`user`).
    pub ns: BTreeMap<String, Vec<f64>>,
    /// The factors by which it is faster than the baseline in the same round.
    pub gains: BTreeMap<String, Gain>,
    /// The jitter of a server's throughput within each round, from block to block of its
    /// transactions: the standard deviation as a share of the mean.
    pub jitter: Vec<f64>,
    /// Bytes of the process on pages of 2 MiB, as the kernel reported for each run.
    pub huge_bytes: Vec<u64>,
    /// Milliseconds before `main` in which segments were moved.
    pub moving_ms: Vec<f64>,
    /// The part of them in which the pages were allocated.
    pub pages_ms: Vec<f64>,
    /// Faults.
    pub failures: Vec<String>,
}

/// Factor by which it is faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// The median over the rounds.
    pub median: f64,
    /// The 95 % interval of the sign test; the extremes for fewer than 6 rounds.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Gain {
    /// Returns the gain from the times of one way and another in each round; `None` if there is no
    /// round, or one lacks some.
    pub fn of(baseline: &[f64], other: &[f64]) -> Option<Gain> {
        if baseline.len() != other.len() {
            return None;
        }
        let ratios = baseline.iter().zip(other).map(|(baseline, other)| baseline / other);
        let Interval { median, low, high, .. } = Interval::of(ratios, 0.95)?;
        Some(Gain { median, low, high })
    }
}

impl Experiment for Text {
    const NAME: &'static str = "text";
    const RUNS: [u32; 3] = [9, 1, 100];
    const CASES: &'static [&'static str] = &CASES;
    type Found = TextFound;

    fn cases(&self) -> &[String] {
        &self.cases
    }

    fn validate(&self) -> Result<()> {
        self.loader().map(|_| ())
    }

    fn needs(&self) -> Needs {
        Needs { packages: real::lacking(&self.cases), ..Needs::default() }
    }

    fn install(&self, say: &mut dyn FnMut(&str)) -> Result<()> {
        if self.lacks_glibc() && self.loader_or_installed()?.is_none() {
            let suits = |directory: &Path| Loader::below(directory).map(drop);
            if let Err(error) = glibc::install(&suits, say) {
                // The report names the way as absent.
                say(&format!("no other glibc: {error:#}"));
            }
        }
        Ok(())
    }

    fn dry_run(&self, plan: &Plan) -> Vec<String> {
        let mut lines = vec![format!("megapage pool set 2MB:+{}", POOL.0 >> 21)];
        for case in CASES.into_iter().filter(|case| self.wants(case)) {
            lines.push(format!("# {case}, {} rounds, each:", plan.runs));
            let run = |text| format!("megapage run --heap none --text {text} -- PROGRAM");
            lines.extend(Way::ALL.iter().filter_map(|way| match way {
                Way::Run(text) => Some(run(text)),
                _ => None,
            }));
        }
        lines.push(format!("megapage pool set 2MB:-{}", POOL.0 >> 21));
        lines
    }

    fn measure(&self, stage: &mut Stage<'_>) -> Result<TextFound> {
        let mut report = TextFound { scale: self.scale, ..TextFound::default() };
        let loader = self.loader_or_installed()?;
        report.glibc = loader.as_ref().map(Loader::version);
        let (directory, mount) = (scratch(stage.place)?, real::Mount::new());
        let mut bench = Bench {
            runs: stage.plan.runs,
            place: stage.place,
            signals: stage.signals,
            directory,
            mount,
            loader,
            progress: &mut *stage.progress,
            walk_ns: None,
            random: RefCell::new(Random::new(1)),
        };
        if self.wants(CASES[0]) {
            bench.generated(self, &mut report)?;
        }
        if self.wants(CASES[1]) {
            bench.compiler(&mut report)?;
        }
        for case in CASES.into_iter().skip(2).filter(|case| self.wants(case)) {
            bench.real(case, self, &mut report)?;
        }
        let baselines: Vec<Row> =
            report.rows.iter().filter(|row| row.way == Way::BASELINE.name()).cloned().collect();
        for row in &mut report.rows {
            let Some(baseline) = baselines.iter().find(|baseline| baseline.case == row.case) else {
                continue;
            };
            row.gains = row
                .ns
                .iter()
                .filter_map(|(value, ns)| Some((value.clone(), Gain::of(baseline.ns.get(value)?, ns)?)))
                .collect();
        }
        report.findings = judge::findings(&report);
        Ok(report)
    }
}

impl Found for TextFound {
    fn gates(&self) -> Vec<Gate> {
        judge::gates(self)
    }

    fn title(&self, runs: u32) -> String {
        format!("{runs} interleaved rounds")
    }

    fn sections(&self) -> Vec<Section> {
        table::sections(self)
    }

    fn notes(&self) -> Vec<String> {
        let of = |row: &Row| -> Vec<String> {
            row.failures.iter().map(|failure| format!("{} {}: {failure}", row.case, row.way)).collect()
        };
        self.rows.iter().flat_map(of).collect()
    }
}

/// Makes a directory on the disk of megapage's programs: the usual place of temporary files may be
/// in memory, and a file there cannot be primed.
fn scratch(place: &Place) -> Result<tempfile::TempDir> {
    let beside = place.megapage.parent().unwrap_or(Path::new("/"));
    // By the name that the kernel knows.
    let usual = fs::canonicalize("/var/tmp").unwrap_or_else(|_| "/var/tmp".into());
    let made = tempfile::Builder::new().prefix("megapage-bench-text").tempdir_in(usual);
    made.or_else(|_| tempfile::tempdir_in(beside)).context("a directory for the programs")
}

struct Bench<'a> {
    runs: u32,
    place: &'a Place,
    signals: &'a Signals,
    directory: tempfile::TempDir,
    /// A hugetlbfs for libhugetlbfs, or the reason why there is none.
    mount: Result<real::Mount, String>,
    /// Another glibc for the way of that name.
    loader: Option<Loader>,
    progress: &'a mut dyn FnMut(&str),
    /// Nanoseconds of a look-up of code in the page table, once it was measured.
    walk_ns: Option<f64>,
    /// Source of the place of code.
    random: RefCell<Random>,
}

/// Result of one run.
struct Ran {
    printed: String,
    complaint: String,
    report: Value,
}

impl Bench<'_> {
    /// Measures the generated program, in two copies: one that is never primed, and one that is.
    fn generated(&mut self, options: &Text, report: &mut TextFound) -> Result<()> {
        (self.progress)("generating 64 MiB of code");
        let plain = program::build(self.directory.path(), "plain")?;
        let primed = program::build(self.directory.path(), "primed")?;
        // The linker's output may lie in large folios.
        self.undo(&plain)?;
        let pool = Pool::take().and_then(|mut pool| pool.set(POOL).map(|()| pool));
        if pool.is_ok() {
            // Once: no row pays for the host to find it.
            warm(POOL, true);
        }
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
        for round in 0..self.runs {
            for number in Order::Balanced.turns(round, ways.len()) {
                let way = &ways[number];
                check(self.signals)?;
                // Memory that the host has not backed would be charged to the run that meets it.
                warm(POOL, false);
                let program = if *way == Way::Run("file") { &primed } else { &plain };
                let mut arguments = vec![program.to_string_lossy().into_owned(), calls.clone()];
                arguments.extend(hot.iter().cloned());
                let ran = self.start(*way, &arguments)?;
                let row = &mut report.rows[first + number];
                note(row, &ran.report);
                // libhugetlbfs' message if it remaps nothing.
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
            (Way::Glibc, _) if self.loader.is_none() && !loader::systems_has_tunable() => Some(
                "this glibc has no tunable glibc.elf.thp (2.44 does): --install looks for another, --glibc DIRECTORY takes one".into(),
            ),
            _ => None,
        }
    }

    /// Releases a file's pages, so that they come back in small folios. Returns the bytes that stay
    /// in huge ones, if that is known.
    fn undo(&self, file: &Path) -> Result<Option<u64>> {
        let mut command = Command::new(&self.place.megapage);
        command.args(["remap", "prime", "--undo", "--json"]).arg(file);
        let (printed, said) = Child::output(self.signals, &mut command, LONGEST_RUN)?;
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
        command.args(["run", "--heap", "none", "--text", way.text(), "--json", "--report"]).arg(&file);
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
            command.args(self.loader.iter().flat_map(Loader::words));
        }
        command.args(program);
        let (printed, complaint) = Child::output(self.signals, &mut command, LONGEST_RUN)?;
        let report = fs::read_to_string(&file).unwrap_or_default();
        let report = serde_json::from_str(&report).with_context(|| {
            format!("{}: {}", way.name(), complaint.lines().next().unwrap_or("no report"))
        })?;
        Ok(Ran { printed: String::from_utf8_lossy(&printed).into_owned(), complaint, report })
    }
}

fn row(case: &'static str, way: &'static str) -> Row {
    Row { case, way, ..Row::default() }
}

/// Enters the launcher's report of a run.
fn note(row: &mut Row, report: &Value) {
    let huge = |moment: &str| {
        let resident = &report[moment]["resident"];
        let values = ["hugetlb_2m_bytes", "thp_bytes", "shmem_pmd_bytes", "file_pmd_bytes"];
        values.iter().filter_map(|value| resident[value].as_u64()).sum::<u64>()
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
        let baseline: Vec<f64> = (1..=9).map(f64::from).collect();
        let gain = Gain::of(&baseline, &[1.0; 9]).unwrap();
        assert_eq!(gain, Gain { median: 5.0, low: 2.0, high: 8.0 });
        assert_eq!(Gain::of(&[], &[]), None);
    }
}
