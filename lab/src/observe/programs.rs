//! The programs that advice is judged on, each in two copies: on base pages and on huge pages, with
//! no other difference between them.

mod postgres;
mod redis;

use crate::bench::Place;
use crate::child::Server;
use crate::workload::pattern;
use anyhow::{Context, Result, ensure};
use megapage_act::promote::{Bounds, Promotion, candidates, identify};
use megapage_decide::Promotions;
use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::Signals;
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use std::process::Command;
use std::time::Duration;

/// Kind of pages of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// Base pages.
    Base,
    /// Huge pages.
    Huge,
}

/// Cost of some units of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    /// The number of units.
    pub(super) units: u64,
    /// Processor time of the program.
    pub(super) cpu: Duration,
}

impl Work {
    /// Returns the units for each second of processor time.
    pub(super) fn rate(&self) -> f64 {
        let seconds = self.cpu.as_secs_f64();
        if seconds > 0.0 { self.units as f64 / seconds } else { 0.0 }
    }
}

/// A copy that runs and has its memory.
pub(super) trait Copy {
    /// Does `units` of work.
    fn work(&mut self, units: u64, signals: &Signals) -> Result<Work>;

    /// Starts work that lasts longer than any advice takes, and returns the process to ask about.
    /// It goes on until the copy is dropped.
    fn keep_busy(&mut self, signals: &Signals) -> Result<Pid>;

    /// Returns the process whose memory shows its backing; `None` if the workers come and go.
    fn pid(&self) -> Option<Pid>;
}

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// One of the laboratory's workloads.
    Pattern(pattern::Case),
    /// redis-server, asked by redis-benchmark for random keys.
    Redis,
    /// PostgreSQL, asked by pgbench for random rows.
    Postgres,
}

impl Program {
    /// Returns all programs, in the order of the report.
    pub(super) fn all() -> Vec<Program> {
        let mut all: Vec<Program> = pattern::Case::ALL.into_iter().map(Program::Pattern).collect();
        all.extend([Program::Redis, Program::Postgres]);
        all
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Program::Pattern(case) => case.name(),
            Program::Redis => "redis",
            Program::Postgres => "postgres",
        }
    }

    /// Returns the approximate time of a turn of one copy. It is short, so that a disturbance of
    /// the machine affects both copies. PostgreSQL's processor time is known in steps of 10 ms, and
    /// each of its turns starts a client.
    pub(super) const fn turn(self) -> Duration {
        match self {
            Program::Pattern(_) => Duration::from_millis(100),
            Program::Redis => Duration::from_millis(400),
            Program::Postgres => Duration::from_millis(3000),
        }
    }

    /// Returns the number of turns that correspond to `runs` runs, of about 1.5 to 3 s each.
    pub(super) const fn turns(self, runs: u32) -> u32 {
        match self {
            Program::Pattern(_) => 12 * runs,
            Program::Redis => 3 * runs,
            Program::Postgres => runs,
        }
    }

    /// Returns the huge pages of a pool that a copy needs.
    pub(super) fn pool(self, pages: Pages) -> Bytes {
        match (self, pages) {
            (Program::Postgres, Pages::Huge) => postgres::POOL,
            _ => Bytes::ZERO,
        }
    }

    /// Returns the packages that are absent.
    pub(super) fn lacks(self) -> Vec<&'static str> {
        match self {
            Program::Pattern(_) => Vec::new(),
            Program::Redis => crate::redis::lacks(),
            Program::Postgres => crate::postgres::lacks(),
        }
    }

    /// Starts a copy and fills its memory.
    pub(super) fn start(
        self,
        pages: Pages,
        scale: f64,
        place: &Place,
        signals: &Signals,
    ) -> Result<Box<dyn Copy>> {
        let copy: Box<dyn Copy> = match self {
            Program::Pattern(case) => Box::new(PatternCopy::start(case, scale, place, signals)?),
            Program::Redis => Box::new(redis::Redis::start(scale, signals)?),
            // Its memory is shared: it needs the kind of pages at its start.
            Program::Postgres => return Ok(Box::new(postgres::Postgres::start(pages, scale, signals)?)),
        };
        if let (Pages::Huge, Some(pid)) = (pages, copy.pid()) {
            promote(pid)?;
        }
        Ok(copy)
    }
}

/// Makes all memory of a process huge, from outside: so the copies differ only in their pages.
pub(crate) fn promote(pid: Pid) -> Result<()> {
    let root = KernelRoot::live();
    let process = identify(&root, pid)?;
    let regions = candidates(&root, pid, 1, usize::MAX)?.regions;
    let bounds = Bounds { time: Duration::from_secs(60), ..Bounds::default() };
    let promotion = Promotion { process, regions, bounds };
    let outcome = promotion.apply_patiently(&root, &mut Promotions::default())?;
    ensure!(
        outcome.obtained_bytes as f64 >= 0.9 * outcome.asked_bytes as f64,
        "only {} of {} could be made huge",
        Bytes(outcome.obtained_bytes),
        Bytes(outcome.asked_bytes)
    );
    Ok(())
}

/// Returns the share of a process's data (private or shared, without files) on pages of 2 MiB or
/// more, and the bytes of the data.
pub(super) fn huge_share(pid: Pid) -> Result<(f64, u64)> {
    let mappings = read_smaps(&KernelRoot::live(), pid)?;
    let (mut huge, mut all) = (0, 0);
    for mapping in mappings.iter().filter(|mapping| mapping.permissions.starts_with("rw")) {
        let backing = mapping.backing();
        huge += backing.huge().0;
        all += backing.total().0;
    }
    Ok((if all > 0 { huge as f64 / all as f64 } else { 0.0 }, all))
}

struct PatternCopy {
    server: Server,
}

/// Units of endless work.
const ENDLESS: u64 = 1 << 40;

impl PatternCopy {
    fn start(case: pattern::Case, scale: f64, place: &Place, signals: &Signals) -> Result<PatternCopy> {
        let mut command = Command::new(&place.workload);
        command.args(["pattern", case.name(), "--serve"]).arg(format!("--scale={scale}"));
        Ok(PatternCopy { server: Server::start(signals, &mut command)? })
    }
}

impl Copy for PatternCopy {
    fn work(&mut self, units: u64, signals: &Signals) -> Result<Work> {
        self.server.ask(units)?;
        let measurement = self.server.answer(signals)?;
        let spent = measurement.phases.0.get("work").context("the workload timed no work")?;
        Ok(Work { units, cpu: Duration::from_nanos(spent.cpu_ns) })
    }

    fn keep_busy(&mut self, _signals: &Signals) -> Result<Pid> {
        self.server.ask(ENDLESS)?;
        Ok(self.server.pid())
    }

    fn pid(&self) -> Option<Pid> {
        Some(self.server.pid())
    }
}
