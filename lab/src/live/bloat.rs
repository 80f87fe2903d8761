//! Redis in three phases, in a memory group with a limit above the need of base pages. Many values
//! are set, most are deleted at random, larger ones are set. If the holes are filled with zeros,
//! memory exceeds the limit.

use super::configuration::{OURS, OURS_ALWAYS, Running};
use super::redis::{Ended, Redis};
use super::stalls::{self, StallReport};
use super::worker::Worker;
use super::{Configuration, Failure, Measured, Stage};
use crate::bench::{Gate, Spread};
use crate::chart::{Chart, Line};
use crate::child::Stopped;
use crate::experiment::{Order, Section, found_or_why};
use crate::peers::{ALWAYS, NEVER, is_tuned};
use crate::redis::FILL;
use anyhow::{Context, Result, ensure};
use megapage_units::Bytes;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Keys of the first phase at scale 1, and the bytes of a value: 1.5 GiB.
const KEYS: u64 = 400_000;
const VALUE_BYTES: u64 = 4000;
/// Share of the keys that are deleted, in percent.
const DELETED: u64 = 80;
/// Bytes of a value of the third phase, which holds as much as was deleted.
const LARGE_BYTES: u64 = 60_000;
/// The group's limit at scale 1: a fifth above the need of base pages.
pub(super) const LIMIT: u64 = 2 << 30;
/// Times of requests at scale 1: before the server's speed is measured, and for the measurement.
const WARM: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(4);
/// Time after the deletions, in which the holes are released (jemalloc takes ten seconds, at any
/// scale) and filled.
const SPARSE: Duration = Duration::from_secs(12);
/// Time at the end, until memory is steady: policies look for bloat again every half a minute at
/// least. If no gate needs the end, the wait is over when memory has changed by less than
/// [`STEADY_PART`] for [`STEADY`].
const SETTLE: Duration = Duration::from_secs(32);
const STEADY: Duration = Duration::from_secs(6);
const STEADY_PART: f64 = 0.005;
/// Time between two points of the curve.
const POINT: f64 = 0.2;
/// Its parts, each by itself: the server, and the speed at which bloat is recovered.
pub(super) const CASES: [&str; 2] = ["redis", "recovery"];
/// The demands.
const THROUGHPUT: f64 = 0.97;
const RSS: f64 = 1.05;
/// The number of demands for each configuration of the daemon, without the one against khugepaged's
/// settings.
const DEMANDS: usize = 3;

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Bloat {
    /// Keys of the first phase, with values of [`Bloat::value_bytes`].
    pub keys: u64,
    /// Bytes of such a value.
    pub value_bytes: u64,
    /// The group's limit.
    pub limit_bytes: u64,
    /// One for each configuration.
    pub rows: Vec<BloatRow>,
    /// The speed at which bloat is recovered, and its effects; `None` if that failed.
    pub stalls: Option<StallReport>,
    /// Runs that failed.
    pub failures: Vec<Failure>,
}

/// One configuration.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BloatRow {
    /// Its name.
    pub configuration: &'static str,
    /// Every run.
    pub samples: Vec<Sample>,
    /// Commands for each second of the server's processor time, before memory is short.
    pub throughput: Option<Spread>,
    /// The same over thp-always' of the same round, for rounds in which both ran.
    pub throughput_of_always: Option<Spread>,
    /// The number of those rounds.
    pub throughput_rounds: usize,
    /// The server's resident bytes at the end, of the runs that got there.
    pub rss_end_bytes: Option<Spread>,
    /// The same over thp-never's of the same round, for rounds in which both completed.
    pub rss_end_of_never: Option<Spread>,
    /// The number of those rounds.
    pub rss_rounds: usize,
    /// Runs that completed all phases.
    pub completed: usize,
}

/// One run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// Its round: 1 for the first.
    pub round: u32,
    /// Free memory that was touched before, so that the host has backed it.
    pub warmed_bytes: u64,
    /// The reason for an early end; `None` if all phases completed.
    pub ended: Option<String>,
    /// Commands for each second of the server's processor time, while no processor is idle
    /// (`workload::busy`).
    pub throughput: Option<f64>,
    /// Resident bytes after the first phase, after the deletions and a while, and at the end.
    pub rss_bytes: [Option<u64>; 3],
    /// Bytes that the group was charged with at the same moments.
    pub charged_bytes: [Option<u64>; 3],
    /// Times that the group met its limit.
    pub limit_hits: u64,
    /// Processes killed in it.
    pub oom_kills: u64,
    /// Processor seconds of the daemon and of the kernel's own threads.
    pub helper_seconds: f64,
    /// Seconds from the start, resident bytes, bytes charged to the group.
    pub curve: Vec<(f64, u64, u64)>,
    /// Times at which the three phases and the final wait began, in seconds.
    pub phases: Vec<f64>,
    /// Length of the final wait, in seconds: all of it if a gate needs the end, otherwise until
    /// memory was steady.
    pub settled_seconds: Option<f64>,
}

pub(super) fn run(stage: &mut Stage<'_>, [with_redis, with_recovery]: [bool; 2]) -> Result<Bloat> {
    let keys = ((KEYS as f64 * stage.scale) as u64).max(2000);
    // A server is some megabytes by itself.
    let limit = (LIMIT as f64 * stage.scale) as u64 + (32 << 20);
    let configurations = if with_redis { stage.configurations.clone() } else { Vec::new() };
    let mut failures = Vec::new();
    let mut rows: Vec<BloatRow> = configurations.iter().map(BloatRow::of).collect();
    for round in 0..stage.runs {
        for at in Order::ToAndFro.turns(round, rows.len()) {
            let (configuration, row) = (&configurations[at], &mut rows[at]);
            // Configurations that no gate compares run once.
            let is_compared = [NEVER, ALWAYS, OURS, OURS_ALWAYS].contains(&configuration.name);
            if round > 0 && !is_compared && !is_tuned(configuration.name) {
                continue;
            }
            let warmed_bytes = stage.warm(limit)?.0;
            match one(configuration, keys, limit, stage) {
                Ok(mut sample) => {
                    (sample.round, sample.warmed_bytes) = (round + 1, warmed_bytes);
                    let rss = sample.rss_bytes[2].map_or("-".into(), |bytes| Bytes(bytes).to_string());
                    let ended = sample.ended.clone().unwrap_or_else(|| format!("completed, {rss}"));
                    let commands = sample.throughput.unwrap_or_default() / 1000.0;
                    stage.say(&format!(
                        "{}/{} {}: {commands:.0} k/CPU s, {ended}",
                        round + 1,
                        stage.runs,
                        configuration.name
                    ));
                    row.samples.push(sample);
                    row.summarise();
                }
                Err(error) => failures.push(stage.failed(configuration.name, error)?),
            }
        }
    }
    compare(&mut rows);
    let mut stalls = None;
    if with_recovery {
        match found_or_why(stalls::run(stage, &mut failures))? {
            Ok(found) => stalls = Some(found),
            Err(why) => failures.push(Failure { configuration: "recovery", why }),
        }
    }
    Ok(Bloat { keys, value_bytes: VALUE_BYTES, limit_bytes: limit, rows, stalls, failures })
}

/// Runs the three phases once.
fn one(configuration: &Configuration, keys: u64, limit: u64, stage: &mut Stage<'_>) -> Result<Sample> {
    let mut sample = Sample::default();
    // The kernel's setting is in force before the server starts; the daemon gets the server's
    // number.
    stage.change.set(&configuration.controls()).context("the settings of transparent huge pages")?;
    let mut redis = Redis::start(Bytes(limit), stage.signals)?;
    let running = configuration.start(&mut stage.change, &[redis.pid()], stage.place, stage.signals);
    let mut running = running?;
    let is_judged = [OURS, OURS_ALWAYS].contains(&configuration.name);
    let phases = phases(&mut redis, keys, is_judged, &mut running, &mut sample, stage);
    if let Ok(usage) = redis.group.usage() {
        (sample.limit_hits, sample.oom_kills) = (usage.limit_hits, usage.oom_kills);
    }
    sample.helper_seconds = running.spent()?.as_secs_f64();
    running.stop(&mut stage.change)?;
    if let Err(error) = phases {
        if error.is::<Stopped>() || !is_shortage(&error, &sample) {
            return Err(error);
        }
        let moment = ["setting values", "deleting", "setting larger values", "waiting at the end"];
        let phase = moment[sample.phases.len().clamp(1, moment.len()) - 1];
        sample.ended = Some(if sample.oom_kills > 0 {
            format!("killed for want of memory while {phase}")
        } else {
            format!("{error:#} while {phase}")
        });
    }
    Ok(sample)
}

/// Returns true if a run ended because memory did not suffice, which is a finding and no failure.
fn is_shortage(error: &anyhow::Error, sample: &Sample) -> bool {
    sample.oom_kills > 0 || error.is::<Ended>() && sample.limit_hits > 0
}

fn phases(
    redis: &mut Redis,
    keys: u64,
    is_judged: bool,
    running: &mut Running,
    sample: &mut Sample,
    stage: &mut Stage<'_>,
) -> Result<()> {
    let start = Instant::now();
    let factor = stage.scale.max(0.05);
    let signals = stage.signals;
    let Sample { curve, phases, rss_bytes, charged_bytes, throughput, settled_seconds, .. } = sample;
    let mut look = |redis: &Redis| -> Result<()> {
        let now = start.elapsed().as_secs_f64();
        if curve.last().is_none_or(|(last, ..)| now - last >= POINT) {
            // One that has just been killed has no memory any more.
            let rss = redis.rss().map_or(0, |rss| rss.0);
            curve.push((now, rss, redis.group.usage()?.usage.0));
            running.check()?;
        }
        Ok(())
    };
    let mut mark = |at: usize, redis: &Redis| -> Result<()> {
        rss_bytes[at] = Some(redis.rss()?.0);
        charged_bytes[at] = Some(redis.group.usage()?.usage.0);
        Ok(())
    };

    phases.push(start.elapsed().as_secs_f64());
    redis.script(FILL, 0..keys, &[&VALUE_BYTES.to_string()], signals, &mut look)?;
    redis.ask(keys, signals)?;
    redis.wait(WARM.mul_f64(factor), signals, &mut look)?;
    // The same for all: only beside khugepaged without pauses would no processor be idle.
    let busy = Worker::busy(stage.place, signals)?;
    let before = redis.work(signals)?;
    redis.wait(MEASURED.mul_f64(factor), signals, &mut look)?;
    let after = redis.work(signals)?;
    drop(busy);
    let seconds = after.1.saturating_sub(before.1).as_secs_f64();
    ensure!(seconds > 0.0 && after.0 > before.0, "redis-server did no work");
    *throughput = Some((after.0 - before.0) as f64 / seconds);
    mark(0, redis)?;

    phases.push(start.elapsed().as_secs_f64());
    // Knuth's multiplicative hash chooses, without an order that the allocator could know.
    let delete = "for i = ARGV[1], ARGV[2] do if (i * 2654435761) % 4294967296 % 100 < tonumber(ARGV[4]) then \
                  redis.call('del', string.format('key:%012d', i)) end end";
    redis.script(delete, 0..keys, &["0", &DELETED.to_string()], signals, &mut look)?;
    redis.wait(SPARSE, signals, &mut look)?;
    mark(1, redis)?;
    redis.quiet();
    let left = redis.keys(signals)?;

    phases.push(start.elapsed().as_secs_f64());
    let larger = (keys - left) * VALUE_BYTES / LARGE_BYTES;
    let set = "for i = ARGV[1], ARGV[2] do \
               redis.call('set', string.format('big:%012d', i), string.rep('y', ARGV[3])) end";
    redis.script(set, 0..larger, &[&LARGE_BYTES.to_string()], signals, &mut look)?;
    phases.push(start.elapsed().as_secs_f64());
    let shorter = (4.0 * factor).min(1.0);
    let (most, mut steady) = (SETTLE.mul_f64(shorter), Steady::new(STEADY.mul_f64(shorter)));
    let began = Instant::now();
    while began.elapsed() < most {
        let is_steady = steady.note(began.elapsed(), redis.rss()?.0);
        if is_steady && !is_judged {
            break;
        }
        redis.wait(Duration::from_secs_f64(POINT), signals, &mut look)?;
    }
    *settled_seconds = Some(began.elapsed().as_secs_f64());
    mark(2, redis)?;
    let found = redis.keys(signals)?;
    ensure!(found == left + larger, "redis-server holds {found} keys, not {}", left + larger);
    Ok(())
}

/// Detector of steady memory.
struct Steady {
    time: Duration,
    /// The sizes with their times, as long as they matter.
    seen: VecDeque<(Duration, u64)>,
}

impl Steady {
    fn new(time: Duration) -> Steady {
        Steady { time, seen: VecDeque::new() }
    }

    /// Takes in the resident bytes at a moment. Returns true if they have changed little for long
    /// enough.
    fn note(&mut self, now: Duration, bytes: u64) -> bool {
        self.seen.push_back((now, bytes));
        // One entry from before that time is kept: it has the size at the start of the time.
        while self.seen.get(1).is_some_and(|(then, _)| now.saturating_sub(*then) >= self.time) {
            self.seen.pop_front();
        }
        let [least, most] = [u64::min, u64::max]
            .map(|which| self.seen.iter().map(|(_, bytes)| *bytes).reduce(which).unwrap_or_default());
        let long = self.seen.front().is_some_and(|(then, _)| now.saturating_sub(*then) >= self.time);
        long && (most - least) as f64 <= STEADY_PART * most as f64
    }
}

/// Compares each run with those of the same round, since the speed of a machine changes over time.
fn compare(rows: &mut [BloatRow]) {
    let ended = |sample: &Sample| sample.rss_bytes[2].map(|bytes| bytes as f64);
    let of = |rows: &[BloatRow], name: &str, value: fn(&Sample) -> Option<f64>| -> Vec<(u32, f64)> {
        let row = rows.iter().find(|row| row.configuration == name);
        let samples = row.into_iter().flat_map(|row| &row.samples);
        samples.filter_map(|sample| Some((sample.round, value(sample)?))).collect()
    };
    let always = of(rows, ALWAYS, |sample| sample.throughput);
    let never = of(rows, NEVER, ended);
    let ratios = |row: &BloatRow, others: &[(u32, f64)], value: fn(&Sample) -> Option<f64>| {
        let ratio = |sample: &Sample| {
            let other = others.iter().find(|(round, _)| *round == sample.round)?.1;
            Some(value(sample)? / other).filter(|ratio| ratio.is_finite())
        };
        let ratios: Vec<f64> = row.samples.iter().filter_map(ratio).collect();
        (ratios.len(), Spread::of(ratios))
    };
    for row in rows {
        (row.throughput_rounds, row.throughput_of_always) = ratios(row, &always, |sample| sample.throughput);
        (row.rss_rounds, row.rss_end_of_never) = ratios(row, &never, ended);
    }
}

impl BloatRow {
    fn of(configuration: &Configuration) -> BloatRow {
        BloatRow { configuration: configuration.name, ..BloatRow::default() }
    }

    fn summarise(&mut self) {
        self.throughput = Spread::of(self.samples.iter().filter_map(|sample| sample.throughput));
        let completed = self.samples.iter().filter(|sample| sample.ended.is_none());
        self.completed = completed.clone().count();
        self.rss_end_bytes =
            Spread::of(completed.filter_map(|sample| sample.rss_bytes[2]).map(|bytes| bytes as f64));
    }

    fn completes(&self) -> bool {
        !self.samples.is_empty() && self.completed == self.samples.len()
    }

    /// Describes the outcome in words.
    pub(super) fn outcome(&self) -> String {
        match self.samples.iter().find_map(|sample| sample.ended.as_deref()) {
            None if self.samples.is_empty() => "did not run".into(),
            None => "completes".into(),
            Some(how) => how.into(),
        }
    }
}

impl Bloat {
    /// Judges the daemon against khugepaged at its best. It does not improve on a setting that
    /// completes and does at least as well by both, memory and commands. `None` if no setting was
    /// tried.
    fn against_tuned(&self, ours: &BloatRow) -> Option<Gate> {
        let values = |row: &BloatRow| Some((row.rss_end_of_never?.median, row.throughput_of_always?.median));
        let tuned: Vec<&BloatRow> = self.rows.iter().filter(|row| is_tuned(row.configuration)).collect();
        if tuned.is_empty() {
            return None;
        }
        let complete = tuned.iter().filter(|row| row.completes());
        let complete: Vec<(&str, (f64, f64))> =
            complete.filter_map(|row| Some((row.configuration, values(row)?))).collect();
        let own = values(ours).filter(|_| ours.completes());
        let better = own.and_then(|(rss, commands)| {
            complete.iter().find(|(_, theirs)| theirs.0 <= rss && theirs.1 >= commands)
        });
        // The one with most commands is shown if none is better by both.
        let shown = better.or(complete.iter().max_by(|one, other| one.1.1.total_cmp(&other.1.1)));
        let show = |(rss, commands): (f64, f64)| format!("{commands:.3} of THP always' commands in {rss:.3}");
        Some(Gate {
            case: "redis",
            demand: format!(
                "{}: no setting of khugepaged that completes has as many commands in as little memory",
                ours.configuration
            ),
            found: format!(
                "{} against {}",
                own.map_or("does not complete".into(), show),
                shown.map_or("none that completes".into(), |(name, theirs)| format!(
                    "{} ({name})",
                    show(*theirs)
                ))
            ),
            holds: own.is_some() && better.is_none(),
        })
    }
}

impl Measured for Bloat {
    const KEY: &'static str = "bloat";

    fn failures(&self) -> &[Failure] {
        &self.failures
    }

    fn sections(&self) -> Vec<Section> {
        super::table::bloat(self)
    }

    fn gates(&self) -> Vec<Gate> {
        let row = |name: &str| self.rows.iter().find(|row| row.configuration == name);
        let mut gates = Vec::new();
        let ours = [OURS, OURS_ALWAYS].into_iter().filter_map(row);
        let mut whole: Vec<&str> = Vec::new();
        for (never, ours) in
            row(NEVER).into_iter().flat_map(|never| ours.clone().map(move |ours| (never, ours)))
        {
            let (name, first) = (ours.configuration, gates.len());
            let is_greedy = |row: &&BloatRow| row.configuration == ALWAYS || is_tuned(row.configuration);
            let always: Vec<&BloatRow> = self.rows.iter().filter(is_greedy).collect();
            let exceeds = always.iter().any(|row| row.completed < row.samples.len());
            let outcomes: Vec<String> =
                always.iter().map(|row| format!("{} {}", row.configuration, row.outcome())).collect();
            gates.push(Gate {
                case: "redis",
                demand: format!("{name}: what exceeds the limit with THP always completes, as on base pages"),
                found: format!("{}; {}", ours.outcome(), outcomes.join("; ")),
                holds: never.completes() && ours.completes() && exceeds,
            });
            let show = |ratio: Spread, of: usize| {
                let Spread { median, min, max } = ratio;
                format!("{median:.3} ({min:.3}-{max:.3}), median of {of} rounds' ratios")
            };
            // A round in which one of the two failed is no excuse.
            let all = ours.samples.len();
            let rss = ours.rss_end_of_never;
            gates.push(Gate {
                case: "redis",
                demand: format!("{name}: resident at the end: at most {RSS} of base pages"),
                found: rss
                    .map_or("no round in which both completed".into(), |ratio| show(ratio, ours.rss_rounds)),
                holds: rss.is_some_and(|ratio| ratio.median <= RSS) && ours.rss_rounds == all,
            });
            if let Some(ratio) = ours.throughput_of_always {
                gates.push(Gate {
                    case: "redis",
                    demand: format!("{name}: commands before pressure: at least {THROUGHPUT} of THP always"),
                    found: show(ratio, ours.throughput_rounds),
                    holds: ratio.median >= THROUGHPUT && ours.throughput_rounds == all,
                });
            }
            gates.extend(self.against_tuned(ours));
            let held = gates[first..].iter().all(|gate| gate.holds) && gates.len() - first >= DEMANDS;
            whole.extend(held.then_some(name));
        }
        if ours.clone().count() > 1 {
            gates.push(Gate {
                case: "redis",
                demand: "one configuration of the daemon holds all of that".into(),
                found: if whole.is_empty() { "none".into() } else { whole.join(", ") },
                holds: !whole.is_empty(),
            });
        }
        gates.extend(self.stalls.iter().flat_map(StallReport::gates));
        gates
    }

    /// Draws the resident memory over time, of the first run of each configuration.
    fn charts(&self) -> Vec<(&'static str, Chart)> {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let mut lines = Vec::new();
        for row in &self.rows {
            if let Some(sample) = row.samples.first() {
                let name = row.configuration.to_string();
                let points = sample.curve.iter().map(|(at, rss, _)| (*at, gib(*rss))).collect();
                lines.push(Line { name, points, pale: false });
            }
        }
        if lines.is_empty() {
            // Only the recovery was measured.
            return Vec::new();
        }
        let end = lines.iter().flat_map(|line| &line.points).map(|(at, _)| *at).fold(0.0, f64::max);
        let limit = gib(self.limit_bytes);
        lines.push(Line { name: "limit".into(), points: vec![(0.0, limit), (end, limit)], pale: true });
        vec![(
            "memory",
            Chart {
                title: "Resident memory of redis-server".into(),
                x: "seconds".into(),
                y: "GiB".into(),
                lines,
            },
        )]
    }
}

#[cfg(test)]
mod tests;
