//! The checks: each looks at the facts and returns the findings of one area.

mod kernel;
mod pools;
mod program;
mod surroundings;
mod thp;
mod user;

pub(crate) use surroundings::asks_for_heap;

use crate::facts::Facts;
use crate::finding::Finding;
use megapage_units::shown::shell_path;

/// Returns every finding that follows from the facts, the weightiest first.
pub fn diagnose(facts: &Facts) -> Vec<Finding> {
    let checks: [fn(&Facts) -> Vec<Finding>; 6] =
        [thp::check, pools::check, user::check, surroundings::check, kernel::check, program::check];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(facts)).collect();
    if let Some(program) = &facts.program {
        let name = shell_path(&program.path);
        findings = findings.into_iter().map(|finding| finding.fill("PROGRAM", &name)).collect();
    }
    // The sort is stable: within one severity the order of the areas stays.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}
