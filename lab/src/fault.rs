//! `megapage-lab fault`: the cost of the first touch of a huge page, by the source of the page.
//!
//! Architecture invariant: the sources take turns in each round, each with the same number of
//! pages. The broker's pages are ready before they are timed; asking for them and mapping them
//! counts into the whole.

use crate::bench::{Gate, Place, Pool, Spread};
use crate::child::{Child, check, sleep};
use crate::experiment::{Experiment, Found, Needs, Plan, Section, Stage};
use crate::machine::{Clearing, FirstTouch};
use crate::workload::first_touch::FirstTouches;
use anyhow::{Context, Result, bail, ensure};
use megapage_broker::ask;
use megapage_kernel::smaps::{backing, read_own_smaps};
use megapage_kernel::spawn::{Signals, signal};
use megapage_kernel::{KernelRoot, extent, hugetlb_available};
use megapage_memory::stock::take;
use megapage_units::{Bytes, HUGE_2M, PageSize};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SIZE: PageSize = PageSize::HUGE_2M;
/// Pages of an extent, as the broker has them by default.
const EXTENT: u64 = 16;
/// Longest median time of the first touch of a page from the broker.
const TOUCH_NS: f64 = 3000.0;
/// Least factor by which all of the memory, asked for, mapped and touched, is there sooner than on
/// transparent huge pages.
const SOONER: f64 = 20.0;
/// Longest wait for pages to come back to the pool.
const SETTLING: Duration = Duration::from_secs(30);
/// Longest wait for the broker to fill its stock, and to end.
const PATIENCE: Duration = Duration::from_secs(300);

/// Measure the cost of the first touch of a huge page: THP, hugetlb, zeroed before by a broker,
/// reused
#[derive(Clone, Debug, clap::Args)]
pub struct Fault {
    /// Memory of each source, a multiple of 32m up to 64g
    #[arg(long, default_value = "1g")]
    pub size: Bytes,
}

megapage_units::named! {
    /// A source of pages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Source {
        Transparent = "thp",
        Hugetlb = "hugetlb",
        Broker = "broker",
        Reused = "reused",
        RunTransparent = "run-thp",
        RunPool = "run-pool",
    }
}

/// Times in nanoseconds for one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The time that nine tenths do not exceed.
    pub p90: f64,
    /// The time that 99 of a hundred do not exceed.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Percentiles {
    fn of(mut times: Vec<u64>) -> Percentiles {
        times.sort_unstable();
        let at = |share: f64| {
            let place = (times.len() as f64 * share).ceil() as usize;
            times.get(place.saturating_sub(1)).copied().unwrap_or(0) as f64
        };
        Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

/// Times of one source.
#[derive(Clone, Debug, Serialize)]
pub struct SourceReport {
    /// The source. `thp`, `hugetlb`, `broker` (pre-zeroed), `reused` (an existing file, old bytes
    /// included), or a program's heap: `run-thp` under `megapage run --heap thp`, and `run-pool`
    /// with `--pool`.
    pub source: &'static str,
    /// The first touch of each page of all rounds.
    pub touch_ns: Percentiles,
    /// The time from nothing to the last page touched, for all of the memory; of the rounds.
    pub whole_ns: Spread,
    /// The share of the memory that the kernel reports on huge pages, in the last round.
    pub huge_share: f64,
}

/// Time of clearing a page of 2 MiB.
#[derive(Clone, Debug, Serialize)]
pub struct ClearingReport {
    /// The method: `fallocate` (a new page, by the kernel), `non-temporal` or `memset` (an existing
    /// page).
    pub how: &'static str,
    /// The time for each page of all rounds.
    pub page_ns: Percentiles,
}

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct FaultFound {
    /// Memory of each source, in bytes.
    pub size_bytes: u64,
    /// The times by source.
    pub sources: Vec<SourceReport>,
    /// Times of the ways in which the broker could fill its stock.
    pub clearing: Vec<ClearingReport>,
}

impl FaultFound {
    fn source(&self, source: Source) -> Option<&SourceReport> {
        self.sources.iter().find(|one| one.source == source.name())
    }
}

/// A broker of our own, which ends with this value.
struct Broker<'a> {
    child: Child,
    path: PathBuf,
    signals: &'a Signals,
}

impl<'a> Broker<'a> {
    /// Starts one with `pages` and an extent more in stock, for the other memory of a heap.
    fn start(place: &Place, signals: &'a Signals, directory: &Path, pages: u64) -> Result<Broker<'a>> {
        let path = directory.join("broker");
        let pages = pages + EXTENT;
        let mut command = Command::new(&place.megapage);
        command.args(["pool", "serve", "--socket"]).arg(&path);
        command.args(["--stock", &pages.to_string(), "--grow", &pages.to_string()]);
        command.args(["--extent", &EXTENT.to_string(), "--rate", "64g", "--quota-per-uid", "none", "--keep"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = Child::start(signals, &mut command, signal::SIGTERM)?;
        child.grace = PATIENCE;
        let mut broker = Broker { child, path, signals };
        broker.fill()?;
        Ok(broker)
    }

    /// Waits until the stock is full.
    fn fill(&mut self) -> Result<()> {
        let start = Instant::now();
        while !ask(&self.path).is_ok_and(|status| status.ready_pages >= status.stock_pages) {
            check(self.signals)?;
            self.child.must_run().context("see what 'megapage pool serve' says")?;
            sleep(self.signals, Duration::from_millis(20))?;
            ensure!(start.elapsed() < PATIENCE, "the broker has not filled its stock in {PATIENCE:?}");
        }
        Ok(())
    }
}

impl Experiment for Fault {
    const NAME: &'static str = "fault";
    type Found = FaultFound;

    fn validate(&self) -> Result<()> {
        let unit = Bytes(EXTENT * SIZE.bytes().0);
        ensure!(
            self.size.0 > 0 && self.size.0.is_multiple_of(unit.0) && self.size <= Bytes::gib(64),
            "--size {}: give a multiple of {unit} up to 64 GiB",
            self.size
        );
        Ok(())
    }

    fn needs(&self) -> Needs {
        // The broker's stock, the pages of the other sources, and transparent ones beside them.
        let memory = Bytes(3 * (self.size.0 + EXTENT * SIZE.bytes().0));
        Needs { memory, smaller: "a smaller --size", ..Needs::default() }
    }

    fn dry_run(&self, plan: &Plan) -> Vec<String> {
        let pages = self.size.0 / SIZE.bytes().0 + EXTENT;
        let mut lines = vec![
            format!("megapage pool set 2MB:+{pages}"),
            format!("megapage pool serve --stock {pages} --grow {pages} --extent {EXTENT} --keep &"),
            format!("# {} rounds and one before them, each:", plan.runs),
        ];
        lines.extend(Source::ALL.map(|source| format!("# {} of {}", self.size, source.name())));
        lines.push(format!("megapage pool set 2MB:-{pages}"));
        lines
    }

    fn measure(&self, stage: &mut Stage<'_>) -> Result<FaultFound> {
        measure(self.size, stage)
    }
}

impl Found for FaultFound {
    fn gates(&self) -> Vec<Gate> {
        judge(self)
    }

    fn title(&self, runs: u32) -> String {
        format!("{} of each source, {runs} rounds", Bytes(self.size_bytes))
    }

    fn sections(&self) -> Vec<Section> {
        let micro = |ns: f64| format!("{:.2}", ns / 1e3);
        let percentiles = |of: &Percentiles| [of.p50, of.p90, of.p99, of.max].map(micro);
        let sources = self.sources.iter().map(|source| {
            let [p50, p90, p99, max] = percentiles(&source.touch_ns);
            let whole = format!("{:.2}", source.whole_ns.median / 1e6);
            [source.source.into(), p50, p90, p99, max, whole, format!("{:.0} %", 100.0 * source.huge_share)]
        });
        let clearing = self.clearing.iter().map(|clearing| {
            let [p50, p90, p99, max] = percentiles(&clearing.page_ns);
            [clearing.how.into(), p50, p90, p99, max]
        });
        vec![
            Section::new(
                "first touch of a page, us",
                &["SOURCE", "MEDIAN", "90 %", "99 %", "MOST", "WHOLE ms", "HUGE"],
                sources,
            ),
            Section::new(
                "clearing a page of 2 MiB, us",
                &["HOW", "MEDIAN", "90 %", "99 %", "MOST"],
                clearing,
            ),
        ]
    }
}

/// Measures the rounds. The pages that it adds to the pool are taken out at the end, also after a
/// failure or a signal to stop.
fn measure(size: Bytes, stage: &mut Stage<'_>) -> Result<FaultFound> {
    let pages = size.0 / SIZE.bytes().0;
    let signals = stage.signals;
    let mut added = Pool::take()?;
    // An extent more, for pages that are released while another source takes its own.
    let besides = Bytes((pages + EXTENT) * SIZE.bytes().0);
    added.set(besides).context("pages for the sources besides the broker")?;
    let directory = tempfile::tempdir()?;
    let directory_path = std::fs::canonicalize(directory.path())?;
    let mut broker = Broker::start(stage.place, signals, &directory_path, pages)?;

    let mut touches: [Vec<u64>; Source::ALL.len()] = Default::default();
    let mut wholes: [Vec<f64>; Source::ALL.len()] = Default::default();
    let mut shares = [0.0; Source::ALL.len()];
    let mut clearings: [Vec<u64>; 3] = Default::default();
    for round in 0..=stage.plan.runs {
        for (at, source) in Source::ALL.into_iter().enumerate() {
            settle(signals, pages)?;
            let (times, whole, share) = match source {
                Source::RunTransparent | Source::RunPool => program(source, size, stage.place, &mut broker)?,
                _ => turn(source, size, &mut broker)
                    .with_context(|| format!("{} of {}, {}", size, source.name(), pool_now()))?,
            };
            let brief = Percentiles::of(times.clone()).p50 / 1e3;
            (stage.progress)(&format!("round {round} {}: median {brief:.2} us", source.name()));
            // The first round warms the memory.
            if round > 0 {
                touches[at].extend(times);
                wholes[at].push(whole.as_nanos() as f64);
                shares[at] = share;
            }
        }
        settle(signals, pages)?;
        let cleared = clear(pages).with_context(|| format!("{} to be cleared, {}", size, pool_now()))?;
        if round > 0 {
            clearings.iter_mut().zip(cleared).for_each(|(all, one)| all.extend(one));
        }
    }
    drop(broker);
    drop(added);

    let sources = Source::ALL.into_iter().zip(touches).zip(wholes).zip(shares);
    let sources = sources.map(|(((source, touches), wholes), huge_share)| SourceReport {
        source: source.name(),
        touch_ns: Percentiles::of(touches),
        whole_ns: Spread::of(wholes).unwrap_or_default(),
        huge_share,
    });
    let clearing = ["fallocate", "non-temporal", "memset"].into_iter().zip(clearings);
    Ok(FaultFound {
        size_bytes: size.0,
        sources: sources.collect(),
        clearing: clearing
            .map(|(how, times)| ClearingReport { how, page_ns: Percentiles::of(times) })
            .collect(),
    })
}

/// Waits until `pages` of the pool are free. The pages of a source go back a moment after it has
/// ended, and the broker may have filled its stock from ours meanwhile.
fn settle(signals: &Signals, pages: u64) -> Result<()> {
    let start = Instant::now();
    while hugetlb_available(SIZE).is_some_and(|available| available < pages) {
        check(signals)?;
        ensure!(
            start.elapsed() < SETTLING,
            "a source needs {pages} pages of {SIZE} for {}, {}: something else takes pages of the pool; stop it, add pages \
             to it (megapage pool set 2m:+N), or use a smaller --size",
            Bytes(pages * SIZE.bytes().0),
            pool_now()
        );
        sleep(signals, Duration::from_millis(10))?;
    }
    check(signals)
}

/// Describes the pool, for errors.
fn pool_now() -> String {
    let available = hugetlb_available(SIZE).map_or("unknown".into(), |pages| pages.to_string());
    format!("where the pool has {available} pages of {SIZE} available")
}

/// Measures one source: its touches, the whole time, and the share of the memory that is on huge
/// pages.
fn turn(source: Source, size: Bytes, broker: &mut Broker<'_>) -> Result<(Vec<u64>, Duration, f64)> {
    let bytes = usize::try_from(size.0)?;
    let pages = size.0 / SIZE.bytes().0;
    let each = EXTENT as usize * HUGE_2M;
    // The same file has used these pages before.
    let kept = match source {
        Source::Reused => {
            let file = filled(pages)?;
            let length = usize::try_from(pages)? * HUGE_2M;
            FirstTouch::extents(&[file.as_fd()], length, SIZE)?.touch();
            Some(file)
        }
        _ => None,
    };
    let mut extents: Vec<OwnedFd> = Vec::new();
    let start = Instant::now();
    let memory = match source {
        Source::RunTransparent | Source::RunPool => bail!("a program's heap is not ours to touch"),
        Source::Transparent => FirstTouch::transparent(bytes)?,
        Source::Hugetlb => FirstTouch::hugetlb(bytes, SIZE)?,
        Source::Reused => {
            let file = kept.as_ref().context("made above")?;
            FirstTouch::extents(&[file.as_fd()], bytes, SIZE)?
        }
        Source::Broker => {
            while (extents.len() as u64) < pages / EXTENT {
                let left = pages - extents.len() as u64 * EXTENT;
                let granted = take(&broker.path, SIZE, left, false).context("the broker")?;
                extents.extend(granted.extents.into_iter().flatten());
            }
            let fds: Vec<_> = extents.iter().map(AsFd::as_fd).collect();
            FirstTouch::extents(&fds, each, SIZE)?
        }
    };
    let times = memory.touch();
    let whole = start.elapsed();
    let share = huge_share(&memory)?;
    drop(memory);
    for extent in &extents {
        extent::empty(extent, 0, each as u64)?;
    }
    drop(kept);
    if source == Source::Broker {
        broker.fill()?;
    }
    Ok((times, whole, share))
}

/// Measures the same of a program's heap.
fn program(
    source: Source,
    size: Bytes,
    place: &Place,
    broker: &mut Broker<'_>,
) -> Result<(Vec<u64>, Duration, f64)> {
    let mut command = Command::new(&place.megapage);
    command.args(["run", "--mechanism", "preload", "--heap", "thp"]).env("MEGAPAGE_LIBRARY", &place.library);
    if source == Source::RunPool {
        let mut pool = OsString::from("--pool=");
        pool.push(&broker.path);
        command.arg(pool);
    }
    command.arg("--").arg(&place.workload).args(["first-touch", "--size", &size.0.to_string()]);
    let (printed, said) = Child::output(broker.signals, &mut command, PATIENCE)?;
    let found: FirstTouches =
        serde_json::from_slice(&printed).with_context(|| format!("megapage-lab-workload said '{said}'"))?;
    broker.fill()?;
    Ok((found.touch_ns, Duration::from_nanos(found.whole_ns), found.huge_share))
}

/// Makes a file of existing pages.
fn filled(pages: u64) -> Result<File> {
    let file = extent::create(SIZE, pages)?;
    (0..pages).try_for_each(|page| extent::fill(&file, SIZE, page)).context("pages of the pool")?;
    extent::seal(&file)?;
    Ok(file)
}

/// Returns the times of clearing each page by the kernel, past the caches, and with ordinary stores
/// as by memset(3).
fn clear(pages: u64) -> Result<[Vec<u64>; 3]> {
    let file = extent::create(SIZE, pages)?;
    let mut fallocate = Vec::new();
    for page in 0..pages {
        let start = Instant::now();
        extent::fill(&file, SIZE, page).context("pages of the pool")?;
        fallocate.push(start.elapsed().as_nanos() as u64);
    }
    extent::seal(&file)?;
    let memory = FirstTouch::extents(&[file.as_fd()], usize::try_from(pages)? * HUGE_2M, SIZE)?;
    memory.touch();
    Ok([fallocate, memory.clear(Clearing::NonTemporal), memory.clear(Clearing::Plain)])
}

/// Returns the share of `memory` that the kernel reports on huge pages.
pub(crate) fn huge_share(memory: &FirstTouch) -> Result<f64> {
    let mappings = read_own_smaps(&KernelRoot::live())?;
    let own = mappings.iter().filter(|mapping| mapping.range.intersection(memory.range()).is_some());
    let bytes = backing(own);
    let total = bytes.total().0;
    Ok(if total == 0 { 0.0 } else { bytes.huge().0 as f64 / total as f64 })
}

fn judge(report: &FaultFound) -> Vec<Gate> {
    let mut gates = Vec::new();
    let Some(broker) = report.source(Source::Broker) else { return gates };
    let touch = broker.touch_ns.p50;
    gates.push(Gate {
        case: "broker",
        demand: format!("first touch of a page <= {:.0} us, median", TOUCH_NS / 1e3),
        found: format!("{:.2} us", touch / 1e3),
        holds: touch <= TOUCH_NS,
    });
    for (case, demand, source, baseline) in [
        ("broker", "asked for, mapped and touched", Source::Broker, Source::Transparent),
        ("run-pool", "a program's heap allocated and touched", Source::RunPool, Source::RunTransparent),
    ] {
        let (Some(source), Some(baseline)) = (report.source(source), report.source(baseline)) else {
            continue;
        };
        let ratio = baseline.whole_ns.median / source.whole_ns.median.max(1.0);
        gates.push(Gate {
            case,
            demand: format!("{demand} >= {SOONER:.0}x sooner than THP"),
            found: format!("{ratio:.1}x"),
            holds: ratio >= SOONER,
        });
    }
    gates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let all = Percentiles::of((1..=200).rev().collect());
        assert_eq!(all, Percentiles { p50: 100.0, p90: 180.0, p99: 198.0, max: 200.0 });
        assert_eq!(Percentiles::of(vec![7]), Percentiles { p50: 7.0, p90: 7.0, p99: 7.0, max: 7.0 });
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }

    #[test]
    fn gates_can_fail() {
        let source = |source: Source, touch: f64, whole: f64| SourceReport {
            source: source.name(),
            touch_ns: Percentiles { p50: touch, ..Percentiles::default() },
            whole_ns: Spread { median: whole, min: whole, max: whole },
            huge_share: 1.0,
        };
        let report = |touch, whole| FaultFound {
            size_bytes: 1 << 25,
            sources: vec![
                source(Source::Transparent, 3e5, 1e9),
                source(Source::Broker, touch, whole),
                source(Source::RunTransparent, 3e5, 1e9),
                source(Source::RunPool, touch, whole),
            ],
            clearing: Vec::new(),
        };
        let holds =
            |touch, whole| judge(&report(touch, whole)).iter().map(|gate| gate.holds).collect::<Vec<_>>();
        assert_eq!(holds(2900.0, 4e7), [true; 3]);
        assert_eq!(holds(3100.0, 6e7), [false; 3]);
    }
}
