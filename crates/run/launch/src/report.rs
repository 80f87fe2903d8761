//! What a run says of itself: schema `megapage.run/3`.

mod by_kind;
mod shared;

pub use crate::backed::Backed;
use crate::backed::{allowance, percent};
use crate::broker::PoolPlan;
use crate::jvm::JavaPlan;
use crate::mechanism::{Considered, Plan};
use crate::messages::Explained;
use crate::program::{Allocator, Linkage, Program};
use crate::request::{Fork, Heap, Mechanism, Request, Shm, Text, name};
use crate::sample::{Sample, Samples};
use crate::text::{TextPieces, TextReport};
use megapage_act::promote::{PromoteOutcome, SharedMemory};
use megapage_kernel::kernel_release;
use megapage_kernel::numa::OnNode;
use megapage_kernel::spawn::Usage;
use megapage_memory::{Backing, FallBack, Ledger};
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub use by_kind::{ByKind, KindReport, WhyNotMore};
pub use shared::SharedAccount;

/// One moment of the program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// Milliseconds after the start (of the program, or of watching it).
    pub at_ms: u64,
    /// How long before the report, or before the program's end, in milliseconds.
    pub age_ms: u64,
    /// How much of the program's largest memory this sample did not see, as far as the kernel's high watermarks show it: what backed it
    /// is not known. Bytes.
    pub unseen_bytes: u64,
    /// The share of the largest memory that it saw, in percent.
    pub peak_seen_percent: f64,
    /// All of the program's memory.
    pub resident: Backed,
    /// Its private, writable, anonymous memory, stacks aside.
    pub anonymous: Backed,
    /// Shared memory that it has touched, each part of an object once; `None` where there is none.
    pub shared: Option<Backed>,
    /// What the preloaded heap maps, a broker's shared pages included, or the Java heap; `None` where there is none.
    pub heap: Option<Backed>,
    /// The remainder of the anonymous memory, which the program has mapped by itself, past malloc; `None` where there is none, or
    /// no preloaded heap.
    pub own_mappings: Option<Backed>,
    /// All of the program's memory, by what it is for: each mapping is of one kind, so that they add up to `resident`.
    pub kinds: ByKind,
}

impl Moment {
    /// `peak_rss` and `hugetlb_peak` are the most that the program had of either.
    fn of(
        sample: &Sample,
        start: Instant,
        now: Instant,
        (peak_rss, hugetlb_peak): (Bytes, Bytes),
        accounts: (Option<&HeapAccount>, Option<&SharedAccount>),
    ) -> Moment {
        let (seen, hugetlb) = (sample.whole.present.total(), sample.whole.present.hugetlb());
        let unseen =
            peak_rss.saturating_sub(seen.saturating_sub(hugetlb)) + hugetlb_peak.saturating_sub(hugetlb);
        Moment {
            at_ms: sample.at.saturating_duration_since(start).as_millis() as u64,
            age_ms: now.saturating_duration_since(sample.at).as_millis() as u64,
            unseen_bytes: unseen.0,
            peak_seen_percent: percent(seen.0, (seen + unseen).0).unwrap_or(0.0),
            resident: sample.whole.into(),
            anonymous: sample.anonymous.into(),
            shared: (sample.shared.total() > Bytes::ZERO).then(|| sample.shared.into()),
            heap: (sample.heap.total() > Bytes::ZERO).then(|| sample.heap.into()),
            own_mappings: (sample.own.total() > Bytes::ZERO).then(|| sample.own.into()),
            kinds: by_kind::by_kind(&sample.kinds, accounts),
        }
    }

    /// The most memory that the program had, as far as it is known: what this sample saw, and what it did not.
    pub fn peak_bytes(&self) -> u64 {
        self.resident.total_bytes + self.unseen_bytes
    }
}

/// The program, as its files describe it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramFacts {
    /// The file that was named.
    pub path: String,
    /// The file that ran: another one for a script.
    pub executable: String,
    /// Its process identifier.
    pub pid: i32,
    /// `glibc`, `musl`, `static`, or the loader.
    pub linkage: String,
    /// The language runtime.
    pub runtime: Option<&'static str>,
    /// The allocator that it brings.
    pub allocator: Option<String>,
    /// Who imports fork or the like, as `FILE: SYMBOL`.
    pub forks: Vec<String>,
}

impl ProgramFacts {
    pub(crate) fn of(program: &Program, pid: Pid) -> ProgramFacts {
        ProgramFacts {
            path: program.path.display().to_string(),
            executable: program.executable.display().to_string(),
            pid: pid.0,
            linkage: match &program.linkage {
                Linkage::Glibc => "glibc".into(),
                Linkage::Musl => "musl".into(),
                Linkage::Static if program.position_independent => "static-pie".into(),
                Linkage::Static => "static".into(),
                Linkage::OtherLoader(loader) => loader.clone(),
            },
            runtime: program.runtime.map(crate::program::Runtime::name),
            allocator: program.allocator.as_ref().map(|allocator| match allocator {
                Allocator::InExecutable => "its own".into(),
                Allocator::Library(library) => library.clone(),
            }),
            forks: program.forks.iter().map(|it| format!("{}: {}", it.file.display(), it.symbol)).collect(),
        }
    }
}

/// What was requested.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Asked {
    /// `--heap`.
    #[serde(serialize_with = "name")]
    pub heap: Heap,
    /// `--pool`: the broker's socket.
    pub pool: Option<String>,
    /// `--shm`.
    #[serde(serialize_with = "name")]
    pub shm: Shm,
    /// `--text`.
    pub text: Text,
    /// `--mechanism`; `None` for auto.
    pub mechanism: Option<Mechanism>,
    /// `--require`.
    pub require: bool,
    /// `--fork`.
    #[serde(serialize_with = "name")]
    pub fork: Fork,
}

impl Asked {
    pub(crate) fn of(request: &Request) -> Asked {
        Asked {
            heap: request.heap,
            pool: request.pool.as_ref().map(|socket| socket.display().to_string()),
            shm: request.shm,
            text: request.text.kind,
            mechanism: request.mechanism,
            require: request.require,
            fork: request.fork,
        }
    }
}

/// Memory that the heap got as less than it asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FallBackCounts {
    /// The identifier.
    pub reason: &'static str,
    /// In words.
    pub explanation: Cow<'static, str>,
    /// How often.
    pub events: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// The preloaded heap's own account: what it asked for and was answered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeapAccount {
    /// Bytes held as each backing when their sum was highest. Held as `thp` means advised: what came of it is
    /// in the kernel's values.
    pub held_at_peak_bytes: BTreeMap<&'static str, u64>,
    /// The same at the end.
    pub held_bytes: BTreeMap<&'static str, u64>,
    /// Bytes released to the kernel over the run.
    pub returned_bytes: u64,
    /// Memory got as less than asked for.
    pub fall_backs: Vec<FallBackCounts>,
    /// The errno of the latest one that had any; 0 for none.
    pub last_errno: i32,
    /// Bytes that were populated, and so zeroed, before their first use.
    pub populated_bytes: u64,
    /// The time that it took. Pages that were zeroed in a page fault are not in here: the kernel counts that
    /// in the program's system time.
    pub populate_ns: u64,
    /// Forks of the program.
    pub forks: u64,
    /// Forks that were refused (ENOMEM), for the hugetlb pool could not carry a second copy.
    pub forks_refused: u64,
    /// Bytes that writes after forks had split, and that the heap has made huge again (`--fork cheap`, `snapshot`).
    pub repaired_bytes: u64,
}

impl HeapAccount {
    /// `None` until the library has claimed the ledger, and where what it says cannot be true: the program may write into
    /// it as it likes.
    pub fn of(ledger: &Ledger) -> Option<HeapAccount> {
        if ledger.pid() == 0 || !ledger.is_plausible() {
            return None;
        }
        let (populated_bytes, populate_ns) = ledger.populate();
        let (forks, forks_refused) = ledger.forks();
        Some(HeapAccount {
            held_at_peak_bytes: Backing::ALL.map(|it| (it.name(), ledger.held_at_peak(it))).into(),
            held_bytes: Backing::ALL.map(|it| (it.name(), ledger.held(it))).into(),
            returned_bytes: ledger.returned_bytes(),
            fall_backs: shared::counts(|reason| ledger.fall_backs(reason)),
            last_errno: ledger.last_errno(),
            populated_bytes,
            populate_ns,
            forks,
            forks_refused,
            repaired_bytes: ledger.repaired_bytes(),
        })
    }
}

fn explain(reason: FallBack) -> Cow<'static, str> {
    Cow::Borrowed(match reason {
        FallBack::PoolShort1G => "too few 1 GiB pages available in the pool",
        FallBack::PoolShort2M => "too few 2 MiB pages available in the pool",
        FallBack::CgroupLimit => {
            "a control group's limit on hugetlb pages was reached (hugetlb.*.max, or .rsvd.max)"
        }
        FallBack::MemoryPolicy => {
            "the memory policy (numactl --membind) allows only nodes without a free page of the pool"
        }
        FallBack::Cpuset => "the cpuset (cpuset.mems) allows only nodes without a free page of the pool",
        FallBack::KernelTooOld => {
            return Cow::Owned(format!(
                "Linux {} cannot put hugetlb pages behind a heap safely: that takes mremap(2) of such pages (Linux 5.16) \
                 and MADV_POPULATE_WRITE (5.14)",
                kernel_release()
            ));
        }
        FallBack::Unexplained => {
            "the pool had pages, yet the kernel refused them, by no limit that can be seen from the program: see the errno"
        }
        FallBack::ThpOff => "transparent huge pages are off",
        FallBack::Fork => "moved from hugetlb pages to private memory because the program forked",
        FallBack::TooSmall => "the heap was still too small to be worth a huge page",
        FallBack::Sparse => "too little of the heap's huge pages was in use",
        FallBack::Room => "a limit on memory was near: the machine's, a control group's or the process's own",
        FallBack::Fragmented => {
            "too few huge pages were free: base pages came first, so that the program does not wait"
        }
        FallBack::BrokerEmpty => "the broker had no page ready",
        FallBack::BrokerQuota => "the user has as much of the broker as one may have, or all of them have",
        FallBack::BrokerRefused => "the broker does not serve this process, or has pages of another size",
        FallBack::BrokerGone => "no broker answered, or not in time, or one of a stranger's",
        FallBack::ShmNotPermitted => {
            "the user may not make SysV segments on hugetlb pages: that takes CAP_IPC_LOCK, or the group in vm.hugetlb_shm_group"
        }
        FallBack::Other => "the kernel refused for another reason: see the errno",
    })
}

/// A program's present memory on one node of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NodeMemory {
    /// The node.
    pub node: u32,
    /// hugetlb pages.
    pub hugetlb_bytes: u64,
    /// Everything else: transparent huge pages, base pages, files.
    pub other_bytes: u64,
    /// Whether a thread of the program was seen to run there.
    pub ran_here: bool,
}

impl NodeMemory {
    fn all(samples: &Samples) -> Vec<NodeMemory> {
        let of = |(&node, on): (&u32, &OnNode)| NodeMemory {
            node,
            hugetlb_bytes: on.hugetlb.0,
            other_bytes: on.other.0,
            ran_here: samples.ran_on.contains(&node),
        };
        samples.by_node.iter().map(of).collect()
    }
}

/// hugetlb pages come from the next node where the own one's pool is empty, before any page of the own node's.
fn remote(samples: &Samples) -> Option<String> {
    let is_remote = |(node, on): &(&u32, &OnNode)| on.hugetlb > Bytes::ZERO && !samples.ran_on.contains(node);
    let remote: Vec<(&u32, &OnNode)> = samples.by_node.iter().filter(is_remote).collect();
    let list =
        |nodes: &mut dyn Iterator<Item = &u32>| nodes.map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let own = samples.ran_on.first()?;
    let bytes: Bytes = remote.iter().map(|(_, on)| on.hugetlb).sum();
    (!remote.is_empty()).then(|| {
        format!(
            "{bytes} of hugetlb pages lie on node {}, and the program was seen on node {} alone: the pool there had too few, \
             or a memory policy wanted it so; megapage pool set 2m={own}:+N makes some there, --heap thp takes local memory",
            list(&mut remote.iter().map(|(node, _)| *node)),
            list(&mut samples.ran_on.iter())
        )
    })
}

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It exited with this status.
    Status(i32),
    /// It died of this signal.
    Signal(i32),
}

/// What the kernel counted, known once the program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Totals {
    /// How it ended.
    pub ended: Ended,
    /// Wall-clock time, in milliseconds.
    pub elapsed_ms: u64,
    /// Processor time in user mode, with the children it waited for.
    pub user_ms: u64,
    /// The same in the kernel.
    pub system_ms: u64,
    /// Page faults without input, of the same processes.
    pub minor_faults: u64,
    /// Page faults that waited for input.
    pub major_faults: u64,
    /// The largest resident memory of any one of these processes; without hugetlb pages.
    pub max_rss_bytes: u64,
}

impl Totals {
    pub(crate) fn of(ended: Ended, elapsed: Duration, usage: Usage) -> Totals {
        Totals {
            ended,
            elapsed_ms: elapsed.as_millis() as u64,
            user_ms: usage.user.as_millis() as u64,
            system_ms: usage.system.as_millis() as u64,
            minor_faults: usage.minor_faults,
            major_faults: usage.major_faults,
            max_rss_bytes: usage.max_rss.0,
        }
    }
}

/// What sampling cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sampling {
    /// Samples taken.
    pub samples: u64,
    /// Processor time spent in taking them.
    pub cost_ms: f64,
    /// That time as a share of the run, in percent.
    pub cost_percent: f64,
}

/// The report of one run, or of one attachment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// Whether the program still runs.
    pub running: bool,
    /// The program.
    pub program: ProgramFacts,
    /// What was requested.
    pub asked: Asked,
    /// The mechanisms in use.
    pub mechanisms: Vec<Mechanism>,
    /// The backing that they were given.
    #[serde(serialize_with = "name")]
    pub heap: Heap,
    /// Every mechanism with its reason.
    pub considered: Vec<Considered>,
    /// What became of `--pool`.
    pub pool: Option<PoolPlan>,
    /// The sample with the most memory.
    pub peak: Option<Moment>,
    /// The latest sample.
    pub end: Option<Moment>,
    /// The latest sample with at least half as much anonymous memory as any: by it external promotion is judged, which
    /// comes after the memory, and may come too late for one that the program frees before it ends.
    pub last_full: Option<Moment>,
    /// Whether `end` was taken while the program waited to exit; otherwise it is as old as it says.
    pub end_is_final: bool,
    /// The largest resident memory that the kernel noted of the program: `VmHWM` at its exit, or so far; where the end was not
    /// seen, that of getrusage, which its children raise. Without hugetlb pages.
    pub peak_rss_bytes: Option<u64>,
    /// The most hugetlb memory that was seen.
    pub hugetlb_peak_bytes: u64,
    /// Where one of the program's children, or what the process was before an exec, had more resident memory than the
    /// program: how much. None of it was seen.
    pub others_peak_rss_bytes: Option<u64>,
    /// Where its memory lay in the latest sample, on a machine of several nodes; otherwise empty.
    pub by_node: Vec<NodeMemory>,
    /// The heap's own account, with the preloaded library.
    pub account: Option<HeapAccount>,
    /// The library's account of the program's shared memory; `None` where it did nothing and `--shm` asks for nothing.
    pub shm: Option<SharedAccount>,
    /// The program's own requests for hugetlb pages (mmap(2), shmget(2)) that the kernel refused, by reason.
    pub hugetlb_requests_refused: Vec<FallBackCounts>,
    /// What external promotion obtained.
    pub promotion: Option<PromoteOutcome>,
    /// The shared memory that it maps, touched by any process, where external promotion looked at it; `None` where there is
    /// none.
    pub shared_memory: Option<SharedMemory>,
    /// The program's text, where it was asked for.
    pub text: Option<TextReport>,
    /// The kernel's totals, after the end.
    pub totals: Option<Totals>,
    /// What sampling cost.
    pub sampling: Sampling,
    /// What was asked and not obtained, each in words. Empty: everything was obtained.
    pub not_obtained: Vec<String>,
    /// What a reader should know besides.
    pub notes: Vec<String>,
    /// The JVM's account; `None` for other programs.
    pub java: Option<JavaReport>,
    /// What the program has printed on huge pages, where that went into a file.
    #[serde(rename = "said")]
    pub runtime_log: Vec<Explained>,
}

/// What a JVM takes, and what it was given before the start. Bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JavaReport {
    /// Its feature release; `None` where its files do not say.
    pub version: Option<u32>,
    /// The page size of the pool that its heap was to come from; `None`: THP, or its own arguments' choice.
    pub pool_page_bytes: Option<u64>,
    /// The largest heap.
    pub max_heap_bytes: u64,
    /// Code cache and class space.
    pub code_and_classes_bytes: u64,
    /// The collector's tables, at most.
    pub tables_bytes: u64,
    /// What stood in the way of pages of the pool.
    pub obstacles: Vec<String>,
}

impl JavaReport {
    fn of(plan: &JavaPlan) -> JavaReport {
        JavaReport {
            version: plan.java.version,
            pool_page_bytes: plan.page.map(|page| page.bytes().0),
            max_heap_bytes: plan.need.heap.0,
            code_and_classes_bytes: (plan.need.code_cache + plan.need.class_space).0,
            tables_bytes: plan.need.tables.0,
            obstacles: plan.obstacles.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Reported where the heap's account is omitted.
const IMPLAUSIBLE: &str =
    "the heap's own account cannot be true, and is left out: the program has written over it";

/// The pieces that a report is made of.
pub(crate) struct Pieces<'a> {
    pub program: ProgramFacts,
    pub asked: Asked,
    pub plan: &'a Plan,
    pub samples: &'a Samples,
    pub ledger: Option<&'a Ledger>,
    pub text: Option<TextPieces<'a>>,
    pub promotion: Option<PromoteOutcome>,
    pub shared_memory: SharedMemory,
    pub totals: Option<Totals>,
    /// Whether the program runs on.
    pub running: bool,
    pub start: Instant,
    pub now: Instant,
    pub notes: Vec<String>,
    pub runtime_log: Vec<Explained>,
    /// The launcher's own resident memory when it made the process: below it, getrusage says nothing of the program.
    pub rss_at_start: Bytes,
}

/// What the kernel's high watermarks say of the largest resident memory, of the program and of others.
fn high_water(samples: &Samples, totals: Option<Totals>, rss_at_start: Bytes) -> (Bytes, Option<u64>) {
    // A process begins with its parent's memory (fork(2)), and getrusage goes on from there.
    let noted = totals.map(|totals| Bytes(totals.max_rss_bytes)).filter(|noted| *noted > rss_at_start);
    let own = samples.peak_rss;
    match noted.filter(|noted| *noted > own) {
        // The program's own high watermark was read when it had come to its end: what is far above it was not its own.
        Some(noted) if samples.last_is_final && noted.0 > own.0 + allowance(own.0) => (own, Some(noted.0)),
        Some(noted) => (noted, None),
        None => (own, None),
    }
}

impl Pieces<'_> {
    /// The report, without what was not obtained: see [`crate::proof::proved`].
    pub fn report(self) -> RunReport {
        let samples = self.samples;
        let elapsed = self.now.saturating_duration_since(self.start);
        let (peak_rss, others_peak_rss_bytes) = high_water(samples, self.totals, self.rss_at_start);
        let account = self.ledger.and_then(HeapAccount::of);
        let believed = self.ledger.filter(|_| account.is_some());
        let shm = believed.map(SharedAccount::of);
        let shm = shm.filter(|account| self.asked.shm.is_asked() || !account.is_empty());
        let moment = |sample: &Option<Sample>| {
            let most = (peak_rss, samples.hugetlb_peak);
            Some(Moment::of(sample.as_ref()?, self.start, self.now, most, (account.as_ref(), shm.as_ref())))
        };
        let peak_is_known = samples.last.is_some() || self.totals.is_some();
        let mut report = RunReport {
            running: self.running,
            program: self.program,
            asked: self.asked,
            mechanisms: self.plan.used(),
            heap: self.plan.heap,
            considered: self.plan.considered.clone(),
            pool: self.plan.pool.clone(),
            peak: moment(&samples.peak),
            end: moment(&samples.last),
            last_full: moment(&samples.last_full),
            end_is_final: samples.last_is_final,
            peak_rss_bytes: peak_is_known.then_some(match self.totals {
                Some(totals) if samples.last.is_none() => totals.max_rss_bytes,
                _ => peak_rss.0,
            }),
            hugetlb_peak_bytes: samples.hugetlb_peak.0,
            others_peak_rss_bytes,
            by_node: NodeMemory::all(samples),
            account,
            shm,
            hugetlb_requests_refused: believed
                .map_or_else(Vec::new, |ledger| shared::counts(|reason| ledger.own_requests_refused(reason))),
            promotion: self.promotion,
            shared_memory: (self.shared_memory.resident_bytes > 0).then_some(self.shared_memory),
            text: self.text.map(TextReport::of),
            totals: self.totals,
            sampling: Sampling {
                samples: samples.count,
                cost_ms: (samples.cost.as_secs_f64() * 1e6).round() / 1e3,
                cost_percent: (samples.cost.as_secs_f64() / elapsed.as_secs_f64().max(1e-9) * 1e5).round()
                    / 1e3,
            },
            not_obtained: Vec::new(),
            notes: self.plan.notes.iter().cloned().chain(self.notes).chain(remote(samples)).collect(),
            java: self.plan.java.as_ref().map(JavaReport::of),
            runtime_log: self.runtime_log,
        };
        if self.ledger.is_some_and(|ledger| ledger.pid() != 0 && !ledger.is_plausible()) {
            report.notes.push(IMPLAUSIBLE.into());
        }
        report
    }
}
