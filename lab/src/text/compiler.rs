//! g++'s compiler, copies of its file in small folios and primed: nothing of the process is
//! remapped.

use super::{Absent, Bench, CASES, TextFound, Walks, Way, note, program, row, walks};
use crate::bench::warm;
use crate::child::{Child, check};
use crate::experiment::Order;
use anyhow::{Context, Result, ensure};
use megapage_kernel::spawn::signal;
use megapage_units::Bytes;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs of each way in a round, in turn: a slow phase of the machine lasts longer than one run, and
/// so affects all ways.
const BLOCKS: u32 = 9;

impl Bench<'_> {
    /// Measures the user time that the compiler takes for a file.
    pub(super) fn compiler(&mut self, report: &mut TextFound) -> Result<()> {
        let named = Command::new("g++").arg("-print-prog-name=cc1plus").output();
        let compiler = named.ok().map(|it| PathBuf::from(String::from_utf8_lossy(&it.stdout).trim()));
        let Some(compiler) = compiler.filter(|path| path.is_absolute() && path.exists()) else {
            report.absent.push(Absent { way: CASES[1], why: "there is no g++: apt-get install g++".into() });
            return Ok(());
        };
        let source = self.preprocessed()?;
        let ways = [Way::BASELINE, Way::Again, Way::Run("file")];
        let copies = self.directory.path().join(CASES[1]);
        fs::create_dir(&copies)?;
        for way in ways {
            fs::copy(&compiler, copies.join(way.name())).context("a copy of the compiler")?;
        }
        let arguments = |way: Way| arguments(&copies.join(way.name()), &source);
        let first = report.rows.len();
        report.rows.extend(ways.iter().map(|way| row(CASES[1], way.name())));
        for round in 0..self.runs {
            for number in Order::Balanced.turns(round, ways.len()) {
                let (way, row) = (ways[number], &mut report.rows[first + number]);
                warm(Bytes::mib(256), false);
                let draw = self.draw(&copies.join(way.name()), way == Way::Run("file"))?;
                row.failures.extend(draw.failure.clone());
                // This run brings the compiler into memory.
                note(row, &self.start(way, &arguments(way))?.report);
            }
            let mut user_ms = vec![0; ways.len()];
            for block in 0..BLOCKS {
                for number in Order::Balanced.turns(round + block, ways.len()) {
                    check(self.signals)?;
                    let ran = self.start(ways[number], &arguments(ways[number]))?;
                    note(&mut report.rows[first + number], &ran.report);
                    user_ms[number] += ran.report["totals"]["user_ms"].as_u64().unwrap_or(0);
                }
            }
            for (number, user_ms) in user_ms.into_iter().enumerate() {
                let row = &mut report.rows[first + number];
                // A failed run took next to no time.
                if row.failures.is_empty() {
                    let each = user_ms.max(1) as f64 * 1e6 / f64::from(BLOCKS);
                    row.ns.entry("user".into()).or_default().push(each);
                }
                let way = ways[number].name();
                (self.progress)(&format!("round {}: cc1plus {way}: {user_ms} ms for {BLOCKS}", round + 1));
            }
        }
        let walk_ns = self.walk_ns(report)?;
        let file = copies.join(Way::BASELINE.name());
        let mut pages_per_ms = Vec::new();
        for _ in 0..BLOCKS {
            let words = arguments(Way::BASELINE);
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = Child::start(self.signals, &mut command, signal::SIGTERM)?;
            while child.end()?.is_none() {
                check(self.signals)?;
                pages_per_ms.extend(walks::sample(child.pid(), &file));
            }
        }
        report.walks.push(Walks { case: CASES[1], pages_per_ms, walk_ns });
        Ok(())
    }

    /// Makes a file that takes the compiler half a second, with its headers included: without its
    /// driver the compiler does not know the place of the headers.
    fn preprocessed(&self) -> Result<PathBuf> {
        let (plain, whole) =
            (self.directory.path().join("source.cpp"), self.directory.path().join("source.ii"));
        fs::write(&plain, program::SOURCE)?;
        let made = Command::new("g++").arg("-E").arg(&plain).arg("-o").arg(&whole).output()?;
        ensure!(made.status.success(), "g++: {}", String::from_utf8_lossy(&made.stderr).trim());
        Ok(whole)
    }
}

fn arguments(compiler: &Path, source: &Path) -> Vec<String> {
    let output = source.with_extension("s");
    let words = [
        compiler,
        Path::new("-fpreprocessed"),
        Path::new("-quiet"),
        Path::new("-O1"),
        source,
        Path::new("-o"),
        &output,
    ];
    words.map(|word| word.to_string_lossy().into_owned()).to_vec()
}
