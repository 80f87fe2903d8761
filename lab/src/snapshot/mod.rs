//! `megapage-lab snapshot`: the effects of a fork on a program that saves its memory by it. It runs
//! redis-server under a load of a fixed rate before, during and after BGSAVE, on base pages and on
//! huge ones.
//!
//! Architecture invariant: no setting of the machine is changed, and all started processes end with
//! the bench.

mod client;
mod gates;
mod server;
mod table;

use crate::bench::{Gate, Place, Spread};
use crate::child::{check, sleep};
use crate::experiment::{Experiment, Found, Needs, Plan, Section, Stage, add_note, found_or_why, select};
use crate::install::find;
use crate::live::Daemon;
use crate::redis;
use crate::workload::fork::percentile;
use anyhow::{Result, ensure};
use client::{Asked, Load};
use megapage_kernel::spawn::Signals;
use megapage_units::Bytes;
use serde::Serialize;
use server::Server;
use std::time::{Duration, Instant};

pub use server::Who;

/// Bytes of a value.
const VALUE: usize = 1000;
/// Requests a second: less than a third of the server's limit on the slowest machine tried.
const RATE: u32 = 8000;
/// Time over which the server's speed is measured.
const SPEED: Duration = Duration::from_secs(2);
/// Time over which the latency of a server without other work is measured.
const QUIET: Duration = Duration::from_millis(1500);
/// Longest wait for huge pages before and after the save, if any come.
const WAIT: Duration = Duration::from_secs(12);
/// Share of the heap from which on huge pages are there; and part of the former huge memory from
/// which on they are there again.
const THERE: f64 = 0.9;
const AGAIN: f64 = 0.95;
/// Time after the fork in which requests are slowed by the fork itself.
const FORK: Duration = Duration::from_millis(200);
/// Longest time of a save.
const LONGEST: Duration = Duration::from_secs(120);
/// Time between two looks at the server.
const LOOK: Duration = Duration::from_millis(50);

/// Name of the configuration with which all others are compared.
const BASE: &str = "base";
/// Name of the configuration with huge pages that no program looks after.
const THP: &str = "thp";
/// Name of the configuration that is judged.
const OURS: &str = "run-snapshot";

/// The configurations by name, in the order of a round.
pub const CONFIGURATIONS: [(&str, Who); 5] = [
    (BASE, Who::Base),
    (THP, Who::Allocator),
    (OURS, Who::Run(&["--fork", "snapshot"])),
    ("run-outside", Who::Run(&["--fork", "snapshot", "--mechanism", "outside"])),
    ("daemon", Who::Daemon),
];

/// Measure the latency of Redis while it saves by a fork, on base pages and on huge ones
#[derive(Clone, Debug, clap::Args)]
pub struct Snapshot {
    /// Bytes of all values, up to 16g
    #[arg(long, default_value = "1g")]
    pub size: Bytes,
    /// Configurations to compare, separated by commas: base, thp, run-snapshot... [default: all]
    #[arg(long, value_delimiter = ',')]
    pub configurations: Vec<String>,
}

/// Latencies of one phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Phase {
    /// Requests.
    pub requests: u64,
    /// The median time from sending to the answer, in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Phase {
    fn of(asked: &[Asked], from: Instant, to: Instant) -> Phase {
        let mut times: Vec<u64> = asked
            .iter()
            .filter(|asked| from <= asked.sent && asked.sent < to)
            .map(|asked| asked.took.as_nanos() as u64)
            .collect();
        times.sort_unstable();
        Phase {
            requests: times.len() as u64,
            p50_ns: percentile(&times, 50.0),
            p99_ns: percentile(&times, 99.0),
            p999_ns: percentile(&times, 99.9),
            max_ns: percentile(&times, 100.0),
        }
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// The share of the heap that was huge before the save.
    pub huge_before: f64,
    /// The share of it that was huge at the save's end.
    pub huge_saved: f64,
    /// The share of it that was huge after the following wait.
    pub huge_after: f64,
    /// Seconds from the save's end until the heap was as huge as before. `None` if it was not
    /// within the longest wait, or never had huge pages.
    pub back_seconds: Option<f64>,
    /// Reads for each second of the server's processor time, before the save.
    pub speed_before: f64,
    /// The same after the save.
    pub speed_after: f64,
    /// Time of the fork, by redis' own account, in microseconds.
    pub fork_us: u64,
    /// Bytes that were copied while the child lived, by redis' own account.
    pub copied_bytes: u64,
    /// Time of the save, in seconds.
    pub save_seconds: f64,
    /// Latencies before the save.
    pub quiet: Phase,
    /// Latencies from the request to save until the child has gone.
    pub during: Phase,
    /// The same without the first 0.2 s, which are slowed by the fork itself.
    pub settled: Phase,
    /// Latencies from then until huge pages are back, or the wait for them is over.
    pub after: Phase,
}

/// One configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub configuration: &'static str,
    /// The source of huge pages in it.
    pub who: Who,
    /// Every run.
    pub samples: Vec<Sample>,
    /// Faults.
    pub notes: Vec<String>,
}

impl Row {
    /// Returns a value over all runs.
    fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }
}

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotFound {
    /// The number of keys.
    pub keys: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Requests a second.
    pub rate: u32,
    /// One for each configuration.
    pub rows: Vec<Row>,
}

impl Snapshot {
    fn chosen(&self) -> Result<Vec<(&'static str, Who)>> {
        select(&CONFIGURATIONS, |(name, _)| name, &self.configurations, "configuration of snapshot")
    }
}

impl Experiment for Snapshot {
    const NAME: &'static str = "snapshot";
    const RUNS: [u32; 3] = [3, 1, 100];
    type Found = SnapshotFound;

    fn validate(&self) -> Result<()> {
        let (least, most) = (Bytes::mib(16), Bytes::gib(16));
        ensure!(
            (least..=most).contains(&self.size),
            "values of {}: {least} to {most} are possible",
            self.size
        );
        self.chosen().map(|_| ())
    }

    fn needs(&self) -> Needs {
        let packages = if find(redis::SERVER).is_none() { vec![redis::SERVER] } else { Vec::new() };
        // The values, the server's other memory, and the copies that a fork may cause.
        let memory = Bytes(self.size.0 * 5 / 2);
        Needs { memory, smaller: "a smaller --size", packages, must_install: true, ..Needs::default() }
    }

    fn dry_run(&self, plan: &Plan) -> Vec<String> {
        let mut lines = vec![format!("# {} rounds, each:", plan.runs)];
        for (name, who) in self.chosen().unwrap_or_default() {
            lines.push(format!("# {name}"));
            let words = server::words(who)
                .iter()
                .map(|word| if word.is_empty() { "''" } else { word })
                .collect::<Vec<_>>();
            lines.push(words.join(" "));
            if who == Who::Daemon {
                lines.push("megapage daemon &".into());
            }
        }
        lines
    }

    fn measure(&self, stage: &mut Stage<'_>) -> Result<SnapshotFound> {
        let keys = self.size.0 / VALUE as u64;
        let row = |(configuration, who)| Row { configuration, who, samples: Vec::new(), notes: Vec::new() };
        let mut rows: Vec<Row> = self.chosen()?.into_iter().map(row).collect();
        for round in 0..stage.plan.runs {
            for row in &mut rows {
                check(stage.signals)?;
                let run = one(row.who, keys, u64::from(round), stage.place, stage.signals);
                let said = match found_or_why(run)? {
                    Ok(sample) => {
                        let phase = sample.during;
                        row.samples.push(sample);
                        format!("p99.9 {} us of {} requests", phase.p999_ns / 1000, phase.requests)
                    }
                    Err(why) => {
                        add_note(&mut row.notes, why.clone());
                        why
                    }
                };
                (stage.progress)(&format!("{}/{} {}: {said}", round + 1, stage.plan.runs, row.configuration));
            }
        }
        Ok(SnapshotFound { keys, value_bytes: VALUE, rate: RATE, rows })
    }
}

impl Found for SnapshotFound {
    fn gates(&self) -> Vec<Gate> {
        gates::judge(&self.rows)
    }

    fn title(&self, runs: u32) -> String {
        format!(
            "redis-server, {} keys of {} bytes, {} requests a second, half of them writes; medians of {runs} \
             interleaved runs",
            self.keys, self.value_bytes, self.rate
        )
    }

    fn sections(&self) -> Vec<Section> {
        table::sections(&self.rows)
    }

    fn notes(&self) -> Vec<String> {
        let of = |row: &Row| -> Vec<String> {
            row.notes.iter().map(|note| format!("{}: {note}", row.configuration)).collect()
        };
        self.rows.iter().flat_map(of).collect()
    }
}

/// Runs all phases once.
fn one(who: Who, keys: u64, seed: u64, place: &Place, signals: &Signals) -> Result<Sample> {
    let mut server = Server::start(who, place, signals)?;
    server.fill(keys, VALUE, signals)?;
    let daemon = match who {
        Who::Daemon => Some(Daemon::start("megapage", &[server.pid()], place, signals)?),
        _ => None,
    };
    let expects = who != Who::Base;
    let load = Load::start(&server.socket(), keys, VALUE, RATE, seed)?;
    until(expects, signals, || Ok(server.huge_share()? >= THERE))?;
    load.stop()?;
    let speed_before = server.speed(keys, SPEED)?;
    let huge_before = server.huge_share()?;

    let load = Load::start(&server.socket(), keys, VALUE, RATE, seed + 1000)?;
    let start = Instant::now();
    sleep(signals, QUIET)?;
    let saving = Instant::now();
    server.save()?;
    while server.is_saving()? {
        ensure!(saving.elapsed() < LONGEST, "a save takes longer than {} s", LONGEST.as_secs());
        sleep(signals, LOOK)?;
    }
    let saved = Instant::now();
    let huge_saved = server.huge_share()?;
    let back = until(expects, signals, || Ok(server.huge_share()? >= AGAIN * huge_before))?;
    let end = Instant::now();
    let asked = load.stop()?;
    server.must_have_saved()?;
    if let Some(daemon) = daemon {
        daemon.stop()?;
    }
    Ok(Sample {
        huge_before,
        huge_saved,
        huge_after: server.huge_share()?,
        back_seconds: (back && expects).then(|| (end - saved).as_secs_f64()),
        speed_before,
        speed_after: server.speed(keys, SPEED)?,
        fork_us: server.info("stats", "latest_fork_usec")?,
        copied_bytes: server.info("persistence", "rdb_last_cow_size")?,
        save_seconds: (saved - saving).as_secs_f64(),
        quiet: Phase::of(&asked, start, saving),
        during: Phase::of(&asked, saving, saved),
        settled: Phase::of(&asked, saving + FORK, saved),
        after: Phase::of(&asked, saved, end),
    })
}

/// Waits until `holds` returns true; only a short time if that is not expected. Returns true if it
/// did.
fn until(expects: bool, signals: &Signals, mut holds: impl FnMut() -> Result<bool>) -> Result<bool> {
    let (start, most) = (Instant::now(), if expects { WAIT } else { WAIT / 8 });
    loop {
        if expects && holds()? {
            return Ok(true);
        }
        if start.elapsed() >= most {
            return Ok(false);
        }
        sleep(signals, 4 * LOOK)?;
    }
}

#[cfg(test)]
mod tests;
