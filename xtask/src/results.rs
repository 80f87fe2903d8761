//! Where megapage leads, where it is level and where it loses, as bench/results/README.md says it: written from the results'
//! files, and checked against them.

mod compare;
mod gates;
mod subjects;

use crate::finding::Finding;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where it stands.
pub const DOCUMENT: &str = "bench/results/README.md";
const DIRECTORY: &str = "bench/results";
const BEGIN: &str = "<!-- standing:begin -->";
const END: &str = "<!-- standing:end -->";

/// The results by name: what the files without `.json` hold.
pub(crate) type Results = BTreeMap<String, Value>;

/// The section with its markers.
fn section(results: &Results) -> String {
    let mut text = format!("{BEGIN}\n| | leads | level | loses |\n|---|---|---|---|\n");
    for subject in subjects::SUBJECTS {
        text += &subject.row(results);
    }
    format!("{text}\n{}{END}", gates::paragraphs(results))
}

/// The document with its section made anew; `None` where the markers are missing.
fn renewed(document: &str, results: &Results) -> Option<String> {
    let begin = document.find(BEGIN)?;
    let end = begin + document[begin..].find(END)? + END.len();
    Some(format!("{}{}{}", &document[..begin], section(results), &document[end..]))
}

fn read(root: &Path) -> Result<Results> {
    let mut results = Results::new();
    for entry in fs::read_dir(root.join(DIRECTORY)).context(DIRECTORY)? {
        let path = entry.context(DIRECTORY)?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
            results.insert(name, value);
        }
    }
    ensure!(!results.is_empty(), "{DIRECTORY} holds no results");
    Ok(results)
}

/// Writes the section.
pub fn write(root: &Path) -> Result<()> {
    let path = root.join(DOCUMENT);
    let document = fs::read_to_string(&path).context(DOCUMENT)?;
    let document =
        renewed(&document, &read(root)?).with_context(|| format!("{DOCUMENT} lacks {BEGIN} ... {END}"))?;
    fs::write(&path, document).context(DOCUMENT)
}

/// Whether the section that is there is what the results' files say.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let document = fs::read_to_string(root.join(DOCUMENT)).unwrap_or_default();
    Ok(compare(&document, &read(root)?))
}

fn compare(document: &str, results: &Results) -> Vec<Finding> {
    let line = document.lines().position(|line| line == BEGIN).map_or(1, |index| index + 1);
    if renewed(document, results).is_some_and(|renewed| renewed == document) {
        return Vec::new();
    }
    vec![Finding::new(DOCUMENT, line, "differs from the results beside it; run cargo xtask results")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn results(access: f64) -> Results {
        let row = |peer: &str, access: f64| {
            let spread = json!({ "median": access, "min": 0.99 * access, "max": 1.01 * access });
            json!({ "peer": peer, "phases_ns": { "access": spread } })
        };
        let rows = [row("glibc", 100.0), row("jemalloc-thp", 80.0), row("megapage", access)];
        let gates = json!([{ "case": "map", "demand": "fast", "found": "slow", "holds": false,
            "was": [{ "demand": "faster", "found": "slower", "holds": false, "began_unix_seconds": 86400 }] }]);
        let access = json!({ "bench": "access", "cases": [{ "case": "map", "rows": rows }], "gates": gates });
        Results::from([("access".to_string(), access)])
    }

    fn cells(results: &Results) -> Vec<String> {
        let section = section(results);
        let row = section.lines().find(|line| line.starts_with("| Random access")).unwrap().to_string();
        row.split('|').map(|cell| cell.trim().to_string()).collect()
    }

    #[test]
    fn what_was_measured_decides_the_column() {
        assert_eq!(cells(&results(60.0))[2], "map access 0.75 of jemalloc-thp");
        assert_eq!(cells(&results(80.5))[3], "map access 1.01 of jemalloc-thp");
        assert_eq!(cells(&results(100.0))[4], "map access 1.25 of jemalloc-thp");
        assert_eq!(cells(&Results::new())[2..5], ["-", "-", "-"]);
    }

    #[test]
    fn a_stale_section_is_caught() {
        let document = format!("# Results\n\n{BEGIN}\nstale\n{END}\nmore\n");
        assert_eq!(compare(&document, &results(60.0))[0].line, 3);
        let fresh = renewed(&document, &results(60.0)).unwrap();
        assert!(fresh.starts_with("# Results\n") && fresh.ends_with("\nmore\n"), "{fresh}");
        assert!(compare(&fresh, &results(60.0)).is_empty());
        assert_eq!(compare(&fresh, &results(100.0)).len(), 1, "another result makes it stale");
        assert_eq!(compare("no markers", &results(60.0)).len(), 1);
    }

    #[test]
    fn ten_lines_say_it_and_failed_and_changed_gates_follow() {
        let text = section(&results(60.0));
        assert_eq!(text.lines().filter(|line| line.starts_with("| ")).count(), 1 + 10, "{text}");
        assert!(text.contains("0 of 1 gates hold"), "{text}");
        assert!(text.contains("- access, map: fast: slow"), "{text}");
        assert!(text.contains("was: faster: slower (failed, 1970-01-02)"), "{text}");
    }
}
