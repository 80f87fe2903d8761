//! Findings of a bench of peers, for people.

use super::report::{BenchFound, CaseReport, Row};
use super::{Clock, Gate, Spread, gates};
use crate::experiment::{Found, Section};
use crate::peers::{GIGANTIC, OURS};
use megapage_bench::statistics::milliseconds;

impl Found for BenchFound {
    fn gates(&self) -> Vec<Gate> {
        gates::judge(self)
    }

    fn title(&self, runs: u32) -> String {
        let clock = match self.clock {
            Clock::Wall => "time on the wall",
            Clock::Cpu => "processor time",
        };
        let memory = if self.warm_up_runs > 0 { "warm memory" } else { "memory possibly cold" };
        format!("median of {runs} interleaved runs, {clock} in ms, {memory}")
    }

    fn sections(&self) -> Vec<Section> {
        let mut sections: Vec<Section> = self.cases.iter().map(case_section).collect();
        for peer in &self.peers {
            if let Some(why) = &peer.absent {
                sections.push(Section::text(format!("! {} did not run: {why}", peer.name)));
            }
        }
        sections
    }

    fn notes(&self) -> Vec<String> {
        let rows = self.cases.iter().flat_map(|case| &case.rows);
        rows.flat_map(|row| row.notes.iter().map(|note| format!("{}: {note}", row.peer))).collect()
    }
}

/// Renders the table of a case, and the runs that were skipped.
fn case_section(case: &CaseReport) -> Section {
    let mut section = gigantic_line(case).into_iter().fold(case_table(case), Section::then);
    for row in &case.rows {
        let rounds = if row.samples.is_empty() { "" } else { " in some rounds" };
        for why in &row.left_out {
            section = section.then(format!("! {} did not run{rounds}: {why}", row.peer));
        }
    }
    section
}

/// Values that are shown beside the phases, with their heading and format.
type Column = (&'static str, &'static str, fn(f64) -> String);
const VALUES: [Column; 9] = [
    ("before_bytes", "before MB", |value| format!("{:.0}", value / 1e6)),
    ("after_bytes", "after MB", |value| format!("{:.0}", value / 1e6)),
    ("after_huge_share", "huge after", |value| format!("{:.0} %", 100.0 * value)),
    ("queries_per_second", "q/s", |value| format!("{value:.1}")),
    ("real_time_rate", "rate", |value| format!("{value:.4}")),
    ("fingerprint_share", "print", |value| format!("{:.1} %", 100.0 * value)),
    ("lookup_share", "lookup", |value| format!("{:.0} %", 100.0 * value)),
    ("sort_share", "sort", |value| format!("{:.0} %", 100.0 * value)),
    ("recall", "recall", |value| format!("{:.1} %", 100.0 * value)),
];

/// Names of the phases in the report, for those that are shown at all. The process as a whole is
/// shown if there is no other phase.
const PHASES: [&str; 6] = ["allocate", "access", "free", "compute", "churn", "process"];

fn case_table(case: &CaseReport) -> Section {
    let measured = |row: &&Row| !row.samples.is_empty();
    let Some(any) = case.rows.iter().find(measured) else {
        return Section::text(format!("{}: no run ended well", case.case));
    };
    let whole_only = !any.phases_ns.contains_key("access") && !any.phases_ns.contains_key("free");
    let phases: Vec<&str> = PHASES
        .into_iter()
        .filter(|&name| any.phases_ns.contains_key(name) && (name != "process" || whole_only))
        .collect();
    let values: Vec<&Column> = VALUES.iter().filter(|column| any.values.contains_key(column.0)).collect();
    let narrow = phases.len() + values.len() > 4;

    let mut header = vec!["peer".to_string()];
    for phase in &phases {
        header.push(if narrow { phase.to_string() } else { format!("{phase} ms") });
        header.push("ratio".into());
    }
    header.extend(values.iter().map(|column| column.1.to_string()));
    if any.huge_share.is_some() {
        header.push("huge".into());
    }
    // If there is no room for it, the line below the table has it.
    let gigantic =
        !narrow && case.rows.iter().any(|row| row.gigantic_share.is_some_and(|share| share.max > 0.0));
    if gigantic {
        header.push("1 GiB".into());
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let rows = case.rows.iter().map(|row| {
        let mut cells = vec![row.peer.to_string()];
        for phase in &phases {
            cells.push(row.phases_ns.get(*phase).map_or("-".into(), |spread| time(spread, narrow)));
            cells.push(row.ratios.get(*phase).map_or("-".into(), |ratio| format!("{ratio:.2}")));
        }
        for (name, _, show) in &values {
            cells.push(row.values.get(*name).map_or("-".into(), |spread| show(spread.median)));
        }
        if any.huge_share.is_some() {
            cells.push(percent(row.huge_share));
        }
        if gigantic {
            cells.push(percent(row.gigantic_share));
        }
        cells
    });
    Section::new(case.case, &header, rows)
}

/// Renders the least of a share.
fn percent(share: Option<Spread>) -> String {
    share.map_or("-".into(), |share| format!("{:.0} %", 100.0 * share.min))
}

/// Describes the effect of 1 GiB pages beside 2 MiB pages: a finding that no gate judges.
fn gigantic_line(case: &CaseReport) -> Option<String> {
    let gigantic = case.row(GIGANTIC)?;
    let access = |row: &Row| row.phases_ns.get("access").map(|spread| spread.median);
    let ratio = case.row(OURS).and_then(access).zip(access(gigantic)).map(|(ours, own)| own / ours);
    let ratio = ratio.map_or_else(String::new, |ratio| format!("access takes {ratio:.2} of {OURS}'s time; "));
    // Rounded down: it is the least.
    let share = (100.0 * gigantic.gigantic_share?.min).floor();
    Some(format!("{GIGANTIC}: {ratio}at least {share:.0} % of its heap lay on 1 GiB pages"))
}

/// Renders the median in milliseconds, and the ends if there is room for them.
fn time(spread: &Spread, narrow: bool) -> String {
    let median = milliseconds(spread.median);
    if narrow || spread.min == spread.max {
        return median;
    }
    format!("{median} ({}-{})", milliseconds(spread.min), milliseconds(spread.max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::measurement::Measurement;
    use std::collections::BTreeMap;

    fn row(peer: &'static str, access: f64, gigantic: f64) -> Row {
        let one = |value: f64| Spread { median: value, min: value, max: value };
        Row {
            peer,
            phases_ns: ["allocate", "access"].map(|name| (name.into(), one(access))).into(),
            ratios: BTreeMap::new(),
            values: BTreeMap::new(),
            huge_share: Some(one(1.0)),
            gigantic_share: Some(one(gigantic)),
            left_out: Vec::new(),
            notes: Vec::new(),
            samples: vec![Measurement::default()],
        }
    }

    fn case(rows: Vec<Row>) -> CaseReport {
        CaseReport { case: "retrieval", arguments: Vec::new(), rows }
    }

    #[test]
    fn what_lies_on_1_gib_pages_is_shown_where_something_does() {
        let without = case(vec![row("jemalloc-metadata-all", 60e9, 0.0), row(OURS, 40e9, 0.0)]);
        let table = case_table(&without).render();
        assert!(!table.contains("1 GiB"), "{table}");
        assert_eq!(gigantic_line(&without), None);
        let mut rows = without.rows;
        rows.push(row(GIGANTIC, 36e9, 0.989));
        let table = case_table(&case(rows.clone())).render();
        assert!(table.lines().nth(2).unwrap().ends_with(" 1 GiB"), "{table}");
        assert!(table.lines().last().unwrap().ends_with(" 99 %"), "{table}");
        assert_eq!(
            gigantic_line(&case(rows.clone())).unwrap(),
            "megapage-1g: access takes 0.90 of megapage's time; at least 98 % of its heap lay on 1 GiB pages"
        );
        rows.retain(|row| row.peer != OURS);
        assert_eq!(
            gigantic_line(&case(rows.clone())).unwrap(),
            "megapage-1g: at least 98 % of its heap lay on 1 GiB pages"
        );
        // A table with many values has no room for the column.
        for row in &mut rows {
            row.values =
                VALUES.iter().skip(3).map(|(name, ..)| (name.to_string(), Spread::default())).collect();
        }
        assert!(!case_table(&case(rows)).render().contains("1 GiB"));
    }
}
