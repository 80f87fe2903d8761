//! Cost of observing for the observed: one of two equal programs is observed, and they are compared
//! by processor time for the same work.

use super::Observe;
use crate::bench::{Gate, Spread};
use crate::child::{Server, check, sleep};
use crate::experiment::Stage;
use anyhow::{Context, Result};
use megapage_kernel::spawn::Signals;
use megapage_observe::Observer;
use serde::Serialize;
use std::process::Command;
use std::time::Duration;

/// The approximate processor time of one round: several samples of 4 GiB that are all in use.
const ROUND: Duration = Duration::from_secs(25);
/// Units that are done to measure the speed of the programs.
const PROBE_UNITS: f64 = 1000.0;
/// Time between two snapshots if no sample is due earlier.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two looks at the progress of both.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Slowdown {
    /// Bytes of each program, on base pages, all in use.
    pub bytes: u64,
    /// The budget: the largest slow-down that is allowed, as a share of processor time.
    pub budget: f64,
    /// The slow-down of the observed program, 0.01 for 1 %: each value is the mean of two rounds
    /// with the roles exchanged.
    pub slowdown: Spread,
    /// The same with no process observed: the effect of the machine's noise.
    pub control: Spread,
    /// The observer's own estimate of its cost, at the last snapshot.
    pub believed: Option<f64>,
    /// Samples in all.
    pub samples: u64,
}

/// Two equal programs.
struct Twins {
    servers: [Server; 2],
    units: u64,
}

pub(super) fn run(options: &Observe, stage: &mut Stage<'_>, observer: &mut Observer) -> Result<Slowdown> {
    let Stage { plan, place, signals, progress } = stage;
    let scale = 4.0 * options.scale;
    progress(&format!("slowdown: two programs fill {scale} GiB each, and are timed"));
    let start = || {
        let mut command = Command::new(&place.workload);
        command.args(["pattern", "random", "--serve"]).arg(format!("--scale={scale}"));
        Server::start(signals, &mut command)
    };
    let mut twins =
        Twins { servers: [start()?, start()?], units: (PROBE_UNITS * options.scale).ceil() as u64 };
    // The first for the caches, the second for the time.
    twins.round(None, observer, signals)?;
    let costs = twins.round(None, observer, signals)?.costs;
    // Shorter at a smaller scale, for tests.
    let round = ROUND.as_secs_f64() * options.scale.min(1.0);
    twins.units = ((round / costs[0]) as u64).max(1);

    let budget = observer.sampling().context("no way to sample accessed bits")?.budget;
    let (mut observed, mut control) = (Vec::new(), Vec::new());
    let (mut believed, mut samples) = (None, 0);
    for pair in 0..plan.runs.div_ceil(2) {
        let mut logarithm = 0.0;
        for who in [0, 1] {
            let found = twins.round(Some(who), observer, signals)?;
            logarithm += (found.costs[who] / found.costs[1 - who]).ln() / 2.0;
            believed = found.believed.or(believed);
            samples += found.samples;
        }
        observed.push(logarithm.exp() - 1.0);
        // The same two rounds, with no process observed.
        let mut logarithm = 0.0;
        for who in [0, 1] {
            let found = twins.round(None, observer, signals)?;
            logarithm += (found.costs[who] / found.costs[1 - who]).ln() / 2.0;
        }
        control.push(logarithm.exp() - 1.0);
        progress(&format!(
            "slowdown {}/{}: {:+.2} %, with no process observed {:+.2} %",
            pair + 1,
            plan.runs.div_ceil(2),
            100.0 * observed[observed.len() - 1],
            100.0 * control[control.len() - 1]
        ));
    }
    Ok(Slowdown {
        bytes: (scale * (1u64 << 30) as f64) as u64,
        budget,
        slowdown: Spread::of(observed).context("no round")?,
        control: Spread::of(control).context("no round")?,
        believed,
        samples,
    })
}

/// Findings of a round.
struct Round {
    /// Processor seconds of each program for a unit of work.
    costs: [f64; 2],
    believed: Option<f64>,
    samples: u64,
}

impl Twins {
    /// Runs the same work in both at the same time, while `observed` of them is observed.
    fn round(
        &mut self,
        observed: Option<usize>,
        observer: &mut Observer,
        signals: &Signals,
    ) -> Result<Round> {
        for server in &mut self.servers {
            server.ask(self.units)?;
        }
        let mut round = Round { costs: [0.0; 2], believed: None, samples: 0 };
        let pid = observed.map(|who| self.servers[who].pid());
        let mut next = Duration::ZERO;
        let start = std::time::Instant::now();
        let mut samples_before = None;
        while !(self.servers[0].has_answered()? && self.servers[1].has_answered()?) {
            if let Some(pid) = pid
                && start.elapsed() >= next
            {
                let snapshot = observer.snapshot(&[pid]);
                if let Some(sampling) = snapshot.process(pid).and_then(|process| process.sampling.as_ref()) {
                    let before = *samples_before.get_or_insert(sampling.samples);
                    round.samples = sampling.samples - before;
                    round.believed = Some(sampling.slowdown);
                }
                let due = observer.next_due().unwrap_or(SNAPSHOT_INTERVAL).min(SNAPSHOT_INTERVAL);
                next = start.elapsed() + due.max(POLL_INTERVAL);
            }
            sleep(signals, POLL_INTERVAL)?;
        }
        if pid.is_some() {
            // No process is a target any more.
            observer.snapshot(&[]);
        }
        check(signals)?;
        for (server, cost) in self.servers.iter_mut().zip(&mut round.costs) {
            let answer = server.answer(signals)?;
            let spent = answer.phases.0.get("work").context("the workload timed no work")?;
            *cost = spent.cpu_ns as f64 / 1e9 / self.units as f64;
        }
        Ok(round)
    }
}

impl Slowdown {
    pub(super) fn gate(&self) -> Gate {
        Gate {
            case: "slowdown",
            demand: format!("the observed program is slower by at most {:.1} %", 100.0 * self.budget),
            found: format!(
                "{:+.2} % (noise {:+.2} to {:+.2} %), {} samples",
                100.0 * self.slowdown.median,
                100.0 * self.control.min,
                100.0 * self.control.max,
                self.samples
            ),
            holds: self.slowdown.median <= self.budget && self.samples > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_slow_or_never_sampled_fails() {
        let of = |median: f64, samples| {
            let one = |median: f64| Spread { median, min: median, max: median };
            let slowdown = Slowdown {
                bytes: 1,
                budget: 0.01,
                slowdown: one(median),
                control: one(0.0),
                believed: None,
                samples,
            };
            slowdown.gate().holds
        };
        assert!(of(0.009, 3) && of(-0.002, 3));
        assert!(!of(0.011, 3) && !of(0.0, 0));
    }
}
