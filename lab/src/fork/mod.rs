//! `megapage-lab fork`: the cost of starting a child for a process with a large heap, by the pages
//! of the heap; and the cost of a living child for the process. It measures the same for the JVM,
//! and for several threads that start children at the same time.
//!
//! Architecture invariant: the actual pages of a heap are read from the kernel, and the pool is as
//! before in the end.

mod concurrent;
mod gates;
mod heaps;
mod jvm;
mod latency;
mod native;
mod table;

use crate::bench::{Gate, PoolOrReason};
use crate::child::{Child, check};
use crate::experiment::{Experiment, Found, Needs, Plan, Section, Stage, add_note, found_or_why};
use anyhow::{Context, Result, ensure};
use megapage_units::{Bytes, HUGE_2M};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::process::Command;
use std::time::Duration;

use concurrent::Concurrent;
pub use concurrent::{ConcurrentRow, ThreadsRow};
use heaps::Heaps;
pub use jvm::{JvmReport, JvmRow};
pub use latency::Latency;
use native::Native;
pub use native::NativeRow;

/// Longest time of a run of the laboratory's own program.
const LONGEST: Duration = Duration::from_secs(300);

/// Measure the cost, to a process with a large heap, of starting a child and of a living child
#[derive(Clone, Debug, clap::Args)]
pub struct Fork {
    /// native, jvm, concurrent [default: all]
    pub cases: Vec<String>,
    /// Heaps, separated by commas, up to 16g
    #[arg(long, value_delimiter = ',', default_value = "128m,256m,512m,1g,2g,4g")]
    pub sizes: Vec<Bytes>,
    /// Heaps of the JVM
    #[arg(long, value_delimiter = ',', default_value = "128m,256m,512m,1g")]
    pub jvm_sizes: Vec<Bytes>,
    /// Children that are started in each way in each run
    #[arg(long, default_value_t = 10)]
    pub launches: u32,
    /// Heaps whose threads start children at the same time
    #[arg(long, value_delimiter = ',', default_value = "1g")]
    pub concurrent_sizes: Vec<Bytes>,
    /// Milliseconds for which they do, for each number of threads, 10 to 10000
    #[arg(long, default_value_t = 1000)]
    pub slice: u64,
}

/// Findings of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct ForkFound {
    /// Children started in each way in each run.
    pub launches: u32,
    /// The laboratory's own program: a row for each heap and kind of pages.
    pub native: Vec<NativeRow>,
    /// The JVM; `None` if it was not asked for.
    pub jvm: Option<JvmReport>,
    /// Milliseconds for which threads started children at the same time.
    pub slice_ms: u64,
    /// Threads that start children at the same time: a row for each heap and kind of pages.
    pub concurrent: Vec<ConcurrentRow>,
}

impl Experiment for Fork {
    const NAME: &'static str = "fork";
    const CASES: &'static [&'static str] = &["native", "jvm", "concurrent"];
    type Found = ForkFound;

    fn cases(&self) -> &[String] {
        &self.cases
    }

    fn validate(&self) -> Result<()> {
        let launches = self.launches;
        ensure!((1..=1000).contains(&launches), "{launches} launches: from 1 to 1000 are possible");
        ensure!((10..=10_000).contains(&self.slice), "--slice {}: 10 to 10000 ms are possible", self.slice);
        for (sizes, least, what) in [
            (&self.sizes, Bytes::mib(2), "a heap"),
            (&self.jvm_sizes, Bytes::mib(8), "the JVM's heap"),
            (&self.concurrent_sizes, Bytes::mib(2), "a heap"),
        ] {
            for size in sizes {
                let fits = *size >= least && *size <= Bytes::gib(16) && size.0 % HUGE_2M as u64 == 0;
                ensure!(fits, "{what} of {size}: it is {least} to {} in whole 2 MiB", Bytes::gib(16));
            }
        }
        Ok(())
    }

    fn needs(&self) -> Needs {
        let native = self.wanted("native", &self.sizes).iter().map(|size| native::memory(*size));
        let jvm = self.wanted("jvm", &self.jvm_sizes).iter().map(|size| jvm::memory(*size));
        let concurrent = self.wanted("concurrent", &self.concurrent_sizes).iter();
        let concurrent = concurrent.map(|size| concurrent::memory(*size));
        let memory = native.chain(jvm).chain(concurrent).max().unwrap_or(Bytes::ZERO);
        let packages = if self.wants("jvm") { jvm::lacks() } else { Vec::new() };
        Needs { memory, smaller: "smaller --sizes", packages, ..Needs::default() }
    }

    fn dry_run(&self, plan: &Plan) -> Vec<String> {
        let mut lines = vec![format!("# {} rounds, each:", plan.runs)];
        lines.extend(self.native().lines());
        if self.wants("jvm") {
            lines.extend(jvm::lines(self));
        }
        lines.extend(self.concurrent().lines());
        lines
    }

    /// Measures every heap on every kind of pages in each round.
    fn measure(&self, stage: &mut Stage<'_>) -> Result<ForkFound> {
        let mut jvm = if self.wants("jvm") { Some(jvm::Jvm::prepare(self)?) } else { None };
        if let Some(why) = jvm.as_ref().and_then(|jvm| jvm.report.absent.as_ref()) {
            (stage.progress)(&format!("absent: {why}"));
        }
        let (mut native, mut concurrent) = (self.native(), self.concurrent());
        let runs = native.len() + jvm.as_ref().map_or(0, jvm::Jvm::len) + concurrent.len();
        let total = runs * stage.plan.runs as usize;
        let mut bench = Bench { launches: self.launches, stage, pool: PoolOrReason::take(), done: 0, total };
        for _ in 0..bench.stage.plan.runs {
            check(bench.stage.signals)?;
            native.round(&mut bench)?;
            if let Some(jvm) = &mut jvm {
                jvm.round(&mut bench)?;
            }
            concurrent.round(&mut bench)?;
        }
        Ok(ForkFound {
            launches: self.launches,
            native: native.finish(NativeRow::of),
            jvm: jvm.map(jvm::Jvm::finish),
            slice_ms: self.slice,
            concurrent: concurrent.finish(ConcurrentRow::of),
        })
    }
}

impl Fork {
    fn native(&self) -> Heaps<Native> {
        Heaps::new(Native { launches: self.launches }, self.wanted("native", &self.sizes))
    }

    fn concurrent(&self) -> Heaps<Concurrent> {
        Heaps::new(Concurrent { slice: self.slice }, self.wanted("concurrent", &self.concurrent_sizes))
    }

    /// Returns the sizes of a case; none if it was not asked for.
    fn wanted<'a>(&self, case: &str, sizes: &'a [Bytes]) -> &'a [Bytes] {
        if self.wants(case) { sizes } else { &[] }
    }
}

impl Found for ForkFound {
    fn gates(&self) -> Vec<Gate> {
        gates::judge(self)
    }

    fn title(&self, runs: u32) -> String {
        if self.native.is_empty() && self.jvm.is_none() {
            return format!("medians of {runs} interleaved runs, ms on the wall");
        }
        format!("medians of {runs} interleaved runs with {} launches each, ms on the wall", self.launches)
    }

    fn sections(&self) -> Vec<Section> {
        table::sections(self)
    }

    fn notes(&self) -> Vec<String> {
        let native = self.native.iter().flat_map(|row| {
            row.notes.iter().map(move |note| format!("{} {}: {note}", Bytes(row.heap_bytes), row.pages))
        });
        let absent = self.jvm.iter().flat_map(|jvm| &jvm.absent).map(|why| format!("did not run: {why}"));
        let jvm = self.jvm.iter().flat_map(|jvm| &jvm.rows).flat_map(|row| {
            row.notes.iter().map(move |note| {
                format!("JVM {} {} {} {}: {note}", row.user, row.mechanism, Bytes(row.heap_bytes), row.pages)
            })
        });
        let concurrent = self.concurrent.iter().flat_map(|row| {
            let name = format!("concurrent {} {}", Bytes(row.heap_bytes), row.pages);
            row.notes.iter().map(move |note| format!("{name}: {note}"))
        });
        native.chain(absent).chain(jvm).chain(concurrent).collect()
    }
}

/// Returns the lines for one run that takes `pool` bytes from the pool.
fn with_pool(pool: Bytes, command: String) -> Vec<String> {
    let pages = pool.0 / HUGE_2M as u64;
    if pages == 0 {
        return vec![command];
    }
    vec![format!("megapage pool set 2MB:+{pages}"), command, format!("megapage pool set 2MB:-{pages}")]
}

/// Resources of a run.
struct Bench<'a, 'b> {
    launches: u32,
    stage: &'a mut Stage<'b>,
    pool: PoolOrReason,
    done: usize,
    total: usize,
}

impl Bench<'_, '_> {
    /// Reports one run.
    fn say(&mut self, what: &str, found: &str) {
        self.done += 1;
        (self.stage.progress)(&format!("{}/{} {what}: {found}", self.done, self.total));
    }

    /// Runs the workload once with `pool` bytes in the pool, and reports it. A failure is a note on
    /// the row.
    fn run<T: DeserializeOwned>(
        &mut self,
        what: &str,
        pool: Bytes,
        arguments: &[String],
        brief: impl Fn(&T) -> String,
        notes: &mut Vec<String>,
    ) -> Result<Option<T>> {
        // Pages that cannot be taken back now, because another process uses them, do no harm.
        if let Some(why) = self.pool.give(pool).filter(|_| pool > Bytes::ZERO) {
            add_note(notes, why);
        }
        let found = note(self.once(arguments), notes)?;
        let brief = match &found {
            Some(found) => brief(found),
            None => notes.last().cloned().unwrap_or_default(),
        };
        self.say(what, &brief);
        Ok(found)
    }

    fn once<T: DeserializeOwned>(&self, arguments: &[String]) -> Result<T> {
        let mut command = Command::new(&self.stage.place.workload);
        command.args(arguments);
        let (printed, said) = Child::output(self.stage.signals, &mut command, LONGEST)?;
        serde_json::from_slice(&printed).with_context(|| {
            let last = said.lines().last().unwrap_or("nothing").to_string();
            format!("no result; it said: {}", last.trim_start_matches("megapage-lab-workload: "))
        })
    }
}

/// Ends the experiment with an error if the user asked to stop; turns any other error into a note
/// on the row.
fn note<T>(found: Result<T>, notes: &mut Vec<String>) -> Result<Option<T>> {
    Ok(match found_or_why(found)? {
        Ok(found) => Some(found),
        Err(why) => {
            add_note(notes, why);
            None
        }
    })
}
