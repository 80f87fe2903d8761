//! The recording of a host: what each of its services does with its memory, one moment after the other. The format is in
//! `docs/plan.md`.

mod read;

pub use read::{MOST_BYTES, Notes, ReadError, read};

use megapage_snapshot::AccessClass;
use megapage_tlb::Geometry;
use serde::{Deserialize, Serialize};

/// The version that is written. Rises when a field changes its meaning.
pub const VERSION: u32 = 1;
/// Services of one moment at most: those with the most memory and processor time.
pub const MOST_SERVICES: usize = 64;
/// Base pages of a region that one step of coverage stands for.
pub const HEAT_STEP: u16 = 64;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// A recording begins.
    Header(Header),
    /// A moment of it.
    Moment(Moment),
    /// It ended in order.
    End(End),
}

impl Line {
    /// The line as the file has it, with the newline that says that it is whole.
    pub fn text(&self) -> String {
        // A recording holds no map, and every float of it is finite: nothing can fail.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// What is said once: the host, and how it is recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// The host, as a keyed hash, or the name that a monitoring system has for it.
    pub host: String,
    /// When it began, in seconds since 1970.
    pub start: u64,
    /// From one moment to the next, as asked for, in seconds.
    pub every: f64,
    /// The share of one processor that recording may take, and the share by which it may slow a program: 0 to 1.
    pub budget: f64,
    /// Whether services have their names; else a keyed hash of them.
    pub named: bool,
    /// The kernel's release.
    pub kernel: String,
    /// The processors' model; empty where it is not known.
    pub processor: String,
    /// Processors that are online; 0 where it is not known.
    pub processors: u32,
    /// All memory, in bytes.
    pub memory: u64,
    /// The TLBs of one processor.
    pub tlb: Geometry,
    /// `enabled` of transparent huge pages; `None` on a kernel without them.
    pub thp: Option<String>,
    /// How accesses are tracked; `None` where they are not.
    pub tracker: Option<String>,
    /// How the cost of address translation is known: `measured` or `estimated`; `None` where it is not.
    pub costs: Option<String>,
    /// What the recording lacks and why, one line each.
    pub lacks: Vec<String>,
}

/// The host at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Moment {
    /// Seconds since the start.
    pub at: f64,
    /// Seconds since the moment before; 0 for the first.
    pub span: f64,
    /// Memory that new programs can have, in bytes.
    pub available: u64,
    /// The share of free memory, 0 to 1, that is unusable for 2 MiB pages, over all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragmentation: Option<f64>,
    /// Pages of the pool of 2 MiB pages, and those of them that are free.
    #[serde(default, skip_serializing_if = "is_empty_pool")]
    pub pool_2m: [u64; 2],
    /// The same of the pool of 1 GiB pages.
    #[serde(default, skip_serializing_if = "is_empty_pool")]
    pub pool_1g: [u64; 2],
    /// Processor seconds that recording has taken so far.
    pub own: f64,
    /// Processes that are in no service below: too many, or not readable.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
    /// The services, by name or hash.
    pub services: Vec<Service>,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct End {
    /// Seconds since the start.
    pub at: f64,
    /// Processor seconds that recording has taken.
    pub own: f64,
    /// The longest time from one moment to the next, in seconds: more than was asked for where the budget did not suffice.
    pub longest: f64,
    /// Why: `time`, `signal` or `full`.
    pub why: String,
}

/// One service at one moment: all processes of a control group, or of one executable. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Service {
    /// Its name, or a keyed hash of it.
    pub id: String,
    /// The known software that it runs, such as `postgres`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Processes.
    pub processes: u32,
    /// Processor seconds since the moment before.
    pub cpu: f64,
    /// Resident memory without hugetlb pages, as processes count it.
    pub resident: u64,
    /// Private memory that is not a file's.
    #[serde(default, skip_serializing_if = "is_none")]
    pub anonymous: u64,
    /// Shared memory, once for each process that maps it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub shared: u64,
    /// Pages of files.
    #[serde(default, skip_serializing_if = "is_none")]
    pub file: u64,
    /// Private or shared memory that is on huge pages, hugetlb pages aside.
    #[serde(default, skip_serializing_if = "is_none")]
    pub huge: u64,
    /// Hugetlb pages.
    #[serde(default, skip_serializing_if = "is_none")]
    pub hugetlb: u64,
    /// Memory on base pages that huge pages could hold.
    #[serde(default, skip_serializing_if = "is_none")]
    pub could: u64,
    /// What huge pages there would fill with zeros.
    #[serde(default, skip_serializing_if = "is_none")]
    pub fill: u64,
    /// Pages of 2 MiB that would hold all that is huge or could be.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub need: u32,
    /// Aligned ranges of 1 GiB of which these pages are nearly all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub giant: u32,
    /// What its memory has grown by since the moment before, process by process.
    #[serde(default, skip_serializing_if = "is_none")]
    pub grown: u64,
    /// What it has shrunk by.
    #[serde(default, skip_serializing_if = "is_none")]
    pub shrunk: u64,
    /// Whether forked children shared memory with their parent.
    #[serde(default, skip_serializing_if = "is_false")]
    pub forks: bool,
    /// Whether a process of it has switched transparent huge pages off for itself.
    #[serde(default, skip_serializing_if = "is_false")]
    pub off: bool,
    /// How its regions of base pages are accessed, as far as they were sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heat: Vec<Heat>,
    /// How it goes through its memory for the most part: `streaming`, `random` or `dependent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// What address translation costs it; `None` where that is not known at this moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// Regions of which about as many base pages were accessed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Heat {
    /// Base pages accessed of each, 0 to 512, rounded up to a multiple of [`HEAT_STEP`].
    pub pages: u16,
    /// How many regions.
    pub regions: u32,
    /// Visits of base pages in all of them, per second of processor time; 0 where that was not estimated.
    pub visits: f64,
}

/// What address translation costs: the share of processor time, 0 to 1, with an interval of about 90 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Cost {
    /// The lower end.
    pub low: f64,
    /// The best guess.
    pub likely: f64,
    /// The upper end.
    pub high: f64,
    /// Whether it was counted by the processor: then it is all that walks cost. An estimate is what huge pages would save.
    #[serde(default, skip_serializing_if = "is_false")]
    pub measured: bool,
}

/// One recording: from a header to the next one, or to the end of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// What is said once.
    pub header: Header,
    /// The moments, ascending.
    pub moments: Vec<Moment>,
    /// How it ended; `None` where it was cut off.
    pub end: Option<End>,
}

impl Recording {
    /// The recording as a file has it.
    pub fn text(&self) -> String {
        let header = Line::Header(self.header.clone()).text();
        let moments = self.moments.iter().map(|moment| Line::Moment(moment.clone()).text());
        let end = self.end.iter().map(|end| Line::End(end.clone()).text());
        std::iter::once(header).chain(moments).chain(end).collect()
    }

    /// The share of one processor that recording took; `None` where there is one moment at most.
    pub fn own_share(&self) -> Option<f64> {
        let (at, own) = match (&self.end, self.moments.last()) {
            (Some(end), _) => (end.at, end.own),
            (None, Some(last)) => (last.at, last.own),
            (None, None) => return None,
        };
        (at > 0.0).then_some(own / at)
    }
}

/// The class of this name.
pub fn class(name: &str) -> Option<AccessClass> {
    [AccessClass::Streaming, AccessClass::Random, AccessClass::Dependent]
        .into_iter()
        .find(|class| class.name() == name)
}

fn is_none(bytes: &u64) -> bool {
    *bytes == 0
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_false(is: &bool) -> bool {
    !is
}

fn is_empty_pool(pool: &[u64; 2]) -> bool {
    pool[0] == 0
}
