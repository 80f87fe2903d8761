//! What a bench found, for people.

use super::judged::Judged;
use super::report::{CaseReport, Head, Report, Row};
use super::statistics::{Clock, Spread, milliseconds};
use crate::peers::{GIGANTIC, OURS};
use megapage_report::table;
use megapage_units::Bytes;
use std::fmt::Write;

/// The report as text of at most 100 columns.
pub fn human(report: &Report) -> String {
    let mut text = String::new();
    let clock = match report.clock {
        Clock::Wall => "time on the wall",
        Clock::Cpu => "processor time",
    };
    let memory = if report.warm_up_runs > 0 { "warm memory" } else { "memory possibly cold" };
    writeln!(
        text,
        "bench {}: median of {} interleaved runs, {clock} in ms, {memory}",
        report.head.bench, report.runs
    )
    .ok();
    text += &heading(&report.head);
    for case in &report.cases {
        writeln!(text, "\n{}", case.case).ok();
        text += &case_table(case);
        if let Some(line) = gigantic_line(case) {
            writeln!(text, "{line}").ok();
        }
        for row in &case.rows {
            let rounds = if row.samples.is_empty() { "" } else { " in some rounds" };
            for why in &row.left_out {
                writeln!(text, "! {} did not run{rounds}: {why}", row.peer).ok();
            }
            for note in &row.notes {
                writeln!(text, "! {}: {note}", row.peer).ok();
            }
        }
    }
    for peer in &report.peers {
        if let Some(why) = &peer.absent {
            writeln!(text, "! {} did not run: {why}", peer.name).ok();
        }
    }
    if !report.gates.is_empty() {
        writeln!(text, "\n{}", gates_table(&report.gates).trim_end()).ok();
    }
    text
}

/// The machine, in one line.
pub fn heading(head: &Head) -> String {
    let machine = &head.machine;
    format!(
        "{} x {}{}, {}, Linux {}, THP {}\n",
        machine.processors,
        machine.processor,
        if machine.virtualised { " (virtual)" } else { "" },
        Bytes(machine.memory_bytes),
        machine.kernel,
        machine.thp_enabled
    )
}

/// The demands, and whether they hold; below each what it was.
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

/// Values that are shown beside the phases, with their heading and how to write them.
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

/// What each phase is called in the report, where it is shown at all. The process as a whole is shown where
/// it is all there is.
const PHASES: [&str; 6] = ["allocate", "access", "free", "compute", "churn", "process"];

fn case_table(case: &CaseReport) -> String {
    let measured = |row: &&Row| !row.samples.is_empty();
    let Some(any) = case.rows.iter().find(measured) else { return "no run ended well\n".into() };
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
    // Where there is no room for it the line below the table has it.
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
    table(&header, rows)
}

/// The least of a share.
fn percent(share: Option<Spread>) -> String {
    share.map_or("-".into(), |share| format!("{:.0} %", 100.0 * share.min))
}

/// What 1 GiB pages bring beside 2 MiB pages: a finding, which no gate judges.
fn gigantic_line(case: &CaseReport) -> Option<String> {
    let gigantic = case.row(GIGANTIC)?;
    let access = |row: &Row| row.phases_ns.get("access").map(|spread| spread.median);
    let ratio = case.row(OURS).and_then(access).zip(access(gigantic)).map(|(ours, own)| own / ours);
    let ratio = ratio.map_or_else(String::new, |ratio| format!("access takes {ratio:.2} of {OURS}'s time; "));
    // Rounded down: it is the least.
    let share = (100.0 * gigantic.gigantic_share?.min).floor();
    Some(format!("{GIGANTIC}: {ratio}at least {share:.0} % of its heap lay on 1 GiB pages"))
}

/// The median, and the ends where there is room for them, in milliseconds.
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
    use crate::workload::Measurement;
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
        assert!(!case_table(&without).contains("1 GiB"), "{}", case_table(&without));
        assert_eq!(gigantic_line(&without), None);
        let mut rows = without.rows;
        rows.push(row(GIGANTIC, 36e9, 0.989));
        let table = case_table(&case(rows.clone()));
        assert!(table.lines().next().unwrap().ends_with(" 1 GiB"), "{table}");
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
        assert!(!case_table(&case(rows)).contains("1 GiB"));
    }
}
