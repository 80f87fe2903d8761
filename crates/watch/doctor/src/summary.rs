//! Summary of the diagnosis in one sentence or two, for a reader in a hurry.

use crate::catalog::Severity;
use crate::facts::{Facts, PoolState, Reach};
use crate::finding::Finding;
use megapage_kernel::thp::ThpEnabled;
use megapage_units::PageSize;

/// Returns what is wrong, if anything; then, for a program, how it is started on huge pages.
pub(crate) fn summary(facts: &Facts, findings: &[Finding]) -> String {
    let mut text = machine(facts, findings);
    if let (Some(program), Some(reach)) = (&facts.program, &facts.reach) {
        let name = program.executable.file_name().map(|name| name.to_string_lossy().into_owned());
        text += " ";
        text += &of_program(&name.unwrap_or_default(), reach);
    }
    text
}

fn machine(facts: &Facts, findings: &[Finding]) -> String {
    let user = &facts.user.name;
    let weighty: Vec<&Finding> = findings.iter().filter(|it| it.severity > Severity::Note).collect();
    let Some(first) = weighty.first() else {
        return format!("Nothing is wrong: {}; {}.", thp(facts), pools(facts));
    };
    let blockers = weighty.iter().filter(|it| it.severity == Severity::Blocker).count();
    let title = lower(first.title);
    match (blockers, weighty.len() - blockers) {
        (0, 1) => format!("Huge pages work for user {user}, with a warning: {title}."),
        (0, warnings) => {
            format!("Huge pages work for user {user}, with {warnings} warnings; first: {title}.")
        }
        (1, 0) => format!("One thing stands between user {user} and huge pages: {title}."),
        (blockers, warnings) => {
            let many = blockers + warnings;
            format!("{many} things stand between user {user} and huge pages; first: {title}.")
        }
    }
}

/// Returns how the user's programs get transparent huge pages.
fn thp(facts: &Facts) -> &'static str {
    match facts.thp.as_ref().map(|thp| thp.anonymous(PageSize::HUGE_2M)) {
        Some(ThpEnabled::Madvise) => {
            "programs get transparent huge pages where they ask, and megapage run asks for any program"
        }
        Some(_) => "programs get transparent huge pages without asking",
        None if facts.lacks_thp() => "there are no transparent huge pages",
        None => "the settings of transparent huge pages cannot be read",
    }
}

/// Returns the pages available to programs that ask for hugetlb pages.
fn pools(facts: &Facts) -> String {
    let of = |pool: &crate::facts::Pool| match pool.state() {
        PoolState::Available(pages) => {
            Some(format!("{pages} hugetlb pages of {} are available", pool.page_size))
        }
        PoolState::OnDemand(pages) => {
            Some(format!("up to {pages} hugetlb pages of {} are made on demand", pool.page_size))
        }
        PoolState::Empty | PoolState::Taken | PoolState::Elsewhere => None,
    };
    let found: Vec<String> = facts.pools.iter().filter_map(of).collect();
    match found.is_empty() {
        true => "no hugetlb page is reserved, which only programs need that ask for those".into(),
        false => found.join(", "),
    }
}

fn of_program(name: &str, reach: &Result<Reach, String>) -> String {
    match reach {
        Ok(reach) => format!("{name} gets them by: {} ({}).", reach.command, reach.how),
        Err(why) => format!("megapage run does not reach {name}: {why}."),
    }
}

/// Returns a title for use within a sentence: its first word begins with a small letter, unless it
/// is a name.
fn lower(title: &str) -> String {
    let first = title.split(' ').next().unwrap_or_default();
    let is_plain = first.chars().skip(1).all(|c| c.is_ascii_lowercase());
    match is_plain && !matches!(first, "Linux" | "Python" | "Node") {
        true => title[..1].to_lowercase() + &title[1..],
        false => title.into(),
    }
}
