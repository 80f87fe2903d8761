//! Values of committed results in pages of docs/, made from `bench/results/*.json` and checked
//! against it.
//!
//! `<!--= restart.json /gates/demand=the same answers/found -->the same<!--=-->` stands for one
//! value. The parts of its path select from objects by name, and from lists by number or by
//! `KEY=START&KEY=START`. The latter selects the one element whose KEYs equal START, or else whose
//! KEYs begin with it. An end such as ` as ms` is the unit in which a number is shown. A list of
//! numbers is shown as its median. The text of a gate's `found` or `measured` says so if the gate
//! is not met. `<!--= rows WORD -->7<!--=-->` is the number of the page's table rows whose last
//! cell begins with WORD.

use crate::finding::Finding;
use anyhow::{Context, Result, bail};
use megapage_bench::statistics::Spread;
use serde_json::Value;
use std::fs;
use std::path::Path;

const BEGIN: &str = "<!--= ";
const MIDDLE: &str = " -->";
const END: &str = "<!--=-->";
const RESULTS: &str = "bench/results";
const PAGES: &str = "docs";

/// Makes the values of all pages again.
pub fn write(root: &Path) -> Result<()> {
    for (path, text) in pages(root)? {
        let renewed = renewed(&text, &|file| result(root, file)).with_context(|| path.clone())?;
        if renewed != text {
            fs::write(root.join(&path), renewed).with_context(|| path.clone())?;
        }
    }
    Ok(())
}

/// Finds pages whose values are not those of the results.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (path, text) in pages(root)? {
        match renewed(&text, &|file| result(root, file)) {
            Ok(renewed) => {
                let differing = text.lines().zip(renewed.lines()).position(|(old, new)| old != new);
                findings.extend(differing.map(|line| {
                    Finding::new(&path, line + 1, "differs from bench/results; run cargo xtask values")
                }));
            }
            Err(error) => findings.push(Finding::new(&path, 1, format!("{error:#}"))),
        }
    }
    Ok(findings)
}

/// Returns the pages with values, and their texts.
fn pages(root: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(PAGES)).context(PAGES)? {
        let name = entry.context(PAGES)?.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".md") {
            continue;
        }
        let path = format!("{PAGES}/{name}");
        let text = fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        if text.contains(BEGIN) {
            found.push((path, text));
        }
    }
    found.sort();
    Ok(found)
}

fn result(root: &Path, file: &str) -> Result<Value> {
    if file.contains('/') || !file.ends_with(".json") {
        bail!("'{file}' is not a file of {RESULTS}");
    }
    let text =
        fs::read_to_string(root.join(RESULTS).join(file)).with_context(|| format!("{RESULTS}/{file}"))?;
    serde_json::from_str(&text).with_context(|| format!("{RESULTS}/{file}"))
}

/// Returns the page with each value made again.
fn renewed(page: &str, result: &dyn Fn(&str) -> Result<Value>) -> Result<String> {
    let mut text = String::new();
    let mut rest = page;
    while let Some(at) = rest.find(BEGIN) {
        let (before, mark) = rest.split_at(at);
        let line = page[..page.len() - mark.len()].lines().count();
        let mark = &mark[BEGIN.len()..];
        let (source, after) = mark.split_once(MIDDLE).with_context(|| format!("line {line}: no{MIDDLE}"))?;
        let (_, after) = after.split_once(END).with_context(|| format!("line {line}: no {END}"))?;
        let value = match source.strip_prefix("rows ") {
            Some(word) => rows(page, word).to_string(),
            None => {
                let (file, path) = source.split_once(' ').with_context(|| format!("'{source}': no path"))?;
                shown(&result(file)?, path).with_context(|| source.to_string())?
            }
        };
        text += &format!("{before}{BEGIN}{source}{MIDDLE}{value}{END}");
        rest = after;
    }
    Ok(text + rest)
}

/// Returns the number of table rows whose last cell begins with `word`.
fn rows(page: &str, word: &str) -> usize {
    let last = |line: &str| {
        line.trim_end().strip_suffix('|')?.rsplit('|').next().map(|cell| cell.trim().to_string())
    };
    page.lines()
        .filter(|line| line.starts_with('|'))
        .filter_map(last)
        .filter(|cell| cell.starts_with(word))
        .count()
}

/// Returns the value that `path` leads to, as it is shown.
fn shown(document: &Value, path: &str) -> Result<String> {
    let (path, unit) = match path.rsplit_once(" as ") {
        Some((path, unit)) => (path, Some(unit)),
        None => (path, None),
    };
    let (mut value, mut parent) = (document, document);
    for part in path.split('/').skip(1) {
        parent = value;
        value = step(value, part)?;
    }
    let text = match (value, unit) {
        (Value::String(text), None) => text.replace('|', "\\|"),
        (Value::Bool(is_so), None) => if *is_so { "yes" } else { "no" }.to_string(),
        (Value::Number(number), unit) => number_shown(number.as_f64().context("a number")?, unit)?,
        (Value::Array(elements), unit) => {
            let numbers: Option<Vec<f64>> = elements.iter().map(Value::as_f64).collect();
            let median = Spread::median_of(&numbers.context("a list, not of numbers alone")?);
            number_shown(median.context("an empty list")?, unit)?
        }
        _ => bail!("an object or null, or a text with a unit"),
    };
    let is_unmet = [("/found", "holds"), ("/measured", "met")]
        .iter()
        .any(|(of, gate)| path.ends_with(of) && parent.get(gate) == Some(&Value::Bool(false)));
    Ok(if is_unmet { format!("{text} (gate not met)") } else { text })
}

fn step<'a>(value: &'a Value, part: &str) -> Result<&'a Value> {
    let Value::Array(elements) = value else {
        return value.get(part).with_context(|| format!("there is no '{part}'"));
    };
    if let Ok(index) = part.parse::<usize>() {
        return elements.get(index).with_context(|| format!("there is no element {index}"));
    }
    let fits = |element: &Value, whole: bool| {
        part.split('&').all(|demand| {
            let (key, wanted) = demand.split_once('=').unwrap_or((demand, ""));
            match element.get(key) {
                Some(Value::String(text)) if !whole => text.starts_with(wanted),
                Some(Value::String(text)) => text == wanted,
                Some(Value::Number(number)) => number.to_string() == wanted,
                _ => false,
            }
        })
    };
    for whole in [true, false] {
        let mut fitting = elements.iter().filter(|element| fits(element, whole));
        match (fitting.next(), fitting.next()) {
            (Some(one), None) => return Ok(one),
            (None, _) => {}
            (Some(_), Some(_)) => bail!("more than one element has {part}"),
        }
    }
    bail!("no element has {part}")
}

/// Renders a number with three digits, and the unit.
fn number_shown(value: f64, unit: Option<&str>) -> Result<String> {
    let (scaled, suffix) = match unit {
        None => (value, ""),
        Some("us") => (value / 1e3, " us"),
        Some("ms") => (value / 1e6, " ms"),
        Some("s") => (value / 1e9, " s"),
        Some("%") => (value * 100.0, " %"),
        Some("GiB") => (value / (1u64 << 30) as f64, " GiB"),
        Some("MiB") => (value / (1u64 << 20) as f64, " MiB"),
        Some("KiB") => (value / 1024.0, " KiB"),
        Some(unit) => bail!("the unit '{unit}' is none of us, ms, s (of nanoseconds), %, GiB, MiB, KiB"),
    };
    let is_whole = scaled.fract() == 0.0 && scaled.abs() < 1e15;
    let magnitude = scaled.abs().log10().floor();
    let digits = if is_whole { 0 } else { (2.0 - magnitude).clamp(0.0, 9.0) as usize };
    Ok(format!("{scaled:.digits$}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn results(file: &str) -> Result<Value> {
        match file {
            "x.json" => Ok(json!({
                "gates": [
                    { "case": "a", "demand": "at most 1: memory", "found": "0.8", "holds": true },
                    { "case": "ab", "demand": "at most 2", "found": "1", "holds": true },
                    { "case": "b", "demand": "at most 1: memory", "found": "1.2|3", "holds": false },
                ],
                "rows": [{
                    "bytes": 1_073_741_824u64, "time": 1_234_567.0, "share": 0.031_4,
                    "odd": [0.5, 0.1, 0.2], "even": [0.1, 0.3, 0.2, 0.9], "none": [],
                }],
            })),
            _ => bail!("no {file}"),
        }
    }

    fn made(source: &str) -> Result<String> {
        let page = renewed(&format!("so <!--= {source} -->old<!--=--> it is"), &results)?;
        let value = page.strip_prefix(&format!("so <!--= {source} -->")).unwrap();
        Ok(value.strip_suffix("<!--=--> it is").unwrap().to_string())
    }

    #[test]
    fn values_come_from_the_results() {
        assert_eq!(made("x.json /gates/case=a&demand=at most 1: m/found").unwrap(), "0.8");
        assert_eq!(made("x.json /gates/2/found").unwrap(), "1.2\\|3 (gate not met)");
        assert_eq!(made("x.json /gates/2/holds").unwrap(), "no");
        assert_eq!(made("x.json /rows/bytes=1073741824/bytes as GiB").unwrap(), "1 GiB");
        assert_eq!(made("x.json /rows/0/time as ms").unwrap(), "1.23 ms");
        assert_eq!(made("x.json /rows/0/share as %").unwrap(), "3.14 %");
        assert_eq!(made("x.json /rows/0/share").unwrap(), "0.0314");
        assert_eq!(made("x.json /rows/0/odd as %").unwrap(), "20 %");
        assert_eq!(made("x.json /rows/0/even").unwrap(), "0.250");
        assert_eq!(
            made("x.json /gates/case=a/found").unwrap(),
            "0.8",
            "the whole text comes before its beginning"
        );
    }

    #[test]
    fn what_does_not_lead_to_one_value_is_an_error() {
        for (source, expected) in [
            ("y.json /gates", "no y.json"),
            ("x.json", "no path"),
            ("x.json /gate/0", "there is no 'gate'"),
            ("x.json /gates/3/found", "no element 3"),
            ("x.json /gates/demand=at most 1/found", "more than one element"),
            ("x.json /gates/case=c/found", "no element has case=c"),
            ("x.json /rows/0", "an object"),
            ("x.json /gates", "a list, not of numbers"),
            ("x.json /rows/0/none", "an empty list"),
            ("x.json /rows/0/time as miles", "the unit 'miles'"),
            ("x.json /gates/0/found as ms", "a text with a unit"),
        ] {
            let error = format!("{:#}", made(source).unwrap_err());
            assert!(error.contains(expected), "{source}: {error}");
        }
        assert!(renewed("<!--= x.json /rows/0/time", &results).is_err());
        assert!(renewed("<!--= x.json /rows/0/time -->1", &results).is_err());
    }

    #[test]
    fn rows_are_counted_by_their_last_cell() {
        let page = "| a | result |\n|---|---|\n| better | done: x |\n| y | done |\n| z | partial |\n\
                    <!--= rows done -->0<!--=--> of them";
        assert!(renewed(page, &results).unwrap().ends_with("<!--= rows done -->2<!--=--> of them"));
    }

    #[test]
    fn stale_pages_and_missing_files_are_found() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("docs")).unwrap();
        fs::create_dir_all(root.path().join(RESULTS)).unwrap();
        fs::write(root.path().join(RESULTS).join("x.json"), results("x.json").unwrap().to_string()).unwrap();
        let page = root.path().join("docs/seeds.md");
        fs::write(&page, "# Seeds\n\n<!--= x.json /gates/0/found -->0.7<!--=-->\n").unwrap();
        let found = check(root.path()).unwrap();
        assert_eq!((found.len(), found[0].line), (1, 3), "{found:?}");
        write(root.path()).unwrap();
        assert!(check(root.path()).unwrap().is_empty());
        fs::write(&page, "<!--= ../x.json /gates/0/found -->0.8<!--=-->\n").unwrap();
        assert!(check(root.path()).unwrap()[0].what.contains("is not a file of bench/results"));
        fs::remove_file(root.path().join(RESULTS).join("x.json")).unwrap();
        fs::write(&page, "<!--= x.json /gates/0/found -->0.8<!--=-->\n").unwrap();
        assert!(check(root.path()).unwrap()[0].what.contains("bench/results/x.json"));
    }
}
