//! Test of `megapage-lab trial` end to end, on one service that is hurt: it runs the trial and
//! judges by its finding. The decision on a busy machine is not judged here.

use crate::built;

use megapage_testing::{MachineLock, require_root};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

fn trial(directory: &Path, arguments: &[&str]) -> Output {
    built::experiment(directory, "trial", arguments)
}

#[test]
fn a_service_is_tried_and_judged() {
    if !require_root() {
        return;
    }
    let _lock = MachineLock::take();
    let directory = tempfile::tempdir().unwrap();
    let output = trial(directory.path(), &["budgeted-100%", "--most", "20", "--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "trial");
    assert_eq!(report["failures"], serde_json::json!([]), "{report:#}");
    let row = &report["rows"][0];
    assert_eq!((&row["case"], &row["truth"]), (&"budgeted-100%".into(), &"hurts".into()), "{report:#}");
    assert_ne!(row["decision"], "gains", "{report:#}");
    // A page that is held at that moment may stay huge: the guard handles it later.
    assert!(
        row["cost_share"].as_f64().unwrap() > 0.0 && row["huge_share"].as_f64() < Some(0.5),
        "{report:#}"
    );
    assert_eq!(report["gates"].as_array().unwrap().len(), 2);
}

#[test]
fn cases_that_are_not_known_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let output = trial(directory.path(), &["fast"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("'fast' is no case of trial"), "{output:?}");
}
