//! Correctness of the advice: the prediction of `megapage advise` for programs on base pages,
//! against their gain by huge pages afterwards.

use super::Observe;
use super::programs::{Copy, Pages, Program, huge_share};
use super::rank::{Agreement, are_apart, median_interval, tau_b};
use crate::bench::{Gate, Place, Pool, Spread};
use crate::child::{Child, check};
use crate::experiment::{Stage, found_or_why, select};
use anyhow::{Context, Result, ensure};
use megapage_kernel::spawn::Signals;
use megapage_observe::cost::recording::{Measured, Recording};
use megapage_units::{Bytes, Pid};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest time for an advice.
const LONGEST_ADVICE: Duration = Duration::from_secs(120);
/// Units that are done to measure the speed of a program.
const PROBE_UNITS: f64 = 200.0;
/// Least agreement of the two orders (Kendall's tau-b). One demand is over all pairs of programs,
/// the other over those whose measured gains are distinguished by their intervals. For other pairs
/// it is unknown which gains more. If only the first demand fails, the measurement does not show
/// the order.
const LEAST_TAU: f64 = 0.7;
/// Least share of all pairs that must be distinguished: with fewer the measurement is too weak to
/// judge by.
const LEAST_DISTINGUISHED: f64 = 0.5;
/// Gain below which a program must not be advised to switch.
const LEAST_GAIN: f64 = 1.03;
/// Largest difference of gains that count as equal: no smaller one was measured repeatably.
const RESOLUTION: f64 = 0.01;
/// The fewest programs whose order is judged.
const LEAST_PROGRAMS: usize = 8;
/// Histories that a recording keeps.
const MOST_HISTORIES: usize = 250;
/// Programs whose results are required: the gate fails if one did not start, or if its advice gave
/// no value.
const DEMANDED: [&str; 9] =
    ["chase", "random", "zipf", "sequential", "hot", "compute", "map", "redis", "postgres"];

/// Findings of the experiment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Advice {
    /// Runs that were asked for: each is several turns of each copy, or one if turns are long.
    pub runs: u32,
    /// The programs.
    pub programs: Vec<ProgramReport>,
    /// Kendall's tau-b between predicted and measured gain, gains that agree to 0.01 tied, over all
    /// pairs of programs.
    pub tau_b: Option<f64>,
    /// The same over the pairs whose measured intervals do not overlap.
    #[serde(rename = "told_apart")]
    pub distinguished: Distinguished,
    /// The same without ties except exact ones.
    pub tau_b_exact: Option<f64>,
    /// Programs that were skipped, each with the reason.
    pub left_out: Vec<(&'static str, String)>,
}

/// Pairs of programs of which the measurement shows the one that gains more.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Distinguished {
    /// All pairs of programs with a prediction.
    pub all_pairs: u64,
    /// Those whose measured intervals (90 %) do not overlap.
    pub pairs: u64,
    /// Those of them that are predicted in the order in which they were measured.
    pub right: u64,
    /// Those predicted in reverse order. The others are predicted alike.
    pub wrong: u64,
    /// Kendall's tau-b over them.
    pub tau_b: Option<f64>,
}

/// One program.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramReport {
    /// Its name.
    pub program: &'static str,
    /// The factor by which it is faster on huge pages: the ratio of work for each second of
    /// processor time, turn by turn.
    pub measured: Spread,
    /// The interval that holds its median with 90 % (sign test).
    pub interval: [f64; 2],
    /// Turns of each copy.
    pub turns: u32,
    /// Work for each second of processor time on base pages, in the program's own units.
    pub base_rate: Spread,
    /// The same on huge pages.
    pub huge_rate: Spread,
    /// The share of data on huge pages in the base copy and in the huge one, and its bytes; `None`
    /// if the working processes come and go.
    pub huge_share: Option<[f64; 2]>,
    /// The bytes of the base copy's data.
    pub data_bytes: Option<u64>,
    /// The times of all steps.
    pub seconds: Seconds,
    /// The prediction; `None` if there was no advice.
    pub predicted: Option<Predicted>,
    /// The reason if there was none.
    pub failure: Option<String>,
}

/// Times of a program of this bench, in seconds by the clock on the wall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Seconds {
    /// The start of three copies and the filling of their memory, and making one of them huge.
    pub starting: f64,
    /// The question to `megapage advise` about one of them.
    pub asking: f64,
    /// The turns of the other two, and the measurement of their speed.
    pub working: f64,
}

/// The output of `megapage advise --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// True if it advises to switch to huge pages.
    pub recommended: bool,
    /// The verdict, in its own word: `try-it` is neither yes nor no.
    pub verdict: String,
    /// The factor by which it expects the program to be faster: at least, likely, at most.
    pub gain: [f64; 3],
    /// The source of the value, in its own word.
    pub source: String,
}

/// Part of `megapage.advise/1` that is read here.
#[derive(Deserialize)]
struct Document {
    processes: Vec<Verdict>,
}

#[derive(Deserialize)]
struct Verdict {
    pid: i32,
    recommended: bool,
    verdict: String,
    gain: Option<Gain>,
}

#[derive(Deserialize)]
struct Gain {
    low: f64,
    likely: f64,
    high: f64,
    #[serde(default)]
    source: String,
}

/// Refuses names of no program.
pub(super) fn validate(programs: &[String]) -> Result<()> {
    let names: Vec<&'static str> = Program::all().into_iter().map(Program::name).collect();
    select(&names, |name| *name, programs, "program of advice").map(|_| ())
}

pub(super) fn run(options: &Observe, stage: &mut Stage<'_>) -> Result<Advice> {
    let Stage { plan, place, signals, progress } = stage;
    let mut advice = Advice { runs: plan.runs, ..Advice::default() };
    for program in Program::all() {
        if !options.programs.is_empty() && !options.programs.iter().any(|name| name == program.name()) {
            continue;
        }
        let lacks = program.lacks();
        if !lacks.is_empty() {
            let remedy = lacks.join(" ");
            advice.left_out.push((program.name(), format!("not installed: apt-get install {remedy}")));
            continue;
        }
        check(signals)?;
        match found_or_why(compare(program, options, plan.runs, place, signals, progress))? {
            Ok(report) => {
                progress(&report.brief());
                advice.programs.push(report);
            }
            Err(why) => {
                progress(&format!("{}: {why}", program.name()));
                advice.left_out.push((program.name(), why));
            }
        }
    }
    advice.judge();
    Ok(advice)
}

/// Asks for advice on a copy on base pages while it works. Then starts two more copies, one on base
/// and one on huge pages, and lets them work in turns.
fn compare(
    program: Program,
    options: &Observe,
    runs: u32,
    place: &Place,
    signals: &Signals,
    progress: &mut dyn FnMut(&str),
) -> Result<ProgramReport> {
    let mut seconds = Seconds::default();
    let mut asked = |doing: &str| progress(&format!("{}: {doing}", program.name()));
    // Dropped after the copies, which hold its pages.
    let bytes = program.pool(Pages::Huge);
    let mut pool = if bytes > Bytes::ZERO { Some(Pool::take()?) } else { None };
    if let Some(pool) = &mut pool {
        pool.set(bytes).context("the pool of 2 MiB pages")?;
    }
    let predicted = found_or_why(ask(program, options, place, signals, &mut seconds, &mut asked))?;
    let failure = predicted.as_ref().err().cloned();
    asked("two copies start, one on huge pages");
    let start = Instant::now();
    let mut base = program.start(Pages::Base, options.scale, place, signals)?;
    let mut huge = program.start(Pages::Huge, options.scale, place, signals)?;
    seconds.starting += start.elapsed().as_secs_f64();
    let turns = program.turns(runs);
    asked(&format!("{turns} turns of each, of {:.1} s", program.turn().as_secs_f64()));
    let start = Instant::now();
    // Shorter at a smaller scale, for tests.
    let (turn, probe) = (program.turn().mul_f64(options.scale), (PROBE_UNITS * options.scale).ceil() as u64);
    // The first for the caches, the second for the time.
    base.work(probe, signals)?;
    huge.work(probe, signals)?;
    let rate = base.work(probe, signals)?.rate();
    let units = ((rate * turn.as_secs_f64()) as u64).clamp(1, 1_000_000);
    let (mut base_rates, mut huge_rates) = (Vec::new(), Vec::new());
    for number in 0..turns {
        // The machine is different for the copy that goes first: they alternate.
        let turn = |copy: &mut Box<dyn Copy>, rates: &mut Vec<f64>| {
            rates.push(copy.work(units, signals)?.rate());
            Ok::<(), anyhow::Error>(())
        };
        if number % 2 == 0 {
            turn(&mut base, &mut base_rates)?;
            turn(&mut huge, &mut huge_rates)?;
        } else {
            turn(&mut huge, &mut huge_rates)?;
            turn(&mut base, &mut base_rates)?;
        }
    }
    seconds.working = start.elapsed().as_secs_f64();
    let (mut shares, mut data_bytes) = (None, None);
    if let (Some(base), Some(huge)) = (base.pid(), huge.pid()) {
        let (of_base, of_huge) = (huge_share(base)?, huge_share(huge)?);
        shares = Some([of_base.0, of_huge.0]);
        data_bytes = Some(of_base.1);
        ensure!(
            of_base.0 < 0.05 || of_base.1 < Bytes::mib(16).0,
            "the copy on base pages has {:.0} % of its data on huge pages: this bench needs transparent huge \
             pages set to madvise or never",
            100.0 * of_base.0
        );
    }
    let ratios: Vec<f64> = huge_rates.iter().zip(&base_rates).map(|(huge, base)| huge / base).collect();
    let spread = |rates: &[f64]| Spread::of(rates.iter().copied()).context("no turn");
    let (interval, measured) = (median_interval(&ratios).context("no turn")?, spread(&ratios)?);
    if let Some(path) = recording(program, options).filter(|path| path.exists()) {
        complete(&path, program, Measured { median: measured.median, interval })
            .with_context(|| path.display().to_string())?;
    }
    Ok(ProgramReport {
        program: program.name(),
        interval,
        measured,
        turns,
        base_rate: spread(&base_rates)?,
        huge_rate: spread(&huge_rates)?,
        huge_share: shares,
        data_bytes,
        seconds,
        predicted: predicted.ok(),
        failure,
    })
}

/// Asks `megapage advise` about a separate copy: asking may promote parts of it.
fn ask(
    program: Program,
    options: &Observe,
    place: &Place,
    signals: &Signals,
    seconds: &mut Seconds,
    progress: &mut dyn FnMut(&str),
) -> Result<Predicted> {
    progress("a copy starts, to be asked about");
    let start = Instant::now();
    let mut copy = program.start(Pages::Base, options.scale, place, signals)?;
    let pid = copy.keep_busy(signals)?;
    seconds.starting += start.elapsed().as_secs_f64();
    progress("megapage advise observes it");
    let start = Instant::now();
    let mut command = Command::new(&place.megapage);
    command.args(["advise", "--json"]).args(&options.advise).arg(pid.to_string());
    if let Some(path) = recording(program, options) {
        command.arg("--record").arg(path);
    }
    let output = Child::output(signals, &mut command, LONGEST_ADVICE);
    seconds.asking = start.elapsed().as_secs_f64();
    let (printed, said) = output?;
    let document: Document = serde_json::from_slice(&printed)
        .with_context(|| format!("megapage advise: {}", said.lines().next().unwrap_or("it said nothing")))?;
    predicted(document, pid)
}

/// Returns the path for the recording of a program.
fn recording(program: Program, options: &Observe) -> Option<PathBuf> {
    options.record.as_ref().map(|directory| directory.join(format!("{}.json", program.name())))
}

/// Reduces a recording to [`MOST_HISTORIES`] histories, taken evenly from all.
fn thin(recording: &mut Recording) {
    let histories = std::mem::take(&mut recording.touches.histories);
    // Closer looks show the heat of the hottest pages: the same share of either kind is stored.
    let (close, others): (Vec<_>, Vec<_>) = histories.into_iter().partition(|it| it.close);
    let all = (close.len() + others.len()).max(1);
    for kind in [others, close] {
        let count = kind.len();
        let keep = (count * MOST_HISTORIES).div_ceil(all).min(count);
        let kept = kind.into_iter().enumerate().filter(|(n, _)| (n + 1) * keep / count > n * keep / count);
        recording.touches.histories.extend(kept.map(|(_, history)| history));
    }
}

/// Adds the measurement to a recording, and removes the parts that no test needs.
fn complete(path: &Path, program: Program, measured: Measured) -> Result<()> {
    let recording: Recording = serde_json::from_slice(&std::fs::read(path)?)?;
    let mut whole = Recording { program: program.name().into(), measured: Some(measured), ..recording };
    thin(&mut whole);
    let text = serde_json::to_string(&whole)? + "\n";
    Ok(megapage_kernel::trusted::write_report(path, text.as_bytes())?)
}

fn predicted(document: Document, pid: Pid) -> Result<Predicted> {
    let verdict = document.processes.into_iter().find(|verdict| verdict.pid == pid.0);
    let verdict = verdict.context("the advice is not about the process that was asked about")?;
    let gain = verdict.gain.context("the advice gives no value")?;
    Ok(Predicted {
        recommended: verdict.recommended,
        verdict: verdict.verdict,
        gain: [gain.low, gain.likely, gain.high],
        source: gain.source,
    })
}

impl Advice {
    fn judge(&mut self) {
        let judged: Vec<(f64, &ProgramReport)> = self
            .programs
            .iter()
            .filter_map(|report| Some((report.predicted.as_ref()?.gain[1], report)))
            .collect();
        let rounded = |value: f64| (value / RESOLUTION).round();
        let exact: Vec<_> = judged.iter().map(|(gain, report)| (*gain, report.measured.median)).collect();
        let tied: Vec<_> = exact.iter().map(|(one, other)| (rounded(*one), rounded(*other))).collect();
        self.tau_b = tau_b(&tied);
        self.tau_b_exact = tau_b(&exact);
        // Intervals that are apart count as apart, however close: only predictions may be tied
        // here.
        let rounded_pairs: Vec<_> = exact.iter().map(|(one, other)| (rounded(*one), *other)).collect();
        let apart = |one: usize, other: usize| are_apart(judged[one].1.interval, judged[other].1.interval);
        let found = Agreement::of(&rounded_pairs, apart);
        let pairs = || (0..judged.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
        self.distinguished = Distinguished {
            all_pairs: pairs().count() as u64,
            pairs: pairs().filter(|(one, other)| apart(*one, *other)).count() as u64,
            right: found.right,
            wrong: found.wrong,
            tau_b: found.tau_b(),
        };
    }

    /// Returns the demanded programs that were skipped or are not predicted.
    fn missing(&self) -> Vec<&'static str> {
        let is_judged =
            |name: &str| self.programs.iter().any(|one| one.program == name && one.predicted.is_some());
        DEMANDED.into_iter().filter(|name| !is_judged(name)).collect()
    }

    /// Returns the demands, judged.
    pub(super) fn gates(&self) -> Vec<Gate> {
        let with_advice = self.programs.iter().filter(|report| report.predicted.is_some()).count();
        let wrong: Vec<&str> =
            self.programs.iter().filter(|one| one.misleads()).map(|one| one.program).collect();
        let missing = self.missing();
        let gate = |demand: String, found: String, holds: bool| Gate { case: "advice", demand, found, holds };
        vec![
            gate(
                format!("programs with advice and measurement: at least {LEAST_PROGRAMS}"),
                with_advice.to_string(),
                with_advice >= LEAST_PROGRAMS,
            ),
            gate(
                format!("without advice or measurement of {}: none", DEMANDED.join(", ")),
                if missing.is_empty() { "none".into() } else { missing.join(", ") },
                missing.is_empty(),
            ),
            gate(
                format!(
                    "order of predicted and measured gain, all pairs of programs: tau-b at least {LEAST_TAU}"
                ),
                self.tau_b.map_or("none".into(), |tau| format!("{tau:.2}")),
                self.tau_b.is_some_and(|tau| tau >= LEAST_TAU),
            ),
            gate(
                format!(
                    "the same of pairs whose measured intervals do not overlap, {:.0} % of all at least: tau-b at \
                     least {LEAST_TAU}",
                    100.0 * LEAST_DISTINGUISHED
                ),
                self.distinguished.order(),
                self.distinguished.tau_b.is_some_and(|tau| tau >= LEAST_TAU)
                    && self.distinguished.pairs as f64
                        >= LEAST_DISTINGUISHED * self.distinguished.all_pairs as f64,
            ),
            gate(
                format!("advised to switch though measured under {LEAST_GAIN}: none"),
                if wrong.is_empty() { "none".into() } else { wrong.join(", ") },
                wrong.is_empty() && with_advice > 0,
            ),
        ]
    }
}

impl Distinguished {
    /// Describes the agreement of the orders in words.
    fn order(&self) -> String {
        let Distinguished { all_pairs, pairs, right, wrong, tau_b } = self;
        let tau = tau_b.map_or("none".into(), |tau| format!("{tau:.2}"));
        format!("{tau}: {right} right, {wrong} wrong of {pairs} in {all_pairs} pairs")
    }
}

impl ProgramReport {
    /// Returns true if the advice is to switch though that gains next to nothing.
    fn misleads(&self) -> bool {
        self.measured.median < LEAST_GAIN && self.predicted.as_ref().is_some_and(|advice| advice.recommended)
    }

    fn brief(&self) -> String {
        let predicted = match (&self.predicted, &self.failure) {
            (Some(advice), _) => format!("predicted {:.2}", advice.gain[1]),
            (None, why) => why.clone().unwrap_or_default(),
        };
        format!("{}: measured {:.2}, {predicted}", self.program, self.measured.median)
    }
}

#[cfg(test)]
mod tests;
