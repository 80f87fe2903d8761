//! What a run finds out about a program is stored, and used at the next start of the same program: *profiles*.
//!
//! A profile holds for one [`Identity`] and is never used for another. Nothing that is wrong with profiles makes a run fail:
//! the report has a sentence about it.

mod findings;
mod identity;
mod store;
mod stored;

pub use crate::profile_report::ProfileReport;
pub use findings::{Blocks, Findings, Mappings};
pub(crate) use identity::digest;
pub use identity::{FileState, Identity};
pub use store::{PROFILES_VARIABLE, Store, directory, verdicts_directory};
pub use stored::Stored;

use crate::report::{Ended, RunReport, Totals};
use megapage_memory::{Hints, Ledger};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// The schema of a profile's file.
pub const SCHEMA: &str = "megapage.profile/1";
/// No profile is longer.
const MOST_BYTES: u64 = 64 << 10;
/// Runs whose cost is stored.
const MOST_RUNS: usize = 8;
/// A program that ends sooner, and without findings, gains nothing by a profile.
const LEAST_MS: u64 = 100;
/// Signals of a program that went wrong: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGKILL (as by the OOM killer), SIGSEGV.
const CRASHES: [i32; 7] = [4, 5, 6, 7, 8, 9, 11];

/// What one run cost, as the launcher saw it. Nothing is decided by it: one run compares with nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// When it ended: seconds since 1970.
    pub ended: u64,
    /// Its exit status; `None` where a signal has ended it.
    pub status: Option<i32>,
    /// Whether an earlier run's findings were used.
    pub told: bool,
    /// Time on the wall.
    pub elapsed_ms: u64,
    /// Processor time in user mode.
    pub user_ms: u64,
    /// And in the kernel.
    pub system_ms: u64,
    /// Page faults without input.
    pub minor_faults: u64,
    /// Page faults that waited for input.
    pub major_faults: u64,
    /// The most resident memory.
    pub peak_rss_bytes: u64,
    /// The share of memory on huge pages when there was most of it; `None` where not measured.
    pub huge_percent: Option<f64>,
}

/// A profile, as in its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    schema: String,
    /// What it holds for.
    pub identity: Identity,
    /// What runs have found out.
    pub findings: Findings,
    /// The last runs, the latest one last.
    pub runs: Vec<Run>,
}

impl Profile {
    /// A profile from the bytes of its file; what is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Profile, String> {
        let profile: Profile =
            serde_json::from_slice(bytes).map_err(|error| format!("it cannot be read: {error}"))?;
        if profile.schema != SCHEMA {
            return Err(format!("its schema is not {SCHEMA}"));
        }
        if profile.runs.len() > MOST_RUNS || !profile.findings.are_sound() {
            return Err("what it says cannot be true".into());
        }
        Ok(profile)
    }

    /// When its last run ended, for a reader.
    pub fn date(&self) -> String {
        date(self.runs.last().map_or(0, |run| run.ended))
    }
}

/// Seconds since 1970 as a date and a time, UTC.
pub fn date(seconds: u64) -> String {
    // Days from 1 March of the year 0, in eras of 400 years (Hinnant, "chrono-compatible low-level date algorithms").
    let days = (seconds / 86_400).min(1 << 32) + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let minutes = seconds / 60 % 1440;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

/// Whose doings a run has seen.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// Those of the program, by its ledger, where it has one.
    One(Option<&'a Ledger>),
    /// Those of several programs in one process, which are not to be distinguished.
    Several,
}

/// What is known of a program before it starts, and where what it shows goes.
#[derive(Debug)]
pub struct Learned {
    place: Option<(Store, Identity, String)>,
    former: Option<Profile>,
    report: ProfileReport,
}

impl Learned {
    /// No profile is read or written, because none is wanted.
    pub fn off() -> Learned {
        Learned::nothing("off", None)
    }

    /// No profile is read or written, for this reason.
    pub fn refused(reason: &str) -> Learned {
        Learned::nothing("not-used", Some(reason.into()))
    }

    fn nothing(state: &'static str, reason: Option<String>) -> Learned {
        let report = ProfileReport {
            state,
            reason,
            from: None,
            known: Vec::new(),
            file: None,
            written: None,
            not_written: None,
        };
        Learned { place: None, former: None, report }
    }

    /// Looks for the profile of a run.
    pub fn look(
        directory: Result<std::path::PathBuf, String>,
        identity: impl FnOnce() -> Result<Identity, String>,
    ) -> Learned {
        let found = directory.and_then(|path| {
            let identity = identity()?;
            let key = identity.key()?;
            Ok((Store::at(path), identity, key))
        });
        let (store, identity, key) = match found {
            Ok(found) => found,
            Err(reason) => return Learned::nothing("not-used", Some(reason)),
        };
        let file = store.file(&key).display().to_string();
        let read = store.read(&key).map_err(|error| error.to_string());
        let profile = read.and_then(|bytes| bytes.map(|bytes| Profile::parse(&bytes)).transpose());
        let mut learned = Learned::nothing("none-yet", None);
        match profile {
            Err(reason) => learned = Learned::nothing("not-used", Some(format!("{file}: {reason}"))),
            Ok(Some(profile)) if profile.identity != identity => {
                let reason = format!("{file}: it is another program's");
                learned = Learned::nothing("not-used", Some(reason));
            }
            Ok(Some(profile)) => {
                learned.report.known = profile.findings.in_words();
                learned.report.from = Some(profile.date());
                let is_told = profile.findings.hints() != Hints::default();
                learned.report.state = if is_told { "used" } else { "nothing-to-use" };
                learned.former = Some(profile);
            }
            Ok(None) => {}
        }
        learned.report.file = Some(file);
        learned.place = Some((store, identity, key));
        learned
    }

    /// The program gets no hints, for this reason; what the run costs is stored all the same.
    pub fn without_hints(&mut self, reason: &str) {
        if self.report.state == "used" {
            (self.report.state, self.report.reason) = ("not-used", Some(reason.into()));
            self.report.known.clear();
        }
    }

    /// The hints that the program gets.
    pub fn hints(&self) -> Hints {
        match &self.former {
            Some(profile) if self.report.state == "used" => profile.findings.hints(),
            _ => Hints::default(),
        }
    }

    /// For the report of a program that runs.
    pub fn report(&self) -> &ProfileReport {
        &self.report
    }

    /// Keeps what a run has found out and cost. Never fails: what went wrong is in the report.
    pub fn finish(&self, run: &RunReport, seen: Seen<'_>) -> ProfileReport {
        let written = match (&self.place, &run.totals) {
            (Some((store, identity, key)), Some(totals)) => {
                self.next(identity, run, totals, seen).and_then(|profile| {
                    let bytes = serde_json::to_vec_pretty(&profile).map_err(|error| error.to_string())?;
                    store.write(key, &bytes).map_err(|error| format!("{}: {error}", store.path().display()))
                })
            }
            _ => Err(String::new()),
        };
        let not_written = written.err().filter(|why| !why.is_empty());
        let is_written = self.place.is_some() && run.totals.is_some() && not_written.is_none();
        ProfileReport { written: Some(is_written), not_written, ..self.report.clone() }
    }

    /// The profile after a run; why there is none.
    fn next(
        &self,
        identity: &Identity,
        run: &RunReport,
        totals: &Totals,
        seen: Seen<'_>,
    ) -> Result<Profile, String> {
        let Seen::One(ledger) = seen else {
            return Err("the process has executed another program".into());
        };
        let told = self.hints() != Hints::default();
        let ledger = ledger.filter(|ledger| ledger.is_plausible());
        let found = ledger.map(Findings::of).unwrap_or_default();
        if found.is_empty() && totals.elapsed_ms < LEAST_MS && self.former.is_none() {
            return Err("the run was short, and showed nothing that helps the next one".into());
        }
        let former = self.former.as_ref();
        let mut findings = former.map(|it| it.findings.clone()).unwrap_or_default();
        findings = match ledger {
            // The hints may be the cause.
            _ if told && matches!(totals.ended, Ended::Signal(number) if CRASHES.contains(&number)) => {
                Findings::default()
            }
            Some(_) => findings.after(found, told),
            None => findings,
        };
        let mut runs = former.map(|it| it.runs.clone()).unwrap_or_default();
        runs.push(cost(run, totals, told));
        runs.drain(..runs.len().saturating_sub(MOST_RUNS));
        Ok(Profile { schema: SCHEMA.into(), identity: identity.clone(), findings, runs })
    }
}

fn cost(run: &RunReport, totals: &Totals, told: bool) -> Run {
    Run {
        ended: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        status: match totals.ended {
            Ended::Status(status) => Some(status),
            Ended::Signal(_) => None,
        },
        told,
        elapsed_ms: totals.elapsed_ms,
        user_ms: totals.user_ms,
        system_ms: totals.system_ms,
        minor_faults: totals.minor_faults,
        major_faults: totals.major_faults,
        peak_rss_bytes: run.peak_rss_bytes.unwrap_or(totals.max_rss_bytes),
        huge_percent: run.peak.as_ref().and_then(|peak| peak.resident.huge_percent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_827_696, "2000-02-29 12:34 UTC"),
            (4_107_542_399, "2100-02-28 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (1_795_472_880, "2026-11-23 22:28 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
        // Of a file that says so no date is synthetic, and nothing overflows.
        assert!(date(u64::MAX).ends_with("UTC"));
    }
}
