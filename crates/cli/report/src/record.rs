//! Summaries of recordings.

use megapage_plan::recording::Header;
use megapage_record::{Summary, Why};
use megapage_units::Bytes;
use serde::Serialize;

/// The document that `--json` prints.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    moments: u64,
    seconds: f64,
    services: usize,
    services_with_cost: usize,
    cpu_seconds: f64,
    cpu_share: f64,
    longest_interval_seconds: f64,
    recording_bytes: u64,
    ended_by: &'static str,
    header: &'a Header,
}

impl<'a> From<&'a Summary> for Document<'a> {
    fn from(summary: &'a Summary) -> Document<'a> {
        Document {
            moments: summary.moments,
            seconds: summary.seconds,
            services: summary.services,
            services_with_cost: summary.judged,
            cpu_seconds: summary.own_seconds,
            cpu_share: share(summary),
            longest_interval_seconds: summary.longest,
            recording_bytes: summary.bytes,
            ended_by: summary.why.name(),
            header: &summary.header,
        }
    }
}

fn share(summary: &Summary) -> f64 {
    if summary.seconds > 0.0 { summary.own_seconds / summary.seconds } else { 0.0 }
}

/// Returns one line about a recording with a budget of `budget` of a processor, 0 to 1.
pub fn brief(summary: &Summary, budget: f64) -> String {
    let over = match share(summary) > budget {
        true => format!(
            ", above the budget of {:.2} %: its start is paid for by a longer recording",
            100.0 * budget
        ),
        false => String::new(),
    };
    format!(
        "{} moments of {} services in {:.0} s ({} with their cost of translation), {}; took {:.2} % of a processor{over}{}",
        summary.moments,
        summary.services,
        summary.seconds,
        summary.judged,
        Bytes(summary.bytes),
        100.0 * share(summary),
        if summary.why == Why::Full {
            "; ended early: the file is as large as --max-size allows"
        } else {
            ""
        },
    )
}
