//! Gates with their history: a demand that was changed, and one that failed before, keep their
//! former outcome beside the new one.

use megapage_kernel::trusted::read_regular;
use megapage_report::table;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::ops::Deref;
use std::path::Path;

/// Size of the largest former report that is read, in bytes.
const LARGEST: u64 = 64 << 20;
/// Share of words in common from which on two demands are one that was reworded.
const LIKENESS: f64 = 0.4;

/// A demand and its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gate {
    /// The case.
    pub case: &'static str,
    /// The demand.
    pub demand: String,
    /// The finding.
    pub found: String,
    /// True if the demand holds.
    pub holds: bool,
}

/// A gate, and its former outcomes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The present demand and finding.
    #[serde(flatten)]
    pub gate: Gate,
    /// Former outcomes, oldest first: of another demand, or with another verdict.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub was: Vec<Was>,
}

/// A former outcome of a gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Was {
    /// Time at which that bench began, in seconds since 1970.
    #[serde(default)]
    pub began_unix_seconds: u64,
    /// The demand.
    pub demand: String,
    /// The finding.
    pub found: String,
    /// True if the demand held.
    pub holds: bool,
    /// The reason for the change of the demand, or the record of the outcome; added by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Deref for Judged {
    type Target = Gate;

    fn deref(&self) -> &Gate {
        &self.gate
    }
}

impl From<Gate> for Judged {
    fn from(gate: Gate) -> Judged {
        Judged { gate, was: Vec::new() }
    }
}

/// A report as it was saved before, as far as it is of interest here.
#[derive(Debug, Default, Deserialize)]
pub struct Former {
    #[serde(default)]
    bench: String,
    #[serde(default)]
    began_unix_seconds: u64,
    #[serde(default)]
    gates: Vec<FormerGate>,
}

#[derive(Debug, Deserialize)]
struct FormerGate {
    case: String,
    demand: String,
    found: String,
    holds: bool,
    #[serde(default)]
    was: Vec<Was>,
}

impl Former {
    /// Reads the file at `path`, if any, before it is replaced.
    pub fn of(path: Option<&Path>) -> Former {
        let text = path.and_then(|path| String::from_utf8(read_regular(path, LARGEST).ok()?).ok());
        Former::read(&text.unwrap_or_default())
    }

    /// Reads the gates and their history; returns none if `text` is no report.
    fn read(text: &str) -> Former {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Adds their history to `gates` of `bench`: the existing history, and the last outcome if the
    /// demand or the verdict has changed.
    pub fn carry(self, bench: &str, gates: &mut [Judged]) {
        if self.bench != bench {
            return;
        }
        let mut former: Vec<Option<FormerGate>> = self.gates.into_iter().map(Some).collect();
        // Equal demands are matched first: none of them is another one's past.
        let mut pasts: Vec<Option<FormerGate>> = gates
            .iter()
            .map(|gate| {
                let same =
                    |old: &FormerGate| old.case == gate.case && bare(&old.demand) == bare(&gate.demand);
                former.iter_mut().find(|old| old.as_ref().is_some_and(same))?.take()
            })
            .collect();
        for (gate, past) in gates.iter_mut().zip(&mut pasts) {
            if past.is_none() {
                *past = most_alike(&gate.gate, &mut former);
            }
            let Some(past) = past.take() else { continue };
            gate.was = past.was;
            if past.holds != gate.gate.holds || bare(&past.demand) != bare(&gate.gate.demand) {
                gate.was.push(Was {
                    began_unix_seconds: self.began_unix_seconds,
                    demand: past.demand,
                    found: past.found,
                    holds: past.holds,
                    why: None,
                });
            }
        }
    }
}

/// Takes the demand of the same case that has most words in common with the gate's, if it has no
/// successor yet.
fn most_alike(gate: &Gate, former: &mut [Option<FormerGate>]) -> Option<FormerGate> {
    let likeness = |old: &Option<FormerGate>| match old {
        Some(old) if old.case == gate.case => likeness(&old.demand, &gate.demand),
        _ => 0.0,
    };
    let best = former.iter_mut().max_by(|one, other| likeness(one).total_cmp(&likeness(other)))?;
    if likeness(best) >= LIKENESS { best.take() } else { None }
}

/// Returns the share of the words of both that are in both, 0 to 1.
fn likeness(one: &str, other: &str) -> f64 {
    let words = |text: &str| -> HashSet<String> {
        text.split(|letter: char| !letter.is_alphanumeric() && letter != '.')
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
            .collect()
    };
    let (one, other) = (words(one), words(other));
    one.intersection(&other).count() as f64 / one.union(&other).count().max(1) as f64
}

/// Returns a demand without the parts that differ from run to run: text in parentheses, and the
/// name of the best peer.
fn bare(demand: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for letter in demand.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth <= 0 => text.push(letter),
            _ => {}
        }
    }
    if let Some((before, after)) = text.clone().split_once(", the best")
        && let Some(space) = before.rfind(' ')
    {
        text = format!("{} the best{after}", &before[..space]);
    }
    text.trim().to_string()
}

/// Renders the demands and their verdicts, and below each its former outcomes.
pub fn gates_table(gates: &[Judged]) -> String {
    let verdict = |holds: bool| if holds { "holds" } else { "FAILS" };
    let rows = gates.iter().flat_map(|gate| {
        let now =
            [verdict(gate.holds).to_string(), gate.case.into(), gate.demand.clone(), gate.found.clone()];
        let was = gate.was.iter().map(|was| {
            let verdict = format!("was: {}", verdict(was.holds));
            [verdict, gate.case.into(), was.demand.clone(), was.found.clone()]
        });
        std::iter::once(now).chain(was)
    });
    table(&["gate", "case", "demand", "found"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(demand: &str, found: &str, holds: bool) -> Judged {
        Gate { case: "stalls", demand: demand.into(), found: found.into(), holds }.into()
    }

    fn saved(gates: &[Judged]) -> String {
        serde_json::json!({ "bench": "bloat", "began_unix_seconds": 7, "gates": gates }).to_string()
    }

    const TOUCHES: &str = "p99.9 of touches during promotion under 5 ms";
    const ALL: &str = "p99.9 of all touches during promotion under 5 ms";

    #[test]
    fn what_failed_or_was_demanded_before_stays_beside_what_is_found_now() {
        let mut now = vec![gate(ALL, "4 ms", true), gate("2 GiB/s", "2.8 GiB/s", true)];
        let before = [gate("2 GiB/s", "1.5 GiB/s", false), gate(TOUCHES, "40 ms", false)];
        Former::read(&saved(&before)).carry("bloat", &mut now);
        let was = |gate: &Judged| -> Vec<(String, bool)> {
            gate.was.iter().map(|was| (was.found.clone(), was.holds)).collect()
        };
        assert_eq!(was(&now[0]), [("40 ms".to_string(), false)]);
        assert_eq!((now[0].was[0].demand.as_str(), now[0].was[0].began_unix_seconds), (TOUCHES, 7));
        assert_eq!(was(&now[1]), [("1.5 GiB/s".to_string(), false)]);
        // The next run with the same outcome keeps the history, and adds nothing.
        let mut next = vec![gate(ALL, "3 ms", true), gate("2 GiB/s", "2.9 GiB/s", true)];
        Former::read(&saved(&now)).carry("bloat", &mut next);
        assert_eq!((was(&next[0]), was(&next[1])), (was(&now[0]), was(&now[1])));
        // A gate that fails again gets one more entry.
        let mut lost = vec![gate(ALL, "9 ms", false)];
        Former::read(&saved(&next)).carry("bloat", &mut lost);
        assert_eq!(was(&lost[0]), [("40 ms".to_string(), false), ("3 ms".to_string(), true)]);
    }

    #[test]
    fn a_report_that_is_replaced_keeps_its_failed_gates() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bloat.json");
        std::fs::write(&path, saved(&[gate(ALL, "40 ms", false)])).unwrap();
        let mut now = [gate(ALL, "4 ms", true)];
        Former::of(Some(&path)).carry("bloat", &mut now);
        assert_eq!((now[0].was[0].found.as_str(), now[0].was[0].holds), ("40 ms", false));
        Former::of(Some(&directory.path().join("none.json"))).carry("bloat", &mut now);
        Former::of(None).carry("bloat", &mut now);
    }

    #[test]
    fn what_is_of_another_bench_or_no_report_says_nothing() {
        for text in ["", "{}", "[1]", &saved(&[gate(ALL, "40 ms", false)]).replace("bloat", "fair")] {
            let mut now = vec![gate(ALL, "4 ms", true)];
            Former::read(text).carry("bloat", &mut now);
            assert!(now[0].was.is_empty(), "{text}");
        }
        // A demand of another kind is no past.
        let mut now = vec![gate("clears at most once", "1.00", true)];
        Former::read(&saved(&[gate(ALL, "40 ms", false)])).carry("bloat", &mut now);
        assert!(now[0].was.is_empty());
    }

    #[test]
    fn the_best_peer_and_its_noise_are_no_other_demand() {
        let mimalloc = "access: as fast as mimalloc3-large, the best (noise 10 %)";
        let jemalloc = "access: as fast as jemalloc-thp, the best (noise 3 %)";
        assert_eq!(bare(mimalloc), bare(jemalloc));
        assert_eq!(
            bare("resident: at most 1.10 of tcmalloc, the best of all"),
            "resident: at most 1.10 of the best of all"
        );
        assert_ne!(bare("access: at most 0.70 of glibc"), bare("access: at most 0.80 of glibc"));
        let mut now = vec![gate(mimalloc, "1.00", true)];
        Former::read(&saved(&[gate(jemalloc, "0.99", true)])).carry("bloat", &mut now);
        assert!(now[0].was.is_empty());
    }

    #[test]
    fn a_gate_without_a_past_is_written_as_ever() {
        let json = serde_json::to_value(gate(ALL, "4 ms", true)).unwrap();
        assert_eq!(json.as_object().unwrap().len(), 4, "{json}");
    }
}
