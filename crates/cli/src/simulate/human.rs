//! The human form of simulations.

use megapage_decide::POLICIES;
use megapage_report::table;
use megapage_simulate::papers::{Papers, Role};
use megapage_simulate::workload::WORKLOADS;
use megapage_simulate::{Comparison, Fate, Run};
use megapage_units::Bytes;

/// The workloads and the policies.
pub fn list() -> String {
    let workloads = WORKLOADS.iter().map(|workload| [workload.name.to_string(), workload.what.to_string()]);
    let policies = POLICIES.iter().map(|known| [known.name.to_string(), known.what.to_string()]);
    table(&["workload", "what"], workloads) + "\n" + &table(&["policy", "what"], policies)
}

/// A table of the runs, and one of the processes where there are several.
pub fn comparison(comparison: &Comparison) -> String {
    let mut out = format!(
        "{}; {} of memory, fragmentation {:.2}{}\n\n",
        comparison.origin,
        Bytes(comparison.memory_bytes),
        comparison.fragmentation,
        if comparison.virtualized { ", virtualised" } else { "" }
    );
    let several = comparison.runs.iter().any(|run| run.processes.len() > 1);
    out += &table(
        &[
            "policy",
            "outcome",
            "total s",
            "faults",
            "walks s",
            "peak GiB",
            "bloat GiB",
            "promoted",
            "split",
            "daemon s",
        ],
        comparison.runs.iter().map(|run| {
            let sum = |value: fn(&megapage_simulate::Account) -> f64| {
                run.processes.iter().map(|process| value(&process.account)).sum::<f64>()
            };
            vec![
                run.policy.clone(),
                outcome(run),
                format!("{:.1}", run.total_seconds()),
                format!("{:.0}", sum(|account| account.faults as f64)),
                format!("{:.1}", sum(|account| account.translation_seconds)),
                gib(run.peak_bytes),
                gib(bloat(run)),
                run.promotions.to_string(),
                run.demotions.to_string(),
                format!("{:.1}", run.daemon_seconds),
            ]
        }),
    );
    out += &against(comparison);
    if several {
        out.push('\n');
        out += &table(
            &["process", "policy", "outcome", "s", "walks s", "huge pages"],
            comparison.runs.iter().flat_map(|run| {
                run.processes.iter().map(|process| {
                    vec![
                        process.name.clone(),
                        run.policy.clone(),
                        fate(process.fate).to_string(),
                        format!("{:.1}", process.seconds(run.seconds)),
                        format!("{:.1}", process.account.translation_seconds),
                        process.last().map_or(0, |point| point.huge_pages).to_string(),
                    ]
                })
            }),
        );
    }
    out
}

/// How our own policy stands against each of the others.
fn against(comparison: &Comparison) -> String {
    let Some(own) = comparison.runs.iter().find(|run| run.policy == "megapage") else { return String::new() };
    let others = comparison.runs.iter().filter(|run| run.policy != own.policy);
    let lines = others.map(|run| {
        if run.is_complete() != own.is_complete() {
            let better = if own.is_complete() { "completes" } else { "does not complete" };
            return format!("megapage {better}, unlike {}\n", run.policy);
        }
        let time = own.total_seconds() / run.total_seconds() - 1.0;
        let peak = own.peak_bytes as f64 / run.peak_bytes.max(1) as f64 - 1.0;
        format!(
            "against {}: {:.2} % {} time, {:.2} % {} memory at the peak\n",
            run.policy,
            time.abs() * 100.0,
            if time <= 0.0 { "less" } else { "MORE" },
            peak.abs() * 100.0,
            if peak <= 0.0 { "less" } else { "more" },
        )
    });
    "\n".to_string() + &lines.collect::<String>()
}

/// The most memory that was resident and held zeros, at one moment, of all processes' moments.
fn bloat(run: &Run) -> u64 {
    let points = run.processes.iter().flat_map(|process| &process.points);
    points.map(|point| point.resident_bytes - point.useful_bytes).max().unwrap_or(0)
}

fn gib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / (1u64 << 30) as f64)
}

fn fate(fate: Fate) -> &'static str {
    match fate {
        Fate::Running => "still runs",
        Fate::Finished { .. } => "done",
        Fate::OutOfMemory { .. } => "OOM",
    }
}

fn outcome(run: &Run) -> String {
    let killed =
        run.processes.iter().filter(|process| matches!(process.fate, Fate::OutOfMemory { .. })).count();
    match (killed, run.is_complete()) {
        (0, true) => "done".to_string(),
        (0, false) => "still runs".to_string(),
        (_, _) if run.processes.len() == 1 => "OOM".to_string(),
        (killed, _) => format!("{killed} OOM"),
    }
}

/// Every value, then the gates.
pub fn papers(papers: &Papers) -> String {
    let mut out = String::new();
    let mut from = 0;
    while from < papers.figures.len() {
        let name = papers.figures[from].table;
        let rows: Vec<_> = papers.figures[from..].iter().take_while(|figure| figure.table == name).collect();
        from += rows.len();
        out += &format!("{name}\n");
        out += &table(
            &["", "", "published", "from", "ours", "deviation", "used"],
            rows.into_iter().map(|figure| {
                [
                    figure.row.clone(),
                    figure.what.to_string(),
                    short(figure.published),
                    figure.source.name().to_string(),
                    short(figure.ours),
                    format!("{:+.1} %", figure.deviation() * 100.0),
                    match figure.role {
                        Role::Fitted => "to fit".to_string(),
                        Role::Tested => "as test".to_string(),
                    },
                ]
            }),
        );
        out.push('\n');
    }
    out += "gates\n";
    out += &table(
        &["", "gate", "wanted", "got"],
        papers.gates.iter().map(|gate| {
            [
                if gate.passed { "pass" } else { "FAIL" }.to_string(),
                gate.name.to_string(),
                gate.wanted.clone(),
                gate.got.clone(),
            ]
        }),
    );
    out.push('\n');
    for what in &papers.left_out {
        out += &format!("not simulated: {what}\n");
    }
    let met = papers.gates.iter().filter(|gate| gate.passed).count();
    out += &format!(
        "{met} of {} gates are met; {:.0} simulated seconds, {:.0} million regions looked at\n",
        papers.gates.len(),
        papers.simulated_seconds,
        papers.region_steps as f64 / 1e6
    );
    out
}

/// Four digits at most.
fn short(value: f64) -> String {
    match value.abs() {
        value_abs if value_abs >= 1e6 => format!("{:.2}M", value / 1e6),
        value_abs if value_abs >= 1e4 => format!("{:.1}K", value / 1e3),
        value_abs if value_abs >= 100.0 => format!("{value:.0}"),
        value_abs if value_abs >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
