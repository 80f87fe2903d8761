//! The address space of a process as a picture: the heat of each part, beside its backing.

mod layout;
mod text;

pub use layout::Totals;
pub use text::text;

use megapage_snapshot::{Missed, Process, ProcessSampling, Sampling, Snapshot, wire};
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use std::time::Duration;

/// Schema of [`Map`] as JSON.
pub const SCHEMA: &str = "megapage.map/1";

/// Subject of a map: one process of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Map<'a> {
    /// Time of the snapshot, since boot.
    #[serde(serialize_with = "wire::seconds", rename = "taken_seconds")]
    pub taken: Duration,
    /// Method of sampling access bits on this machine; `None` if they are not sampled.
    pub sampling: Option<&'a Sampling>,
    /// Reason why access bits could not be sampled, if that was tried and refused.
    pub missed: Option<&'a Missed>,
    /// Age of the oldest sample that a region shows.
    pub oldest_sample_seconds: Option<f64>,
    /// Share of the present memory, 0 to 1, in regions that were sampled.
    pub sampled_share: f64,
    /// Sums over the regions.
    pub totals: Totals,
    /// The process, with its mappings and regions.
    pub process: &'a Process,
}

impl<'a> Map<'a> {
    /// Returns the map of `pid`; `None` if the snapshot does not hold it.
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

    /// Returns a sentence on present memory and its pages, and on the cost of translation if that
    /// is known.
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

    /// Returns a sentence on the share of memory that samples cover, and on their age.
    fn reach(&self) -> String {
        let oldest = match self.oldest_sample_seconds {
            Some(seconds) => format!("; the oldest is {} old", crate::value::time(seconds)),
            None => String::new(),
        };
        format!("Samples are of {} % of what is present{oldest}.", crate::value::percent(self.sampled_share))
    }

    /// Returns how the bits were sampled, in a sentence or two; or that they were not.
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
        // One decimal place, in milliseconds: a sample of huge pages takes some microseconds.
        (own.cost.as_secs_f64() * 1e4).round() / 10.0,
        crate::value::percent(own.slowdown),
    )
}

/// Returns a share of two byte counts as `41 %`; a dash if the whole is zero.
fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{} %", crate::value::percent(part as f64 / whole as f64)) }
}
