//! The human form of a plan.

use crate::table;
use crate::text::{cells, or_dash, paragraph};
use megapage_plan::{HostPlan, Plan, ServicePlan};
use megapage_units::Bytes;

/// Most rows of a table; the JSON has all.
const MOST_ROWS: usize = 30;

/// Returns the human form: services that gain, services that do not, hosts, and the summary.
pub fn plan(plan: &Plan) -> String {
    let percent = format!("p{}", plan.quantile * 100.0);
    let mut out = paragraph(&format!(
        "{} hosts, {} recorded in all, policy {}",
        plan.recorded_hosts,
        duration(plan.recorded_seconds),
        plan.policy
    ));
    let (gain, none): (Vec<&ServicePlan>, Vec<&ServicePlan>) =
        plan.services.iter().partition(|service| service.verdict.is_for());
    if !gain.is_empty() {
        let at_risk = format!("at risk, {percent}");
        out.push('\n');
        out += &table(
            &["service", "hosts", "CPU s/day", "gain", "saved s/day", &at_risk, "verdict", "means"],
            gain.iter().take(MOST_ROWS).map(|service| {
                cells![
                    name(service),
                    service.hosts,
                    format!("{:.0}", service.cpu_seconds_per_day),
                    gain_of(service),
                    format!("{:.0}", service.saved_cpu_seconds_per_day.likely),
                    Bytes(service.memory_at_risk_bytes),
                    service.verdict.name(),
                    or_dash(service.means.map(|means| means.name())),
                ]
            }),
        );
        out += &more(gain.len(), "services");
    }
    if !none.is_empty() {
        out.push('\n');
        out += &table(
            &["gains nothing", "CPU s/day", "gain", "why"],
            none.iter().take(MOST_ROWS).map(|service| {
                let cpu = format!("{:.0}", service.cpu_seconds_per_day);
                cells![name(service), cpu, gain_of(service), service.why]
            }),
        );
        out += &more(none.len(), "services");
    }
    out.push('\n');
    let mut hosts: Vec<&HostPlan> = plan.hosts.iter().collect();
    hosts.sort_by(|one, other| other.pool_share.total_cmp(&one.pool_share).then(one.host.cmp(&other.host)));
    let needed = format!("2 MiB pages, {percent}");
    out += &table(
        &["host", "memory", "recorded", &needed, "pool 2 MiB", "pool 1 GiB", "of memory", "at risk"],
        hosts.iter().take(MOST_ROWS).map(|host| {
            cells![
                host.host,
                Bytes(host.memory_bytes),
                duration(host.seconds),
                host.huge_pages,
                host.pool_2m_pages,
                host.pool_1g_pages,
                format!("{:.1} %", 100.0 * host.pool_share),
                Bytes(host.memory_at_risk_bytes),
            ]
        }),
    );
    out += &more(hosts.len(), "hosts");
    if !plan.notes.is_empty() {
        out.push('\n');
        plan.notes.iter().for_each(|note| out += &paragraph(&format!("note: {note}")));
    }
    out.push('\n');
    out += &paragraph(&plan.sentence);
    out
}

/// Returns the service's hash, and its application if known.
fn name(service: &ServicePlan) -> String {
    match &service.app {
        Some(app) if *app != service.service => format!("{} ({app})", service.service),
        _ => service.service.clone(),
    }
}

fn gain_of(service: &ServicePlan) -> String {
    or_dash(service.gain.map(|gain| format!("{:.2} ({:.2}-{:.2})", gain.likely, gain.low, gain.high)))
}

fn more(count: usize, what: &str) -> String {
    match count.saturating_sub(MOST_ROWS) {
        0 => String::new(),
        left => format!("and {left} more {what}: --json has all\n"),
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 600.0 => format!("{seconds:.0} s"),
        seconds if seconds < 36_000.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}
