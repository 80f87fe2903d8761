//! The options of commands that sample access bits.

use megapage_observe::{Options, TrackerKind};
use megapage_units::Bytes;
use std::time::Duration;

/// How access bits are sampled.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct SamplingArgs {
    /// Method to observe memory: bpf, idle-pages or pagemap [default: the best that works]
    #[arg(long, value_name = "NAME", value_parser = tracker)]
    tracker: Option<TrackerKind>,
    /// Do not sample accesses: change nothing in the processes, accessed bits included
    #[arg(long, conflicts_with = "tracker")]
    no_sample: bool,
    /// Limit of a process's slow-down by sampling, in percent of the process's CPU time
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = budget)]
    budget: f64,
}

/// Parses the name of a tracker.
pub fn tracker(text: &str) -> Result<TrackerKind, String> {
    TrackerKind::parse(text.as_bytes())
        .ok_or_else(|| format!("the trackers are {}", TrackerKind::ALL.map(TrackerKind::name).join(", ")))
}

/// Returns a parser of seconds within these bounds, with or without an `s` behind them.
pub fn seconds(
    least: f64,
    most: f64,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text: &str| match text.strip_suffix('s').unwrap_or(text).parse::<f64>() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("give seconds from {least} to {most}")),
    }
}

/// Parses a size with its unit. Refuses a plain number: it would mean bytes, which is hardly ever
/// intended.
pub fn size(text: &str) -> Result<Bytes, String> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(size) if is_plain && size > Bytes::ZERO => {
            Err(format!("'{text}' has no unit; write {text}k, {text}m or {text}g"))
        }
        Ok(size) => Ok(size),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses percent into a share.
pub fn budget(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(budget) if budget > 0.0 && budget <= 100.0 => Ok(budget / 100.0),
        _ => Err("give percent, above 0 and at most 100".into()),
    }
}

impl SamplingArgs {
    /// Returns the options for the observer. `--no-sample` also omits the scan for zeros: it reads
    /// a process's memory, and so sets accessed bits.
    pub fn options(self) -> Options {
        Options {
            tracker: self.tracker,
            sample: !self.no_sample,
            budget: self.budget,
            zero_scan: !self.no_sample,
            ..Options::default()
        }
    }
}
