//! The report of a run: schema `megapage.run/3`.

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
    /// Milliseconds after the start of the program, or of watching it.
    pub at_ms: u64,
    /// Milliseconds from this moment to the report, or to the program's end.
    pub age_ms: u64,
    /// Bytes of the program's largest memory that this sample did not see, by the kernel's high
    /// watermarks. Their backing is not known.
    pub unseen_bytes: u64,
    /// The share of the largest memory that this sample saw, in percent.
    pub peak_seen_percent: f64,
    /// All of the program's memory.
    pub resident: Backed,
    /// Its private, writable, anonymous memory without stacks.
    pub anonymous: Backed,
    /// Shared memory that it has touched, each part of an object once; `None` if there is none.
    pub shared: Option<Backed>,
    /// Memory of the preloaded heap (with a broker's shared pages), or of the Java heap; `None` if
    /// there is none.
    pub heap: Option<Backed>,
    /// The rest of the anonymous memory, which the program has mapped without malloc. `None` if
    /// there is none, or no preloaded heap.
    pub own_mappings: Option<Backed>,
    /// All of the program's memory by its purpose. Each mapping is of one kind, so they add up to
    /// `resident`.
    pub kinds: ByKind,
}

impl Moment {
    /// Makes a moment of a sample. `peak_rss` and `hugetlb_peak` are the program's maxima of each.
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

    /// Returns the most memory that the program is known to have had: seen by this sample, and
    /// unseen.
    pub fn peak_bytes(&self) -> u64 {
        self.resident.total_bytes + self.unseen_bytes
    }
}

/// Facts from the program's files.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramFacts {
    /// The named file.
    pub path: String,
    /// The file that ran; for a script, its interpreter.
    pub executable: String,
    /// Its process identifier.
    pub pid: i32,
    /// `glibc`, `musl`, `static`, or the loader.
    pub linkage: String,
    /// The language runtime.
    pub runtime: Option<&'static str>,
    /// The allocator that it brings.
    pub allocator: Option<String>,
    /// The imports of fork and similar functions, as `FILE: SYMBOL`.
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

/// The request.
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

/// Memory for which the heap got less than it requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FallBackCounts {
    /// The reason's identifier.
    pub reason: &'static str,
    /// The reason in words.
    pub explanation: Cow<'static, str>,
    /// Number of events.
    pub events: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The preloaded heap's own account: its requests and the answers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeapAccount {
    /// Bytes held with each backing when their sum was highest. `thp` means advised: the result is
    /// in the kernel's values.
    pub held_at_peak_bytes: BTreeMap<&'static str, u64>,
    /// Bytes held with each backing at the end.
    pub held_bytes: BTreeMap<&'static str, u64>,
    /// Bytes released to the kernel over the run.
    pub returned_bytes: u64,
    /// Memory for which the heap got less than it requested.
    pub fall_backs: Vec<FallBackCounts>,
    /// The errno of the latest fall-back that had any; 0 for none.
    pub last_errno: i32,
    /// Bytes that were populated, and so zeroed, before their first use.
    pub populated_bytes: u64,
    /// Time to populate them. Pages that a page fault zeroed are not included: the kernel counts
    /// that in the program's system time.
    pub populate_ns: u64,
    /// Forks of the program.
    pub forks: u64,
    /// Forks that were refused (ENOMEM) because the hugetlb pool could not hold a second copy.
    pub forks_refused: u64,
    /// Bytes that writes after forks split, and that the heap made huge again (`--fork cheap`,
    /// `snapshot`).
    pub repaired_bytes: u64,
}

impl HeapAccount {
    /// Reads the account. `None` until the library has claimed the ledger, and if its values cannot
    /// be true: the program can overwrite it.
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
    /// Bytes on hugetlb pages.
    pub hugetlb_bytes: u64,
    /// All other bytes: transparent huge pages, base pages, files.
    pub other_bytes: u64,
    /// True if a thread of the program was seen to run there.
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

/// Returns a note if hugetlb pages lie on other nodes. If the own node's pool is empty, they come
/// from the next node, before any base page of the own node.
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

/// The way in which the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Exit with this status.
    Status(i32),
    /// Death by this signal.
    Signal(i32),
}

/// Totals that the kernel counted, known once the program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Totals {
    /// The way in which it ended.
    pub ended: Ended,
    /// Wall-clock time, in milliseconds.
    pub elapsed_ms: u64,
    /// Processor time in user mode, of the program and of children that it waited for.
    pub user_ms: u64,
    /// Processor time in the kernel, of the same processes.
    pub system_ms: u64,
    /// Page faults without input, of the same processes.
    pub minor_faults: u64,
    /// Page faults that waited for input, of the same processes.
    pub major_faults: u64,
    /// The largest resident memory of any one of these processes, without hugetlb pages.
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

/// The cost of sampling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sampling {
    /// Number of samples.
    pub samples: u64,
    /// Processor time for taking them.
    pub cost_ms: f64,
    /// Processor time for samples as a share of the run, in percent.
    pub cost_percent: f64,
}

/// The report of one run, or of one attachment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// True if the program still runs.
    pub running: bool,
    /// The program.
    pub program: ProgramFacts,
    /// The request.
    pub asked: Asked,
    /// The mechanisms in use.
    pub mechanisms: Vec<Mechanism>,
    /// The backing that they use.
    #[serde(serialize_with = "name")]
    pub heap: Heap,
    /// Every mechanism, with its reason.
    pub considered: Vec<Considered>,
    /// The result of `--pool`.
    pub pool: Option<PoolPlan>,
    /// The sample with the most memory.
    pub peak: Option<Moment>,
    /// The latest sample.
    pub end: Option<Moment>,
    /// The latest sample with at least half as much anonymous memory as any other. It judges
    /// external promotion, which follows the memory's growth: a program may free memory before its
    /// end.
    pub last_full: Option<Moment>,
    /// True if `end` was taken while the program waited to exit; otherwise its age is in `end`.
    pub end_is_final: bool,
    /// The largest resident memory that the kernel recorded for the program, without hugetlb pages:
    /// `VmHWM` at its exit, or so far. If the end was not seen, it is that of getrusage, which
    /// children raise.
    pub peak_rss_bytes: Option<u64>,
    /// The most hugetlb memory that was seen.
    pub hugetlb_peak_bytes: u64,
    /// The largest resident memory of the program's children, and of the process before an exec, if
    /// it was more than the program's. None of it was seen.
    pub others_peak_rss_bytes: Option<u64>,
    /// Memory by node in the latest sample, on a machine with several nodes; otherwise empty.
    pub by_node: Vec<NodeMemory>,
    /// The heap's own account, if the library is preloaded.
    pub account: Option<HeapAccount>,
    /// The library's account of the program's shared memory. `None` if it did nothing and `--shm`
    /// requests nothing.
    pub shm: Option<SharedAccount>,
    /// The program's own requests for hugetlb pages (mmap(2), shmget(2)) that the kernel refused,
    /// by reason.
    pub hugetlb_requests_refused: Vec<FallBackCounts>,
    /// Outcome of external promotion.
    pub promotion: Option<PromoteOutcome>,
    /// The shared memory that it maps, touched by any process, if external promotion looked at it.
    /// `None` if there is none.
    pub shared_memory: Option<SharedMemory>,
    /// The program's text, if it was requested.
    pub text: Option<TextReport>,
    /// The kernel's totals, after the end.
    pub totals: Option<Totals>,
    /// The cost of sampling.
    pub sampling: Sampling,
    /// The unmet requests, each in words; empty if all were met.
    pub not_obtained: Vec<String>,
    /// Further notes for the reader.
    pub notes: Vec<String>,
    /// The JVM's account; `None` for other programs.
    pub java: Option<JavaReport>,
    /// Known messages about huge pages that the program printed, if its output went into a file.
    #[serde(rename = "said")]
    pub runtime_log: Vec<Explained>,
}

/// The need of a JVM, and its pages before the start. In bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JavaReport {
    /// Its feature release; `None` if its files do not name it.
    pub version: Option<u32>,
    /// The page size of the pool intended for its heap; `None`: THP, or the choice of the JVM's
    /// arguments.
    pub pool_page_bytes: Option<u64>,
    /// The largest heap.
    pub max_heap_bytes: u64,
    /// Code cache and class space.
    pub code_and_classes_bytes: u64,
    /// Upper bound of the collector's tables.
    pub tables_bytes: u64,
    /// Obstacles to pages of the pool.
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

/// Note in place of an implausible account of the heap.
const IMPLAUSIBLE: &str =
    "the heap's own account cannot be true, and is left out: the program has written over it";

/// The parts of a report.
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
    /// True if the program still runs.
    pub running: bool,
    pub start: Instant,
    pub now: Instant,
    pub notes: Vec<String>,
    pub runtime_log: Vec<Explained>,
    /// The launcher's own resident memory when it made the process: a smaller value of getrusage is
    /// not the program's.
    pub rss_at_start: Bytes,
}

/// Returns the largest resident memory of the program, and that of other processes if it was
/// larger, by the kernel's high watermarks.
fn high_water(samples: &Samples, totals: Option<Totals>, rss_at_start: Bytes) -> (Bytes, Option<u64>) {
    // A process begins with its parent's memory (fork(2)), and getrusage starts from there.
    let noted = totals.map(|totals| Bytes(totals.max_rss_bytes)).filter(|noted| *noted > rss_at_start);
    let own = samples.peak_rss;
    match noted.filter(|noted| *noted > own) {
        // The program's own high watermark was read at its end: a much larger value is not its own.
        Some(noted) if samples.last_is_final && noted.0 > own.0 + allowance(own.0) => (own, Some(noted.0)),
        Some(noted) => (noted, None),
        None => (own, None),
    }
}

impl Pieces<'_> {
    /// Returns the report without the unmet requests, which [`crate::proof::proved`] adds.
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
