//! The published values of the HawkEye and Ingens papers beside ours.
//!
//! Each value is a separate gate. It is met if ours deviates by no more than its tolerance, and
//! records if a parameter was fitted on it. `gates` has published findings without a number (an
//! order, an outcome), and invariants. The report begins with the missed ones, by name; nothing is
//! fitted on a value that tests.

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

megapage_units::named! {
    /// Source of a published value.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Source {
        /// A summary of the paper.
        Summary = "summary",
        /// Notes of third parties on the paper.
        Notes = "notes",
        /// Recalled, consistent with the summary, not read in the paper.
        Recalled = "recalled",
    }
}

/// Use of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A parameter was chosen to match it.
    Fitted,
    /// The value had no part in the choice of parameters.
    Tested,
}

/// One published value and ours.
#[derive(Clone, Debug, Serialize)]
pub struct Value {
    /// The table or value that it belongs to.
    pub table: &'static str,
    /// Its row or column.
    pub row: String,
    /// Its quantity, with the unit.
    pub what: &'static str,
    /// The published value.
    pub published: f64,
    /// The source of the published value.
    pub source: Source,
    /// The simulated value.
    pub ours: f64,
    /// Its use.
    pub role: Role,
    /// The largest deviation of ours from the published one.
    pub tolerance: Tolerance,
}

/// Largest deviation from the published value for a value that counts as met.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tolerance {
    /// This share, up or down.
    Within(f64),
    /// Never larger: the value was published as a worst case.
    AtMost,
}

impl Tolerance {
    /// Renders it for a table.
    pub fn shown(self) -> String {
        match self {
            Tolerance::Within(share) => format!("{:.0} %", share * 100.0),
            Tolerance::AtMost => "at most".to_string(),
        }
    }
}

impl Value {
    /// Returns the deviation of ours from the published one, as a share of that: 0.05 is 5 % more.
    pub fn deviation(&self) -> f64 {
        self.ours / self.published - 1.0
    }

    /// Returns true if it is met.
    pub fn is_met(&self) -> bool {
        match self.tolerance {
            Tolerance::Within(share) => self.deviation().abs() <= share,
            Tolerance::AtMost => self.ours <= self.published,
        }
    }
}

/// A condition for trust in the simulator.
#[derive(Clone, Debug, Serialize)]
pub struct Gate {
    /// Its subject.
    pub name: &'static str,
    /// The wanted result.
    pub wanted: String,
    /// The actual result.
    pub got: String,
    /// True if it holds.
    pub passed: bool,
}

/// All values and gates.
#[derive(Clone, Debug, Serialize)]
pub struct Papers {
    /// The number of values that are met, and the list of those that are not.
    pub summary: Summary,
    /// The values, by table.
    #[serde(rename = "figures")]
    pub values: Vec<Value>,
    /// The gates.
    pub gates: Vec<Gate>,
    /// Published values that are not simulated, with the reason.
    pub left_out: Vec<&'static str>,
    /// Simulated seconds, over all runs.
    pub simulated_seconds: f64,
    /// Regions looked at, summed over all steps of all runs.
    pub region_steps: u64,
}

impl Papers {
    /// Returns true if every published value is met and every gate holds.
    pub fn passed(&self) -> bool {
        self.summary.missed.is_empty()
    }
}

/// Result of a job: its run, and the check that memory was conserved.
#[derive(Clone, Debug)]
pub struct Done {
    /// The run.
    pub run: Run,
    /// True if every page was in exactly one state, at each of the steps that were checked.
    pub conserved: bool,
}

/// Simulates all jobs, on `threads` threads. `progress` is called after each run, with the number
/// of runs that have ended, and of all.
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

/// Renders the summary, every value, then the gates.
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

/// Renders a number with four digits at most.
fn short(value: f64) -> String {
    match value.abs() {
        value_abs if value_abs >= 1e6 => format!("{:.2}M", value / 1e6),
        value_abs if value_abs >= 1e4 => format!("{:.1}K", value / 1e3),
        value_abs if value_abs >= 100.0 => format!("{value:.0}"),
        value_abs if value_abs >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
