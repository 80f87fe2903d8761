//! One host: this machine for some seconds, with three programs, recorded from outside.

use super::kinds::{KINDS, Kind, Programs};
use crate::child::{Child, Server, check};
use crate::experiment::Stage;
use anyhow::{Context, Result, ensure};
use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_status;
use megapage_kernel::spawn::signal;
use megapage_units::HUGE_2M;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Units of endless work.
const ENDLESS: u64 = 1 << 40;
/// Longest time of a recording beyond the requested one.
const GRACE: Duration = Duration::from_secs(120);
/// Time between two looks at the need.
const LOOK: Duration = Duration::from_millis(100);
/// Quantile by which a pool is sized.
const QUANTILE: f64 = 0.99;
/// The most recorders that time accesses, and the processor seconds that show that one did.
const TIMINGS: u32 = 5;
const LEAST_TIMING: f64 = 1.5;
/// Programs of the host whose recording's cost is judged.
const COSTED: [usize; 3] = [0, 4, 6];

/// One host.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HostReport {
    /// Its hash in the recording.
    pub host: String,
    /// The programs that ran.
    pub programs: Vec<&'static str>,
    /// The share of a processor that recording took: far above the default budget, because some
    /// seconds stand for a day.
    pub record_share: f64,
    /// Huge pages of 2 MiB at once, at p99, as planned.
    pub planned: Option<u64>,
    /// The same as needed, of the services that the plan chose.
    pub needed: Option<f64>,
    /// Needs of each program at each look, in pages.
    #[serde(skip)]
    pub(super) looks: Vec<BTreeMap<&'static str, f64>>,
}

impl HostReport {
    /// Compares the plan with the need of the chosen services.
    pub(super) fn judge(&mut self, planned: u64, chosen: &[&str]) {
        let sum = |look: &BTreeMap<&'static str, f64>| -> f64 {
            look.iter().filter(|(name, _)| chosen.contains(*name)).map(|(_, pages)| pages).sum()
        };
        let mut sums: Vec<f64> = self.looks.iter().map(sum).collect();
        sums.sort_by(f64::total_cmp);
        let at = (sums.len() as f64 * QUANTILE).ceil() as usize;
        self.planned = Some(planned);
        self.needed = sums.get(at.max(1) - 1).copied();
    }

    /// Returns the error of the plan, as a share of the need; `None` if both are zero.
    pub(super) fn error(&self) -> Option<f64> {
        let (planned, needed) = (self.planned? as f64, self.needed?);
        match needed < 1.0 {
            true => (planned > 0.0).then_some(1.0),
            false => Some((planned / needed - 1.0).abs()),
        }
    }
}

/// Cost of recording with its defaults.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cost {
    /// Seconds recorded.
    pub seconds: f64,
    /// Processor seconds, as counted by recording itself.
    pub own_seconds: f64,
    /// Their share.
    pub share: f64,
    /// Moments.
    pub moments: u64,
    /// Bytes of the recording.
    pub bytes: u64,
}

/// Part of `megapage.record/1` that is read here.
#[derive(Deserialize)]
struct Recorded {
    seconds: f64,
    moments: u64,
    cpu_seconds: f64,
    cpu_share: f64,
    recording_bytes: u64,
    header: Header,
}

#[derive(Deserialize)]
struct Header {
    host: String,
}

/// Returns the arguments for recording a host: some seconds stand for a day, so the budget is
/// larger by the same factor.
fn arguments(seconds: u32) -> Vec<String> {
    let text = format!("record --json --names --seconds {seconds} --every 1 --budget 10");
    text.split(' ').map(Into::into).collect()
}

pub(super) fn recording(seconds: u32) -> String {
    format!("megapage {} --output HOST '^(PROGRAM1|PROGRAM2|PROGRAM3)$'", arguments(seconds).join(" "))
}

/// Returns the arguments for judging the cost: with the default budget.
fn costed(seconds: u32) -> Vec<String> {
    let text = format!("record --json --names --seconds {seconds} --every 30");
    text.split(' ').map(Into::into).collect()
}

pub(super) fn costing(seconds: u32) -> String {
    format!("megapage {} --output HOST", costed(seconds).join(" "))
}

/// Returns the kinds of host `number`: three different ones, each kind on the same number of hosts.
fn kinds(number: u32) -> [Kind; 3] {
    let count = KINDS.len() as u32;
    // Steps without a common divisor with the number of kinds give all combinations their turn.
    let first = number % count;
    let second = (first + 1 + number / count) % count;
    let third = (first + 6 + number / count) % count;
    [first, second, third].map(|at| KINDS[at as usize])
}

/// Lets the first recorders after a boot time accesses before anything is judged. Without counters
/// of page walks they take some seconds of processor time each, and keep the result.
pub(super) fn prepare(programs: &Programs, scale: f64, stage: &mut Stage<'_>) -> Result<()> {
    let _busy = start(programs, KINDS[0], scale, stage)?;
    let path = programs.directory.path().join("prepared.jsonl");
    for number in 1..=TIMINGS {
        (stage.progress)(&format!("preparing, {number} of at most {TIMINGS}"));
        let mut command = Command::new(&stage.place.megapage);
        command
            .args(["record", "--json", "--once", "--every", "6", "--budget", "100", "--output"])
            .arg(&path);
        command.arg(format!("^{}$", KINDS[0].name));
        let (printed, said) = Child::output(stage.signals, &mut command, GRACE)?;
        let recorded: Recorded = serde_json::from_slice(&printed).with_context(|| said.trim().to_string())?;
        if recorded.cpu_seconds < LEAST_TIMING {
            break;
        }
    }
    Ok(())
}

/// Records a host; the last of its programs starts when a third of the time is over.
pub(super) fn record(
    programs: &Programs,
    number: u32,
    hosts: u32,
    seconds: u32,
    scale: f64,
    stage: &mut Stage<'_>,
) -> Result<(HostReport, PathBuf)> {
    let kinds = kinds(number);
    let path = programs.directory.path().join(format!("host{number:03}.jsonl"));
    let mut servers: Vec<(Kind, Server)> = Vec::new();
    for kind in &kinds[..2] {
        servers.push((*kind, start(programs, *kind, scale, stage)?));
    }
    let mut command = Command::new(&stage.place.megapage);
    command.args(arguments(seconds)).arg("--output").arg(&path).stderr(Stdio::null());
    // Other processes of this machine are no part of the host.
    command.arg(format!("^({})$", kinds.map(|kind| kind.name).join("|")));
    let (out, out_end) = std::io::pipe().context("pipe")?;
    command.stdin(Stdio::null()).stdout(out_end);
    let mut child = Child::start(stage.signals, &mut command, signal::SIGTERM)?;
    command.stdout(Stdio::null());
    let mut report =
        HostReport { programs: kinds.iter().map(|kind| kind.name).collect(), ..HostReport::default() };
    let begin = Instant::now();
    let limit = Duration::from_secs(seconds.into()) + GRACE;
    while child.end()?.is_none() {
        check(stage.signals)?;
        ensure!(begin.elapsed() < limit, "megapage record took longer than {} s", limit.as_secs());
        if servers.len() < kinds.len() && begin.elapsed() >= Duration::from_secs_f64(f64::from(seconds) / 3.0)
        {
            servers.push((kinds[2], start(programs, kinds[2], scale, stage)?));
        }
        report.looks.push(servers.iter().map(|(kind, server)| (kind.name, need(server))).collect());
        std::thread::sleep(LOOK);
    }
    let recorded: Recorded = serde_json::from_reader(out).context("megapage record")?;
    report.host = recorded.header.host;
    report.record_share = recorded.cpu_share;
    (stage.progress)(&format!(
        "host {} of {hosts}: {}, {} moments",
        number + 1,
        report.programs.join(" "),
        recorded.moments
    ));
    Ok((report, path))
}

fn start(programs: &Programs, kind: Kind, scale: f64, stage: &Stage<'_>) -> Result<Server> {
    let mut server = programs.start(kind, scale, stage.signals)?;
    server.ask(ENDLESS)?;
    Ok(server)
}

/// Returns the pages of 2 MiB that a program's memory fills, by its own count of resident memory.
fn need(server: &Server) -> f64 {
    let status = read_status(&KernelRoot::live(), server.pid());
    status.map_or(0.0, |status| status.rss_anonymous.0 as f64 / HUGE_2M as f64)
}

/// Measures the cost of recording three busy programs with its defaults.
pub(super) fn cost(programs: &Programs, seconds: u32, scale: f64, stage: &mut Stage<'_>) -> Result<Cost> {
    (stage.progress)(&format!("recording three programs for {seconds} s with the default budget"));
    let mut servers = Vec::new();
    for at in COSTED {
        servers.push(start(programs, KINDS[at], scale, stage)?);
    }
    let path = programs.directory.path().join("cost.jsonl");
    let mut command = Command::new(&stage.place.megapage);
    // All processes of this machine, as a user records it.
    command.args(costed(seconds)).arg("--output").arg(&path);
    let limit = Duration::from_secs(seconds.into()) * 3 + GRACE;
    let (printed, said) = Child::output(stage.signals, &mut command, limit)?;
    let recorded: Recorded = serde_json::from_slice(&printed)
        .with_context(|| format!("megapage record: {}", said.lines().next().unwrap_or("it said nothing")))?;
    Ok(Cost {
        seconds: recorded.seconds,
        own_seconds: recorded.cpu_seconds,
        share: recorded.cpu_share,
        moments: recorded.moments,
        bytes: recorded.recording_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_mixed_and_every_kind_is_on_as_many() {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut mixtures = std::collections::BTreeSet::new();
        for number in 0..36 {
            let mut names = kinds(number).map(|kind| kind.name);
            names.iter().for_each(|name| *counts.entry(name).or_default() += 1);
            names.sort_unstable();
            assert!(names[0] != names[1] && names[1] != names[2], "{names:?}");
            mixtures.insert(names);
        }
        assert!(counts.values().all(|count| *count == 9), "{counts:?}");
        assert_eq!(mixtures.len(), 36);
    }

    #[test]
    fn a_need_is_that_of_the_chosen_services_at_once() {
        let look = |a: f64, b: f64| BTreeMap::from([("a", a), ("b", b)]);
        let mut report = HostReport {
            looks: (0..100).map(|at| if at < 2 { look(50.0, 9.0) } else { look(10.0, 90.0) }).collect(),
            ..HostReport::default()
        };
        report.judge(100, &["a", "b"]);
        assert_eq!((report.needed, report.error()), (Some(100.0), Some(0.0)));
        report.judge(52, &["a"]);
        assert_eq!(report.needed, Some(50.0));
        assert!((report.error().unwrap() - 0.04).abs() < 1e-9);
        report.judge(0, &[]);
        assert_eq!(report.error(), None);
        report.judge(7, &[]);
        assert_eq!(report.error(), Some(1.0), "pages that no service needs");
    }
}
