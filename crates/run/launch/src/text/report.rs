//! The result for each file of the text, by the ledger and the latest sample.

use super::{PlannedFile, TextMechanism, TextPlan};
use crate::backed::Backed;
use crate::request::Text;
use megapage_remap::ledger::{Entry, TextLedger};
use megapage_units::Bytes;
use serde::Serialize;
use std::path::PathBuf;

/// The report of the text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextReport {
    /// `--text`.
    pub asked: Text,
    /// Each file.
    pub files: Vec<TextFileReport>,
    /// Milliseconds that the program waited before `main` for its segments to be moved; `None` if
    /// none were.
    pub moving_ms: Option<f64>,
    /// The part of that time in which the kernel got and zeroed the pages.
    pub pages_ms: Option<f64>,
    /// Threads that the program had by then: with more than one, data is not moved.
    pub threads: Option<u64>,
    /// The kernel's values in the latest sample: the pages that back the text, and the data of the
    /// same files.
    pub end: Option<Backed>,
}

/// The report of one file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextFileReport {
    /// The file.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub file: PathBuf,
    /// The means; `None` if there was none.
    pub mechanism: Option<TextMechanism>,
    /// The reason for that.
    pub reason: String,
    /// Bytes of its segments that huge pages can hold this way.
    pub possible_bytes: u64,
    /// Bytes of them that are on huge pages: primed, or moved.
    pub obtained_bytes: u64,
    /// Bytes of .bss that are advised: the kernel may give them huge pages as they are touched.
    pub advised_bytes: u64,
    /// Bytes of its segments that stay on base pages.
    pub left_bytes: u64,
    /// The linker options that would lay out the remaining bytes for huge pages.
    pub linker: String,
    /// The bytes missing from the possible ones, and the reason.
    pub missing: Option<String>,
}

/// The parts of a report of text.
pub(crate) struct TextPieces<'a> {
    pub plan: &'a TextPlan,
    pub ledger: Option<&'a TextLedger>,
    /// The text in the latest sample.
    pub end: Option<Backed>,
    /// For each entry of the ledger, its bytes on huge pages in that sample. Entries that the
    /// sample did not know yet have none.
    pub huge: &'a [u64],
    /// True if the process runs another program than the one whose text was moved.
    pub replaced: bool,
}

impl TextReport {
    pub(crate) fn of(pieces: TextPieces<'_>) -> TextReport {
        let TextPieces { plan, ledger, end, huge, replaced } = pieces;
        let ledger = ledger.filter(|ledger| ledger.pid() != 0);
        let mut object = 0;
        let files = plan.files.iter().map(|file| {
            let number = object;
            object += usize::from(file.mechanism.is_some_and(|it| it != TextMechanism::File));
            let mut report = file_report(file, number, ledger, huge);
            if replaced && file.mechanism.is_some_and(|it| it != TextMechanism::File) {
                (report.obtained_bytes, report.advised_bytes) = (0, 0);
                report.left_bytes = file.file.bytes();
                report.missing =
                    Some("the program has executed another (exec), whose text is not moved".into());
            }
            report
        });
        let files = files.collect();
        let took = ledger.and_then(|ledger| Some((ledger.took()?, ledger.pages_ns())));
        let ms = |ns: u64| (ns as f64 / 1e4).round() / 100.0;
        TextReport {
            asked: plan.asked,
            files,
            moving_ms: took.map(|((ns, _), _)| ms(ns)),
            pages_ms: took.map(|(_, ns)| ms(ns)),
            threads: took.map(|((_, threads), _)| threads),
            end,
        }
    }

    /// Returns the unmet requests, each in words.
    pub(crate) fn not_obtained(&self) -> Vec<String> {
        let says = |file: &TextFileReport| match (file.mechanism, &file.missing) {
            (None, _) => Some(&file.reason).cloned(),
            (Some(_), missing) => missing.clone(),
        };
        let some = self.files.iter().any(|file| file.mechanism.is_some());
        self.files
            .iter()
            // A file without anything to gain is mentioned only if no file has a mechanism.
            .filter(|file| !(some && file.mechanism.is_none() && file.possible_bytes == 0))
            .filter_map(|file| Some(format!("text of {}: {}", file.file.display(), says(file)?)))
            .collect()
    }
}

fn file_report(
    planned: &PlannedFile,
    object: usize,
    ledger: Option<&TextLedger>,
    huge: &[u64],
) -> TextFileReport {
    let check = &planned.file.check;
    let mut report = TextFileReport {
        file: planned.file.path.clone(),
        mechanism: planned.mechanism,
        reason: planned.reason.clone(),
        possible_bytes: if planned.gains { check.prime_bytes.max(check.anonymous_bytes) } else { 0 },
        obtained_bytes: 0,
        advised_bytes: 0,
        left_bytes: 0,
        linker: format!("{}: {}", check.flags.linker, check.flags.flags),
        missing: None,
    };
    match (planned.mechanism, ledger) {
        (None, _) => {}
        (Some(TextMechanism::File), _) => {
            let (possible, obtained, missing) = planned.primed.clone().unwrap_or_default();
            (report.possible_bytes, report.obtained_bytes, report.missing) = (possible, obtained, missing);
        }
        (Some(_), None) => {
            report.missing = Some("the preloaded library was not loaded, or not let into its ledger".into())
        }
        (Some(_), Some(ledger)) => {
            let entries = ledger.entries();
            let own: Vec<&Entry> = entries.iter().filter(|entry| entry.object == object).collect();
            let sum = |value: fn(&Entry) -> u64| own.iter().map(|entry| value(entry)).sum::<u64>();
            report.possible_bytes = sum(|entry| entry.possible);
            // Takes the library's values from before main, lowered to those of the latest sample.
            let moved = sum(|entry| entry.moved);
            let now = |(number, entry): (usize, &Entry)| {
                huge.get(number).map_or(entry.moved, |huge| entry.moved.min(*huge))
            };
            let of_object = entries.iter().enumerate().filter(|(_, entry)| entry.object == object);
            report.obtained_bytes = of_object.map(now).sum();
            report.advised_bytes = sum(|entry| entry.advised);
            report.missing = if !ledger.is_found(object) {
                Some("it is not among the libraries that the program was started with".into())
            } else if ledger.took().is_none() {
                Some("the program ended while its segments were moved".into())
            } else if own.is_empty() {
                Some("the process's mappings could not be read".into())
            } else if report.possible_bytes == 0 {
                Some("at the addresses that it was given, it holds no whole block of 2 MiB".into())
            } else {
                let lost = moved - report.obtained_bytes;
                let lost = (lost > 0).then(|| {
                    format!("{} of {} that were moved are on base pages by now", Bytes(lost), Bytes(moved))
                });
                own.iter().filter_map(|entry| entry.short()).next().or(lost)
            };
        }
    }
    report.left_bytes =
        planned.file.bytes().saturating_sub(report.obtained_bytes).saturating_sub(report.advised_bytes);
    report
}
