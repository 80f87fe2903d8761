//! The address space of a process as a picture: how hot each part is, beside what backs it.

mod layout;
mod text;

pub use layout::Totals;
pub use text::text;
pub(crate) use text::{COLD, HEAT};

use megapage_snapshot::{Missed, Process, ProcessSampling, Sampling, Snapshot, wire};
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use std::time::Duration;

/// The schema of [`Map`] as JSON.
pub const SCHEMA: &str = "megapage.map/1";

/// What a map shows: one process of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Map<'a> {
    /// When the snapshot was taken, since boot.
    #[serde(serialize_with = "wire::seconds", rename = "taken_seconds")]
    pub taken: Duration,
    /// How access bits are sampled on this machine; `None` where they are not.
    pub sampling: Option<&'a Sampling>,
    /// Why access bits could not be sampled, where that was tried and refused.
    pub missed: Option<&'a Missed>,
    /// Since the oldest sample was read that a region shows.
    pub oldest_sample_seconds: Option<f64>,
    /// The share of the present memory, 0 to 1, in regions that were sampled.
    pub sampled_share: f64,
    /// Sums over the regions.
    pub totals: Totals,
    /// The process, with its mappings and regions.
    pub process: &'a Process,
}

impl<'a> Map<'a> {
    /// The map of `pid`; `None` where the snapshot does not hold it.
    pub fn new(snapshot: &'a Snapshot, pid: Pid) -> Option<Map<'a>> {
        let process = snapshot.process(pid)?;
        Some(Map {
            taken: snapshot.taken,
            sampling: snapshot.sampling.as_ref(),
            missed: snapshot.missed.iter().find(|missed| missed.pid == pid),
            oldest_sample_seconds: process
                .oldest_sample()
                .map(|oldest| snapshot.taken.saturating_sub(oldest).as_secs_f64()),
            sampled_share: process.sampled_share(),
            totals: layout::Content::of_all(process).totals(),
            process,
        })
    }

    /// How much is present, on which pages, and what translation costs where that is known.
    fn headline(&self) -> String {
        let totals = &self.totals;
        let huge = share(totals.huge_bytes, totals.present_bytes);
        let mut text =
            format!("{} present, {huge} of it on pages of 2 MiB or more", Bytes(totals.present_bytes));
        if self.process.swap > Bytes::ZERO {
            text += &format!(", {} swapped out", self.process.swap);
        }
        if let Some(cost) = &self.process.translation {
            let [share, low, high] = [cost.share, cost.low, cost.high].map(crate::value::percent);
            let source = cost.source.name();
            text += &format!("; address translation takes {share} % ({source}; {low} to {high} %)");
        }
        text + "."
    }

    /// How much the samples are of, and how old they are.
    fn reach(&self) -> String {
        let oldest = match self.oldest_sample_seconds {
            Some(seconds) => format!("; the oldest is {} old", crate::value::time(seconds)),
            None => String::new(),
        };
        format!("Samples are of {} % of what is present{oldest}.", crate::value::percent(self.sampled_share))
    }

    /// How the bits were sampled, in a sentence or two; or that they were not.
    fn provenance(&self) -> String {
        match (self.sampling, &self.process.sampling) {
            (Some(sampling), Some(own)) => format!("{} {}", sampled(sampling, own), self.reach()),
            (Some(_), None) if self.missed.is_some() => {
                format!("Not sampled: {}.", self.missed.map_or("", |missed| &missed.what))
            }
            (Some(sampling), None) if !sampling.tracker.tells_accesses() => {
                format!("Not sampled: {}. How hot it is, is not known.", crate::tells_use_alone(sampling))
            }
            (Some(sampling), None) => format!(
                "Not sampled: the {} tracker has read nothing of this process yet. How hot it is, is not known.",
                sampling.tracker.name()
            ),
            (None, _) => "Not sampled: how hot its memory is, is not known.".into(),
        }
    }
}

fn sampled(sampling: &Sampling, own: &ProcessSampling) -> String {
    let ranges = match own.ranges {
        1 => "1 range".to_string(),
        many => format!("{many} ranges"),
    };
    format!(
        "Sampled by the {} tracker: bits cleared, read {:.2} s later; looked at {ranges}, {}; took {} ms of the \
         process's time, {} % of what it had meanwhile.",
        sampling.tracker.name(),
        own.window.as_secs_f64(),
        own.bytes,
        // Tenths below 10 ms: a sample of huge pages takes some microseconds.
        (own.cost.as_secs_f64() * 1e4).round() / 10.0,
        crate::value::percent(own.slowdown),
    )
}

/// A share of two byte counts as `41 %`; a dash where there is nothing to take a share of.
fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{} %", crate::value::percent(part as f64 / whole as f64)) }
}
