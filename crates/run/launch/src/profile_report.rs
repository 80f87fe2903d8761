//! What became of profiles in a run.

use serde::Serialize;

/// What became of profiles in a run, for its report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProfileReport {
    /// `off`, `none-yet`, `used`, `nothing-to-use` (the earlier runs have found nothing that helps) or `not-used`.
    pub state: &'static str,
    /// Why it is not used.
    pub reason: Option<String>,
    /// When the last run that it is from ended.
    pub from: Option<String>,
    /// What the program was started with, in words.
    pub known: Vec<String>,
    /// The profile's file.
    pub file: Option<String>,
    /// Whether it was written at the end; `None` while the program runs.
    pub written: Option<bool>,
    /// Why it was not.
    pub not_written: Option<String>,
}

impl ProfileReport {
    /// The same in one line.
    pub fn in_words(&self) -> String {
        let reason = self.reason.as_deref().unwrap_or_default();
        let from = self.from.as_deref().unwrap_or_default();
        let mut words = match self.state {
            "off" => "off (--no-profile)".to_string(),
            "none-yet" => "none yet".into(),
            "used" => format!("used, from {from}: {}", self.known.join(", ")),
            "nothing-to-use" => format!("nothing to use, from {from}"),
            _ => format!("not used: {reason}"),
        };
        match (self.written, &self.not_written) {
            (Some(true), _) => words.push_str("; written"),
            (_, Some(why)) => words.push_str(&format!("; not written: {why}")),
            _ => {}
        }
        words
    }
}
