//! `megapage-lab plan`: the order of services against their gain, the size of pools against the
//! need at one time, and the cost of recording against its budget.
//!
//! Each *host* is this machine for some seconds, with three programs of a dozen kinds.
//! `megapage record` records them from outside, and `megapage plan` plans all of them. The gain of
//! each kind is measured by two copies that take turns, one on huge pages. The need of each host
//! comes from its processes' own counts of their memory.

mod gain;
mod host;
mod kinds;
mod table;

use crate::arguments::scale;
use crate::bench::Gate;
use crate::child::Child;
use crate::experiment::{Experiment, Found, Needs, Plan, Section, Stage};
use crate::observe::rank::tau_b;
use anyhow::{Context, Result, ensure};
use gain::Measured;
use host::{Cost, HostReport};
use megapage_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

/// Least agreement of the order (Kendall's tau-b), gains that agree to 0.01 tied.
const LEAST_TAU: f64 = 0.7;
const RESOLUTION: f64 = 0.01;
/// The fewest kinds that must be predicted and measured: fewer give no order worth judging.
const LEAST_KINDS: usize = 10;
/// Largest error of a pool, as a share of the need.
const MOST_POOL_ERROR: f64 = 0.05;
/// Largest share of a processor for recording.
const MOST_SHARE: f64 = 0.005;
/// Least gain of a service that is to be enabled.
const LEAST_GAIN: f64 = 1.03;
/// Longest time of planning.
const LONGEST_PLAN: Duration = Duration::from_secs(300);

/// Check that a plan from recordings ranks services by their gain, and sizes pools by the need
#[derive(Clone, Debug, clap::Args)]
pub struct PlanExperiment {
    /// plan, cost [default: all]
    pub cases: Vec<String>,
    /// Hosts to record
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(4..=60))]
    pub hosts: u32,
    /// Seconds of each recording
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(4..=600))]
    pub seconds: u32,
    /// Seconds of the recording whose own cost is judged
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(10..=86_400))]
    pub cost_seconds: u32,
    /// Multiply sizes by this, up to 1
    #[arg(long, default_value_t = 1.0, value_parser = scale(1.0))]
    pub scale: f64,
}

/// One kind of program, as it was predicted and measured.
#[derive(Clone, Debug, Serialize)]
pub struct KindReport {
    /// Its name.
    pub kind: &'static str,
    /// The factor by which it is faster on huge pages, and the interval that holds the median with
    /// 90 %.
    pub measured: Measured,
    /// Lower end, likely, upper end of the gain that the plan expects; `None` if it does not know.
    pub predicted: Option<[f64; 3]>,
    /// The plan's verdict.
    pub verdict: String,
    /// The reason for the verdict.
    pub why: String,
    /// Hosts that it was recorded on.
    pub hosts: usize,
}

/// Findings of the experiment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PlanFound {
    /// Factor for sizes.
    pub scale: f64,
    /// Seconds of each recording.
    pub seconds: u32,
    /// The kinds of programs.
    pub kinds: Vec<KindReport>,
    /// The hosts.
    pub hosts: Vec<HostReport>,
    /// Kendall's tau-b between predicted and measured gain.
    pub tau_b: Option<f64>,
    /// The sentence that the plan ends with.
    pub sentence: String,
    /// The cost of recording.
    pub cost: Option<Cost>,
}

/// Part of `megapage.plan/1` that is read here.
#[derive(Deserialize)]
struct Document {
    services: Vec<Service>,
    hosts: Vec<Host>,
    sentence: String,
}

#[derive(Deserialize)]
struct Service {
    service: String,
    verdict: String,
    why: String,
    hosts: usize,
    gain: Option<Gain>,
}

#[derive(Deserialize)]
struct Gain {
    low: f64,
    likely: f64,
    high: f64,
}

#[derive(Deserialize)]
struct Host {
    host: String,
    huge_pages: u64,
}

impl Experiment for PlanExperiment {
    const NAME: &'static str = "plan";
    const RUNS: [u32; 3] = [1, 1, 20];
    const CASES: &'static [&'static str] = &["plan", "cost"];
    type Found = PlanFound;

    fn cases(&self) -> &[String] {
        &self.cases
    }

    fn needs(&self) -> Needs {
        Needs {
            root: Some("accesses of other processes are sampled as root"),
            memory: Bytes((3.0 * self.scale * Bytes::gib(1).0 as f64) as u64),
            smaller: "--scale",
            ..Needs::default()
        }
    }

    fn dry_run(&self, _: &Plan) -> Vec<String> {
        let mut lines = Vec::new();
        if self.wants("plan") {
            lines.push(format!("# {} hosts of three programs; each:", self.hosts));
            lines.push(host::recording(self.seconds));
            lines.push("megapage plan --json HOST1 HOST2 ...".into());
        }
        if self.wants("cost") {
            lines.push(host::costing(self.cost_seconds));
        }
        lines
    }

    fn measure(&self, stage: &mut Stage<'_>) -> Result<PlanFound> {
        let mut found = PlanFound { scale: self.scale, seconds: self.seconds, ..PlanFound::default() };
        let place = kinds::Programs::make(stage.place)?;
        host::prepare(&place, self.scale, stage)?;
        if self.wants("cost") {
            found.cost = Some(host::cost(&place, self.cost_seconds, self.scale, stage)?);
        }
        if self.wants("plan") {
            self.plan(&place, &mut found, stage)?;
        }
        Ok(found)
    }
}

impl PlanExperiment {
    fn plan(&self, place: &kinds::Programs, found: &mut PlanFound, stage: &mut Stage<'_>) -> Result<()> {
        let mut files = Vec::new();
        for number in 0..self.hosts {
            let report = host::record(place, number, self.hosts, self.seconds, self.scale, stage)?;
            files.push(report.1);
            found.hosts.push(report.0);
        }
        let measured = gain::measure(place, self.scale, stage)?;
        let mut command = Command::new(&stage.place.megapage);
        command.args(["plan", "--json"]).args(&files);
        let (printed, said) = Child::output(stage.signals, &mut command, LONGEST_PLAN)?;
        let document: Document = serde_json::from_slice(&printed).with_context(|| {
            format!("megapage plan: {}", said.lines().next().unwrap_or("it said nothing"))
        })?;
        ensure!(document.hosts.len() == files.len(), "{} hosts were planned", document.hosts.len());
        let planned: BTreeMap<&str, u64> =
            document.hosts.iter().map(|host| (host.host.as_str(), host.huge_pages)).collect();
        let chosen: Vec<&str> = document
            .services
            .iter()
            .filter(|service| ["enable", "try-it"].contains(&service.verdict.as_str()))
            .map(|service| service.service.as_str())
            .collect();
        for host in &mut found.hosts {
            let pages = planned.get(host.host.as_str()).context("a host that was recorded is not planned")?;
            host.judge(*pages, &chosen);
        }
        for (kind, measured) in measured {
            let service = document.services.iter().find(|service| service.service == kind);
            found.kinds.push(KindReport {
                kind,
                measured,
                predicted: service
                    .and_then(|it| it.gain.as_ref())
                    .map(|gain| [gain.low, gain.likely, gain.high]),
                verdict: service.map_or_else(|| "not seen".into(), |it| it.verdict.clone()),
                why: service.map_or_else(String::new, |it| it.why.clone()),
                hosts: service.map_or(0, |it| it.hosts),
            });
        }
        let rounded = |value: f64| (value / RESOLUTION).round();
        let pairs: Vec<(f64, f64)> = found
            .kinds
            .iter()
            .filter_map(|kind| Some((rounded(kind.predicted?[1]), rounded(kind.measured.median))))
            .collect();
        found.tau_b = tau_b(&pairs);
        found.sentence = document.sentence;
        Ok(())
    }
}

impl PlanFound {
    /// Returns kinds that are to be enabled though they gain next to nothing.
    fn misled(&self) -> Vec<&'static str> {
        let wrong = |kind: &&KindReport| kind.verdict == "enable" && kind.measured.median < LEAST_GAIN;
        self.kinds.iter().filter(wrong).map(|kind| kind.kind).collect()
    }

    /// Returns the largest error of a host's pages, as a share of its need.
    fn pool_error(&self) -> Option<f64> {
        self.hosts.iter().filter_map(HostReport::error).max_by(f64::total_cmp)
    }
}

impl Found for PlanFound {
    fn title(&self, _: u32) -> String {
        format!("{} recorded hosts of three programs each, {} s a recording", self.hosts.len(), self.seconds)
    }

    fn gates(&self) -> Vec<Gate> {
        let mut gates = Vec::new();
        if !self.kinds.is_empty() {
            let predicted = self.kinds.iter().filter(|kind| kind.predicted.is_some()).count();
            let gate = |demand: String, found: String, holds| Gate { case: "plan", demand, found, holds };
            gates.push(gate(
                format!("kinds predicted and measured: at least {LEAST_KINDS}"),
                predicted.to_string(),
                predicted >= LEAST_KINDS,
            ));
            gates.push(gate(
                format!("order of predicted and measured gain: tau-b at least {LEAST_TAU}"),
                self.tau_b.map_or("none".into(), |tau| format!("{tau:.2}")),
                self.tau_b.is_some_and(|tau| tau >= LEAST_TAU),
            ));
            let misled = self.misled();
            gates.push(gate(
                format!("to be enabled though measured under {LEAST_GAIN}: none"),
                if misled.is_empty() { "none".into() } else { misled.join(", ") },
                misled.is_empty(),
            ));
            let error = self.pool_error();
            gates.push(gate(
                format!("huge pages of each host at p99: at most {:.0} % off", 100.0 * MOST_POOL_ERROR),
                error.map_or("no host needs any".into(), |error| format!("{:.1} %", 100.0 * error)),
                error.is_some_and(|error| error <= MOST_POOL_ERROR),
            ));
        }
        if let Some(cost) = &self.cost {
            gates.push(Gate {
                case: "cost",
                demand: format!("recording takes at most {:.1} % of a processor", 100.0 * MOST_SHARE),
                found: format!("{:.2} %", 100.0 * cost.share),
                holds: cost.share <= MOST_SHARE,
            });
        }
        gates
    }

    fn sections(&self) -> Vec<Section> {
        table::sections(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(measured: f64, predicted: f64, verdict: &str) -> KindReport {
        KindReport {
            kind: "k",
            measured: Measured { median: measured, interval: [measured, measured] },
            predicted: Some([predicted; 3]),
            verdict: verdict.into(),
            why: String::new(),
            hosts: 1,
        }
    }

    fn found() -> PlanFound {
        PlanFound {
            kinds: (0..10).map(|at| kind(1.1, 1.0 + f64::from(at) / 10.0, "enable")).collect(),
            hosts: vec![HostReport { planned: Some(100), needed: Some(102.0), ..HostReport::default() }],
            tau_b: Some(0.8),
            cost: Some(Cost { share: 0.004, ..Cost::default() }),
            ..PlanFound::default()
        }
    }

    fn holds(found: &PlanFound) -> Vec<bool> {
        found.gates().into_iter().map(|gate| gate.holds).collect()
    }

    #[test]
    fn each_gate_can_fail() {
        assert_eq!(holds(&found()), [true; 5]);
        let mut few = found();
        few.kinds.pop();
        assert_eq!(holds(&few), [false, true, true, true, true]);
        assert_eq!(holds(&PlanFound { tau_b: Some(0.6), ..found() }), [true, false, true, true, true]);
        let mut misled = found();
        misled.kinds[0].measured.median = 1.01;
        assert_eq!(holds(&misled), [true, true, false, true, true]);
        let mut off = found();
        off.hosts[0].needed = Some(110.0);
        assert_eq!(holds(&off), [true, true, true, false, true]);
        off.hosts.clear();
        assert!(!holds(&off)[3], "no host is no proof");
        let dear = PlanFound { cost: Some(Cost { share: 0.006, ..Cost::default() }), ..found() };
        assert_eq!(holds(&dear), [true, true, true, true, false]);
    }
}
