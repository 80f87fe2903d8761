//! What the live benches found, for people.

use super::{Bloat, Cost, Fair, Found, Promote, Report};
use crate::run::{Spread, gates_table, heading};
use crate::workload::probe::Stall;
use megapage_report::table;
use megapage_units::Bytes;
use std::fmt::Write;

/// The report as text of at most 100 columns.
pub fn human(report: &Report) -> String {
    let mut text = format!("bench {}, {} interleaved rounds at the most\n", report.head.bench, report.runs);
    text += &heading(&report.head);
    match &report.found {
        Found::Promote(found) => promote(found, &mut text),
        Found::Bloat(found) => bloat(found, &mut text),
        Found::Fair(found) => fair(found, &mut text),
        Found::Cost(found) => cost(found, &mut text),
    }
    for failure in report.found.failures() {
        for line in wrapped(&format!("! {}: {}", failure.configuration, failure.why)) {
            writeln!(text, "{line}").ok();
        }
    }
    if !report.gates.is_empty() {
        writeln!(text, "\n{}", gates_table(&report.gates).trim_end()).ok();
    }
    text
}

fn wrapped(text: &str) -> Vec<String> {
    use megapage_report::line::{Paint, Style, wrap};
    wrap(Style::PLAIN, text, 98).iter().map(|line| line.show(Paint::Plain, 100)).collect()
}

/// The median, with the ends where they differ.
fn spread(found: Option<Spread>, show: impl Fn(f64) -> String) -> String {
    match found {
        None => "-".into(),
        Some(found) if found.min == found.max => show(found.median),
        Some(found) => format!("{} ({}-{})", show(found.median), show(found.min), show(found.max)),
    }
}

fn two(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or("-".into(), |bytes| Bytes(bytes).to_string())
}

fn promote(found: &Promote, text: &mut String) {
    writeln!(
        text,
        "\n{} on base pages, the highest {} in use ({}); huge pages make it {:.2} times as fast",
        Bytes(found.heap_bytes),
        Bytes(found.hot_bytes),
        found.way,
        found.huge_rate.median / found.base_rate.median
    )
    .ok();
    let rows = found.rows.iter().map(|row| {
        let last = row.samples.last();
        let mark = if row.extrapolated { "~" } else { "" };
        let relief = match row.relief_seconds {
            None if row.samples.is_empty() => "-".into(),
            None => format!("> {:.0}", found.longest_seconds),
            relief => format!("{mark}{}", spread(relief, two)),
        };
        let cpu = match row.cpu_seconds {
            None => last.map_or("-".into(), |sample| format!("> {:.2}", sample.cpu_seconds)),
            cpu => format!("{mark}{}", spread(cpu, two)),
        };
        [
            row.configuration.to_string(),
            row.samples.len().to_string(),
            relief,
            cpu,
            size(last.map(|sample| sample.huge_bytes)),
            size(last.map(|sample| sample.hot_huge_bytes)),
        ]
    });
    *text += &table(&["configuration", "runs", "relief s", "system CPU s", "huge then", "of it used"], rows);
    writeln!(text, "~ extrapolated from what was collapsed within {:.0} s", found.longest_seconds).ok();
}

fn bloat(found: &Bloat, text: &mut String) {
    writeln!(
        text,
        "\nredis: {} values of {} bytes, 80 % deleted, larger ones set; limit {}",
        found.keys,
        found.value_bytes,
        Bytes(found.limit_bytes)
    )
    .ok();
    let rows = found.rows.iter().map(|row| {
        let last = row.samples.last();
        let resident = |at: usize| size(last.and_then(|sample| sample.rss_bytes[at]));
        [
            row.configuration.to_string(),
            row.samples.len().to_string(),
            spread(row.throughput, |value| format!("{:.0}", value / 1000.0)),
            row.throughput_of_always.map_or("-".into(), |found| format!("{:.3}", found.median)),
            resident(0),
            resident(1),
            resident(2),
            row.rss_end_of_never.map_or("-".into(), |found| format!("{:.3}", found.median)),
            row.outcome(),
        ]
    });
    let header =
        ["configuration", "runs", "k/CPU s", "of always", "filled", "deleted", "end", "of never", "outcome"];
    *text += &table(&header, rows);
    let Some(stalls) = &found.stalls else { return };
    writeln!(
        text,
        "\nrecovery of {} of which {:.1} % is in use, GiB/s: {} (scan {}, split {}); promotion {}",
        Bytes(stalls.bytes),
        100.0 * stalls.filled_share,
        two(stalls.recover_gib_per_second.median),
        two(stalls.scan_gib_per_second.median),
        two(stalls.split_gib_per_second.median),
        two(stalls.promote_gib_per_second.median)
    )
    .ok();
    let milliseconds = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
    let phases =
        [("nothing", &stalls.alone), ("promotion", &stalls.promoting), ("recovery", &stalls.recovering)];
    let rows = phases.into_iter().flat_map(|(what, [probe, twin])| {
        [("probe", probe), ("idle twin", twin)].map(|(who, found)| {
            // What the longest ones waited for: for most of their time, others had the processors; or they were on one.
            let mostly = |of: fn(&Stall) -> u64| {
                let mostly = found.longest.iter().filter(|stall| 2 * of(stall) > stall.ns);
                mostly.count()
            };
            let (processor, running) = (mostly(|stall| stall.processor_ns), mostly(|stall| stall.running_ns));
            let kernel = found.longest.len() - (processor + running).min(found.longest.len());
            [
                what.to_string(),
                who.to_string(),
                found.touches.to_string(),
                milliseconds(found.p50_ns),
                milliseconds(found.p99_ns),
                milliseconds(found.p999_ns),
                milliseconds(found.max_ns),
                format!("{processor}/{running}/{kernel}"),
            ]
        })
    });
    let header =
        ["during", "whose", "touches", "p50 ms", "p99 ms", "p99.9 ms", "longest ms", "for cpu/on it/else"];
    *text += &table(&header, rows);
}

fn fair(found: &Fair, text: &mut String) {
    for trial in &found.trials {
        let (way, bytes) = (trial.way, Bytes(trial.hot_bytes));
        writeln!(text, "{way} of {bytes}: huge pages make it {:.2} times as fast", trial.gain).ok();
    }
    let ways = found.programs.iter().filter(|program| program.sensitive).map(|program| program.way);
    writeln!(
        text,
        "\nseconds until the work is done, the mean of the three that gain ({}) and of the others;\n\
         against thp-never of the same round; medians of the rounds",
        ways.take(1).collect::<String>()
    )
    .ok();
    let helpers = |row: &super::FairRow| {
        let spent = Spread::of(row.samples.iter().map(|sample| sample.helper_seconds));
        spent.map_or("-".into(), |spent| two(spent.median))
    };
    let name = |row: &super::FairRow| format!("{}{}", row.configuration, if row.warmed { "" } else { " ~" });
    let ratio = |of: Option<Spread>| spread(of, |value| format!("{value:.3}"));
    let rows = found.rows.iter().map(|row| {
        let seconds = |of: Option<Spread>| of.map_or("-".into(), |of| format!("{:.2}", of.median));
        [
            name(row),
            row.samples.len().to_string(),
            seconds(row.sensitive_seconds),
            ratio(row.sensitive_ratio),
            seconds(row.insensitive_seconds),
            ratio(row.insensitive_ratio),
            helpers(row),
        ]
    });
    let header = ["configuration", "runs", "gain s", "of never", "others s", "of never", "helpers' CPU s"];
    *text += &table(&header, rows);
    text.push_str("~ without free memory having been touched before\nhuge-before: those that gain are huge before the clock starts, and nobody helps\n\nof each program: seconds until its work is done, and its processor time; medians\n");
    let names = found.programs.iter().map(|program| program.program.replace("sequential", "seq."));
    let header: Vec<String> = std::iter::once("configuration".to_string()).chain(names).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let rows = found.rows.iter().map(|row| {
        let median = |of: &dyn Fn(&super::FairSample) -> f64| {
            Spread::of(row.samples.iter().map(of)).map_or("-".into(), |of| format!("{:.1}", of.median))
        };
        let cell = |at: usize| {
            let finish = median(&|sample| sample.finish_seconds[at]);
            format!("{finish} {}", median(&|sample| sample.cpu_seconds[at]))
        };
        let cells = (0..found.programs.len()).map(cell);
        std::iter::once(name(row)).chain(cells).collect::<Vec<String>>()
    });
    *text += &table(&header, rows);
}

fn cost(found: &Cost, text: &mut String) {
    writeln!(
        text,
        "\n{} in {} processes, with nothing to gain",
        Bytes(found.resident_bytes),
        found.processes
    )
    .ok();
    let percent = |value: f64| format!("{:.2}", 100.0 * value);
    let rows = found.rows.iter().map(|row| {
        [
            row.configuration.to_string(),
            row.starts.to_string(),
            spread(Some(row.own_share), percent),
            format!("{:.0}", row.start_seconds),
            spread(Some(row.start_cpu_seconds), two),
            size(Some(row.became_huge_bytes)),
        ]
    });
    let header = ["policy", "starts", "own % of a processor", "after s", "CPU s by then", "became huge"];
    *text += &table(&header, rows);
    let signed = |value: f64| format!("{:+.2}", 100.0 * value);
    for row in &found.rows {
        for one in &row.slowdowns {
            let slower = spread(Some(one.slowdown), signed);
            writeln!(text, "{}: {} % slower: {}", row.configuration, slower, one.program).ok();
        }
    }
}
