//! Simulations as text for people.

use megapage_decide::POLICIES;
use megapage_report::table;
use megapage_simulate::curve::Curves;
use megapage_simulate::workload::WORKLOADS;
use megapage_simulate::{Comparison, Fate, HostPages, Run};
use megapage_units::Bytes;

/// Renders the workloads and the policies.
pub fn list() -> String {
    let workloads = WORKLOADS.iter().map(|workload| [workload.name.to_string(), workload.what.to_string()]);
    let policies = POLICIES.iter().map(|known| [known.name.to_string(), known.what.to_string()]);
    table(&["workload", "what"], workloads) + "\n" + &table(&["policy", "what"], policies)
}

/// Renders a table of the runs, and one of the processes if there are several.
pub fn comparison(comparison: &Comparison) -> String {
    let mut out = format!(
        "{}; {} of memory, fragmentation {:.2}{}\n\n",
        comparison.scene.origin,
        Bytes(comparison.scene.memory_bytes),
        comparison.scene.fragmentation,
        place(comparison.scene.host_pages)
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
    out.push('\n');
    out += &table(
        &["policy", "walks saved s", "% of base time", "made huge", "us saved each"],
        comparison.runs.iter().map(|run| {
            vec![
                run.policy.clone(),
                format!("{:.1}", run.saved_seconds),
                format!("{:.2}", run.gain_percent()),
                run.made_huge.to_string(),
                run.saved_ns_per_promotion.map_or("-".to_string(), |each| format!("{:.0}", each / 1e3)),
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

/// Describes the place of the programs, if not the machine itself.
fn place(host: Option<HostPages>) -> &'static str {
    match host {
        None => "",
        Some(HostPages::Same) => ", virtualised",
        Some(HostPages::Base) => ", virtualised on base pages of the host",
        Some(HostPages::Huge) => ", virtualised on huge pages of the host",
    }
}

/// Renders a column for each policy, a line for each budget.
pub fn curves(found: &Curves) -> String {
    let mut out = format!(
        "{}; {} of memory, fragmentation {:.2}{}\n{} in use; gain: translation time saved, in % of the time on base pages\n\n",
        found.scene.origin,
        Bytes(found.scene.memory_bytes),
        found.scene.fragmentation,
        place(found.scene.host_pages),
        Bytes(found.footprint_regions << 21),
    );
    let names = found.curves.iter().map(|curve| curve.policy.as_str());
    let head: Vec<&str> = ["budget %", "regions"].into_iter().chain(names).collect();
    let first = found.curves.first().map_or(&[][..], |curve| &curve.points);
    out += &table(
        &head,
        first.iter().enumerate().map(|(at, point)| {
            let gains = found.curves.iter().filter_map(|curve| curve.points.get(at));
            let gains = gains.map(|point| {
                // A run that was out of memory did not do the same work.
                let mark = if point.complete { "" } else { "*" };
                format!("{:.2}{mark}", point.gain_percent)
            });
            let budget = [format!("{}", point.budget_percent), point.budget_regions.to_string()];
            budget.into_iter().chain(gains).collect::<Vec<_>>()
        }),
    );
    if found.curves.iter().flat_map(|curve| &curve.points).any(|point| !point.complete) {
        out += "* not all programs finished\n";
    }
    out
}

/// Compares our own policy with each of the others.
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

/// Returns the most memory that was resident and held zeros, at one moment, of all processes'
/// moments.
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
