//! The human form of a diagnosis, at most 100 columns wide.

use crate::table;
use crate::text::{counted, wrapped};
pub use crate::why::why;
use megapage_doctor::Diagnosis;
use megapage_doctor::catalog::Severity;
use megapage_doctor::finding::{Basis, Finding, Outcome};
use megapage_launch::messages::Explained;
use megapage_units::shown::one_line;
use std::fmt::Write;

/// Returns the human form: the summary, a table of verdicts, then each finding with its evidence
/// and remedy. Notes take one line each, unless `verbose`.
pub fn human(diagnosis: &Diagnosis, verbose: bool) -> String {
    let mut text = wrapped(&diagnosis.summary, "", "") + "\n";
    text += &format!("Huge pages for user {} (uid {})", diagnosis.user, diagnosis.uid);
    if let Some(program) = &diagnosis.program {
        text += &format!(" and {}", one_line(program));
    }
    text += "\n\n";
    let rows = diagnosis.verdicts.iter().map(|verdict| {
        let outcome = match verdict.outcome {
            Outcome::Works => "works",
            Outcome::Fails => "fails",
            Outcome::Kills => "kills",
            Outcome::BasePages => "base pages",
        };
        let basis = match verdict.basis {
            Basis::Tried => "tried",
            Basis::Reasoned => "reasoned",
        };
        [verdict.way.clone(), outcome.into(), basis.into(), verdict.sentence.clone()]
    });
    text += &table(&["requested by", "outcome", "known by", "answer"], rows);
    if let Some(why) = &diagnosis.untried {
        text += &wrapped(&format!("Not tried: {why}."), "", "");
    }
    let is_whole = |finding: &&Finding| verbose || finding.severity > Severity::Note;
    for finding in diagnosis.findings.iter().filter(is_whole) {
        text += "\n";
        text += &one(finding);
    }
    let notes: Vec<&Finding> = diagnosis.findings.iter().filter(|finding| !is_whole(finding)).collect();
    if !notes.is_empty() {
        text += "\nGood to know (--verbose explains):\n";
        for note in notes {
            text += &wrapped(&format!("{} [{}]", note.title, note.id), "    ", "        ");
        }
    }
    let lacking = diagnosis.abilities.iter().filter(|ability| !ability.present).count();
    text += &match (verbose, lacking) {
        (_, 0) => String::new(),
        (true, _) => kernel(diagnosis),
        (false, lacking) => {
            let all = diagnosis.abilities.len();
            let head = format!(
                "Kernel {} lacks {lacking} of {all} abilities (--verbose lists them)",
                diagnosis.kernel
            );
            wrapped(&head, "    ", "        ")
        }
    };
    text
}

/// Returns the abilities that the kernel lacks, and the consequence of each. Empty if it lacks
/// none.
fn kernel(diagnosis: &Diagnosis) -> String {
    let lacking: Vec<_> = diagnosis.abilities.iter().filter(|ability| !ability.present).collect();
    if lacking.is_empty() {
        return String::new();
    }
    let (few, all) = (lacking.len(), diagnosis.abilities.len());
    let mut text = format!("\nKernel {}: lacks {few} of {all} abilities\n", diagnosis.kernel);
    for ability in lacking {
        let since = format!("{} (Linux {}): {}", ability.name, ability.since, ability.without);
        text += &wrapped(&since, "    ", "        ");
    }
    text
}

fn one(finding: &Finding) -> String {
    found(finding) + &meaning(finding)
}

/// Returns the finding itself: its title and its evidence.
pub(crate) fn found(finding: &Finding) -> String {
    let severity = finding.severity.name();
    let mut text = wrapped(&format!("{severity}: {} [{}]", finding.title, finding.id), "", "    ");
    for evidence in &finding.evidence {
        text += &wrapped(&format!("{}: {}", evidence.source, evidence.value), "    found  ", "           ");
    }
    text
}

/// Returns the finding's explanation and its remedy.
pub(crate) fn meaning(finding: &Finding) -> String {
    let mut text = wrapped(finding.explanation, "    means  ", "           ");
    for line in &finding.remedy {
        // Never wrapped, so that it can be copied.
        let _ = writeln!(text, "    fix    {}", one_line(line));
    }
    text
}

/// Returns the messages that were found in a log, with their meanings.
pub fn messages(messages: &[Explained]) -> String {
    if messages.is_empty() {
        return "No known message about huge pages.\n".into();
    }
    let one = |message: &Explained| {
        let times = counted(message.times, "once", "times");
        wrapped(&format!("{}, {times}: {}", message.program, message.line), "", "    ")
            + &wrapped(message.meaning, "    means  ", "           ")
            + &wrapped(message.remedy, "    helps  ", "           ")
    };
    messages.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WIDTH;

    fn diagnosis(findings: Vec<Finding>) -> Diagnosis {
        Diagnosis {
            user: "tomcat".into(),
            uid: 998,
            program: Some("/usr/bin/java".into()),
            summary: "Nothing is wrong: there is nothing to say.".into(),
            kernel: "6.1.0-56-amd64".into(),
            abilities: Vec::new(),
            untried: Some("trying as user tomcat needs root".into()),
            verdicts: Vec::new(),
            findings,
        }
    }

    #[test]
    fn every_kind_of_finding_fits_the_width() {
        for kind in &megapage_doctor::catalog::CATALOG.findings {
            let finding = Finding::new(kind, "a setting with a long name ".repeat(5), "its value");
            let text = human(&diagnosis(vec![finding]), true);
            assert!(text.contains(&kind.id) && text.contains("its value"), "{text}");
            // A remedy is never wrapped, so that it can be copied.
            let mut others = text.lines().filter(|line| !line.starts_with("    fix "));
            assert!(others.all(|line| line.chars().count() <= WIDTH as usize), "{text}");
        }
    }

    #[test]
    fn what_the_kernel_lacks_is_listed_and_nothing_else_of_it() {
        let ability = |id, present| megapage_doctor::AbilityReport {
            id,
            name: id,
            since: "6.7".into(),
            present,
            known_by: "trial",
            without: "Something slower takes its place, which a long sentence of some words explains at length.",
        };
        let mut diagnosis = diagnosis(Vec::new());
        diagnosis.abilities = vec![ability("pagemap-scan", false), ability("collapse", true)];
        let text = human(&diagnosis, true);
        assert!(text.contains("\nKernel 6.1.0-56-amd64: lacks 1 of 2 abilities\n"), "{text}");
        assert!(
            text.contains("    pagemap-scan (Linux 6.7): Something") && !text.contains("collapse"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH as usize), "{text}");
        diagnosis.abilities.remove(0);
        assert!(!human(&diagnosis, true).contains("Kernel"), "it lacks nothing");
    }

    #[test]
    fn a_clean_bill_is_said_and_so_is_why_nothing_was_tried() {
        let text = human(&diagnosis(Vec::new()), false);
        let head = "Nothing is wrong: there is nothing to say.\n\nHuge pages for user tomcat (uid 998) and /usr/bin/java\n";
        assert!(text.starts_with(head), "{text}");
        assert!(text.contains("Not tried: trying as user tomcat needs root."), "{text}");
        assert!(!text.contains("Good to know"), "{text}");
    }

    #[test]
    fn notes_take_a_line_each_until_they_are_asked_for() {
        let kinds = [&megapage_doctor::catalog::POOL_TAKEN, &megapage_doctor::catalog::POOL_EMPTY];
        let diagnosis = diagnosis(kinds.map(|kind| Finding::new(kind, "where", "what")).to_vec());
        let text = human(&diagnosis, false);
        assert!(
            text.contains("blocker: Every hugetlb page") && text.contains("    found  where: what"),
            "{text}"
        );
        assert!(
            text.ends_with("    No hugetlb pages of the default size are reserved [pool-empty]\n"),
            "{text}"
        );
        let all = human(&diagnosis, true);
        assert!(all.contains("note: No hugetlb pages") && !all.contains("Good to know"), "{all}");
    }
}
