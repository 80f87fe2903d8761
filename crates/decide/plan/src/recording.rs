//! The recording of a host: the memory of each of its services, one moment after the other. The
//! format is in `docs/plan.md`.

mod read;

pub use read::{MOST_BYTES, Notes, ReadError, read};

use megapage_snapshot::AccessClass;
use megapage_tlb::Geometry;
use serde::{Deserialize, Serialize};

/// Version that is written. It rises when a field changes its meaning.
pub const VERSION: u32 = 1;
/// Maximum of services of one moment: those with the most memory and processor time.
pub const MOST_SERVICES: usize = 64;
/// Base pages of a region in one step of coverage.
pub const HEAT_STEP: u16 = 64;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// Start of a recording.
    Header(Header),
    /// A moment of the recording.
    Moment(Moment),
    /// Orderly end of the recording.
    End(End),
}

impl Line {
    /// Returns the line as in the file, with the newline that marks it as whole.
    pub fn text(&self) -> String {
        // Cannot fail: a recording holds no map, and all its floats are finite.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// Constant data: the host, and the settings of the recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// Keyed hash of the host, or its name in a monitoring system.
    pub host: String,
    /// Start of the recording, in seconds since 1970.
    pub start: u64,
    /// Requested time from one moment to the next, in seconds.
    pub every: f64,
    /// Share of one processor that recording may take, and share by which it may slow a program: 0
    /// to 1.
    pub budget: f64,
    /// True if services have their names; else keyed hashes of them.
    pub named: bool,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the processors; empty if it is unknown.
    pub processor: String,
    /// Processors that are online; 0 if it is unknown.
    pub processors: u32,
    /// All memory, in bytes.
    pub memory: u64,
    /// TLBs of one processor.
    pub tlb: Geometry,
    /// `enabled` of transparent huge pages; `None` on a kernel without them.
    pub thp: Option<String>,
    /// Tracker of accesses; `None` if they are not tracked.
    pub tracker: Option<String>,
    /// Source of the cost of address translation: `measured` or `estimated`; `None` if it is
    /// unknown.
    pub costs: Option<String>,
    /// Missing parts of the recording and the reasons, one line each.
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
    /// Memory available to new programs, in bytes.
    pub available: u64,
    /// Share of free memory that is unusable for 2 MiB pages, 0 to 1, over all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragmentation: Option<f64>,
    /// Pages of the pool of 2 MiB pages, and the free ones of them.
    #[serde(default, skip_serializing_if = "is_empty_pool")]
    pub pool_2m: [u64; 2],
    /// Pages of the pool of 1 GiB pages, and the free ones of them.
    #[serde(default, skip_serializing_if = "is_empty_pool")]
    pub pool_1g: [u64; 2],
    /// Processor seconds of recording so far.
    pub own: f64,
    /// Processes without a service below: too many, or not readable.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u32,
    /// The services, by name or hash.
    pub services: Vec<Service>,
}

/// End of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct End {
    /// Seconds since the start.
    pub at: f64,
    /// Processor seconds of recording.
    pub own: f64,
    /// Longest time from one moment to the next, in seconds. It exceeds the requested time if the
    /// budget did not suffice.
    pub longest: f64,
    /// Reason: `time`, `signal` or `full`.
    pub why: String,
}

/// One service at one moment: all processes of a control group, or of one executable. Sizes are in
/// bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Service {
    /// Name, or a keyed hash of it.
    pub id: String,
    /// Known software that it runs, such as `postgres`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Number of processes.
    pub processes: u32,
    /// Processor seconds since the moment before.
    pub cpu: f64,
    /// Resident memory without hugetlb pages, as processes count it.
    pub resident: u64,
    /// Private memory, files excluded.
    #[serde(default, skip_serializing_if = "is_none")]
    pub anonymous: u64,
    /// Shared memory, once for each process that maps it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub shared: u64,
    /// Pages of files.
    #[serde(default, skip_serializing_if = "is_none")]
    pub file: u64,
    /// Private or shared memory on huge pages, hugetlb pages excluded.
    #[serde(default, skip_serializing_if = "is_none")]
    pub huge: u64,
    /// Hugetlb pages.
    #[serde(default, skip_serializing_if = "is_none")]
    pub hugetlb: u64,
    /// Memory on base pages that huge pages could hold.
    #[serde(default, skip_serializing_if = "is_none")]
    pub could: u64,
    /// Bytes of zeros that huge pages there would add.
    #[serde(default, skip_serializing_if = "is_none")]
    pub fill: u64,
    /// Pages of 2 MiB that would hold all memory that is huge or could be.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub need: u32,
    /// Aligned ranges of 1 GiB that consist nearly entirely of these pages.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub giant: u32,
    /// Growth of its memory since the moment before, process by process.
    #[serde(default, skip_serializing_if = "is_none")]
    pub grown: u64,
    /// Shrinkage of its memory since the moment before, process by process.
    #[serde(default, skip_serializing_if = "is_none")]
    pub shrunk: u64,
    /// True if forked children shared memory with their parent.
    #[serde(default, skip_serializing_if = "is_false")]
    pub forks: bool,
    /// True if one of its processes has switched off transparent huge pages for itself.
    #[serde(default, skip_serializing_if = "is_false")]
    pub off: bool,
    /// Accesses to its regions of base pages, as far as they were sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heat: Vec<Heat>,
    /// Main access class: `streaming`, `random` or `dependent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Cost of address translation; `None` if it is unknown at this moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// Regions with about the same number of accessed base pages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Heat {
    /// Accessed base pages of each region, 0 to 512, rounded up to a multiple of [`HEAT_STEP`].
    pub pages: u16,
    /// Number of regions.
    pub regions: u32,
    /// Visits of base pages in all of them, per second of processor time; 0 if not estimated.
    pub visits: f64,
}

/// Cost of address translation: the share of processor time, 0 to 1, with an interval of about 90
/// %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Cost {
    /// Lower end.
    pub low: f64,
    /// Best guess.
    pub likely: f64,
    /// Upper end.
    pub high: f64,
    /// True if the processor counted it: then it is the whole cost of walks. An estimate is the
    /// part that huge pages would save.
    #[serde(default, skip_serializing_if = "is_false")]
    pub measured: bool,
}

/// One recording: from a header to the next one, or to the end of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Constant data.
    pub header: Header,
    /// The moments, ascending.
    pub moments: Vec<Moment>,
    /// End; `None` if it was cut off.
    pub end: Option<End>,
}

impl Recording {
    /// Returns the recording as in a file.
    pub fn text(&self) -> String {
        let header = Line::Header(self.header.clone()).text();
        let moments = self.moments.iter().map(|moment| Line::Moment(moment.clone()).text());
        let end = self.end.iter().map(|end| Line::End(end.clone()).text());
        std::iter::once(header).chain(moments).chain(end).collect()
    }

    /// Returns the share of one processor that recording took. Without time after the start, it is
    /// `None`.
    pub fn own_share(&self) -> Option<f64> {
        let (at, own) = match (&self.end, self.moments.last()) {
            (Some(end), _) => (end.at, end.own),
            (None, Some(last)) => (last.at, last.own),
            (None, None) => return None,
        };
        (at > 0.0).then_some(own / at)
    }
}

/// Returns the access class with this name.
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
