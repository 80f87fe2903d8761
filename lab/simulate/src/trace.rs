//! Actions of programs, as a stream that can be replayed under any policy. The text form is in
//! `docs/trace.md`.

mod text;

pub use text::{ReadError, VERSION, read, write};

use megapage_snapshot::{AccessClass, PAGES};
use megapage_units::{Bytes, HUGE_2M};

/// The most operations of one process, repeats included: one that takes no time is done in about
/// 100 ns.
const MOST_STEPS: f64 = 1e8;
/// The longest address space of one process, in regions: 64 TiB.
pub const MOST_REGIONS: u32 = 1 << 25;
/// Bits of an address in user space: 47 on x86-64, 48 on arm64.
const USER_BITS: u32 = 48;
/// The most processes in one trace.
pub const MOST_PROCESSES: usize = 10_000;

/// A workload: processes, and the machine that it was recorded on or made for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The machine's memory; `None`: the reader chooses it.
    pub memory: Option<Bytes>,
    /// The free memory fragmentation index at the start, 0 to 1.
    pub fragmentation: Option<f64>,
    /// The origin of the trace, one line.
    pub origin: String,
    /// The processes, in the order in which they are listed.
    pub processes: Vec<Program>,
}

/// One process of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Its name, without spaces.
    pub name: String,
    /// Time of its start, in seconds from the start of the trace.
    pub start: f64,
    /// Its operations, one after the other.
    pub operations: Vec<Operation>,
}

/// Regions of one process, `[first, first + count)`, in its own numbering: regions that the program
/// never has do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first region.
    pub first: u32,
    /// Their number; at least 1.
    pub count: u32,
}

impl Span {
    /// Returns the regions `first` to `first + count - 1`.
    pub const fn new(first: u32, count: u32) -> Span {
        Span { first, count }
    }

    /// Returns the numbers of the regions.
    pub fn regions(self) -> std::ops::Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// Returns as many regions as `bytes` need.
    pub const fn of_bytes(first: u32, bytes: Bytes) -> Span {
        Span { first, count: bytes.0.div_ceil(HUGE_2M as u64) as u32 }
    }
}

/// One action of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// A name for the following operations, for plots and reports.
    Phase(String),
    /// Maps the regions at an address (a multiple of 2 MiB). Regions that no `Map` names lie one
    /// after the other from 4 GiB on.
    Map {
        /// The regions.
        span: Span,
        /// The address of the first.
        address: u64,
    },
    /// Writes base pages, in ascending order, until `pages` of each region are present and
    /// `content` of them hold data other than zeros.
    Touch {
        /// The regions.
        span: Span,
        /// Pages present afterwards, 1 to 512.
        pages: u16,
        /// Pages not zero-filled afterwards, at most `pages`.
        content: u16,
        /// The program's own work for each page that it writes, in nanoseconds.
        own_ns: f64,
    },
    /// Lets the kernel populate base pages (MAP_POPULATE, a hypervisor that allocates its guest's
    /// memory): like `Touch`, but the program itself writes nothing, and the pages hold zeros.
    Populate {
        /// The regions.
        span: Span,
        /// Pages present afterwards, 1 to 512.
        pages: u16,
    },
    /// Writes whole base pages, in ascending order, until all of each region are present and hold
    /// data: like `Touch`, but every cache line of them.
    Fill {
        /// The regions.
        span: Span,
        /// The writer.
        writer: Writer,
        /// The program's own work for each page that is written, in nanoseconds.
        own_ns: f64,
    },
    /// Releases base pages (MADV_DONTNEED): every page of each region's content stays with the
    /// chance `keep`.
    Free {
        /// The regions.
        span: Span,
        /// The chance, 0 to 1.
        keep: f64,
        /// The program's own work for each page that it releases, in nanoseconds.
        own_ns: f64,
    },
    /// Unmaps the regions.
    Unmap {
        /// The regions.
        span: Span,
    },
    /// Lets the program visit `pages` base pages of each region, `visits` times in all per second
    /// of its work, from here on. Replaces earlier entries of these regions.
    Access {
        /// The regions.
        span: Span,
        /// Pages visited, 0 to 512.
        pages: u16,
        /// Visits of one region per second of work, 0 or more: a run of accesses to one page is
        /// one.
        visits: f64,
        /// The kind of accesses.
        class: AccessClass,
    },
    /// Works for this processor time, page walks not counted: the time if translation were free.
    Work {
        /// Seconds.
        seconds: f64,
    },
    /// Waits.
    Idle {
        /// Seconds.
        seconds: f64,
    },
    /// Repeats all operations from the last `Mark` on (or the start), `times` more times.
    Repeat {
        /// The number of repetitions.
        times: u32,
    },
    /// Marks the place to which the next `Repeat` goes back.
    Mark,
}

/// Writer of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// The program itself.
    Program,
    /// The kernel, for a system call of the program such as read(2): a page fault does not enter
    /// the kernel, which runs already.
    Kernel,
}

/// Fault of a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("process {process} ({name}), operation {operation}: {what}")]
pub struct Invalid {
    /// The process, from 1.
    pub process: usize,
    /// Its name.
    pub name: String,
    /// The operation, from 1; 0: the process itself.
    pub operation: usize,
    /// The fault.
    pub what: String,
}

impl Program {
    /// Returns the most regions that it has.
    pub fn regions(&self) -> u32 {
        let spans = self.operations.iter().filter_map(Operation::span);
        spans.map(|span| span.first.saturating_add(span.count)).max().unwrap_or(0)
    }

    /// Returns the seconds that it works and waits, page faults not counted.
    pub fn seconds(&self) -> f64 {
        let (mut total, mut marked) = (0.0, 0.0);
        for operation in &self.operations {
            match operation {
                Operation::Work { seconds } | Operation::Idle { seconds } => total += seconds,
                Operation::Mark => marked = total,
                Operation::Repeat { times } => total += (total - marked) * f64::from(*times),
                _ => {}
            }
        }
        total
    }
}

impl Program {
    /// Returns the number of its operations, repeats included: a repeat also repeats those before
    /// it.
    fn steps(&self) -> f64 {
        let (mut total, mut marked) = (0.0, 0.0);
        for operation in &self.operations {
            total += 1.0;
            match operation {
                Operation::Mark => marked = total,
                Operation::Repeat { times } => total += (total - marked) * f64::from(*times),
                _ => {}
            }
        }
        total
    }
}

impl Operation {
    /// Returns the regions that it concerns.
    pub fn span(&self) -> Option<Span> {
        match self {
            Operation::Map { span, .. }
            | Operation::Touch { span, .. }
            | Operation::Populate { span, .. }
            | Operation::Fill { span, .. }
            | Operation::Free { span, .. }
            | Operation::Unmap { span }
            | Operation::Access { span, .. } => Some(*span),
            _ => None,
        }
    }

    fn complaint(&self) -> Option<&'static str> {
        let amount = |value: f64| value.is_finite() && value >= 0.0;
        if let Some(span) = self.span() {
            if span.count == 0 {
                return Some("no regions");
            }
            if u64::from(span.first) + u64::from(span.count) > u64::from(MOST_REGIONS) {
                return Some("more regions than a process may have (64 TiB)");
            }
        }
        match self {
            Operation::Map { address, .. } if address % HUGE_2M as u64 != 0 => {
                Some("the address is not a multiple of 2 MiB")
            }
            Operation::Map { span, address }
                if address >> USER_BITS != 0 || address + (u64::from(span.count) << 21) > 1 << USER_BITS =>
            {
                Some("the address is beyond user space")
            }
            Operation::Touch { pages, content, own_ns, .. } => {
                if !(1..=PAGES).contains(pages) || content > pages {
                    Some("pages are 1 to 512, and content is at most as much")
                } else {
                    (!amount(*own_ns)).then_some("the work is no time")
                }
            }
            Operation::Populate { pages, .. } => {
                (!(1..=PAGES).contains(pages)).then_some("pages are 1 to 512")
            }
            Operation::Fill { own_ns, .. } => (!amount(*own_ns)).then_some("the work is no time"),
            Operation::Free { keep, own_ns, .. } => {
                if !(0.0..=1.0).contains(keep) {
                    Some("what is kept is a share from 0 to 1")
                } else {
                    (!amount(*own_ns)).then_some("the work is no time")
                }
            }
            Operation::Access { pages, visits, .. } => {
                (*pages > PAGES || !amount(*visits)).then_some("pages are 0 to 512, visits 0 or more")
            }
            Operation::Work { seconds } | Operation::Idle { seconds } => {
                (!amount(*seconds) || *seconds > 1e9).then_some("seconds are 0 to 1e9")
            }
            Operation::Phase(name) => {
                (name.is_empty() || name.contains(char::is_whitespace)).then_some("a phase is one word")
            }
            _ => None,
        }
    }
}

impl Trace {
    /// Refuses traces that cannot be replayed.
    pub fn check(&self) -> Result<(), Invalid> {
        let invalid = |process: usize, operation: usize, what: &str| {
            let name = self.processes.get(process).map(|program| program.name.clone()).unwrap_or_default();
            Err(Invalid { process: process + 1, name, operation, what: what.to_string() })
        };
        if self.processes.is_empty() || self.processes.len() > MOST_PROCESSES {
            return invalid(0, 0, "a trace has 1 to 10000 processes");
        }
        if self.fragmentation.is_some_and(|index| !(0.0..=1.0).contains(&index)) {
            return invalid(0, 0, "fragmentation is 0 to 1");
        }
        for (number, program) in self.processes.iter().enumerate() {
            if program.name.is_empty() || program.name.contains(char::is_whitespace) {
                return invalid(number, 0, "the name is one word");
            }
            if !(0.0..=1e9).contains(&program.start) {
                return invalid(number, 0, "the start is 0 to 1e9 seconds");
            }
            if program.steps() > MOST_STEPS {
                return invalid(number, 0, "with its repeats it does more than 1e8 operations");
            }
            for (at, operation) in program.operations.iter().enumerate() {
                if let Some(what) = operation.complaint() {
                    return invalid(number, at + 1, what);
                }
            }
        }
        Ok(())
    }
}
