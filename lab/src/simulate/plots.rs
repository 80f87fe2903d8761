//! Runs as charts, as the papers draw them.

use crate::chart::{Chart, Line, svg};
use megapage_simulate::curve::{Curve, Curves};
use megapage_simulate::{Comparison, Point, ProcessResult, Run};

const GIB: f64 = (1u64 << 30) as f64;

/// Returns file names and pictures.
pub fn all(comparison: &Comparison) -> [(&'static str, String); 3] {
    let memory = lines(comparison, |_, run| {
        let line =
            |value: fn(&Point) -> u64, pale| Line { name: run.policy.clone(), points: sum(run, value), pale };
        vec![line(|point| point.resident_bytes, false), line(|point| point.useful_bytes, true)]
    });
    let several = comparison.runs.first().is_some_and(|run| run.processes.len() > 1);
    let each = |value: fn(&Point) -> f64| {
        lines(comparison, |at, run| {
            let line = |process: &ProcessResult| Line {
                name: if several && comparison.runs.len() == 1 {
                    process.name.clone()
                } else {
                    run.policy.clone()
                },
                points: process.points.iter().map(|point| (point.time, value(point))).collect(),
                pale: several && at > 0 && comparison.runs.len() > 4,
            };
            run.processes.iter().map(line).collect()
        })
    };
    let chart = |title: &str, y: &str, lines: Vec<Line>| {
        let title = format!("{title} ({})", comparison.scene.origin);
        svg(&Chart { title, x: "seconds".to_string(), y: y.to_string(), lines })
    };
    [
        ("memory.svg", chart("Resident memory; pale: what of it holds data", "GiB", memory)),
        (
            "cost.svg",
            chart("Translation cost of each process", "% of its cycles", each(|point| point.cost * 100.0)),
        ),
        (
            "huge-pages.svg",
            chart("Huge pages of each process", "2 MiB pages", each(|point| point.huge_pages as f64)),
        ),
    ]
}

/// Draws the curves of all policies in one picture.
pub fn curves(found: &Curves) -> String {
    let line = |curve: &Curve| Line {
        name: curve.policy.clone(),
        points: curve.points.iter().map(|point| (point.budget_percent, point.gain_percent)).collect(),
        pale: false,
    };
    svg(&Chart {
        title: format!("What huge pages are worth ({})", found.scene.origin),
        x: "budget of huge pages, % of the memory in use".to_string(),
        y: "translation time saved, % of the time on base pages".to_string(),
        lines: found.curves.iter().map(line).collect(),
    })
}

fn lines(comparison: &Comparison, of: impl Fn(usize, &Run) -> Vec<Line>) -> Vec<Line> {
    comparison.runs.iter().enumerate().flat_map(|(at, run)| of(at, run)).collect()
}

/// Returns the sum over all processes, in GiB.
fn sum(run: &Run, value: fn(&Point) -> u64) -> Vec<(f64, f64)> {
    let mut changes: Vec<(f64, i64)> = Vec::new();
    for process in &run.processes {
        let mut before = 0;
        for point in &process.points {
            let now = value(point) as i64;
            changes.push((point.time, now - before));
            before = now;
        }
        // After its end it has no memory.
        if let Some(last) = process.last() {
            changes.push((last.time, -before));
        }
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut total = 0;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (time, change) in changes {
        total += change;
        match points.last_mut() {
            Some(last) if last.0 == time && change > 0 => last.1 = total as f64 / GIB,
            _ => points.push((time, total as f64 / GIB)),
        }
    }
    points
}
