//! Findings and verdicts: what is reported.

use crate::catalog::{Kind, Severity};
use megapage_kernel::probe::Answer;
use serde::Serialize;

/// Something that was read or tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Where: a file, a setting, a limit, a trial.
    pub source: String,
    /// What it said.
    pub value: String,
}

/// Something that stands between the user or the program and huge pages, or is good to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Kebab-case and stable.
    pub id: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// One line.
    pub title: &'static str,
    /// What was read or tried, and what it said. Never empty.
    pub evidence: Vec<Evidence>,
    /// What it means.
    pub explanation: &'static str,
    /// Shell commands or lines of a configuration file, any of which helps; in capitals what the reader fills
    /// in. Empty where nothing here can be done about it.
    pub remedy: Vec<String>,
}

impl Finding {
    /// A finding of this kind with its first piece of evidence.
    pub fn new(kind: &'static Kind, source: impl Into<String>, value: impl Into<String>) -> Finding {
        Finding {
            id: kind.id,
            severity: kind.severity,
            title: kind.title,
            evidence: vec![Evidence { source: source.into(), value: value.into() }],
            explanation: kind.explanation,
            remedy: kind.remedies(),
        }
    }

    /// With a further piece of evidence.
    pub fn and(mut self, source: impl Into<String>, value: impl Into<String>) -> Finding {
        self.evidence.push(Evidence { source: source.into(), value: value.into() });
        self
    }

    /// With a placeholder of the remedy filled in.
    pub fn fill(mut self, placeholder: &str, text: &str) -> Finding {
        for line in &mut self.remedy {
            *line = line.replace(placeholder, text);
        }
        self
    }
}

/// How a verdict came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// One page was asked for and this was the kernel's answer.
    Tried,
    /// It follows from what was read.
    Reasoned,
}

/// What comes of asking for huge pages in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Huge pages.
    Works,
    /// The system call fails.
    Fails,
    /// The mapping succeeds and the first write ends the program.
    Kills,
    /// Everything succeeds, and the memory is on base pages.
    BasePages,
}

/// The answer to one question: if this user asks for huge pages in this way, what happens?
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The way, such as `mmap(MAP_HUGETLB) of 2m`.
    pub way: String,
    /// What happens.
    pub outcome: Outcome,
    /// The error number, where a call fails.
    pub errno: Option<i32>,
    /// How this is known.
    pub basis: Basis,
    /// The whole answer as a sentence, with the reason.
    pub sentence: String,
    /// The findings that explain it.
    pub because: Vec<&'static str>,
}

/// The name of an error number, as errno(3) has it; those that asking for huge pages can meet.
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

/// An answer in words: `obtained`, `mmap failed with errno 12 (ENOMEM)`, `killed by SIGBUS`.
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

/// The name of a signal that a trial can die of.
pub fn signal_name(signal: i32) -> String {
    match signal {
        7 => "SIGBUS".into(),
        9 => "SIGKILL".into(),
        31 => "SIGSYS".into(),
        other => format!("signal {other}"),
    }
}
