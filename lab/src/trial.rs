//! `megapage-lab trial`: the correctness of the decisions of `megapage trial`.
//!
//! There are twenty services with a known effect of huge pages: ten that gain and ten that do not,
//! of which five are hurt. `megapage trial` is run on each as any user would run it.

use crate::bench::Gate;
use crate::child::{Child, Server, check};
use crate::experiment::{Experiment, Found, Needs, Plan, Section, Stage, found_or_why};
use crate::workload::service::Kind;
use anyhow::{Context, Result, ensure};
use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::{backing, read_smaps};
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Most that switching may cost, as a share of the service's processor time.
const COST: f64 = 0.01;
/// Time beyond `--most`: settling and the last switch take it.
const GRACE: Duration = Duration::from_secs(60);

megapage_units::named! {
    /// Known effect of huge pages on a service.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Truth {
        Gains = "gains",
        Nothing = "nothing",
        Hurts = "hurts",
    }
}

/// One service.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    kind: Kind,
    mib: u64,
    /// See [`crate::workload::service::Options`].
    share: f64,
    truth: Truth,
}

const fn case(name: &'static str, kind: Kind, mib: u64, share: f64, truth: Truth) -> Case {
    Case { name, kind, mib, share, truth }
}

const CASES: [Case; 20] = [
    // More pages than any TLB has entries, but few enough for frequent switches. Their lines fit a
    // cache of the second level, which other programs of the machine affect least. One reads memory
    // itself.
    case("linked-24m", Kind::Linked, 24, 1.0, Truth::Gains),
    case("linked-26m", Kind::Linked, 26, 1.0, Truth::Gains),
    case("linked-28m", Kind::Linked, 28, 1.0, Truth::Gains),
    case("linked-30m", Kind::Linked, 30, 1.0, Truth::Gains),
    case("linked-32m", Kind::Linked, 32, 1.0, Truth::Gains),
    case("linked-36m", Kind::Linked, 36, 1.0, Truth::Gains),
    case("linked-40m", Kind::Linked, 40, 1.0, Truth::Gains),
    case("linked-44m", Kind::Linked, 44, 1.0, Truth::Gains),
    case("linked-48m", Kind::Linked, 48, 1.0, Truth::Gains),
    case("random-64m", Kind::Random, 64, 1.0, Truth::Gains),
    case("compute", Kind::Compute, 16, 1.0, Truth::Nothing),
    case("compute-32m", Kind::Compute, 32, 1.0, Truth::Nothing),
    case("sequential", Kind::Sequential, 32, 1.0, Truth::Nothing),
    case("small", Kind::Small, 32, 1.0, Truth::Nothing),
    case("small-half", Kind::Small, 16, 0.5, Truth::Nothing),
    case("budgeted-3%", Kind::Budgeted, 32, 0.03, Truth::Hurts),
    case("budgeted-5%", Kind::Budgeted, 32, 0.05, Truth::Hurts),
    case("budgeted-10%", Kind::Budgeted, 32, 0.1, Truth::Hurts),
    case("budgeted-25%", Kind::Budgeted, 32, 0.25, Truth::Hurts),
    case("budgeted-100%", Kind::Budgeted, 32, 1.0, Truth::Hurts),
];

/// Check the decisions of `megapage trial` on twenty services for which the effect of huge pages is
/// known
#[derive(Clone, Debug, clap::Args)]
pub struct TrialExperiment {
    /// Services by name [default: all]
    cases: Vec<String>,
    /// The least length of a window, in milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(200..=60_000))]
    period: u64,
    /// Seconds that one trial may take
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(5..=3600))]
    most: u64,
    /// The least gain that is worth it, in percent
    #[arg(long, default_value_t = 1.0)]
    least_gain: f64,
    /// Draws the orders
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One trial of one service.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The service.
    pub case: &'static str,
    /// Its round.
    pub round: u32,
    /// The known effect of huge pages on it: `gains`, `nothing` or `hurts`.
    pub truth: &'static str,
    /// The decision.
    pub decision: String,
    /// Bounds of the gain and its likely value.
    pub gain: [Option<f64>; 3],
    /// True if the guard has stopped it.
    pub by_guard: bool,
    /// Blocks.
    pub blocks: usize,
    /// Its length in seconds.
    pub seconds: f64,
    /// The length of its windows in seconds.
    pub window_seconds: f64,
    /// The cost of switching, as a share of the service's processor time.
    pub cost_share: f64,
    /// The share of the service's memory that is huge afterwards, as the kernel reports it.
    pub huge_share: f64,
    /// True if the decision is right, and the memory is in the right state.
    pub is_right: bool,
}

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct TrialFound {
    /// The least gain that was worth it.
    pub least_gain: f64,
    /// The trials, by service.
    pub rows: Vec<Row>,
    /// Services of which no trial could be made.
    pub failures: Vec<String>,
}

impl Experiment for TrialExperiment {
    const NAME: &'static str = "trial";
    const RUNS: [u32; 3] = [1, 1, 20];
    const CASES: &'static [&'static str] = &{
        let mut names = [""; CASES.len()];
        let mut at = 0;
        while at < CASES.len() {
            names[at] = CASES[at].name;
            at += 1;
        }
        names
    };
    type Found = TrialFound;

    fn cases(&self) -> &[String] {
        &self.cases
    }

    fn validate(&self) -> Result<()> {
        ensure!((0.1..=50.0).contains(&self.least_gain), "--least-gain is 0.1 to 50 percent");
        Ok(())
    }

    fn needs(&self) -> Needs {
        Needs {
            root: Some("a trial switches another process's memory"),
            memory: Bytes::mib(512),
            smaller: "fewer cases",
            ..Needs::default()
        }
    }

    fn dry_run(&self, plan: &Plan) -> Vec<String> {
        let mut lines = vec![format!("# {} rounds, one service after the other", plan.runs)];
        for case in CASES.iter().filter(|case| self.wants(case.name)) {
            lines.push(format!("megapage-lab-workload {} &", service(case).join(" ")));
            lines.push(format!("megapage {}", self.arguments("$!", 0).join(" ")));
        }
        lines
    }

    fn measure(&self, stage: &mut Stage<'_>) -> Result<TrialFound> {
        let verdicts = tempfile::tempdir().context("a directory for verdicts")?;
        let mut found =
            TrialFound { least_gain: self.least_gain / 100.0, rows: Vec::new(), failures: Vec::new() };
        for round in 0..stage.plan.runs {
            for case in CASES.iter().filter(|case| self.wants(case.name)) {
                check(stage.signals)?;
                match found_or_why(self.one(case, round, verdicts.path(), stage))? {
                    Ok(row) => {
                        (stage.progress)(&format!(
                            "{}/{} {}: {}{}",
                            round + 1,
                            stage.plan.runs,
                            row.case,
                            row.decision,
                            if row.is_right { "" } else { ", which is wrong" }
                        ));
                        found.rows.push(row);
                    }
                    Err(why) => found.failures.push(format!("{}: {why}", case.name)),
                }
            }
        }
        Ok(found)
    }
}

fn service(case: &Case) -> Vec<String> {
    let words = [
        "service",
        case.kind.name(),
        "--size",
        &format!("{}m", case.mib),
        "--share",
        &case.share.to_string(),
    ];
    words.map(String::from).to_vec()
}

impl TrialExperiment {
    fn arguments(&self, pid: &str, round: u32) -> Vec<String> {
        let words = [
            "trial",
            pid,
            "--metric",
            "calls",
            "--period",
            &format!("{}ms", self.period),
            "--settle",
            "200ms",
            "--most",
            &format!("{}s", self.most),
            "--least-gain",
            &format!("{}%", self.least_gain),
            "--seed",
            &(self.seed + u64::from(round)).to_string(),
            "--json",
        ];
        words.map(String::from).to_vec()
    }

    fn one(&self, case: &Case, round: u32, verdicts: &std::path::Path, stage: &mut Stage<'_>) -> Result<Row> {
        let mut command = Command::new(&stage.place.workload);
        command.args(service(case)).stdin(Stdio::null());
        let server = Server::start(stage.signals, &mut command)?;
        let mut command = Command::new(&stage.place.megapage);
        command.args(self.arguments(&server.pid().to_string(), round)).env("MEGAPAGE_TRIALS", verdicts);
        let limit = Duration::from_secs(self.most) + GRACE;
        let (printed, said) = Child::output(stage.signals, &mut command, limit)?;
        let report: Value = serde_json::from_slice(&printed)
            .with_context(|| format!("megapage trial said '{}'", said.trim()))?;
        Row::of(case, round, &report, huge_share(server.pid())?)
    }
}

impl Row {
    fn of(case: &Case, round: u32, report: &Value, huge_share: f64) -> Result<Row> {
        let number = |value: &Value, name: &str| value[name].as_f64();
        let decision = report["decision"].as_str().context("no decision")?.to_string();
        let is_right = match case.truth {
            Truth::Gains => decision == "gains" && huge_share > 0.5,
            // Called harm or no gain, the memory is base again.
            Truth::Nothing | Truth::Hurts => {
                ["no-gain", "hurts"].contains(&decision.as_str()) && huge_share < 0.01
            }
        };
        let gain = &report["gain"];
        Ok(Row {
            case: case.name,
            round,
            truth: case.truth.name(),
            decision,
            gain: [number(gain, "low"), number(gain, "likely"), number(gain, "high")],
            by_guard: !report["harm"].is_null(),
            blocks: report["blocks"].as_array().map_or(0, Vec::len),
            seconds: number(report, "seconds").context("no time")?,
            window_seconds: number(report, "window_seconds").context("no window")?,
            cost_share: number(report, "cost_share").context("no cost")?,
            huge_share,
            is_right,
        })
    }
}

/// Returns the share of a process's memory that is huge, as the kernel reports it.
fn huge_share(pid: Pid) -> Result<f64> {
    let mappings = read_smaps(&KernelRoot::live(), pid)?;
    let bytes = backing(mappings.iter().filter(|mapping| mapping.is_heap_like()));
    Ok(bytes.huge().0 as f64 / bytes.total().0.max(1) as f64)
}

impl Found for TrialFound {
    fn gates(&self) -> Vec<Gate> {
        let (right, all) = (self.rows.iter().filter(|row| row.is_right).count(), self.rows.len());
        let cost = self.rows.iter().map(|row| row.cost_share).fold(0.0, f64::max);
        vec![
            Gate {
                case: "trial",
                demand: "at least 19 of 20 decided right, and memory as it should be".into(),
                found: format!("{right} of {all}"),
                holds: all > 0 && right * 20 >= all * 19,
            },
            Gate {
                case: "trial",
                demand: format!(
                    "switching costs at most {:.0} % of any service's processor time",
                    100.0 * COST
                ),
                found: format!("{:.2} %", 100.0 * cost),
                holds: cost <= COST,
            },
        ]
    }

    fn title(&self, runs: u32) -> String {
        format!(
            "{} trials, {runs} of each service; worth it from {:.1} % on",
            self.rows.len(),
            100.0 * self.least_gain
        )
    }

    fn sections(&self) -> Vec<Section> {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let bound = |gain: Option<f64>| gain.map_or("-".to_string(), |gain| format!("{:+.1}", 100.0 * gain));
        let rows = self.rows.iter().map(|row| {
            [
                row.case.to_string(),
                row.truth.to_string(),
                format!("{}{}", row.decision, if row.by_guard { " (guard)" } else { "" }),
                bound(row.gain[1]),
                format!("{} .. {}", bound(row.gain[0]), bound(row.gain[2])),
                row.blocks.to_string(),
                format!("{:.1} s", row.window_seconds),
                format!("{:.0} s", row.seconds),
                format!("{:.2} %", 100.0 * row.cost_share),
                percent(row.huge_share),
            ]
        });
        let header = [
            "service",
            "truth",
            "decided",
            "gain, %",
            "interval",
            "blocks",
            "window",
            "time",
            "cost",
            "huge after",
        ];
        vec![Section::new("", &header, rows)]
    }

    fn notes(&self) -> Vec<String> {
        self.failures.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(decision: &str) -> Value {
        serde_json::json!({
            "decision": decision, "gain": {"low": 0.1, "likely": 0.2, "high": null}, "harm": null,
            "blocks": [{}], "seconds": 9.0, "window_seconds": 1.0, "cost_share": 0.004,
        })
    }

    #[test]
    fn half_of_the_services_gain_and_a_quarter_is_hurt() {
        let count = |truth| CASES.iter().filter(|case| case.truth == truth).count();
        assert_eq!((count(Truth::Gains), count(Truth::Nothing), count(Truth::Hurts)), (10, 5, 5));
    }

    #[test]
    fn a_decision_counts_only_with_the_memory_that_belongs_to_it() {
        let is_right =
            |case: usize, decision, huge| Row::of(&CASES[case], 0, &report(decision), huge).unwrap().is_right;
        assert!(is_right(0, "gains", 0.9) && !is_right(0, "gains", 0.0) && !is_right(0, "no-gain", 0.0));
        assert!(is_right(19, "hurts", 0.0) && is_right(19, "no-gain", 0.0));
        assert!(!is_right(19, "hurts", 0.9) && !is_right(19, "undecided", 0.0));
    }

    #[test]
    fn gates_can_fail() {
        let rows = |right: usize, cost: f64| {
            let row = |number: usize| {
                let mut row = Row::of(&CASES[0], 0, &report("gains"), 0.9).unwrap();
                (row.is_right, row.cost_share) = (number < right, cost);
                row
            };
            TrialFound { least_gain: 0.02, rows: (0..20).map(row).collect(), failures: Vec::new() }
        };
        let holds = |found: TrialFound| found.gates().iter().map(|gate| gate.holds).collect::<Vec<_>>();
        assert_eq!(holds(rows(19, 0.01)), [true, true]);
        assert_eq!(holds(rows(18, 0.011)), [false, false]);
    }
}
