//! `megapage-lab interference`: the effect on a program of pages that are cleared in the
//! background.
//!
//! HawkEye (Panwar et al., ASPLOS 2019) clears free pages ahead, past the caches. It clears 0.25
//! million base pages, 1 GB, in a second. Beside clearing with ordinary stores omnetpp lost 27 % of
//! its speed, beside non-temporal ones 6 %. Here a program of known work runs beside a thread that
//! clears pages of 2 MiB.
//!
//! Architecture invariant: each slice beside clearing has a slice alone right before it, and the
//! two are compared with each other.

use crate::bench::{Gate, Interval, Pool, Spread};
use crate::child::check;
use crate::experiment::{Experiment, Found, Needs, Order, Plan, Section, Stage, select};
use crate::fault::huge_share;
use crate::machine::{Clearing, FirstTouch};
use anyhow::{Context, Result, bail, ensure};
use megapage_bench::random::Random;
use megapage_kernel::extent;
use megapage_kernel::process::own_thread_time;
use megapage_units::{Bytes, HUGE_2M, PageSize};
use serde::Serialize;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes in a second at which HawkEye's paper clears, and the broker by default.
const PAPER_RATE: u64 = 1 << 30;
/// Loss of the paper's worst program beside non-temporal stores. It is also the most that may be
/// lost beside the broker.
const PAPER_LOSS: f64 = 0.06;
/// The wanted probability of intervals.
const WANTED: f64 = 0.95;
/// Pages that are cleared in turn: more than any cache holds.
const PAGES: usize = 64;
/// Pages of the pool that all ways take: two ways take [`PAGES`] each, the third one page at a
/// time.
const POOL: usize = 2 * PAGES + 2;
/// Time for which clearing runs before the program beside it is measured.
const RUN_UP: Duration = Duration::from_millis(20);
/// A line of the caches, in words.
const LINE: usize = 8;

/// Measure the slow-down of a program by pages that are cleared in the background: by ordinary
/// stores, by stores past the caches, by the kernel
#[derive(Clone, Debug, clap::Args)]
pub struct Interference {
    /// chase, stream [default: all]
    pub cases: Vec<String>,
    /// Memory of the pointer chase: what the last cache holds, so that it can lose it; 64k to 1g
    #[arg(long, default_value = "16m")]
    pub chase: Bytes,
    /// Memory that the bandwidth program reads in order; 1m to 8g
    #[arg(long, default_value = "256m")]
    pub stream: Bytes,
    /// Milliseconds of each slice, 10 to 10000
    #[arg(long, default_value_t = 250)]
    pub slice: u64,
}

megapage_units::named! {
    /// Way of clearing pages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Way {
        Memset = "memset",
        NonTemporal = "non-temporal",
        Kernel = "kernel",
    }
}

/// Program that runs beside it.
enum Program {
    /// Each read of a line waits for the one before: one cycle through all lines.
    Chase { next: Vec<u64>, at: usize },
    /// All words in order.
    Stream { words: Vec<u64>, at: usize },
}

impl Program {
    fn of(case: &str, options: &Interference) -> Program {
        match case {
            "chase" => {
                let lines = options.chase.0 as usize / 8 / LINE;
                let mut order: Vec<usize> = (0..lines).collect();
                let mut random = Random::new(1);
                // Sattolo's algorithm: one cycle.
                (1..lines).rev().for_each(|at| order.swap(at, random.below(at)));
                let mut next = vec![0; lines * LINE];
                order.iter().enumerate().for_each(|(line, &to)| next[line * LINE] = (to * LINE) as u64);
                Program::Chase { next, at: 0 }
            }
            _ => Program::Stream { words: vec![1; options.stream.0 as usize / 8], at: 0 },
        }
    }

    /// Works for `slice`. Returns the lines read in a second of this thread's processor time,
    /// because clearing does not cause the time for which others have the processor.
    fn work(&mut self, slice: Duration) -> f64 {
        const STEP: usize = 1 << 12;
        let (start, cpu) = (Instant::now(), own_thread_time());
        let mut lines = 0;
        loop {
            match self {
                Program::Chase { next, at } => {
                    (0..STEP).for_each(|_| *at = next[*at] as usize);
                    black_box(*at);
                }
                Program::Stream { words, at } => {
                    let end = (*at + STEP * LINE).min(words.len());
                    black_box(words[*at..end].iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
                    *at = if end == words.len() { 0 } else { end };
                }
            }
            lines += STEP;
            if start.elapsed() >= slice {
                let took = own_thread_time().saturating_sub(cpu).max(Duration::from_nanos(1));
                return lines as f64 / took.as_secs_f64();
            }
        }
    }
}

/// Memory to be cleared, in one way.
enum Cleared {
    Ours(FirstTouch, Clearing),
    /// Pages of the pool, which the kernel clears when they are taken, as for the broker.
    Pool,
    /// Transparent huge pages, which the kernel clears at the first touch; if the pool has no
    /// pages.
    Transparent,
}

impl Cleared {
    /// Prepares memory for a way. `has_pool` is true if [`POOL`] pages are available.
    fn by(way: Way, has_pool: bool) -> Result<Cleared> {
        let ours = |how| -> Result<Cleared> {
            let bytes = PAGES * HUGE_2M;
            let memory = match has_pool {
                true => FirstTouch::hugetlb(bytes, PageSize::HUGE_2M).context("pages of the pool")?,
                false => FirstTouch::transparent(bytes).context("memory to clear")?,
            };
            memory.touch();
            Ok(Cleared::Ours(memory, how))
        };
        match way {
            Way::Memset => ours(Clearing::Plain),
            Way::NonTemporal => ours(Clearing::NonTemporal),
            Way::Kernel => {
                let file = extent::create(PageSize::HUGE_2M, 1);
                if file.is_ok_and(|file| extent::fill(&file, PageSize::HUGE_2M, 0).is_ok()) {
                    return Ok(Cleared::Pool);
                }
                let memory = FirstTouch::transparent(HUGE_2M).context("a transparent huge page")?;
                memory.touch();
                ensure!(
                    huge_share(&memory)? == 1.0,
                    "no page for the kernel to clear: the pool of 2 MiB pages has none (root takes some), and \
                     the kernel gives no transparent huge page: they are off, or free memory is fragmented"
                );
                Ok(Cleared::Transparent)
            }
        }
    }

    /// Clears page after page, at most `rate` bytes in a second, until `stop`. Returns their
    /// number.
    fn run(&self, rate: Option<u64>, stop: &AtomicBool) -> Result<u64> {
        let start = Instant::now();
        let mut pages = 0u64;
        while !stop.load(Ordering::Relaxed) {
            if let Some(rate) = rate {
                let due = Duration::from_secs_f64(pages as f64 * HUGE_2M as f64 / rate as f64);
                let early = due.saturating_sub(start.elapsed());
                if !early.is_zero() {
                    std::thread::sleep(early.min(Duration::from_millis(5)));
                    continue;
                }
            }
            match self {
                Cleared::Ours(memory, how) => memory.clear_page(pages as usize, *how),
                Cleared::Pool => {
                    let file = extent::create(PageSize::HUGE_2M, 1).context("a page of the pool")?;
                    extent::fill(&file, PageSize::HUGE_2M, 0).context("a page of the pool")?;
                }
                Cleared::Transparent => {
                    FirstTouch::transparent(HUGE_2M).context("a transparent huge page")?.touch();
                }
            }
            pages += 1;
        }
        Ok(pages)
    }
}

/// One program beside one way of clearing at one rate.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// `chase` or `stream`.
    pub program: &'static str,
    /// `memset` (ordinary stores), `non-temporal`, `kernel`.
    pub way: &'static str,
    /// The requested rate, in bytes a second; `None`: as fast as it can.
    pub asked_bytes_per_second: Option<u64>,
    /// The bytes that were cleared in a second.
    pub cleared_bytes_per_second: Spread,
    /// The program's speed beside it as a share of that alone, of the pairs of slices.
    pub speed: Option<Interval>,
    /// The speed of each pair.
    pub samples: Vec<f64>,
    /// The bytes that were cleared in a second beside each.
    pub cleared_samples: Vec<f64>,
}

impl Row {
    fn loss(&self) -> f64 {
        self.speed.map_or(f64::NAN, |speed| 1.0 - speed.median)
    }
}

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct InterferenceFound {
    /// Memory of the pointer chase, in bytes.
    pub chase_bytes: u64,
    /// Memory of the bandwidth program, in bytes.
    pub stream_bytes: u64,
    /// The pages that the kernel cleared: `hugetlb`, as for the broker, or `thp` if the pool has
    /// none to spare.
    pub kernel_pages: &'static str,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Interference {
    fn programs(&self) -> Result<Vec<&'static str>> {
        select(Self::CASES, |case| case, &self.cases, "case of interference")
    }
}

impl Experiment for Interference {
    const NAME: &'static str = "interference";
    const RUNS: [u32; 3] = [9, 1, 1000];
    const CASES: &'static [&'static str] = &["chase", "stream"];
    type Found = InterferenceFound;

    fn cases(&self) -> &[String] {
        &self.cases
    }

    fn validate(&self) -> Result<()> {
        ensure!(
            (Bytes::kib(64)..=Bytes::gib(1)).contains(&self.chase),
            "--chase {}: 64 KiB to 1 GiB are possible",
            self.chase
        );
        ensure!(
            (Bytes::mib(1)..=Bytes::gib(8)).contains(&self.stream),
            "--stream {}: 1 MiB to 8 GiB are possible",
            self.stream
        );
        ensure!((10..=10_000).contains(&self.slice), "--slice {}: 10 to 10000 ms are possible", self.slice);
        Ok(())
    }

    fn needs(&self) -> Needs {
        let memory = self.chase + self.chase + self.stream + Bytes((2 * PAGES * HUGE_2M) as u64);
        Needs { memory, smaller: "a smaller --stream or --chase", ..Needs::default() }
    }

    fn dry_run(&self, plan: &Plan) -> Vec<String> {
        vec![format!(
            "# {} rounds of {} ms alone and {} ms beside a thread that clears, by {}, at 1 GiB a second and without a limit",
            plan.runs,
            self.slice,
            self.slice,
            Way::ALL.map(Way::name).join(", ")
        )]
    }

    fn measure(&self, stage: &mut Stage<'_>) -> Result<InterferenceFound> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        ensure!(
            processors >= 2,
            "interference needs a second processor for the thread that clears; this machine has one"
        );
        let slice = Duration::from_millis(self.slice);
        let programs = self.programs()?;
        let mut rows: Vec<Row> = Vec::new();
        for &program in &programs {
            for way in Way::ALL {
                for asked_bytes_per_second in [Some(PAPER_RATE), None] {
                    rows.push(Row { program, way: way.name(), asked_bytes_per_second, ..Row::default() });
                }
            }
        }
        let mut running: Vec<Program> = programs.iter().map(|program| Program::of(program, self)).collect();
        // For all ways, if they are available; restored at the end.
        let pool = Pool::take().and_then(|mut pool| {
            pool.set(Bytes((POOL * HUGE_2M) as u64))?;
            Ok(pool)
        });
        let clear_by = |way| Cleared::by(way, pool.is_ok());
        let ways = Way::ALL.into_iter().map(clear_by).collect::<Result<Vec<_>>>()?;
        // The round before the first warms memory and caches.
        for round in 0..=stage.plan.runs {
            for turn in Order::Rotating.turns(round, rows.len()) {
                check(stage.signals)?;
                let row = &mut rows[turn];
                let Some(at) = programs.iter().position(|program| *program == row.program) else { continue };
                let Some(way) = Way::ALL.iter().position(|way| way.name() == row.way) else { continue };
                let (speed, cleared) = pair(&mut running[at], &ways[way], row.asked_bytes_per_second, slice)?;
                (stage.progress)(&format!(
                    "round {round} {} beside {}: {speed:.3} of its speed, {:.2} GB/s cleared",
                    row.program,
                    row.way,
                    cleared / 1e9
                ));
                if round > 0 {
                    row.samples.push(speed);
                    row.cleared_samples.push(cleared);
                }
            }
        }
        for row in &mut rows {
            row.speed = Interval::of(row.samples.iter().copied(), WANTED);
            row.cleared_bytes_per_second =
                Spread::of(row.cleared_samples.iter().copied()).unwrap_or_default();
        }
        let kernel_pages = if matches!(ways[2], Cleared::Pool) { "hugetlb" } else { "thp" };
        // The pages first, then the pool that they were added to.
        drop(ways);
        drop(pool);
        Ok(InterferenceFound { chase_bytes: self.chase.0, stream_bytes: self.stream.0, kernel_pages, rows })
    }
}

/// Measures a slice alone and one beside clearing. Returns the program's speed as a share of that
/// alone, and the bytes cleared in a second.
fn pair(program: &mut Program, cleared: &Cleared, rate: Option<u64>, slice: Duration) -> Result<(f64, f64)> {
    // The caches hold the program's data again.
    program.work(RUN_UP);
    let alone = program.work(slice);
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let (beside, pages) = std::thread::scope(|scope| {
        let thread = scope.spawn(|| cleared.run(rate, &stop));
        program.work(RUN_UP);
        let beside = program.work(slice);
        stop.store(true, Ordering::Relaxed);
        (beside, thread.join())
    });
    let Ok(pages) = pages else { bail!("the thread that clears panicked") };
    let bytes = pages? as f64 * HUGE_2M as f64;
    Ok((beside / alone, bytes / start.elapsed().as_secs_f64()))
}

impl Found for InterferenceFound {
    fn gates(&self) -> Vec<Gate> {
        let at_rate =
            |row: &&Row| row.asked_bytes_per_second == Some(PAPER_RATE) && row.way == Way::Kernel.name();
        let gates = self.rows.iter().filter(at_rate).map(|row| Gate {
            case: row.program,
            demand: format!(
                "loses at most {:.0} % beside the broker's clearing at its rate",
                100.0 * PAPER_LOSS
            ),
            found: format!("{:.1} %", 100.0 * row.loss()),
            holds: row.loss() <= PAPER_LOSS,
        });
        gates.collect()
    }

    fn title(&self, runs: u32) -> String {
        format!("speed beside a thread that clears pages of 2 MiB, of that alone; {runs} rounds")
    }

    fn sections(&self) -> Vec<Section> {
        let rows = self.rows.iter().map(|row| {
            let rate =
                row.asked_bytes_per_second.map_or("no limit".into(), |rate| format!("{}/s", Bytes(rate)));
            let speed = row.speed.map_or("-".into(), |speed| {
                format!(
                    "{:.3} ({:.3}-{:.3}, {:.0} %)",
                    speed.median,
                    speed.low,
                    speed.high,
                    100.0 * speed.coverage
                )
            });
            let cleared = format!("{:.2}", row.cleared_bytes_per_second.median / 1e9);
            [
                row.program.into(),
                row.way.to_string(),
                rate,
                cleared,
                speed,
                format!("{:.1} %", 100.0 * row.loss()),
            ]
        });
        vec![
            Section::new("", &["PROGRAM", "CLEARED BY", "AT MOST", "GB/s", "SPEED (INTERVAL)", "LOST"], rows)
                .then(format!(
                    "chase: dependent reads of {}; stream: {} in order; the kernel cleared {} pages",
                    Bytes(self.chase_bytes),
                    Bytes(self.stream_bytes),
                    self.kernel_pages
                )),
        ]
    }
}

#[cfg(test)]
mod tests;
