//! The user's request for a run.

pub use megapage_memory::shared::Shm;
pub use megapage_memory::{Fork, Heap};
use serde::{Serialize, Serializer};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

megapage_units::named! {
    /// A way to bring a program onto huge pages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Mechanism {
        /// The language runtime's own switch.
        Runtime = "runtime",
        /// libmegapage.so, preloaded, provides malloc.
        Preload = "preload",
        /// glibc's tunable `glibc.malloc.hugetlb`.
        Tunable = "tunable",
        /// Collapse by the launcher, from outside; no code in the process.
        Outside = "outside",
    }
}

megapage_units::named! {
    /// The pages requested for the program's text: its LOAD segments, and those of chosen
    /// libraries.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Text {
        /// For each file the way that reaches most of it: its own pages, else transparent huge
        /// pages.
        Auto = "auto",
        /// The file's own pages in the page cache, in huge folios. Nothing is moved, and all
        /// processes share them.
        File = "file",
        /// Private transparent huge pages: the segments are moved onto them before `main`.
        Thp = "thp",
        /// As `Thp`, but with hugetlb pages of 2 MiB for read-only segments.
        #[serde(rename = "2m")]
        Huge2M = "2m",
        /// As `Huge2M`, but with hugetlb pages of 1 GiB for the whole GiB of a segment.
        #[serde(rename = "1g")]
        Huge1G = "1g",
        /// No request.
        #[default]
        None = "none",
    }
}

impl Text {
    /// Returns true if hugetlb pages are requested.
    pub const fn is_hugetlb(self) -> bool {
        matches!(self, Text::Huge2M | Text::Huge1G)
    }
}

megapage_units::named! {
    /// Settings for the transparent huge pages of the program and its children.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum OwnThp {
        /// The machine's settings.
        #[default]
        Settings = "settings",
        /// None (PR_SET_THP_DISABLE).
        Never = "never",
        /// Only memory for which the program, or the preloaded library, asks (Linux 6.18).
        Advised = "advised",
    }
}

/// The request for the text of a run.
#[derive(Clone, Debug, Default)]
pub struct TextRequest {
    /// The pages.
    pub kind: Text,
    /// Libraries beside the program: paths, or names of libraries that the program is started with.
    pub libraries: Vec<String>,
}

/// Time for which the heap keeps memory that the program has freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReturnAfter {
    /// Release after this time.
    After(Duration),
    /// No release.
    Never,
}

/// The longest delay that is accepted: a day.
const LONGEST_RETURN: Duration = Duration::from_secs(24 * 3600);

impl ReturnAfter {
    /// Returns the value for the preloaded library's variable: milliseconds, or `never`.
    pub fn variable(self) -> String {
        match self {
            ReturnAfter::After(delay) => delay.as_millis().to_string(),
            ReturnAfter::Never => "never".into(),
        }
    }
}

impl Default for ReturnAfter {
    /// Returns one second.
    fn default() -> ReturnAfter {
        ReturnAfter::After(Duration::from_secs(1))
    }
}

/// Reads `0s`, `500ms`, `1.5s`, `2m` or `2min` (minutes, as in systemd.time(7)), `1h`, or `never`.
impl FromStr for ReturnAfter {
    type Err = String;

    fn from_str(text: &str) -> Result<ReturnAfter, String> {
        if text == "never" {
            return Ok(ReturnAfter::Never);
        }
        let help = || format!("'{text}' is not a time; write it like 500ms, 1s, 2m or never");
        let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(help)?;
        let (value, unit) = text.split_at(split);
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(help()),
        };
        let value: f64 = value.parse().map_err(|_| help())?;
        Duration::try_from_secs_f64(value * seconds)
            .ok()
            .filter(|delay| *delay <= LONGEST_RETURN)
            .map(ReturnAfter::After)
            .ok_or_else(|| format!("'{text}' is more than a day; write never to keep freed memory for good"))
    }
}

/// A requested run.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The program, as execvp(3) takes it.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its `argv[0]`; `None`: `program`.
    pub argv0: Option<OsString>,
    /// Its transparent huge pages; set before it starts.
    pub thp: OwnThp,
    /// The requested backing.
    pub heap: Heap,
    /// The requested mechanism; `None`: megapage chooses.
    pub mechanism: Option<Mechanism>,
    /// The socket of a broker of pre-zeroed pages. The heap takes pages from it first.
    pub pool: Option<PathBuf>,
    /// The requested backing of its shared memory.
    pub shm: Shm,
    /// The request for its text.
    pub text: TextRequest,
    /// True to fail unless all requests are met.
    pub require: bool,
    /// Time for which freed memory is cached, if the mechanism has such an option.
    pub return_after: ReturnAfter,
    /// True to leave the mechanism in place for the program's children.
    pub children: bool,
    /// The purpose of the program's forks.
    pub fork: Fork,
    /// True if a report is made at the end: only then is the program sampled.
    pub watched: bool,
    /// True if the program is a script that starts a JVM: the JVM's switches go through a variable.
    pub jvm: bool,
    /// True to follow the result of a trial of the program (`megapage trial`).
    pub heed_verdict: bool,
}

impl Request {
    /// Returns a run of `program` with defaults only, without a report, and without stored results.
    pub fn plain(program: impl Into<OsString>) -> Request {
        Request { program: program.into(), ..Request::default() }
    }

    /// Returns true if an inherited PR_SET_THP_DISABLE would prevent what is requested.
    pub fn clears_thp(&self) -> bool {
        self.thp == OwnThp::Settings && (self.heap != Heap::None || self.text.kind != Text::None)
    }
}

/// Serialises a value by its name, for reports.
pub(crate) fn name<T: fmt::Display, S: Serializer>(named: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let after = |ms| Ok(ReturnAfter::After(Duration::from_millis(ms)));
        assert_eq!("500ms".parse(), after(500));
        assert_eq!("1.5s".parse(), after(1500));
        assert_eq!("2min".parse(), after(120_000));
        assert_eq!("2m".parse(), after(120_000));
        assert_eq!("0s".parse(), after(0));
        assert_eq!("24h".parse(), after(86_400_000));
        assert_eq!("never".parse(), Ok(ReturnAfter::Never));
        for bad in ["", "1", "s", "-1s", "1M", "1 s", "soon", "1.2.3s"] {
            assert!(bad.parse::<ReturnAfter>().unwrap_err().contains("is not a time"), "{bad}");
        }
        for absurd in ["25h", "99999999999999999999s"] {
            assert!(absurd.parse::<ReturnAfter>().unwrap_err().contains("more than a day"), "{absurd}");
        }
    }
}
