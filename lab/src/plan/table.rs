//! Findings of `plan`, for people.

use super::PlanFound;
use crate::experiment::Section;
use megapage_units::Bytes;

/// Returns its tables.
pub(super) fn sections(found: &PlanFound) -> Vec<Section> {
    let mut sections = Vec::new();
    if !found.kinds.is_empty() {
        let mut kinds: Vec<_> = found.kinds.iter().collect();
        kinds.sort_by(|one, other| other.measured.median.total_cmp(&one.measured.median));
        let rows = kinds.iter().map(|kind| {
            let [low, high] = kind.measured.interval;
            [
                kind.kind.to_string(),
                kind.hosts.to_string(),
                format!("{:.2} ({low:.2}-{high:.2})", kind.measured.median),
                kind.predicted
                    .map_or("-".into(), |[low, likely, high]| format!("{likely:.2} ({low:.2}-{high:.2})")),
                kind.verdict.clone(),
            ]
        });
        let header = ["program", "hosts", "measured gain", "planned", "verdict"];
        let mut section = Section::new("gains", &header, rows);
        if let Some(tau) = found.tau_b {
            section = section.then(format!("Kendall's tau-b {tau:.2}"));
        }
        sections.push(section.then(found.sentence.clone()));
    }
    if !found.hosts.is_empty() {
        let rows = found.hosts.iter().map(|host| {
            [
                host.programs.join(" "),
                host.planned.map_or("-".into(), |pages| pages.to_string()),
                host.needed.map_or("-".into(), |pages| format!("{pages:.0}")),
                host.error().map_or("-".into(), |error| format!("{:.1} %", 100.0 * error)),
                format!("{:.1} %", 100.0 * host.record_share),
            ]
        });
        let header = ["host", "planned pages", "needed", "off by", "recording"];
        sections.push(Section::new("huge pages at once, p99, of the services to enable", &header, rows));
    }
    if let Some(cost) = &found.cost {
        sections.push(Section::text(format!(
            "recording three busy programs for {:.0} s, {} moments, {}: {:.3} s of a processor, {:.2} %",
            cost.seconds,
            cost.moments,
            Bytes(cost.bytes),
            cost.own_seconds,
            100.0 * cost.share
        )));
    }
    sections
}
