//! The published values of the HawkEye and Ingens papers beside ours.
//!
//! Each value is a gate of its own: it is met where ours deviates by no more than its tolerance, and says whether a
//! parameter was fitted on it. `gates` has what is published without a number (an order, an outcome), and invariants.
//! The report begins with what is missed, by name; nothing is fitted on a value that tests.

mod gates;
mod runs;
mod summary;
mod values;

pub use runs::{JOBS, Job};
pub use summary::{Count, Summary};

use megapage_report::table;
use megapage_simulate::machine::Run;
use serde::Serialize;
use std::collections::BTreeMap;

/// Where a published value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A summary of the paper.
    Summary,
    /// Notes of third parties on the paper.
    Notes,
    /// Recalled, consistent with the summary, not read in the paper.
    Recalled,
}

megapage_units::named!(Source { Summary = "summary", Notes = "notes", Recalled = "recalled" });

/// What a value was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A parameter was chosen so that it comes out.
    Fitted,
    /// Nothing was chosen by it.
    Tested,
}

/// One published value and ours.
#[derive(Clone, Debug, Serialize)]
pub struct Value {
    /// The table or value that it belongs to.
    pub table: &'static str,
    /// Which row or column.
    pub row: String,
    /// What it is, with its unit.
    pub what: &'static str,
    /// As published.
    pub published: f64,
    /// Where that was read.
    pub source: Source,
    /// As simulated.
    pub ours: f64,
    /// What it was used for.
    pub role: Role,
    /// How far ours may lie from the published one.
    pub tolerance: Tolerance,
}

/// How far a value may lie from the published one to count as met.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tolerance {
    /// By this share, up or down.
    Within(f64),
    /// It was published as a worst case: ours is to be no more.
    AtMost,
}

impl Tolerance {
    /// As a table has it.
    pub fn shown(self) -> String {
        match self {
            Tolerance::Within(share) => format!("{:.0} %", share * 100.0),
            Tolerance::AtMost => "at most".to_string(),
        }
    }
}

impl Value {
    /// Ours against the published one, as a share of that: 0.05 is 5 % more.
    pub fn deviation(&self) -> f64 {
        self.ours / self.published - 1.0
    }

    /// Whether it is met.
    pub fn is_met(&self) -> bool {
        match self.tolerance {
            Tolerance::Within(share) => self.deviation().abs() <= share,
            Tolerance::AtMost => self.ours <= self.published,
        }
    }
}

/// A condition under which the simulator is to be trusted.
#[derive(Clone, Debug, Serialize)]
pub struct Gate {
    /// What is judged.
    pub name: &'static str,
    /// What is wanted.
    pub wanted: String,
    /// What came out.
    pub got: String,
    /// Whether it holds.
    pub passed: bool,
}

/// All values and gates.
#[derive(Clone, Debug, Serialize)]
pub struct Papers {
    /// How many are met, and which are not.
    pub summary: Summary,
    /// The values, by table.
    #[serde(rename = "figures")]
    pub values: Vec<Value>,
    /// The gates.
    pub gates: Vec<Gate>,
    /// What is published and not simulated, with the reason.
    pub left_out: Vec<&'static str>,
    /// Simulated seconds, over all runs.
    pub simulated_seconds: f64,
    /// Regions looked at, summed over all steps of all runs.
    pub region_steps: u64,
}

impl Papers {
    /// Whether every published value is met and every gate holds.
    pub fn passed(&self) -> bool {
        self.summary.missed.is_empty()
    }
}

/// What a job came to: its run, and whether memory was conserved in every step that was looked at.
#[derive(Clone, Debug)]
pub struct Done {
    /// The run.
    pub run: Run,
    /// Whether every page was in exactly one state, at each of the steps that were checked.
    pub conserved: bool,
}

/// Simulates all of it, on `threads` threads. `progress` is notified of each run that has ended: how many, of how many.
pub fn papers(threads: usize, progress: impl Fn(usize, usize) + Sync) -> Papers {
    let done = runs::all(threads, progress);
    let values = values::values(&done);
    let gates = gates::judge(&values, &done);
    Papers {
        summary: Summary::of(&values, &gates),
        simulated_seconds: done.values().map(|done| done.run.seconds).sum(),
        region_steps: done.values().map(|done| done.run.region_steps).sum(),
        values,
        gates,
        left_out: vec![
            "omnetpp beside cached zeroing, 27 %: stores past the cache alone are modelled, at the published worst \
             case of 6 % as a constant",
            "Redis under pressure, 16.2 GB at 105.8 K/s: what makes the pressure in the paper is not known",
        ],
    }
}

/// The runs by the names of their jobs.
type Runs = BTreeMap<&'static str, Done>;

/// The summary, every value, then the gates.
pub fn human(papers: &Papers) -> String {
    let mut out = papers.summary.human() + "\n";
    let mut from = 0;
    while from < papers.values.len() {
        let name = papers.values[from].table;
        let rows: Vec<_> = papers.values[from..].iter().take_while(|value| value.table == name).collect();
        from += rows.len();
        out += &format!("{name}\n");
        out += &table(
            &["", "", "", "published", "from", "ours", "deviation", "tolerated", "used"],
            rows.into_iter().map(|value| {
                [
                    if value.is_met() { "met" } else { "MISS" }.to_string(),
                    value.row.clone(),
                    value.what.to_string(),
                    short(value.published),
                    value.source.name().to_string(),
                    short(value.ours),
                    format!("{:+.1} %", value.deviation() * 100.0),
                    value.tolerance.shown(),
                    match value.role {
                        Role::Fitted => "to fit".to_string(),
                        Role::Tested => "as test".to_string(),
                    },
                ]
            }),
        );
        out.push('\n');
    }
    out += "gates\n";
    out += &table(
        &["", "gate", "wanted", "got"],
        papers.gates.iter().map(|gate| {
            [
                if gate.passed { "pass" } else { "FAIL" }.to_string(),
                gate.name.to_string(),
                gate.wanted.clone(),
                gate.got.clone(),
            ]
        }),
    );
    out.push('\n');
    for what in &papers.left_out {
        out += &format!("not simulated: {what}\n");
    }
    out += &format!(
        "{:.0} simulated seconds, {:.0} million regions looked at\n",
        papers.simulated_seconds,
        papers.region_steps as f64 / 1e6
    );
    out
}

/// Four digits at most.
fn short(value: f64) -> String {
    match value.abs() {
        value_abs if value_abs >= 1e6 => format!("{:.2}M", value / 1e6),
        value_abs if value_abs >= 1e4 => format!("{:.1}K", value / 1e3),
        value_abs if value_abs >= 100.0 => format!("{value:.0}"),
        value_abs if value_abs >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
