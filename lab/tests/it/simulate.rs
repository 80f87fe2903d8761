//! Tests of `megapage-lab simulate`, as a user runs it.

use std::fs;
use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_megapage-lab")).arg("simulate").args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

const TRACE: &str = "megapage-trace 1
origin a test
memory 268435456
process p 0
touch 0 60 512 512 0
access 0 60 512 2000000 random
work 20
";

#[test]
fn a_trace_is_replayed_under_each_policy_and_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("a.trace");
    fs::write(&trace, TRACE).unwrap();
    let trace = trace.to_str().unwrap();
    let plots = directory.path().join("plots");
    let arguments = ["--trace", trace, "--policy", "linux-4k,linux", "--json"];
    let first = lab(&arguments);
    assert!(first.status.success(), "{first:?}");
    assert_eq!(first.stdout, lab(&arguments).stdout, "the same run twice differs");
    let json: serde_json::Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(json["schema"], "megapage.simulate/1");
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[0]["processes"][0]["account"]["faults"], 60 * 512);
    assert_eq!(runs[1]["processes"][0]["account"]["faults"], 60);
    assert_eq!(
        (&runs[0]["saved_ns_per_promotion"], &runs[1]["made_huge"]),
        (&serde_json::Value::Null, &60.into())
    );
    assert!(runs[1]["saved_ns_per_promotion"].as_f64().unwrap() > 0.0);

    let text = lab(&["--trace", trace, "--policy", "linux", "--svg", plots.to_str().unwrap()]);
    let table = stdout(&text);
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    assert!(table.contains("linux") && table.contains("done"), "{table}");
    for name in ["memory.svg", "cost.svg", "huge-pages.svg"] {
        assert!(fs::read_to_string(plots.join(name)).unwrap().contains("</svg>"), "{name}");
    }
}

#[test]
fn a_curve_rises_from_nothing_and_is_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let (trace, svg) = (directory.path().join("a.trace"), directory.path().join("a.svg"));
    fs::write(&trace, TRACE).unwrap();
    let (trace, svg) = (trace.to_str().unwrap(), svg.to_str().unwrap());
    let shown = lab(&["curve", "--trace", trace, "--svg", svg]);
    let table = stdout(&shown);
    assert!(shown.status.success(), "{shown:?}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    for policy in ["megapage", "hawkeye-pmu", "hawkeye-g", "ingens", "freebsd", "linux"] {
        assert!(table.contains(policy), "{table}");
    }
    let picture = fs::read_to_string(svg).unwrap();
    assert!(picture.contains("</svg>") && picture.contains("hawkeye-pmu"));

    let output = lab(&["curve", "--trace", trace, "--policy", "linux", "--budget", "50,0,100", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&json["schema"], &json["footprint_regions"]),
        (&"megapage.simulate.curve/1".into(), &60.into())
    );
    let points = json["curves"][0]["points"].as_array().unwrap();
    let gains: Vec<f64> = points.iter().map(|point| point["gain_percent"].as_f64().unwrap()).collect();
    assert_eq!((points.len(), gains[0], &points[1]["made_huge"]), (3, 0.0, &30.into()));
    assert!(gains.is_sorted() && gains[2] > gains[1], "{gains:?}");
}

#[test]
fn a_workload_can_be_saved_as_a_trace() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("vm.trace");
    let output = lab(&["--workload", "vm", "--save-trace", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read_to_string(&file).unwrap().starts_with("megapage-trace 1\n"));
}

#[test]
fn bad_input_is_one_line_and_status_2() {
    let directory = tempfile::tempdir().unwrap();
    let bad = directory.path().join("bad.trace");
    fs::write(&bad, TRACE.replace("work 20", "work soon")).unwrap();
    let small = directory.path().join("small.trace");
    fs::write(&small, TRACE.replace("memory 268435456\n", "")).unwrap();
    let (bad, small) = (bad.to_str().unwrap(), small.to_str().unwrap());
    for (arguments, what) in [
        (&[][..], "give --workload NAME or --trace FILE"),
        (&["--workload", "none"], "no workload is named 'none'"),
        (&["--workload", "vm", "--policy", "best"], "no policy is named 'best'"),
        (&["--workload", "vm", "--fragmentation", "2"], "give an index from 0 to 1"),
        (&["--workload", "vm", "--memory", "1m"], "too small"),
        (&["--workload", "vm", "--step", "0"], "give seconds from 0.1 to 60"),
        (&["--trace", "/nonexistent"], "No such file"),
        (&["--trace", bad], "line 7: 'soon' is not seconds"),
        (&["--trace", small], "give it with --memory"),
        (&["curve"], "give --workload NAME or --trace FILE"),
        (&["curve", "--workload", "vm", "--budget", "101"], "give per cent from 0 to 100"),
        (&["curve", "--workload", "vm", "--policy", "best"], "no policy is named 'best'"),
        (&["record", "0"], "no process 0"),
        (&["--trace", "/dev/zero"], "longer than 268435456 bytes"),
    ] {
        let output = lab(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(what), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    }
}

#[test]
fn everything_is_listed() {
    let text = stdout(&lab(&["list"]));
    for name in ["redis", "three-plus-three", "hawkeye-pmu", "freebsd"] {
        assert!(text.contains(name), "{name} is missing:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}
