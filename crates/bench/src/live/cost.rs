//! What the daemon takes for itself while there is nothing to do: much memory in many processes, of which most sleep, one
//! reads in order on base pages and one at random on pages that are huge already.

use super::configuration::Running;
use super::worker::{Steady, Worker, rate};
use super::{Failure, Stage};
use crate::child::sleep;
use crate::run::{Gate, Spread};
use crate::workload::steady::Way;
use anyhow::{Context, Result, ensure};
use megapage_act::pool::floor;
use megapage_kernel::spawn::signal;
use megapage_kernel::{KernelRoot, meminfo};
use megapage_units::Bytes;
use serde::Serialize;
use std::time::{Duration, Instant};

/// All memory at scale 1 where so much is available, and what it is at least.
const RESIDENT: u64 = 20 << 30;
pub(super) const LEAST_RESIDENT: u64 = 14 << 30;
/// The part of it that the programs themselves, and their page tables, take in addition.
const ADDITION: u64 = 32;
/// The processes that it is in.
const PROCESSES: usize = 50;
/// After its start the daemon is given so long at scale 1,
const SETTLE: Duration = Duration::from_secs(40);
/// and its processor time is counted over so long, without a break: whoever was stopped has a pass to make at once, and
/// would be charged with what it did not do before.
const COUNTED: Duration = Duration::from_secs(40);
/// Then it runs for so long, and is stopped for as long, to see what programs lose.
const WINDOW: Duration = Duration::from_secs(15);
const INTERVAL: Duration = Duration::from_millis(100);
/// The demands: of one processor, and of the programs' speed.
const OWN: f64 = 0.01;
const SLOWDOWN: f64 = 0.01;

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Resident bytes.
    pub resident_bytes: u64,
    /// In so many processes.
    pub processes: usize,
    /// Whether that is all that is demanded at this scale: more did not fit otherwise.
    pub is_whole: bool,
    /// One for each policy.
    pub rows: Vec<CostRow>,
    /// What went wrong.
    pub failures: Vec<Failure>,
}

/// One policy.
#[derive(Clone, Debug, Serialize)]
pub struct CostRow {
    /// Its name.
    pub configuration: &'static str,
    /// Seconds after the start that do not count, and the daemon's processor seconds in them.
    pub start_seconds: f64,
    /// See there.
    pub start_cpu_seconds: f64,
    /// The daemon's share of one processor after that.
    pub own_share: Spread,
    /// What the programs lose.
    pub slowdowns: Vec<Slowdown>,
    /// Memory that became huge though there was nothing to gain, in bytes.
    pub became_huge_bytes: u64,
}

/// One of the programs that work.
#[derive(Clone, Debug, Serialize)]
pub struct Slowdown {
    /// What it does.
    pub program: &'static str,
    /// How much slower it is while the daemon runs than while it is stopped, 0.01 for 1 %, by processor time.
    pub slowdown: Spread,
}

struct Crowd {
    sleepers: Vec<Worker>,
    workers: Vec<(&'static str, Worker)>,
}

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Cost> {
    let memory = meminfo(&KernelRoot::live())?;
    let available =
        memory.available.unwrap_or_default().saturating_sub(floor(memory.total.unwrap_or_default()));
    let fitting = available.0 / (ADDITION + 1) * ADDITION;
    let size = stage.scaled(RESIDENT / PROCESSES as u64).min(((fitting / PROCESSES as u64) >> 21) << 21);
    ensure!(size >= 2 << 20, "{available} of memory are available: too little for {PROCESSES} processes");
    let hot = 1u64 << size.ilog2();
    let start = |way, stage: &Stage<'_>| {
        let steady = Steady { way, size, hot, units: None, interval: INTERVAL };
        Worker::steady(&steady, stage.place, &stage.signals)
    };
    let mut crowd = Crowd { sleepers: Vec::new(), workers: Vec::new() };
    for index in 0..PROCESSES {
        let way = match index {
            0 => Way::Sequential,
            1 => Way::Random,
            _ => Way::Sleep,
        };
        let mut worker = start(way, stage)?;
        worker.ready(&stage.signals)?;
        match index {
            0 => crowd.workers.push(("sequential, on base pages", worker)),
            1 => crowd.workers.push(("random, on huge pages", worker)),
            _ => crowd.sleepers.push(worker),
        }
    }
    crowd.workers[1].1.promote(None)?;
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for configuration in stage.configurations.clone() {
        match one(configuration, &mut crowd, stage) {
            Ok(row) => rows.push(row),
            Err(error) if Stage::is_final(&error) => return Err(error),
            Err(error) => {
                failures.push(Failure { configuration: configuration.name, why: format!("{error:#}") });
                stage.change.set(&super::AT_REST).context("the settings of transparent huge pages")?;
            }
        }
        for (_, worker) in &mut crowd.workers {
            worker.pause()?;
        }
    }
    let is_whole = size >= stage.scaled(RESIDENT / PROCESSES as u64);
    Ok(Cost { resident_bytes: size * PROCESSES as u64, processes: PROCESSES, is_whole, rows, failures })
}

fn one(configuration: super::Configuration, crowd: &mut Crowd, stage: &mut Stage<'_>) -> Result<CostRow> {
    let huge_before = crowd.huge()?;
    let workers = crowd.workers.iter().map(|(_, worker)| worker);
    let pids: Vec<_> = workers.chain(&crowd.sleepers).map(Worker::pid).collect();
    for (_, worker) in &mut crowd.workers {
        worker.go()?;
    }
    let mut running = configuration.start(&mut stage.change, &pids, stage.place, &stage.signals)?;
    let watched = watch(configuration.name, &mut running, crowd, stage);
    let stopped = running.stop(&mut stage.change);
    let mut row = watched?;
    stopped?;
    row.became_huge_bytes = crowd.huge()?.saturating_sub(huge_before);
    Ok(row)
}

fn watch(
    configuration: &'static str,
    running: &mut Running,
    crowd: &mut Crowd,
    stage: &mut Stage<'_>,
) -> Result<CostRow> {
    let settle = SETTLE.mul_f64(stage.options.scale.max(0.1));
    let window = WINDOW.mul_f64(stage.options.scale.max(0.1));
    sleep(&stage.signals, settle)?;
    running.check()?;
    let daemon = running.daemon.as_ref().context("no daemon")?;
    let start_cpu = daemon.cpu()?;
    let mut shares = Vec::new();
    let mut slowdowns: Vec<Vec<f64>> = vec![Vec::new(); crowd.workers.len()];
    let counted = COUNTED.mul_f64(stage.options.scale.max(0.1));
    for round in 0..stage.options.runs {
        let (before, start) = (daemon.cpu()?, Instant::now());
        sleep(&stage.signals, counted)?;
        shares.push((daemon.cpu()? - before).as_secs_f64() / start.elapsed().as_secs_f64());
        // Which comes first changes with each round, so that a drift meets both alike.
        let order = if round % 2 == 0 { [true, false] } else { [false, true] };
        let mut rates: [Vec<f64>; 2] = Default::default();
        for on in order {
            daemon.send(if on { signal::SIGCONT } else { signal::SIGSTOP })?;
            rates[usize::from(on)] = crowd.rates(window, stage)?;
        }
        daemon.send(signal::SIGCONT)?;
        // What it could not do while it was stopped.
        sleep(&stage.signals, window)?;
        for (index, values) in slowdowns.iter_mut().enumerate() {
            values.push(rates[0][index] / rates[1][index] - 1.0);
        }
        stage.say(&format!(
            "{}/{} {configuration}: {:.2} % of a processor",
            round + 1,
            stage.options.runs,
            100.0 * shares[shares.len() - 1]
        ));
    }
    let slowdowns = crowd.workers.iter().zip(slowdowns);
    let slowdowns: Option<Vec<Slowdown>> = slowdowns
        .map(|((program, _), values)| Some(Slowdown { program, slowdown: Spread::of(values)? }))
        .collect();
    Ok(CostRow {
        configuration,
        start_seconds: settle.as_secs_f64(),
        start_cpu_seconds: start_cpu.as_secs_f64(),
        own_share: Spread::of(shares).context("no round")?,
        slowdowns: slowdowns.context("no round")?,
        became_huge_bytes: 0,
    })
}

impl Crowd {
    /// The rates of those who work, over so long.
    fn rates(&mut self, time: Duration, stage: &mut Stage<'_>) -> Result<Vec<f64>> {
        for (_, worker) in &mut self.workers {
            worker.drain()?;
            worker.beats.clear();
        }
        sleep(&stage.signals, time)?;
        let mut rates = Vec::new();
        for (_, worker) in &mut self.workers {
            worker.drain()?;
            let ends = worker.beats.first().zip(worker.beats.last());
            let (first, last) = ends.context("the workload tells nothing of its progress")?;
            anyhow::ensure!(last.units > first.units, "the workload makes no progress");
            rates.push(rate(first, last));
        }
        Ok(rates)
    }

    fn huge(&self) -> Result<u64> {
        let workers = self.workers.iter().map(|(_, worker)| worker);
        workers.chain(&self.sleepers).map(Worker::huge).sum()
    }
}

impl Cost {
    pub(super) fn gates(&self) -> Vec<Gate> {
        let ours = self.rows.iter().filter(|row| row.configuration == super::configuration::OURS);
        ours.flat_map(|row| {
            let share = row.own_share.median;
            let own = Gate {
                case: "cost",
                demand: format!(
                    "at most {:.0} % of one processor with {} in {} processes and nothing to do",
                    100.0 * OWN,
                    Bytes(self.resident_bytes),
                    self.processes
                ),
                found: match self.is_whole {
                    true => format!("{:.2} %", 100.0 * share),
                    false => format!("{:.2} %, with less memory than is demanded", 100.0 * share),
                },
                holds: share <= OWN && self.is_whole,
            };
            let slow = row.slowdowns.iter().map(|found| Gate {
                case: "cost",
                demand: format!("{}: slower by at most {:.0} %", found.program, 100.0 * SLOWDOWN),
                found: format!(
                    "{:+.2} % ({:+.2} to {:+.2})",
                    100.0 * found.slowdown.median,
                    100.0 * found.slowdown.min,
                    100.0 * found.slowdown.max
                ),
                holds: found.slowdown.median <= SLOWDOWN,
            });
            std::iter::once(own).chain(slow).collect::<Vec<_>>()
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_costly_daemon_and_a_slower_program_fail() {
        let judge = |share: f64, slower: f64, is_whole: bool| -> Vec<bool> {
            let one = |median| Spread { median, min: median, max: median };
            let row = CostRow {
                configuration: super::super::configuration::OURS,
                start_seconds: 20.0,
                start_cpu_seconds: 1.0,
                own_share: one(share),
                slowdowns: vec![Slowdown { program: "random", slowdown: one(slower) }],
                became_huge_bytes: 0,
            };
            let cost =
                Cost { resident_bytes: 1, processes: 2, is_whole, rows: vec![row], failures: Vec::new() };
            cost.gates().iter().map(|gate| gate.holds).collect()
        };
        assert_eq!(judge(0.009, 0.001, true), [true, true]);
        assert_eq!(judge(0.011, 0.001, true), [false, true]);
        assert_eq!(judge(0.009, 0.02, true), [true, false]);
        assert_eq!(judge(0.009, 0.001, false), [false, true], "of less memory nothing is proved");
    }
}
