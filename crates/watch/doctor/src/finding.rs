//! Findings and verdicts: the parts of a report.

use crate::catalog::{Kind, Severity};
use megapage_kernel::probe::Answer;
use serde::Serialize;

/// Value that was read or tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Source: a file, a setting, a limit, a trial.
    pub source: String,
    /// Value that the source gave.
    pub value: String,
}

/// Fact that stands between the user or the program and huge pages, or that is good to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Identifier in kebab-case; it is stable.
    pub id: &'static str,
    /// Weight of the finding.
    pub severity: Severity,
    /// Title of one line.
    pub title: &'static str,
    /// Sources that were read or tried, with their values. Never empty.
    pub evidence: Vec<Evidence>,
    /// Meaning.
    pub explanation: &'static str,
    /// Shell commands or lines of a configuration file, any of which helps; capitals stand for
    /// parts that the reader fills in. Empty if there is no remedy here.
    pub remedy: Vec<String>,
}

impl Finding {
    /// Creates a finding of this kind with its first piece of evidence.
    pub fn new(kind: &'static Kind, source: impl Into<String>, value: impl Into<String>) -> Finding {
        Finding {
            id: &kind.id,
            severity: kind.severity,
            title: &kind.title,
            evidence: vec![Evidence { source: source.into(), value: value.into() }],
            explanation: &kind.explanation,
            remedy: kind.remedies(),
        }
    }

    /// Adds a further piece of evidence.
    pub fn and(mut self, source: impl Into<String>, value: impl Into<String>) -> Finding {
        self.evidence.push(Evidence { source: source.into(), value: value.into() });
        self
    }

    /// Fills in a placeholder of the remedy.
    pub fn fill(mut self, placeholder: &str, text: &str) -> Finding {
        for line in &mut self.remedy {
            *line = line.replace(placeholder, text);
        }
        self
    }
}

/// Source of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// The kernel answered a request for one page.
    Tried,
    /// The verdict follows from values that were read.
    Reasoned,
}

/// Outcome of asking for huge pages in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The memory is on huge pages.
    Works,
    /// The system call fails.
    Fails,
    /// The mapping succeeds, and the first write ends the program.
    Kills,
    /// Everything succeeds, and the memory is on base pages.
    BasePages,
}

/// Answer to one question: what happens if this user asks for huge pages in this way?
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Way of asking, such as `mmap(MAP_HUGETLB) of 2m`.
    pub way: String,
    /// Outcome of asking.
    pub outcome: Outcome,
    /// Error number, if a call fails.
    pub errno: Option<i32>,
    /// Source of this verdict.
    pub basis: Basis,
    /// Whole answer as a sentence, with the reason.
    pub sentence: String,
    /// Identifiers of the findings that explain it.
    pub because: Vec<&'static str>,
}

/// Returns the name of an error number, as in errno(3), for those that a request for huge pages can
/// meet.
pub fn errno_name(errno: i32) -> &'static str {
    match errno {
        EPERM => "EPERM",
        2 => "ENOENT",
        ENOMEM => "ENOMEM",
        EACCES => "EACCES",
        16 => "EBUSY",
        17 => "EEXIST",
        EINVAL => "EINVAL",
        ENOSPC => "ENOSPC",
        EROFS => "EROFS",
        ENOSYS => "ENOSYS",
        11 => "EAGAIN",
        _ => "see errno(3)",
    }
}

/// Operation not permitted.
pub const EPERM: i32 = 1;
/// Out of memory: here, mostly of pages in a pool.
pub const ENOMEM: i32 = 12;
/// Permission denied, by a file's owner and mode.
pub const EACCES: i32 = 13;
/// Invalid argument: the kernel does not know the page size or the advice.
pub const EINVAL: i32 = 22;
/// No space left: of shared memory, kernel.shmall.
pub const ENOSPC: i32 = 28;
/// Read-only file system.
pub const EROFS: i32 = 30;
/// No such system call.
pub const ENOSYS: i32 = 38;

/// Returns an answer in words: `obtained`, `mmap failed with errno 12 (ENOMEM)`, `killed by
/// SIGBUS`.
pub fn describe(answer: Answer) -> String {
    match answer {
        Answer::Obtained => "obtained".into(),
        Answer::BasePages => "mapped base pages".into(),
        Answer::Refused { call, errno } => {
            format!("{call} failed with errno {errno} ({})", errno_name(errno))
        }
        Answer::Killed(signal) => format!("killed by {}", signal_name(signal)),
    }
}

/// Returns the name of a signal that can end a trial.
pub fn signal_name(signal: i32) -> String {
    match signal {
        7 => "SIGBUS".into(),
        9 => "SIGKILL".into(),
        31 => "SIGSYS".into(),
        other => format!("signal {other}"),
    }
}
