//! Gates of all results: the number that hold, those that fail, and the former outcomes of changed
//! ones.

use super::{Results, text};
use serde_json::Value;

fn holds(value: &Value) -> bool {
    value.get("holds").and_then(Value::as_bool).unwrap_or(false)
}

/// Renders Markdown: a sentence and the failing gates, then the former outcomes of others.
pub(super) fn paragraphs(results: &Results) -> String {
    let gates = results.iter().flat_map(|(name, report)| {
        let gates = report.get("gates").and_then(Value::as_array).into_iter().flatten();
        gates.map(move |gate| (name.as_str(), gate))
    });
    let gates: Vec<(&str, &Value)> = gates.collect();
    let line = |(name, gate): &(&str, &Value)| {
        format!("- {name}, {}: {}: {}", text(gate, "case"), text(gate, "demand"), text(gate, "found"))
    };
    let held = gates.iter().filter(|(_, gate)| holds(gate)).count();
    let mut lines = vec![format!("{held} of {} gates hold. Those that do not:", gates.len()), String::new()];
    lines.extend(gates.iter().filter(|(_, gate)| !holds(gate)).map(line));
    let changed: Vec<_> =
        gates.iter().filter(|(_, gate)| gate.get("was").is_some_and(Value::is_array)).collect();
    if !changed.is_empty() {
        let intro = "Gates that failed before, or whose demand was changed, each with what it was:";
        lines.extend([String::new(), intro.into(), String::new()]);
        for entry in changed {
            lines.push(line(entry));
            for was in entry.1["was"].as_array().into_iter().flatten() {
                let verdict = if holds(was) { "held" } else { "failed" };
                let seconds = was.get("began_unix_seconds").and_then(Value::as_u64).unwrap_or(0);
                let why = match text(was, "why") {
                    "" => String::new(),
                    why => format!(": {why}"),
                };
                lines.push(format!(
                    "  - was: {}: {} ({verdict}, {}){why}",
                    text(was, "demand"),
                    text(was, "found"),
                    date(seconds / 86400)
                ));
            }
        }
    }
    lines.join("\n") + "\n"
}

/// Returns the date of a day counted from 1970-01-01, by Howard Hinnant's `civil_from_days`.
fn date(days: u64) -> String {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(59), "1970-03-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(1_795_306_626 / 86_400), "2026-11-22");
    }
}
