//! A large heap on base pages, of which only the part with the highest addresses is used. The
//! experiment measures the time until that part is huge and the program runs as fast as on huge
//! pages, and the cost.

use super::configuration::{Running, Who};
use super::trial::Trial;
use super::worker::{Steady, Worker, rate};
use super::{Configuration, Failure, Stage};
use crate::bench::Spread;
use crate::child::sleep;
use crate::workload::steady::{Beat, Way};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::time::{Duration, Instant};

mod gates;

/// The heap at scale 1, and the used part: more of it if that little gains nothing.
pub(super) const HEAP: u64 = 8 << 30;
const HOT: u64 = 512 << 20;
const MORE_HOT: u64 = 2 << 30;
/// The smallest used part: below it there is hardly a gain.
const LEAST_HOT: u64 = 256 << 20;
/// Longest wait for the gain at scale 1.
const LONGEST: Duration = Duration::from_secs(36);
/// Time for which the program works to measure its rate; the first quarter does not count.
const REFERENCE: Duration = Duration::from_millis(2000);
/// The same to find the way of working that gains.
const TRIAL: Duration = Duration::from_millis(1200);
/// Time between two lines of progress.
const INTERVAL: Duration = Duration::from_millis(50);
/// A gain below this drowns in noise, and one above this does not.
pub(super) const LEAST_GAIN: f64 = 1.10;
const GOOD_GAIN: f64 = 1.25;
/// The part of the used memory that has to be huge, by the page tables. It is also the share of the
/// attainable gain that has to be reached after that.
const ATTAINED: f64 = 0.90;
/// Lines of progress over which a rate is taken, and for which the gain has to last.
const WINDOW: usize = 6;

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Promote {
    /// Bytes of the heap.
    pub heap_bytes: u64,
    /// The program's way of working: the one that gained most in the trials.
    pub way: &'static str,
    /// Bytes that are used, at the end of the heap.
    pub hot_bytes: u64,
    /// The ways of working that were tried at the start: a program's gain depends on the machine,
    /// and on its host.
    pub trials: Vec<Trial>,
    /// Units for each second of processor time on base pages.
    pub base_rate: Spread,
    /// The same with all used memory on huge pages.
    pub huge_rate: Spread,
    /// The share of the attainable gain that has to be reached.
    #[serde(rename = "relief_share")]
    pub gain_share: f64,
    /// The longest wait for it, in seconds.
    pub longest_seconds: f64,
    /// One for each configuration.
    pub rows: Vec<PromoteRow>,
    /// Runs that failed.
    pub failures: Vec<Failure>,
}

/// One configuration.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PromoteRow {
    /// Its name.
    pub configuration: &'static str,
    /// Every run.
    pub samples: Vec<Sample>,
    /// Seconds until the used memory was huge: the median of the runs. If not every run got there,
    /// it is extrapolated from the pace of collapsing, for a configuration that goes through the
    /// heap from its low end. `None` if that collapsed nothing, or takes another order.
    #[serde(rename = "huge_seconds")]
    pub seconds_to_huge: Option<Spread>,
    /// Processor seconds of the daemon and of the kernel's own threads until then, also measured or
    /// extrapolated.
    pub cpu_seconds: Option<Spread>,
    /// Seconds until the program's rate had gained; `None` unless it has in each run that waited
    /// for it.
    #[serde(rename = "relief_seconds")]
    pub seconds_to_gain: Option<Spread>,
    /// True if the first two are extrapolated.
    pub extrapolated: bool,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Seconds until [`ATTAINED`] of the used memory was huge, by the page tables; `None` if it was
    /// not in time.
    #[serde(rename = "huge_seconds")]
    pub seconds_to_huge: Option<f64>,
    /// Seconds until the rate had gained and the used memory was huge; `None` if that did not come
    /// in time. Another machine on the same host makes rates jump, so that this says more of a
    /// single run than of a configuration.
    #[serde(rename = "relief_seconds")]
    pub seconds_to_gain: Option<f64>,
    /// True if the run waited for the gain. It does not if the program, on huge pages right before,
    /// gained nothing.
    pub waited_for_gain: bool,
    /// Free memory that was touched before, so that the host has backed it.
    pub warmed_bytes: u64,
    /// Seconds for which it was watched.
    pub watched_seconds: f64,
    /// Processor seconds of the daemon and of the kernel's own threads until the used memory was
    /// huge, or in all of that time.
    pub cpu_seconds: f64,
    /// Bytes that are huge at the end of it.
    pub huge_bytes: u64,
    /// Bytes of those in the used part.
    pub hot_huge_bytes: u64,
    /// The gain that was reached over time: seconds, and the share of the attainable gain.
    pub gain: Vec<(f64, f64)>,
}

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Promote> {
    let heap = stage.scaled(HEAP).max(2 * LEAST_HOT);
    let least = stage.scaled_power(HOT).max(LEAST_HOT);
    let steady = Steady { way: Way::Sparse, size: heap, hot: least, units: None, interval: INTERVAL };
    let mut worker = Worker::steady(&steady, stage.place, stage.signals)?;
    worker.ready(stage.signals)?;
    let trials = trials(&mut worker, least, stage.scaled_power(MORE_HOT), stage)?;
    let best = trials.iter().max_by(|one, other| one.1.gain.total_cmp(&other.1.gain));
    let (way, Trial { hot_bytes: hot, .. }) = *best.context("nothing was tried")?;
    worker.work(way, hot)?;
    let configurations = stage.configurations.clone();
    let mut rows: Vec<PromoteRow> = configurations.iter().map(row).collect();
    let (mut base_rates, mut huge_rates, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..stage.runs {
        let [base, huge] = reference(&mut worker, hot, REFERENCE, stage)?;
        let reference = (huge > LEAST_GAIN * base).then_some([base, huge]);
        if reference.is_some() {
            base_rates.push(base);
            huge_rates.push(huge);
        } else {
            let why = format!(
                "round {}: on huge pages the program does {huge:.0} units for each second, on base pages {base:.0}: \
                 there is no gain to wait for, only until what is used is huge",
                round + 1
            );
            failures.push(Failure { configuration: "reference", why });
        }
        for (configuration, row) in configurations.iter().zip(&mut rows) {
            // A configuration that was once not in time is not run again.
            if row.samples.iter().any(|sample| sample.seconds_to_huge.is_none()) {
                continue;
            }
            worker.split()?;
            // As after they were written: khugepaged skips pages that were not accessed since.
            worker.touch(stage.signals)?;
            let warmed_bytes = stage.warm(heap)?.0;
            match one(configuration, &mut worker, hot, reference, stage) {
                Ok(sample) => {
                    let sample = Sample { warmed_bytes, ..sample };
                    let after = |time: Option<f64>| {
                        time.map_or("not in time".to_string(), |seconds| format!("after {seconds:.2} s"))
                    };
                    stage.say(&format!(
                        "{}/{} {}: huge {}, {:.2} s of processor time; gain {}",
                        round + 1,
                        stage.runs,
                        configuration.name,
                        after(sample.seconds_to_huge),
                        sample.cpu_seconds,
                        after(sample.seconds_to_gain)
                    ));
                    row.samples.push(sample);
                }
                Err(error) => {
                    failures.push(stage.failed(configuration.name, error)?);
                    worker.pause()?;
                }
            }
        }
    }
    let mut rows_done = Vec::new();
    for (mut row, configuration) in rows.into_iter().zip(&configurations) {
        row.summarise(heap, hot, matches!(configuration.who, Who::Kernel(_)));
        rows_done.push(row);
    }
    Ok(Promote {
        heap_bytes: heap,
        way: way.name(),
        hot_bytes: hot,
        trials: trials.into_iter().map(|(_, trial)| trial).collect(),
        base_rate: Spread::of(base_rates).with_context(|| gainless(&failures))?,
        huge_rate: Spread::of(huge_rates).context("no round")?,
        gain_share: ATTAINED,
        longest_seconds: longest(stage).as_secs_f64(),
        rows: rows_done,
        failures,
    })
}

/// Returns the longest wait for the gain.
fn longest(stage: &Stage<'_>) -> Duration {
    LONGEST.mul_f64(stage.scale.max(0.1))
}

fn row(configuration: &Configuration) -> PromoteRow {
    PromoteRow { configuration: configuration.name, ..PromoteRow::default() }
}

/// Returns the reason for which no round counts.
fn gainless(failures: &[Failure]) -> String {
    failures.first().map_or("no round".into(), |failure| failure.why.clone())
}

/// Measures the program's gain by huge pages in each way of working that comes into question: with
/// one line of each page, and with all lines. If neither gains much, it tries all lines of more
/// memory, whose page tables fit no cache.
fn trials(worker: &mut Worker, least: u64, more: u64, stage: &mut Stage<'_>) -> Result<Vec<(Way, Trial)>> {
    let mut tried: Vec<(Way, Trial)> = Vec::new();
    for (way, hot) in [(Way::Sparse, least), (Way::Chase, least), (Way::Chase, more)] {
        let larger = hot > least;
        if !larger && tried.len() > 1 || larger && tried.iter().any(|(_, trial)| trial.gain >= GOOD_GAIN) {
            continue;
        }
        worker.work(way, hot)?;
        let time = TRIAL.mul_f64(stage.scale.max(0.25));
        let [base, huge] = match reference(worker, hot, time, stage) {
            Ok(rates) => rates,
            Err(error) if Stage::is_final(&error) => return Err(error),
            // There may be too few huge pages for that memory; the other trials are valid.
            Err(error) => {
                stage.say(&format!("trial: {} of {}: {error:#}", way.name(), megapage_units::Bytes(hot)));
                worker.pause()?;
                continue;
            }
        };
        let trial = Trial { way: way.name(), hot_bytes: hot, gain: huge / base };
        stage.say(&format!(
            "trial: {} of {}: huge pages make it {:.2} times as fast",
            trial.way,
            megapage_units::Bytes(hot),
            trial.gain
        ));
        tried.push((way, trial));
    }
    Ok(tried)
}

/// Returns the program's rates on base pages and with all its used memory on huge ones, each over
/// `time`. It is left on base pages.
fn reference(worker: &mut Worker, hot: u64, time: Duration, stage: &mut Stage<'_>) -> Result<[f64; 2]> {
    let mut rates = [0.0; 2];
    worker.split()?;
    rates[0] = work_for(worker, time, stage)?;
    let top = worker.top(hot)?;
    worker.promote(Some(top))?;
    rates[1] = work_for(worker, time, stage)?;
    worker.split()?;
    Ok(rates)
}

/// Lets it work for `time`; returns its rate in the later part of that.
pub(super) fn work_for(worker: &mut Worker, time: Duration, stage: &mut Stage<'_>) -> Result<f64> {
    worker.drain()?;
    let before = worker.beats.len();
    worker.go()?;
    sleep(stage.signals, time)?;
    worker.pause()?;
    // The last line comes when it has paused.
    sleep(stage.signals, 4 * INTERVAL)?;
    worker.drain()?;
    let beats = &worker.beats[before..];
    let counted = &beats[beats.len() / 4..];
    let (first, last) = (counted.first(), counted.last());
    let (first, last) = first.zip(last).context("the workload told nothing of its progress")?;
    ensure!(last.units > first.units, "the workload makes no progress");
    Ok(rate(first, last))
}

/// Runs once.
fn one(
    configuration: &Configuration,
    worker: &mut Worker,
    hot: u64,
    reference: Option<[f64; 2]>,
    stage: &mut Stage<'_>,
) -> Result<Sample> {
    worker.drain()?;
    let before = worker.beats.len();
    let start = Instant::now();
    // The program works from the moment at which the setting is made, or the daemon started.
    let mut running = configuration.start(&mut stage.change, &[worker.pid()], stage.place, stage.signals)?;
    if configuration.is_always() {
        worker.fault()?;
    }
    let begun = start.elapsed();
    worker.go()?;
    let watched = watch(worker, before, &mut running, hot, reference, (start, begun), stage);
    worker.pause()?;
    let watched = match watched {
        Ok(watched) => watched,
        Err(error) => {
            running.stop(&mut stage.change).ok();
            return Err(error);
        }
    };
    running.stop(&mut stage.change)?;
    let top = worker.top(hot)?;
    let sample = Sample {
        seconds_to_huge: watched.huge,
        seconds_to_gain: watched.gain,
        waited_for_gain: reference.is_some(),
        warmed_bytes: 0,
        watched_seconds: watched.seconds,
        cpu_seconds: watched.cpu.as_secs_f64(),
        huge_bytes: worker.huge()?,
        hot_huge_bytes: worker.huge_within(top)?,
        gain: reference.map_or(Vec::new(), |reference| gains(&worker.beats[before..], reference)),
    };
    // Lines that it wrote while it paused are not of the next run.
    sleep(stage.signals, 4 * INTERVAL)?;
    worker.drain()?;
    Ok(sample)
}

/// Results of one run, in seconds after the start.
struct Watched {
    huge: Option<f64>,
    gain: Option<f64>,
    /// Its length.
    seconds: f64,
    /// The processor time until the used memory was huge, or in all of it.
    cpu: Duration,
}

/// Waits until the used memory is huge, and the program has gained, if there is a `reference` for
/// that. `started` is the start, and the time from it until the program began to work.
fn watch(
    worker: &mut Worker,
    first: usize,
    running: &mut Running,
    hot: u64,
    reference: Option<[f64; 2]>,
    started: (Instant, Duration),
    stage: &mut Stage<'_>,
) -> Result<Watched> {
    let (start, begun) = (started.0, started.1.as_secs_f64());
    let longest = longest(stage);
    let top = worker.top(hot)?;
    let mut before = first;
    let mut huge: Option<(f64, Duration)> = None;
    loop {
        sleep(stage.signals, INTERVAL / 2)?;
        running.check()?;
        worker.drain()?;
        let seconds = start.elapsed().as_secs_f64();
        let spent = running.spent()?;
        if huge.is_none() && worker.huge_share(top)? >= ATTAINED {
            huge = Some((seconds, spent));
        }
        let gained = reference.and_then(|reference| time_to_gain(&worker.beats[before..], reference));
        let gain = match gained {
            // A machine that others use too makes rates jump: that was no gain.
            Some(_) if huge.is_none() => {
                before = worker.beats.len();
                None
            }
            Some(after) => {
                let skipped = worker.beats[before].wall_ns - worker.beats[first].wall_ns;
                Some(begun + skipped as f64 / 1e9 + after)
            }
            None => None,
        };
        let is_over = gain.is_some() || reference.is_none() && huge.is_some();
        if is_over || seconds >= longest.as_secs_f64() {
            let cpu = huge.map_or(spent, |(_, spent)| spent);
            return Ok(Watched { huge: huge.map(|(at, _)| at), gain, seconds, cpu });
        }
    }
}

/// Returns the share of the attainable gain over time, in seconds from the first line of progress.
fn gains(beats: &[Beat], reference: [f64; 2]) -> Vec<(f64, f64)> {
    let Some(first) = beats.first() else { return Vec::new() };
    let share = |pair: (&Beat, &Beat)| (rate(pair.0, pair.1) - reference[0]) / (reference[1] - reference[0]);
    let seconds = |beat: &Beat| beat.wall_ns.saturating_sub(first.wall_ns) as f64 / 1e9;
    beats.iter().zip(beats.iter().skip(WINDOW)).map(|pair| (seconds(pair.1), share(pair))).collect()
}

/// Returns the time of the gain, in seconds from the first line of progress. From then on the rate
/// over a window stayed above nine tenths of the attainable gain, for another window.
fn time_to_gain(beats: &[Beat], reference: [f64; 2]) -> Option<f64> {
    let gains = gains(beats, reference);
    let first = gains.windows(WINDOW).find(|window| window.iter().all(|(_, share)| *share >= ATTAINED))?;
    Some(first[0].0)
}

impl PromoteRow {
    fn summarise(&mut self, heap: u64, hot: u64, from_low_end: bool) {
        let waited = self.samples.iter().filter(|sample| sample.waited_for_gain);
        let gains: Option<Vec<f64>> = waited.map(|sample| sample.seconds_to_gain).collect();
        self.seconds_to_gain = gains.and_then(Spread::of);
        let huge: Option<Vec<f64>> = self.samples.iter().map(|sample| sample.seconds_to_huge).collect();
        if let Some(huge) = huge.and_then(Spread::of) {
            self.seconds_to_huge = Some(huge);
            self.cpu_seconds = Spread::of(self.samples.iter().map(|sample| sample.cpu_seconds));
        } else if from_low_end {
            let slow = self.samples.iter().filter(|sample| sample.seconds_to_huge.is_none());
            let factors: Vec<(f64, f64)> =
                slow.filter_map(|sample| Some((factor(sample, heap, hot)?, sample.cpu_seconds))).collect();
            let longest = self.samples.iter().map(|sample| sample.watched_seconds).fold(0.0, f64::max);
            self.seconds_to_huge = Spread::of(factors.iter().map(|(factor, _)| factor * longest));
            self.cpu_seconds = Spread::of(factors.iter().map(|(factor, cpu)| factor * cpu));
            self.extrapolated = self.seconds_to_huge.is_some();
        }
    }
}

/// Returns the factor between the memory that was collapsed and the memory to collapse until the
/// used part is huge. It holds for a configuration that goes through the heap from its low end.
fn factor(sample: &Sample, heap: u64, hot: u64) -> Option<f64> {
    let needed = (heap - hot) as f64 + ATTAINED * hot as f64;
    (sample.huge_bytes > 0).then(|| needed / sample.huge_bytes as f64)
}

#[cfg(test)]
mod tests;
