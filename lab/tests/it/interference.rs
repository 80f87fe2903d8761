//! Test of `megapage-lab interference` end to end, in short slices: it reports its measurements. A
//! program's loss is not judged here.

use crate::built;

use megapage_testing::PoolGuard;
use megapage_units::PageSize;
use serde_json::Value;

#[test]
fn every_way_is_measured_beside_every_program() {
    // Root takes pages into the pool.
    let Some(pool) = PoolGuard::reserve(PageSize::HUGE_2M, 0) else { return };
    let directory = tempfile::tempdir().unwrap();
    let small = ["--chase", "1m", "--stream", "4m", "--slice", "20"];
    let arguments = [&small[..], &["--runs", "2", "--json"]].concat();
    let output = built::experiment(directory.path(), "interference", &arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    if let Some(line) =
        said.lines().find(|line| line.contains("a second processor") || line.contains("no page for"))
    {
        return megapage_testing::skip(line);
    }
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (report["schema"].as_str(), report["bench"].as_str()),
        (Some("megapage.bench/1"), Some("interference"))
    );
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3 * 2);
    for row in rows {
        assert_eq!(row["samples"].as_array().unwrap().len(), 2, "{row}");
        assert!(row["speed"]["median"].as_f64().unwrap() > 0.0, "{row}");
        // In a slice as short as this, a thread that gets no processor clears nothing.
        assert!(row["cleared_bytes_per_second"]["min"].as_f64().unwrap() >= 0.0, "{row}");
    }
    let cleared = |row: &Value| row["cleared_bytes_per_second"]["max"].as_f64() > Some(0.0);
    assert!(rows.iter().any(cleared), "{report:#}");
    assert_eq!(report["gates"].as_array().unwrap().len(), 2);
    assert_eq!(pool.counts().persistent(), pool.former().persistent(), "the pool is put back");
}

#[test]
fn wrong_sizes_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [["--slice", "9"], ["--chase", "1k"], ["--stream", "9g"], ["--runs", "0"]] {
        let output = built::experiment(directory.path(), "interference", &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{arguments:?}");
    }
}
