//! The JVM: a Java class of the laboratory whose heap is touched, and which starts children through
//! ProcessBuilder.

use super::latency::{Latency, Launches};
use super::{Bench, Fork, note, with_pool};
use crate::bench::Spread;
use crate::child::{Child, Server};
use crate::experiment::add_note;
use crate::install::find;
use anyhow::{Context, Result, ensure};
use megapage_kernel::identity::{Account, account};
use megapage_kernel::smaps::{Mapping, read_smaps};
use megapage_kernel::spawn::Signals;
use megapage_kernel::{KernelRoot, effective_uid};
use megapage_units::Bytes;
use serde::Serialize;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const SOURCE: &str = include_str!("Forks.java");
const PROGRAM: &str = "/bin/true";
const PACKAGE: &str = "openjdk-17-jdk-headless";
/// Longest time of a compilation.
const LONGEST: Duration = Duration::from_secs(120);
/// Launches before those that count: the first loads classes.
const WARM_UP: u64 = 3;
/// The code cache is reserved whole on large pages. 64 MiB hold more than this program compiles.
const CODE_CACHE: Bytes = Bytes::mib(64);
/// Memory that the JVM takes from the pool beyond its heap: the code cache, the card table, and
/// room for its own alignment.
const BEYOND: Bytes = Bytes::mib(160);

/// Kinds of pages of the heap, with the switch for each.
const PAGES: [(&str, &str); 3] = [
    ("normal", "-XX:-UseTransparentHugePages"),
    ("thp", "-XX:+UseTransparentHugePages"),
    ("large", "-XX:+UseLargePages"),
];
/// Values of jdk.lang.Process.launchMechanism. POSIX_SPAWN is the JVM's own choice.
pub(super) const MECHANISMS: [&str; 3] = ["FORK", "VFORK", "POSIX_SPAWN"];
/// A user without privilege.
pub(super) const ORDINARY: &str = "nobody";
pub(super) const ROOT: &str = "root";

/// The JVM's part of the report.
#[derive(Clone, Debug, Serialize)]
pub struct JvmReport {
    /// The first line of 'java -version'.
    pub version: Option<String>,
    /// The reason for which it did not run; `None` if it did.
    pub absent: Option<String>,
    /// Its switches, beside those that a row names.
    pub switches: Vec<String>,
    /// A row for each user, mechanism, heap and kind of pages.
    pub rows: Vec<JvmRow>,
}

/// One user's JVM with one mechanism, one heap and one kind of pages.
#[derive(Clone, Debug, Default, Serialize)]
pub struct JvmRow {
    /// `root`, `nobody`, or `self` if the bench is not root's.
    pub user: &'static str,
    /// The launch mechanism.
    pub mechanism: &'static str,
    /// The heap.
    pub heap_bytes: u64,
    /// The wanted kind of pages: normal, thp, large.
    pub pages: &'static str,
    /// The share of the heap that was resident when children were started: about the same on all
    /// pages.
    pub touched_share: Option<Spread>,
    /// The share of that on 2 MiB pages.
    pub huge_share: Option<Spread>,
    /// From ProcessBuilder.start to the end of waitFor.
    pub launch: Option<Latency>,
    /// Faults. Empty if there were none.
    pub notes: Vec<String>,
}

/// Returns the most that a JVM with this heap takes at once.
pub(super) fn memory(heap: Bytes) -> Bytes {
    heap + BEYOND + Bytes::mib(128)
}

/// Returns the package that is absent.
pub(super) fn lacks() -> Vec<&'static str> {
    if find("javac").is_some() { Vec::new() } else { vec![PACKAGE] }
}

fn switches() -> Vec<String> {
    let mut words: Vec<String> =
        ["-XX:+UseSerialGC", "-XX:NewRatio=7", "-XX:-UsePerfData"].map(String::from).into();
    words.push(format!("-XX:ReservedCodeCacheSize={}", CODE_CACHE.0));
    words
}

fn own_switches(heap: u64, pages: &str, mechanism: &str) -> Vec<String> {
    let switch = PAGES.iter().find(|(name, _)| *name == pages).map_or("", |(_, switch)| switch);
    vec![
        format!("-Xms{heap}"),
        format!("-Xmx{heap}"),
        switch.into(),
        format!("-Djdk.lang.Process.launchMechanism={mechanism}"),
    ]
}

fn pool(heap: u64, pages: &str) -> Bytes {
    if pages == "large" { Bytes(heap) + BEYOND } else { Bytes::ZERO }
}

fn users() -> Vec<(&'static str, Option<Account>)> {
    if effective_uid() != 0 {
        return vec![("self", None)];
    }
    let ordinary = account(ORDINARY).ok().flatten();
    let mut users = vec![(ROOT, None)];
    users.extend(ordinary.map(|account| (ORDINARY, Some(account))));
    users
}

/// Returns the commands as lines.
pub(super) fn lines(options: &Fork) -> Vec<String> {
    let mut lines = vec!["javac Forks.java".to_string()];
    for row in rows(options) {
        let mut words = switches();
        words.extend(own_switches(row.heap_bytes, row.pages, row.mechanism));
        let who = if row.user == ORDINARY { "setpriv --reuid nobody --clear-groups " } else { "" };
        let command = format!("{who}java {} Forks {PROGRAM} {}", words.join(" "), filled(row.heap_bytes));
        lines.extend(with_pool(pool(row.heap_bytes, row.pages), command));
    }
    lines
}

fn rows(options: &Fork) -> Vec<JvmRow> {
    let mut rows = Vec::new();
    for (user, _) in users() {
        for mechanism in MECHANISMS {
            for size in &options.jvm_sizes {
                rows.extend(PAGES.map(|(pages, _)| JvmRow {
                    user,
                    mechanism,
                    heap_bytes: size.0,
                    pages,
                    ..JvmRow::default()
                }));
            }
        }
    }
    rows
}

/// Returns the MiB of the heap that are filled with objects in use: 13/16, which fits into the old
/// generation (7/8).
fn filled(heap: u64) -> String {
    ((heap / 16 * 13) >> 20).to_string()
}

#[derive(Clone, Copy, Debug)]
struct Shares {
    touched: f64,
    huge: f64,
}

/// The JVM, ready to be started.
pub(super) struct Jvm {
    pub(super) report: JvmReport,
    ordinary: Option<Account>,
    /// Launches and shares, in the order of the report's rows.
    found: Vec<(Launches, Vec<Shares>)>,
    /// Directory of the class; `None` if there is no JVM.
    directory: Option<TempDir>,
}

impl Jvm {
    /// Compiles the class. An absent JVM is reported, and has no rows.
    pub(super) fn prepare(options: &Fork) -> Result<Jvm> {
        let mut report = JvmReport { version: None, absent: None, switches: switches(), rows: rows(options) };
        let (Some(java), Some(javac)) = (find("java"), find("javac")) else {
            report.absent = Some(format!("the JVM: apt-get install {PACKAGE} (or --install)"));
            report.rows.clear();
            return Ok(Jvm { report, ordinary: None, found: Vec::new(), directory: None });
        };
        let directory = tempfile::Builder::new().prefix("megapage-bench").tempdir().context("a directory")?;
        // The ordinary user reads the class, too.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).context("a directory")?;
        let source = directory.path().join("Forks.java");
        fs::write(&source, SOURCE).with_context(|| source.display().to_string())?;
        let signals = Signals::take(&[]).context("signals cannot be taken")?;
        let mut command = Command::new(javac);
        command.arg("-d").arg(directory.path()).arg(&source);
        let (_, said) = Child::output(&signals, &mut command, LONGEST)?;
        ensure!(directory.path().join("Forks.class").exists(), "javac: {}", said.trim());
        let (_, said) = Child::output(&signals, Command::new(java).arg("-version"), LONGEST)?;
        report.version = said.lines().next().map(String::from);
        let found = vec![Default::default(); report.rows.len()];
        let ordinary = account(ORDINARY).ok().flatten();
        Ok(Jvm { report, ordinary, found, directory: Some(directory) })
    }

    /// Returns the number of runs of one round.
    pub(super) fn len(&self) -> usize {
        self.report.rows.len()
    }

    /// Runs each once: heap by heap, so that values that are compared are measured close together.
    pub(super) fn round(&mut self, bench: &mut Bench<'_, '_>) -> Result<()> {
        for index in 0..self.report.rows.len() {
            let row = &self.report.rows[index];
            let wanted = pool(row.heap_bytes, row.pages);
            // Pages that cannot be taken back now, because another process uses them, do no harm.
            let why = bench.pool.give(wanted).filter(|_| wanted > Bytes::ZERO);
            let once = self.once(row, bench);
            let what = format!("JVM {} {} {} {}", row.user, row.mechanism, Bytes(row.heap_bytes), row.pages);
            let row = &mut self.report.rows[index];
            if let Some(why) = why {
                add_note(&mut row.notes, why);
            }
            let brief = match note(once, &mut row.notes)? {
                Some((launches, found)) => {
                    let (all, shares) = &mut self.found[index];
                    all.add(&launches);
                    shares.push(found);
                    let median = Spread::of(launches.iter().map(|ns| *ns as f64)).unwrap_or_default().median;
                    format!("{:.2} ms, {:.0} % huge", median / 1e6, 100.0 * found.huge)
                }
                None => row.notes.last().cloned().unwrap_or_default(),
            };
            bench.say(&what, &brief);
        }
        bench.pool.give(Bytes::ZERO);
        Ok(())
    }

    /// Returns the time of each launch, and the shares of the heap.
    fn once(&self, row: &JvmRow, bench: &Bench<'_, '_>) -> Result<(Vec<u64>, Shares)> {
        let directory = self.directory.as_ref().context("no JVM")?;
        let mut command = Command::new(find("java").context("java is gone")?);
        command.args(switches()).args(own_switches(row.heap_bytes, row.pages, row.mechanism));
        command
            .arg("-cp")
            .arg(directory.path())
            .args(["Forks", PROGRAM])
            .arg(filled(row.heap_bytes))
            .current_dir("/");
        if row.user == ORDINARY {
            let account = self.ordinary.as_ref().context("no such user")?;
            command.uid(account.uid).gid(account.gid);
        }
        let mut server = Server::start(bench.stage.signals, &mut command)?;
        let mappings = read_smaps(&KernelRoot::live(), server.pid()).context("the JVM's memory")?;
        // The code cache is executable; of the others the heap is by far the greatest.
        let data = mappings.iter().filter(|one| one.is_heap_like() && !one.permissions.contains('x'));
        let heap = data.map(Mapping::backing).max_by_key(|backed| backed.total().0);
        let heap = heap.filter(|backed| backed.total() > Bytes::ZERO).context("the JVM has no heap")?;
        let shares = Shares {
            touched: heap.total().0 as f64 / row.heap_bytes as f64,
            huge: heap.huge().0 as f64 / heap.total().0 as f64,
        };
        server.ask(WARM_UP)?;
        server.line(bench.stage.signals)?;
        server.ask(bench.launches)?;
        let line = server.line(bench.stage.signals)?;
        let launches: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
        Ok((launches.with_context(|| format!("the JVM said '{line}'"))?, shares))
    }

    pub(super) fn finish(mut self) -> JvmReport {
        for (row, (launches, shares)) in self.report.rows.iter_mut().zip(&self.found) {
            row.launch = launches.latency();
            row.touched_share = Spread::of(shares.iter().map(|shares| shares.touched));
            row.huge_share = Spread::of(shares.iter().map(|shares| shares.huge));
        }
        self.report
    }
}
