//! Tests that the files shipped beside the program (`dist/`) and its description
//! (`docs/metrics.md`) match the code.

use megapage_daemon::config::Config;
use megapage_daemon::{METRICS, PREFIX};
use megapage_testing::skip;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the options of a configuration, as `table.key`.
fn options(table: &toml::Table) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (key, value) in table {
        match value {
            toml::Value::Table(inner) => {
                found.extend(options(inner).iter().map(|name| format!("{key}.{name}")))
            }
            _ => drop(found.insert(key.clone())),
        }
    }
    found
}

/// Returns a file whose options are comments, with the options in force: prose has a space after
/// its `#`.
fn in_force(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(option) if !option.starts_with(' ') => format!("{option}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[test]
fn the_shipped_configuration_is_the_default_and_names_every_option() {
    let shipped = text("dist/megapage/daemon.toml");
    assert_eq!(Config::parse("daemon.toml", &shipped).unwrap(), Config::default());
    let (general, claim) = shipped.split_once("#[[claim]]").expect("an example of a claim");
    let general = in_force(general);
    assert_eq!(Config::parse("daemon.toml", &general).unwrap(), Config::default(), "{general}");
    // A claim has no default, so it is shown as an example.
    let mut expected = options(&toml::Table::try_from(Config::default()).unwrap());
    assert!(expected.remove("claim"));
    assert_eq!(options(&toml::from_str(&general).unwrap()), expected);
    let claim = in_force(&format!("#[[claim]]{claim}"));
    let parsed = Config::parse("daemon.toml", &claim).unwrap();
    assert_eq!(parsed.claims.len(), 1);
    let by_group = claim.replace("name =", "cgroup = \"/x\" #");
    let parsed = [parsed, Config::parse("daemon.toml", &by_group).unwrap()];
    for key in parsed.iter().flat_map(|config| toml::Table::try_from(&config.claims[0]).unwrap()) {
        assert!(claim.contains(&format!("{} = ", key.0)), "{} is not shown", key.0);
    }
    let comments = shipped.lines().filter(|line| line.starts_with("# ")).count();
    assert!(comments >= expected.len(), "each option is explained");
    assert!(shipped.lines().all(|line| line.chars().count() <= 120), "it fits a screen");
}

/// Returns the metrics that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("megapage_")).map(str::to_string).collect()
}

fn is_exported(name: &str) -> bool {
    let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    let is = |name: &str, histogram: bool| {
        let name = name.strip_prefix(PREFIX).unwrap_or_default();
        METRICS.iter().any(|metric| {
            let fits = match metric.name.split_once("EVENT") {
                Some((before, after)) => {
                    name.len() > before.len() + after.len()
                        && name.starts_with(before)
                        && name.ends_with(after)
                }
                None => metric.name == name,
            };
            fits && (metric.kind() == "histogram") == histogram
        })
    };
    is(name, false) || family.is_some_and(|family| is(family, true))
}

#[test]
fn alerts_and_dashboards_name_metrics_that_there_are() {
    for path in ["dist/prometheus/alerts.yml", "dist/grafana/megapage.json"] {
        let names = named(&text(path));
        assert!(names.len() >= 8, "{path}: {names:?}");
        for name in names {
            assert!(is_exported(&name), "{path}: {name} is not exported");
        }
    }
    assert!(!is_exported("megapage_no_such") && !is_exported("megapage_pass_seconds"));
    assert!(is_exported("megapage_pass_seconds_bucket") && is_exported("megapage_thp_split_page_total"));
}

#[test]
fn the_dashboard_is_whole() {
    let board: serde_json::Value = serde_json::from_str(&text("dist/grafana/megapage.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    assert!(panels.len() >= 10);
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "an id twice");
        assert!(!panel["title"].as_str().unwrap().is_empty());
        let place = &panel["gridPos"];
        assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24, "{place}");
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            assert!(query.contains("megapage_") && balanced(query), "{query}");
        }
    }
}

fn balanced(query: &str) -> bool {
    let count = |c: char| query.chars().filter(|found| *found == c).count();
    count('(') == count(')') && count('{') == count('}') && count('[') == count(']') && count('"') % 2 == 0
}

#[test]
fn the_documentation_has_every_metric() {
    let documented = text("docs/metrics.md");
    let rows: BTreeSet<&str> = documented.lines().filter(|line| line.starts_with("| `megapage_")).collect();
    let row = |metric: &megapage_daemon::Metric| {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, help) = (metric.name, metric.kind(), metric.help);
        format!("| `{PREFIX}{name}` | {kind} | {} | {help} |", labels.join(", ")).replace("|  |", "| |")
    };
    let expected: Vec<String> = METRICS.iter().map(row).collect();
    let table = expected.join("\n");
    assert_eq!(rows, expected.iter().map(String::as_str).collect(), "the table should be:\n{table}");
}

#[test]
fn the_unit_is_understood_by_systemd() {
    let unit = text("dist/systemd/megapage.service");
    assert!(unit.contains("ExecStart=@PREFIX@/bin/megapage daemon --config /etc/megapage/daemon.toml\n"));
    // Brokers and benches have files in the same directory, and measurements are to last for the
    // boot.
    assert!(unit.contains("RuntimeDirectory=megapage\n") && unit.contains("RuntimeDirectoryPreserve=yes\n"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("megapage.service");
    // An existing program, so that only the unit is judged.
    fs::write(&path, unit.replace("@PREFIX@/bin/megapage", "/bin/true")).unwrap();
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output();
    let Ok(said) = verify else { return skip("there is no systemd-analyze to judge the unit") };
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    let ours: Vec<&str> = errors.lines().filter(|line| line.contains("megapage.service")).collect();
    assert!(ours.is_empty(), "{errors}");
}
