//! Recording: looks at all processes again and again, and rests in between so that the budget holds.

use crate::file::Output;
use crate::name::Namer;
use crate::pace::Pace;
use crate::sampler::Sampler;
use megapage_kernel::trusted::{Replace, remove_file, replace_file};
use megapage_kernel::{
    KernelError, KernelRoot, boot_time, effective_uid, process_cpu_time, processor_of_tlbs,
};
use megapage_observe::outline::{outlines, outlines_of};
use megapage_observe::watch::costs::{Costs, LEAST_PROBE};
use megapage_observe::{
    ObserveError, Observer, Options as ObserverOptions, SelectError, machine, select_processes,
};
use megapage_plan::prometheus::{Totals, exposition};
use megapage_plan::recording::{End, Header, Line, Moment, VERSION};
use megapage_snapshot::{CostSource, Snapshot};
use megapage_tlb::Geometry;
use megapage_units::{Bytes, Pid};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// Processes with less memory than this are not looked into: a TLB reaches nearly as far.
const LEAST_RESIDENT: Bytes = Bytes::mib(8);
/// Processes that are looked into at most, the largest.
const MOST_PROCESSES: usize = 256;
/// Looks are further apart than this, whatever was asked for.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// Samples are of this part of an interval at the most.
const WINDOW_PART: u32 = 4;
/// The file in the textfile collector's directory.
const TEXTFILE: &str = "megapage_record.prom";
/// The collector is another user.
const READABLE: Replace = Replace { mode: 0o644, durable: false };

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// For how long.
    pub seconds: Duration,
    /// From one look to the next.
    pub every: Duration,
    /// The share of one processor that recording may take, and by which it may slow a program: above 0, at most 1.
    pub budget: f64,
    /// One interval, and no more.
    pub once: bool,
    /// Only these processes: by identifier, or by name as pgrep takes it; all where there are none.
    pub processes: Vec<String>,
    /// The absolute path of a directory of the textfile collector.
    pub textfile: Option<PathBuf>,
}

/// Why nothing can be recorded, or no more.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The observer.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The processes asked for.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A kernel file.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The recording cannot be written.
    #[error("the recording cannot be written: {0}")]
    Write(io::Error),
    /// The textfile cannot be written.
    #[error("{}: {source}", path.display())]
    Textfile {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

megapage_units::named! {
    /// Why a recording ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Why {
        /// The time is over.
        Time = "time",
        /// The user asked for it.
        Signal = "signal",
        /// The file has no room.
        Full = "full",
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Summary {
    /// What the recording begins with.
    pub header: Header,
    /// Moments written.
    pub moments: u64,
    /// Seconds from the first to the last.
    pub seconds: f64,
    /// Processor seconds that recording took, its start included.
    pub own_seconds: f64,
    /// The longest time from one moment to the next, in seconds.
    pub longest: f64,
    /// Services seen.
    pub services: usize,
    /// Those whose cost of translation was seen.
    pub judged: usize,
    /// Bytes of the recording, with what was there before.
    pub bytes: u64,
    /// Why it ended.
    pub why: Why,
}

/// Records. `wait` sleeps for a time, and says whether to go on; `each` is given every moment.
pub fn record(
    root: &KernelRoot,
    options: &Options,
    namer: Namer,
    output: &mut Output,
    wait: &mut dyn FnMut(Duration) -> bool,
    each: &mut dyn FnMut(&Moment),
) -> Result<Summary, RecordError> {
    let began = boot_time();
    select_processes(root, &options.processes)?;
    // Samples and probes for costs share what programs may be slowed by.
    let half = options.budget / 2.0;
    let mut costs = Costs::new(root, Some(half));
    let budget = if costs.budget().is_some() { half } else { options.budget };
    let usual = ObserverOptions::default();
    // Of a process that is being sampled no cost is estimated: most of an interval is left for that.
    let window = usual.window.min(options.every / WINDOW_PART).max(LEAST_PAUSE);
    let observing = ObserverOptions { budget, bounded: true, window, ..usual };
    let observer = Observer::start(root, observing)?;
    if !observer.sampling().is_some_and(|sampling| sampling.tracker.tells_accesses()) {
        costs.leave_estimates();
    }
    let header = header(root, options, &namer, &observer, &costs)?;
    output.append(&Line::Header(header.clone())).map_err(RecordError::Write)?;
    let mut recorder = Recorder {
        root,
        processes: &options.processes,
        observer,
        costs,
        sampler: Sampler::new(namer),
        pids: Vec::new(),
        before: None,
        now: None,
        pace: Pace { share: options.budget },
        began,
    };
    let mut textfile = options.textfile.as_ref().map(|directory| Textfile {
        path: directory.join(TEXTFILE),
        totals: Totals::default(),
        header: header.clone(),
    });
    let mut summary = Summary {
        header,
        moments: 0,
        seconds: 0.0,
        own_seconds: 0.0,
        longest: 0.0,
        services: 0,
        judged: 0,
        bytes: 0,
        why: Why::Time,
    };
    let (mut services, mut judged) = (BTreeSet::new(), BTreeSet::new());
    let last = if options.once { options.every } else { options.seconds };
    loop {
        let moment = recorder.look()?;
        if !output.append(&Line::Moment(moment.clone())).map_err(RecordError::Write)? {
            summary.why = Why::Full;
            break;
        }
        if let Some(textfile) = &mut textfile {
            textfile.write(&moment)?;
        }
        for service in &moment.services {
            if services.len() < MOST_COUNTED {
                services.insert(service.id.clone());
            }
            if service.cost.is_some() && judged.len() < MOST_COUNTED {
                judged.insert(service.id.clone());
            }
        }
        summary.moments += 1;
        summary.seconds = moment.at;
        summary.longest = summary.longest.max(moment.span);
        each(&moment);
        if moment.at >= last.as_secs_f64() - 1e-3 {
            break;
        }
        // The last interval may be cut short; what is left is never less than half a one.
        let left = last.saturating_sub(Duration::from_secs_f64(moment.at));
        let pause = if left < options.every * 3 / 2 { left } else { options.every };
        if !recorder.pause(pause.max(LEAST_PAUSE), wait) {
            summary.why = Why::Signal;
            break;
        }
    }
    // A day's last interval is not lost because somebody stops the service.
    if summary.why == Why::Signal
        && let Ok(moment) = recorder.look()
        && moment.span >= LEAST_PAUSE.as_secs_f64()
        && output.append(&Line::Moment(moment.clone())).map_err(RecordError::Write)?
    {
        summary.moments += 1;
        summary.seconds = moment.at;
        summary.longest = summary.longest.max(moment.span);
        each(&moment);
    }
    if let Some(textfile) = &textfile {
        textfile.remove();
    }
    summary.own_seconds = process_cpu_time().as_secs_f64();
    let end = End {
        at: summary.seconds,
        own: summary.own_seconds,
        longest: summary.longest,
        why: summary.why.name().into(),
    };
    output.append(&Line::End(end)).map_err(RecordError::Write)?;
    summary.bytes = output.written();
    (summary.services, summary.judged) = (services.len(), judged.len());
    Ok(summary)
}

fn header(
    root: &KernelRoot,
    options: &Options,
    namer: &Namer,
    observer: &Observer,
    costs: &Costs,
) -> Result<Header, RecordError> {
    let machine = machine(root)?;
    let hardware = megapage_kernel::machine(root)?;
    let sampling = observer.sampling();
    let mut lacks: Vec<String> = Vec::new();
    lacks.extend(observer.why_unsampled().map(|why| format!("accesses were not sampled: {why}")));
    if let Some(sampling) = sampling.filter(|sampling| !sampling.tracker.tells_accesses()) {
        lacks.push(format!("the {} tracker does not tell what is accessed", sampling.tracker.name()));
    }
    if costs.source().is_none() {
        lacks.push("what address translation costs was neither counted nor estimated".into());
    }
    if effective_uid() != 0 {
        lacks.push("not recorded as root: other users' processes were not looked into".into());
    }
    let start = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(Header {
        version: VERSION,
        host: namer.host(),
        start,
        every: options.every.as_secs_f64(),
        budget: options.budget,
        named: namer.is_named(),
        kernel: hardware.kernel,
        processor: hardware.processor,
        processors: hardware.processors as u32,
        memory: machine.memory.total.0,
        tlb: Geometry::of(&processor_of_tlbs(root)),
        thp: machine.thp.map(|thp| thp.enabled.to_string()),
        tracker: sampling.map(|sampling| sampling.tracker.name().to_string()),
        costs: costs.source().map(|source| match source {
            CostSource::Measured => "measured".to_string(),
            CostSource::Estimated | CostSource::Tried => "estimated".to_string(),
        }),
        lacks: lacks
            .into_iter()
            .map(|line| line.chars().filter(|c| !c.is_control()).take(300).collect())
            .collect(),
    })
}

/// Different services that the summary counts: transient scopes have names of their own.
const MOST_COUNTED: usize = 1 << 14;

struct Recorder<'a> {
    root: &'a KernelRoot,
    processes: &'a [String],
    observer: Observer,
    costs: Costs,
    sampler: Sampler,
    pids: Vec<Pid>,
    before: Option<Snapshot>,
    now: Option<Snapshot>,
    pace: Pace,
    began: Duration,
}

impl Recorder<'_> {
    /// One look at all processes.
    fn look(&mut self) -> Result<Moment, RecordError> {
        let mut found = match self.processes {
            [] => outlines(self.root, LEAST_RESIDENT)?,
            // A name may match nothing for a while.
            patterns => {
                let one = |pattern| select_processes(self.root, std::slice::from_ref(pattern)).ok();
                let pids: BTreeSet<Pid> = patterns.iter().filter_map(one).flatten().collect();
                outlines_of(self.root, &pids.into_iter().collect::<Vec<_>>())
            }
        };
        found.sort_by_key(|outline| (std::cmp::Reverse(outline.resident()), outline.pid));
        let beyond = found.len().saturating_sub(MOST_PROCESSES);
        found.truncate(MOST_PROCESSES);
        self.pids = found.iter().map(|outline| outline.pid).collect();
        let snapshot = self.observer.snapshot(&self.pids);
        self.costs.refresh(&snapshot, &mut self.observer);
        let mut moment = self.sampler.moment(&snapshot, process_cpu_time().as_secs_f64());
        moment.left_out += beyond as u32;
        self.before = self.now.replace(snapshot);
        Ok(moment)
    }

    /// Waits for `pause`, or longer where the budget does not suffice; reads samples when they are due, and uses what is left of
    /// the budget to learn what translation costs. `false` where the user asks to stop.
    fn pause(&mut self, pause: Duration, wait: &mut dyn FnMut(Duration) -> bool) -> bool {
        let looked = boot_time();
        let mut probed = false;
        let mut goes_on = true;
        let mut asked = |time: Duration| {
            goes_on = goes_on && wait(time);
            goes_on
        };
        loop {
            let now = boot_time();
            let rest = self.pace.rest(now.saturating_sub(self.began), process_cpu_time());
            let left = pause.saturating_sub(now.saturating_sub(looked)).max(rest);
            if left.is_zero() {
                return goes_on;
            }
            let due = self.observer.next_read();
            if due.is_some_and(|due| due.is_zero()) {
                self.observer.complete_samples();
                if !asked(Duration::ZERO) {
                    return false;
                }
                continue;
            }
            let time = due.map_or(left, |due| due.min(left));
            if let (Some(now), false, true) = (&self.now, probed, rest.is_zero() && time >= LEAST_PROBE) {
                probed = self.costs.probe(self.before.as_ref(), now, &mut self.observer, time, &mut asked);
                if probed {
                    continue;
                }
            }
            if !asked(time) {
                return false;
            }
        }
    }
}

/// The summarised moment as a file for node_exporter's textfile collector.
struct Textfile {
    path: PathBuf,
    totals: Totals,
    header: Header,
}

impl Textfile {
    fn write(&mut self, moment: &Moment) -> Result<(), RecordError> {
        self.totals.add(moment);
        let text = exposition(&self.header, moment, &self.totals);
        replace_file(&self.path, text.as_bytes(), READABLE)
            .map_err(|source| RecordError::Textfile { path: self.path.clone(), source })
    }

    /// Values that nobody brings up to date any longer are not to be collected.
    fn remove(&self) {
        // One that is gone already is as it should be.
        let _ = remove_file(&self.path);
    }
}
