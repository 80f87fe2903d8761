//! Subjects in which megapage leads, is level or loses, as in bench/results/README.md: written from
//! the results' files, and checked against them.

mod compare;
mod gates;
mod subjects;

use crate::section::Section;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Path of the document.
pub const DOCUMENT: &str = "bench/results/README.md";
const DIRECTORY: &str = "bench/results";
const BEGIN: &str = "<!-- standing:begin -->";
const END: &str = "<!-- standing:end -->";

/// Results by name: the contents of the files, named without `.json`.
pub(crate) type Results = BTreeMap<String, Value>;

/// Returns the section of these results.
fn section_of(results: &Results) -> Section {
    let mut lines = "| | leads | level | loses |\n|---|---|---|---|\n".to_string();
    for subject in subjects::SUBJECTS {
        lines += &subject.row(results);
    }
    lines += &format!("\n{}", gates::paragraphs(results));
    let differs = "differs from the results beside it; run cargo xtask results";
    Section { document: DOCUMENT, begin: BEGIN, end: END, lines, differs }
}

/// Returns a value's text of that name.
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
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

/// Returns the section, from the results' files.
pub fn section(root: &Path) -> Result<Section> {
    Ok(section_of(&read(root)?))
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
        let section = section_of(results);
        let row = section.lines.lines().find(|line| line.starts_with("| Random access")).unwrap().to_string();
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
        assert_eq!(section_of(&results(60.0)).compare(&document).unwrap().line, 3);
        let fresh = section_of(&results(60.0)).renewed(&document).unwrap();
        assert!(fresh.starts_with("# Results\n") && fresh.ends_with("\nmore\n"), "{fresh}");
        assert!(section_of(&results(60.0)).compare(&fresh).is_none());
        assert!(section_of(&results(100.0)).compare(&fresh).is_some(), "another result makes it stale");
        assert!(section_of(&results(60.0)).compare("no markers").is_some());
    }

    #[test]
    fn ten_lines_say_it_and_failed_and_changed_gates_follow() {
        let text = section_of(&results(60.0)).lines;
        assert_eq!(text.lines().filter(|line| line.starts_with("| ")).count(), 1 + 10, "{text}");
        assert!(text.contains("0 of 1 gates hold"), "{text}");
        assert!(text.contains("- access, map: fast: slow"), "{text}");
        assert!(text.contains("was: faster: slower (failed, 1970-01-02)"), "{text}");
    }
}
