//! Findings of the experiments on a live machine, for people.

use super::{Bloat, Cost, Fair, Merging, Promote};
use crate::bench::Spread;
use crate::experiment::Section;
use crate::workload::probe::Stall;
use megapage_units::Bytes;

/// Renders the median, with the ends if they differ.
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

pub(super) fn promote(found: &Promote) -> Vec<Section> {
    let title = format!(
        "{} on base pages, the highest {} in use ({}); huge pages make it {:.2} times as fast",
        Bytes(found.heap_bytes),
        Bytes(found.hot_bytes),
        found.way,
        found.huge_rate.median / found.base_rate.median
    );
    let rows = found.rows.iter().map(|row| {
        let last = row.samples.last();
        let mark = if row.extrapolated { "~" } else { "" };
        let longest = || format!("> {:.0}", found.longest_seconds);
        let [huge, gain] =
            [(row.seconds_to_huge, mark), (row.seconds_to_gain, "")].map(|(time, mark)| match time {
                None if row.samples.is_empty() => "-".into(),
                None => longest(),
                time => format!("{mark}{}", spread(time, two)),
            });
        let cpu = match row.cpu_seconds {
            None => last.map_or("-".into(), |sample| format!("> {:.2}", sample.cpu_seconds)),
            cpu => format!("{mark}{}", spread(cpu, two)),
        };
        [
            row.configuration.to_string(),
            row.samples.len().to_string(),
            huge,
            cpu,
            gain,
            size(last.map(|sample| sample.huge_bytes)),
            size(last.map(|sample| sample.hot_huge_bytes)),
        ]
    });
    let header =
        ["configuration", "runs", "used huge s", "system CPU s", "gain s", "huge then", "of it used"];
    let mark = format!("~ extrapolated from what was collapsed within {:.0} s", found.longest_seconds);
    vec![Section::new(title, &header, rows).then(mark)]
}

pub(super) fn bloat(found: &Bloat) -> Vec<Section> {
    let title = format!(
        "redis: {} values of {} bytes, 80 % deleted, larger ones set; limit {}",
        found.keys,
        found.value_bytes,
        Bytes(found.limit_bytes)
    );
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
    let mut sections = vec![Section::new(title, &header, rows)];
    let Some(stalls) = &found.stalls else { return sections };
    let title = format!(
        "recovery of {} of which {:.1} % is in use, GiB/s: {} (scan {}, split {}); promotion {}",
        Bytes(stalls.bytes),
        100.0 * stalls.filled_share,
        two(stalls.recover_gib_per_second.median),
        two(stalls.scan_gib_per_second.median),
        two(stalls.split_gib_per_second.median),
        two(stalls.promote_gib_per_second.median)
    );
    let milliseconds = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
    let phases =
        [("nothing", &stalls.alone), ("promotion", &stalls.promoting), ("recovery", &stalls.recovering)];
    let rows = phases.into_iter().flat_map(|(what, [probe, twin])| {
        [("probe", probe), ("idle twin", twin)].map(|(who, found)| {
            // The causes of the longest ones: for most of their time, others had the processors, or
            // they were on one.
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
    sections.push(Section::new(title, &header, rows));
    sections.extend(merging(&stalls.merging));
    sections
}

fn merging(found: &Merging) -> Vec<Section> {
    let three = |value: f64| format!("{value:.3}");
    let rows = found.rows.iter().map(|row| {
        let mark = if row.extrapolated { "~" } else { "" };
        let shown = |value, show: fn(f64) -> String| match value {
            None if row.samples.is_empty() => "-".into(),
            None => "not recovered".into(),
            value => format!("{mark}{}", spread(value, show)),
        };
        [
            row.name.to_string(),
            row.samples.len().to_string(),
            spread(row.recovered_bytes, |bytes| Bytes(bytes as u64).to_string()),
            shown(row.seconds, two),
            shown(row.gib_per_second, three),
            shown(row.cpu_seconds, three),
            shown(row.cpu_seconds_per_gib, three),
        ]
    });
    let header = ["by", "runs", "recovered", "seconds", "GiB/s", "CPU s", "CPU s a GiB"];
    let title = "the same program's zeros, until 95 % are recovered, by the daemon's executor and by KSM";
    let mark = "~ extrapolated from the first memory recovered on";
    let mut sections = vec![Section::new(title, &header, rows).then(mark)];
    sections.extend(found.absent.iter().map(|why| Section::text(format!("absent: ksm: {why}"))));
    sections
}

pub(super) fn fair(found: &Fair) -> Vec<Section> {
    let trial = |trial: &super::trial::Trial| {
        let (way, bytes) = (trial.way, Bytes(trial.hot_bytes));
        Section::text(format!("{way} of {bytes}: huge pages make it {:.2} times as fast", trial.gain))
    };
    let mut sections: Vec<Section> = found.trials.iter().map(trial).collect();
    let ways = found.programs.iter().filter(|program| program.sensitive).map(|program| program.way);
    let title = format!(
        "seconds until the work is done, the mean of the three that gain ({}) and of the others; against thp-never of the \
         same round; medians of the rounds",
        ways.take(1).collect::<String>()
    );
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
    sections.push(
        Section::new(title, &header, rows)
            .then("~ without free memory having been touched before")
            .then("huge-before: those that gain are huge before the clock starts, without a helper"),
    );
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
    let title = "of each program: seconds until its work is done, and its processor time; medians";
    sections.push(Section::new(title, &header, rows));
    sections
}

pub(super) fn cost(found: &Cost) -> Vec<Section> {
    let title =
        format!("{} in {} processes, with nothing to gain", Bytes(found.resident_bytes), found.processes);
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
    let mut section = Section::new(title, &header, rows);
    let signed = |value: f64| format!("{:+.2}", 100.0 * value);
    for row in &found.rows {
        for one in &row.slowdowns {
            let slower = spread(Some(one.slowdown), signed);
            section = section.then(format!("{}: {} % slower: {}", row.configuration, slower, one.program));
        }
    }
    vec![section]
}
