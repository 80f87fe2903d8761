//! Diagnosis: the obstacles between a user or a program and huge pages, with the remedies.
//!
//! [`diagnosis`] reads and tries; its conclusions are pure functions of the facts.
//!
//! Architecture invariant: nothing here changes the machine. A trial takes one page in a child
//! process, whose end gives it back.

#![forbid(unsafe_code)]

pub mod catalog;
mod checks;
#[cfg(test)]
mod document_tests;
mod facts;
pub mod finding;
mod gather;
mod summary;
mod verdict;
mod why;

pub use gather::{GatherError, Request};
pub use why::{At, Group, ParseTargetError, Target, WHY_SCHEMA, Why, WhyError, why};

use catalog::Severity;
use checks::diagnose;
use facts::Facts;
use finding::{Finding, Verdict};
use gather::gather;
use megapage_kernel::{KernelRoot, OtherBasePages, machine, require_base_pages};
use serde::Serialize;
use verdict::verdicts;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "megapage.doctor/1";

/// Whole report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Login name of the user in question, or the number if there is no name.
    pub user: String,
    /// The user's number.
    pub uid: u32,
    /// The program in question: the file that runs in the end.
    pub program: Option<String>,
    /// Summary in one sentence or two: what is wrong, if anything, and how the program gets huge
    /// pages.
    pub summary: String,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// Abilities of the kernel, present or not, the oldest first.
    pub abilities: Vec<AbilityReport>,
    /// Trials that were not made, and the reason.
    pub untried: Option<String>,
    /// Outcomes of asking for huge pages, way by way.
    pub verdicts: Vec<Verdict>,
    /// Findings, the weightiest first.
    pub findings: Vec<Finding>,
}

/// One ability of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AbilityReport {
    /// The row of the table, such as `collapse`.
    pub id: &'static str,
    /// Name of the ability in the kernel.
    pub name: &'static str,
    /// First release of Linux that has it.
    pub since: String,
    /// True if this kernel has it.
    pub present: bool,
    /// Source of `present`: `trial` or `release`.
    pub known_by: &'static str,
    /// Loss, or substitute, without it.
    pub without: &'static str,
}

/// Reads, tries and concludes. On a kernel with other base pages than 4 KiB, that is the only
/// finding. Nothing else is read or tried, because every value would be wrong.
pub fn diagnosis(root: &KernelRoot, request: &Request) -> Result<Diagnosis, GatherError> {
    match require_base_pages(root) {
        Ok(()) => Ok(Diagnosis::of(&gather(root, request)?)),
        Err(other) => Diagnosis::of_other_base_pages(root, request, other),
    }
}

impl Diagnosis {
    fn of_other_base_pages(
        root: &KernelRoot,
        request: &Request,
        other: OtherBasePages,
    ) -> Result<Diagnosis, GatherError> {
        let (user, uid) = gather::user_in_question(root, request)?;
        let source = if other.kind == "base" { "sysconf(_SC_PAGESIZE)" } else { "hpage_pmd_size" };
        let finding = Finding::new(&catalog::BASE_PAGES_OTHER, source, other.size.to_string());
        let untried = Some(format!("the size of this kernel's {} pages is not supported", other.kind));
        Ok(Diagnosis {
            user,
            uid,
            program: None,
            summary: format!("{}: megapage does nothing here.", catalog::BASE_PAGES_OTHER.title),
            kernel: machine(root)?.kernel,
            abilities: Vec::new(),
            untried,
            verdicts: Vec::new(),
            findings: vec![finding],
        })
    }

    /// Puts the conclusions from the facts together.
    fn of(facts: &Facts) -> Diagnosis {
        let findings = diagnose(facts);
        Diagnosis {
            summary: summary::summary(facts, &findings),
            user: facts.user.name.clone(),
            uid: facts.user.uid,
            kernel: facts.kernel.release.clone(),
            abilities: facts
                .kernel
                .abilities
                .iter()
                .map(|(ability, standing)| AbilityReport {
                    id: ability.id,
                    name: ability.name,
                    since: ability.since.to_string(),
                    present: standing.present,
                    known_by: standing.known_by.name(),
                    without: ability.without,
                })
                .collect(),
            program: facts.program.as_ref().map(|program| program.executable.display().to_string()),
            untried: facts.untried.clone().or_else(|| untried(facts)),
            verdicts: verdicts(facts),
            findings,
        }
    }

    /// Returns true if any finding is weightier than a note.
    pub fn has_findings(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity > Severity::Note)
    }
}

/// Returns the number of trials that could not be made, with the first reason.
fn untried(facts: &Facts) -> Option<String> {
    let mut failures = facts.trials.iter().filter_map(|tried| tried.outcome.as_ref().err());
    let first = failures.next()?;
    let all = facts.trials.len();
    Some(format!("{} of {all} trials could not be made: {first}", 1 + failures.count()))
}

#[cfg(test)]
mod tests;
