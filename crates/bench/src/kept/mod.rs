//! `megapage bench restart|malloc`: memory that outlives its program, against DPDK's, which is where it comes from.
//!
//! Architecture invariant: both sides have the same pages, the same sizes and modes and a hugetlbfs of their own, which
//! is unmounted at the end, after a failure and after a signal; what they leave in it is removed between runs.

mod dpdk;
mod malloc;
mod place;
mod process;
mod restart;
mod table;

use crate::child::{check, stop_signals};
use crate::run::{Gate, Head, Place, Pool, must_fit};
use anyhow::{Result, bail, ensure};
use megapage_kernel::effective_uid;
use megapage_kernel::spawn::Signals;
use megapage_units::Bytes;
use place::Mounted;
use serde::Serialize;

pub use malloc::{Cost, Malloc, MallocRow};
pub use restart::{IndexReport, Restart, StartRow};
pub use table::human;

/// Pages beyond what is asked for, for what a side keeps for itself.
const SLACK: Bytes = Bytes::mib(128);

/// One of the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bench {
    /// How long a program takes to start with this much memory, and an index to answer again.
    Restart {
        /// `starts`, `index`; all where none is named.
        cases: Vec<String>,
        /// Memory of a program that starts.
        size: Bytes,
        /// Postings of the index.
        index: Bytes,
    },
    /// What allocating and freeing costs, by size.
    Malloc {
        /// Memory to allocate from.
        size: Bytes,
    },
}

impl Bench {
    /// As on the command line.
    pub const fn name(&self) -> &'static str {
        match self {
            Bench::Restart { .. } => "restart",
            Bench::Malloc { .. } => "malloc",
        }
    }

    /// Hugetlb pages that it needs, in bytes.
    fn pool(&self) -> Bytes {
        match self {
            Bench::Restart { cases, size, index } => {
                let asked = |case: &str, size: Bytes| if is_asked(cases, case) { size } else { Bytes::ZERO };
                asked("starts", *size).max(asked("index", *index))
            }
            Bench::Malloc { size } => *size,
        }
    }

    /// Memory that it needs besides.
    fn memory(&self) -> Bytes {
        match self {
            // The index once more on the heap, to compare its answers, and two threads' counts: 2 GB each from 1 GiB of
            // postings on, and in proportion below.
            Bench::Restart { cases, index, .. } if is_asked(cases, "index") => {
                *index + Bytes(4 * index.0.min(Bytes::gib(1).0)) + Bytes::mib(512)
            }
            _ => Bytes::mib(256),
        }
    }
}

fn is_asked(cases: &[String], case: &str) -> bool {
    cases.is_empty() || cases.iter().any(|name| name == case)
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which bench.
    pub bench: Bench,
    /// Rounds that medians are taken of, 1 to 100. One that does not count goes before them.
    pub runs: u32,
    /// Install DPDK's test program where it is absent (apt-get).
    pub install: bool,
    /// Leave DPDK out.
    pub alone: bool,
}

/// A whole bench: `megapage.bench/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What every report begins with.
    #[serde(flatten)]
    pub head: Head,
    /// Rounds that count.
    pub runs: u32,
    /// DPDK's version; `None` where it did not run: it is absent, or was not asked for.
    pub dpdk: Option<String>,
    /// What was found, of the bench that ran.
    #[serde(flatten)]
    pub found: Found,
    /// What is demanded, and whether it holds.
    pub gates: Vec<Gate>,
}

/// What a bench found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Found {
    /// `restart`.
    Restart(Restart),
    /// `malloc`.
    Malloc(Malloc),
}

impl Report {
    /// Whether every gate holds, and DPDK ran.
    pub fn is_clean(&self) -> bool {
        self.dpdk.is_some() && self.gates.iter().all(|gate| gate.holds)
    }
}

/// What a bench works with.
struct Stage<'a> {
    runs: u32,
    place: &'a Place,
    signals: &'a Signals,
    mounted: Mounted,
    dpdk: Option<dpdk::Dpdk>,
    progress: &'a mut dyn FnMut(&str),
}

/// What would be done to the machine, as shell lines: `--dry-run`.
pub fn dry_run(options: &Options) -> Vec<String> {
    let pages = (options.bench.pool() + SLACK).0.div_ceil(2 << 20);
    vec![
        format!("megapage pool set 2m=+{pages}"),
        "point=$(mktemp -d)".into(),
        "mount -t hugetlbfs -o pagesize=2097152,mode=1777 none \"$point\"".into(),
        "# both sides are run on it by turns; then:".into(),
        "umount \"$point\"; rmdir \"$point\"".into(),
        format!("megapage pool set 2m=-{pages}"),
    ]
}

/// Runs the bench. `progress` is given a line for each run.
pub fn run(options: &Options, place: &Place, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    ensure!((1..=100).contains(&options.runs), "{} runs: from 1 to 100 are possible", options.runs);
    if let Bench::Restart { cases, .. } = &options.bench
        && let Some(other) = cases.iter().find(|name| !["starts", "index"].contains(&name.as_str()))
    {
        bail!("bench restart has no case '{other}'; the cases are starts, index");
    }
    ensure!(effective_uid() == 0, "a pool of huge pages and a mount are root's: run this as root");
    let needed = options.bench.pool() + SLACK + options.bench.memory();
    must_fit(&format!("bench {}", options.bench.name()), needed, "smaller sizes")?;
    if options.install && !options.alone {
        dpdk::install(progress)?;
    }
    let dpdk = if options.alone { None } else { dpdk::Dpdk::find() };
    if dpdk.is_none() && !options.alone {
        progress(&format!("absent: dpdk: {} (or --install)", dpdk::HOW_TO_INSTALL));
    }
    let head = Head::begin(options.bench.name())?;
    let version = dpdk.as_ref().map(|dpdk| dpdk.version.clone());
    let signals = stop_signals()?;
    check(&signals)?;
    let mut pool = Pool::take()?;
    pool.set(options.bench.pool() + SLACK)?;
    let mounted = Mounted::new()?;
    // Dropped in this order, on every way out: the mount, the pool, the signals. One that has come and was not looked at yet
    // ends this process when its mask is restored, and all is to be put back by then.
    let mut stage = Stage { runs: options.runs, place, signals: &signals, mounted, dpdk, progress };
    let (found, gates) = match &options.bench {
        Bench::Restart { cases, size, index } => {
            let found = restart::run(&mut stage, cases, *size, *index)?;
            let gates = found.gates();
            (Found::Restart(found), gates)
        }
        Bench::Malloc { size } => {
            let found = malloc::run(&mut stage, *size)?;
            let gates = found.gates();
            (Found::Malloc(found), gates)
        }
    };
    // The mount first: pages that its files still hold cannot be taken out of the pool.
    drop(stage);
    Ok(Report { head, runs: options.runs, dpdk: version, found, gates })
}
