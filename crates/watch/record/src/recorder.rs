//! Recorder: looks at all processes again and again, and rests in between so that the budget holds.

use crate::file::Output;
use crate::name::Namer;
use crate::pace;
use crate::sampler::Sampler;
use megapage_kernel::{
    KernelError, KernelRoot, boot_time, effective_uid, process_cpu_time, processor_of_tlbs,
};
use megapage_observe::outline::{outlines, outlines_of};
use megapage_observe::watch::costs::{Costs, LEAST_PROBE};
use megapage_observe::{
    ObserveError, Observer, Options as ObserverOptions, SelectError, machine, select_processes,
};
use megapage_plan::recording::{End, Header, Line, Moment, VERSION};
use megapage_snapshot::{CostSource, Snapshot};
use megapage_tlb::Geometry;
use megapage_units::{Bytes, Pid};
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// Least resident memory of a process that is looked into: a TLB reaches nearly as far.
const LEAST_RESIDENT: Bytes = Bytes::mib(8);
/// Most processes that are looked into; the largest are taken.
const MOST_PROCESSES: usize = 256;
/// Least time between two looks, even if less was requested.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// Divisor of an interval that gives the longest window of a sample.
const WINDOW_PART: u32 = 4;

/// Options of a recording.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time to record.
    pub seconds: Duration,
    /// Time from one look to the next.
    pub every: Duration,
    /// Share of one processor that recording may take, and by which it may slow a program: above 0,
    /// at most 1.
    pub budget: f64,
    /// True for exactly one interval.
    pub once: bool,
    /// Only these processes, by identifier, or by name as pgrep takes it; empty for all.
    pub processes: Vec<String>,
}

/// Reason why nothing can be recorded, or no more.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The observer cannot start.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The requested processes cannot be selected.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A kernel file cannot be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The recording cannot be written.
    #[error("the recording cannot be written: {0}")]
    Write(io::Error),
}

megapage_units::named! {
    /// Reason why a recording ended.
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

/// Outcome of a recording.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Header of the recording.
    pub header: Header,
    /// Moments written.
    pub moments: u64,
    /// Seconds from the first moment to the last.
    pub seconds: f64,
    /// Processor seconds that recording took, including its start.
    pub own_seconds: f64,
    /// Longest time from one moment to the next, in seconds.
    pub longest: f64,
    /// Services seen.
    pub services: usize,
    /// Services for which a cost of translation was seen.
    pub judged: usize,
    /// Bytes of the recording, including those that were there before.
    pub bytes: u64,
    /// Reason why the recording ended.
    pub why: Why,
}

/// Records. `wait` sleeps for a time, and returns true to go on; `each` receives every moment.
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
    // Samples, and probes for costs, share the budget by which programs may be slowed.
    let half = options.budget / 2.0;
    let mut costs = Costs::new(root, Some(half));
    let budget = if costs.budget().is_some() { half } else { options.budget };
    let usual = ObserverOptions::default();
    // A process that is being sampled gets no estimate of its cost: most of an interval is free for
    // estimates.
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
        share: options.budget,
        began,
    };
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
        // The last interval takes all the time that remains: half an interval to one and a half.
        let left = last.saturating_sub(Duration::from_secs_f64(moment.at));
        let pause = if left < options.every * 3 / 2 { left } else { options.every };
        if !recorder.pause(pause.max(LEAST_PAUSE), wait) {
            summary.why = Why::Signal;
            break;
        }
    }
    // A stop of the service does not lose a day's last interval.
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

/// Most different services that the summary counts: each transient scope has its own name.
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
    share: f64,
    began: Duration,
}

impl Recorder<'_> {
    /// Looks at all processes once.
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

    /// Waits for `pause`, or longer if the budget requires it. Reads samples when they are due, and
    /// spends the rest of the budget on probes for the cost of translation. Returns false if the
    /// user asks to stop.
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
            let rest = pace::rest(self.share, now.saturating_sub(self.began), process_cpu_time());
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
