//! What the user asks of a run.

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
        /// Collapse asked by the launcher, from outside; no code in the process.
        Outside = "outside",
    }
}

megapage_units::named! {
    /// The pages asked for the program's text: its LOAD segments, and those of chosen libraries.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Text {
        /// For each file the way that reaches most of it: its own pages, else transparent huge
        /// pages.
        Auto = "auto",
        /// The file's own pages in the page cache, in huge folios. Nothing is moved, and all
        /// processes share them.
        File = "file",
        /// Private transparent huge pages, which the segments are moved onto before `main`.
        Thp = "thp",
        /// The same with hugetlb pages of 2 MiB for what is never written.
        #[serde(rename = "2m")]
        Huge2M = "2m",
        /// The same with hugetlb pages of 1 GiB for the whole GiB of a segment.
        #[serde(rename = "1g")]
        Huge1G = "1g",
        /// Nothing is asked.
        #[default]
        None = "none",
    }
}

impl Text {
    /// Whether hugetlb pages are asked for.
    pub const fn is_hugetlb(self) -> bool {
        matches!(self, Text::Huge2M | Text::Huge1G)
    }
}

megapage_units::named! {
    /// What becomes of the transparent huge pages of the program and its children.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum OwnThp {
        /// What the machine's settings say.
        #[default]
        Settings = "settings",
        /// None (PR_SET_THP_DISABLE).
        Never = "never",
        /// Only where the program, or the preloaded library, asks for them (Linux 6.18).
        Advised = "advised",
    }
}

/// What is asked for the text of a run.
#[derive(Clone, Debug, Default)]
pub struct TextRequest {
    /// The pages.
    pub kind: Text,
    /// Libraries besides the program: paths, or the names of libraries that it is started with.
    pub libraries: Vec<String>,
    /// Write a map of the moved functions for profilers, until the program ends.
    pub map: bool,
}

/// How long the heap keeps memory that the program has freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReturnAfter {
    /// Releases it after this time.
    After(Duration),
    /// Keeps it.
    Never,
}

/// The longest delay that is taken for meant: a day.
const LONGEST_RETURN: Duration = Duration::from_secs(24 * 3600);

impl ReturnAfter {
    /// As the preloaded library's variable wants it: milliseconds, or `never`.
    pub fn variable(self) -> String {
        match self {
            ReturnAfter::After(delay) => delay.as_millis().to_string(),
            ReturnAfter::Never => "never".into(),
        }
    }
}

impl Default for ReturnAfter {
    /// One second.
    fn default() -> ReturnAfter {
        ReturnAfter::After(Duration::from_secs(1))
    }
}

/// Reads `0s`, `500ms`, `1.5s`, `2m` or `2min` (minutes, as systemd.time(7) has them), `1h`, `never`.
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

/// A run, as asked for.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The program, as execvp(3) takes it.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// What it sees as its own name; `None`: `program`.
    pub argv0: Option<OsString>,
    /// Its transparent huge pages, set before it starts.
    pub thp: OwnThp,
    /// The backing asked for.
    pub heap: Heap,
    /// The mechanism asked for; `None` leaves the choice to megapage.
    pub mechanism: Option<Mechanism>,
    /// The socket of a broker of pre-zeroed pages, from which the heap takes first.
    pub pool: Option<PathBuf>,
    /// The backing asked for its shared memory.
    pub shm: Shm,
    /// What is asked for the program's text.
    pub text: TextRequest,
    /// Fail unless what was asked is obtained.
    pub require: bool,
    /// How long freed memory is cached, where the mechanism has such an option.
    pub return_after: ReturnAfter,
    /// Leave the mechanism in place for the program's children.
    pub children: bool,
    /// What the program forks for.
    pub fork: Fork,
    /// Whether a report will be made at the end: only then is the program sampled.
    pub watched: bool,
    /// The program is a script that starts a JVM: its switches go through a variable.
    pub jvm: bool,
    /// Follow what a trial has found about the program (`megapage trial`).
    pub heed_verdict: bool,
}

impl Request {
    /// A run of `program` with nothing but defaults, without a report at the end, and of which nothing is stored.
    pub fn plain(program: impl Into<OsString>) -> Request {
        Request { program: program.into(), ..Request::default() }
    }

    /// Returns true if an inherited PR_SET_THP_DISABLE stands in the way of what is asked.
    pub fn clears_thp(&self) -> bool {
        self.thp == OwnThp::Settings && (self.heap != Heap::None || self.text.kind != Text::None)
    }
}

/// What has a name as that, in reports.
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
