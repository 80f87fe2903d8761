//! The page tables of a process, copied by a BPF program (`bpf/page_tables.bpf.c`). They show the
//! pages present in each 2 MiB region, the size of their entries, and the base pages with the
//! accessed bit set.
//!
//! For x86-64, and for arm64 with base pages of 4 KiB. Needs Linux 6.2 with BTF, and CAP_BPF with
//! CAP_PERFMON or CAP_SYS_ADMIN. Changes nothing, and takes no lock of the process. Takes about 0.5
//! ms for each GiB on base pages.

mod entry;
mod held;
mod learn;
#[doc(hidden)]
pub mod physical;
mod program;

use crate::{KernelError, KernelRoot, process};
use entry::State;
pub use entry::{Contents, Layout, contents};
pub use held::HeldBits;
use megapage_snapshot::{Leaf, PAGES};
use megapage_units::{HugePage, HugeRange, Pid, VirtRange};
use program::{Found, MOST_RANGES, Program, Status};
use std::borrow::Cow;
use std::io;
use thiserror::Error;

/// Bytes that one entry of level 3 maps.
const GIB: u64 = 1 << 30;

/// Reason why page tables cannot be read on this machine or by this user.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The root is a captured tree.
    #[error("a captured tree has no page tables")]
    NotLive,
    /// The machine has another architecture.
    #[error("page tables are read on x86-64 and arm64 only")]
    Architecture,
    /// The entry of a page that may not be accessed has no known form.
    #[error("this kernel writes page tables in a way that is not known (entry {entry:#x})")]
    Unknown {
        /// Value of the entry.
        entry: u64,
    },
    /// This process may not load BPF programs.
    #[error(
        "loading a BPF program is not permitted: run as root, or with CAP_BPF and CAP_PERFMON (setcap cap_bpf,cap_perfmon,cap_sys_nice,cap_sys_ptrace=ep on a copy of megapage that only those may execute whom you trust with it (mode 0750): it reads others' memory maps)"
    )]
    NotAllowed,
    /// The kernel does not accept the program.
    #[error("the kernel does not take the BPF program ({0}); it needs Linux 6.2 with BTF")]
    Refused(String),
    /// Under kernel_lockdown(7) no program may read kernel memory.
    #[error("lockdown=confidentiality forbids BPF programs to read kernel memory (kernel_lockdown(7))")]
    Lockdown,
    /// No place of the direct map led from the page tables to the memory that this process had
    /// written.
    #[error(
        "the kernel's direct map of memory was not found in {tries} tries: page tables cannot be followed"
    )]
    NoDirectMap {
        /// Number of places tried.
        tries: u64,
    },
    /// A kernel file could not be read or understood.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A system call failed, for example for lack of memory.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Reason why a walk reported nothing, or not all.
#[derive(Debug, Error)]
pub enum WalkError {
    /// The process does not exist, or has no address space any more, or changed its address space
    /// before the walk's end.
    #[error("the process has ended or executed another program")]
    Gone,
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Identity of one address space of one process. Two values that compare equal are the same one;
/// execve(2) makes a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSpace {
    started: u64,
    mm: u64,
    stack: u64,
}

/// Size of the entry that maps a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntrySize {
    /// Table of 4 KiB entries.
    Base,
    /// One entry of 2 MiB: a transparent huge page, or one of hugetlb.
    Huge2m,
    /// Part of one entry of 1 GiB: hugetlb.
    Huge1g,
}

/// One bit for each base page of a region: bit `n % 64` of word `n / 64` is page `n`.
pub type PageBits = [u64; PAGES as usize / 64];

/// Contents of a 2 MiB region, and its accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionBits {
    /// The addresses.
    pub page: HugePage,
    /// Kind of entries that map the region. A walk of page tables alone does not distinguish a
    /// hugetlb page of 2 MiB from a transparent one.
    pub leaf: Leaf,
    /// Present base pages, 0 to 512; the shared page of zeros does not count. 0 or 512 where `leaf`
    /// is huge.
    pub present: u16,
    /// Base pages that map the shared page of zeros, 0 to 512.
    pub zero_page: u16,
    /// Base pages that are swapped out or migrating, 0 to 512.
    pub swapped: u16,
    /// Base pages accessed since the last clearing of this region, 0 to 512; 0 or 512 where `leaf`
    /// is huge. `None` if that is unknown.
    pub accessed: Option<u16>,
    /// Bits of the accessed pages; `None` if they were only counted. All ones or all zeros where
    /// `leaf` is huge.
    pub bits: Option<PageBits>,
}

impl RegionBits {
    fn of(page: HugePage, size: EntrySize, contents: Contents) -> RegionBits {
        let leaf = match size {
            EntrySize::Base => Leaf::Base,
            EntrySize::Huge2m => Leaf::Huge2m,
            EntrySize::Huge1g => Leaf::Hugetlb1g,
        };
        let Contents { present, zero_page, swapped, accessed: bits } = contents;
        let accessed = Some(bits.iter().map(|word| word.count_ones() as u16).sum());
        RegionBits { page, leaf, present, zero_page, swapped, accessed, bits: Some(bits) }
    }
}

/// Mapping that holds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableMapping {
    /// Its addresses.
    pub range: VirtRange,
    /// True if hugetlb pages back it.
    pub hugetlb: bool,
}

/// Reader of the page tables of other processes.
#[derive(Debug)]
pub struct PageTables {
    program: Program,
    frames: Frames,
}

impl PageTables {
    /// Loads the program. Learns from memory of this process where the kernel maps physical memory,
    /// and which pages are the shared ones of zeros. Takes about 10 ms and 2.2 MiB of memory. If
    /// the kernel uses a 2 MiB page of zeros, this process also keeps that one page until it ends.
    pub fn open(root: &KernelRoot) -> Result<PageTables, OpenError> {
        if !root.is_live() {
            return Err(OpenError::NotLive);
        }
        if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
            return Err(OpenError::Architecture);
        }
        let frame_mask = physical::frame_mask(root)?;
        let program = Program::load().map_err(|source| refusal(root, source))?;
        let layout = if cfg!(target_arch = "x86_64") { Layout::X86_64 } else { Layout::ARM64 };
        let frames = Frames { layout, mask: frame_mask, zero: u64::MAX, huge_zero: None };
        let mut tables = PageTables { program, frames };
        tables.program.control_mut().walk.frame_mask = frame_mask;
        learn::direct_map(&mut tables, physical::end(root)?)?;
        if cfg!(target_arch = "aarch64") {
            tables.frames.layout = learn::layout(&mut tables)?;
        }
        learn::zero_pages(&mut tables)?;
        Ok(tables)
    }

    /// Returns the address space that `pid` has now.
    pub fn address_space(&mut self, pid: Pid) -> Result<AddressSpace, WalkError> {
        self.walk(pid, &[], |_| ())
    }

    /// Passes every region of `ranges` that holds anything to `each`, in ascending order. `ranges`
    /// must be sorted, disjoint, and consist of whole regions. Skips a region that changed under
    /// each of several tries. Returns the address space that was walked; regions passed before an
    /// error belong to one and the same.
    pub fn walk(
        &mut self,
        pid: Pid,
        ranges: &[VirtRange],
        mut each: impl FnMut(RegionBits),
    ) -> Result<AddressSpace, WalkError> {
        let mut space = None;
        let frames = self.frames;
        // Run at least once, to learn the address space.
        let chunks = ranges.chunks(MOST_RANGES).chain(ranges.is_empty().then_some(&[][..]));
        for ranges in chunks {
            self.raw_walk(pid, ranges, |seen| {
                if *space.get_or_insert(seen.space) != seen.space {
                    return Err(WalkError::Gone);
                }
                let found = frames.with_contiguous(seen.found);
                found.iter().for_each(|found| frames.regions(found, seen.tables, ranges, &mut each));
                Ok(())
            })?;
        }
        space.ok_or(WalkError::Gone)
    }

    /// Returns the mapping at `address`; `None` if nothing is mapped there.
    ///
    /// # Errors
    /// EBUSY while the process changes its address space.
    pub fn mapping(&mut self, pid: Pid, address: u64) -> Result<Option<TableMapping>, WalkError> {
        match self.program.find_mapping(pid, address) {
            Ok((range, hugetlb)) => Ok(Some(TableMapping { range, hugetlb })),
            Err(source) => match source.raw_os_error() {
                Some(libc::ENOENT) => Ok(None),
                Some(libc::ESRCH) => Err(WalkError::Gone),
                _ => Err(WalkError::Io(source)),
            },
        }
    }

    /// Walks at most [`MOST_RANGES`] ranges in as many runs as needed. Passes the result of each
    /// run to `each`.
    fn raw_walk(
        &mut self,
        pid: Pid,
        ranges: &[VirtRange],
        mut each: impl FnMut(&Seen<'_>) -> Result<(), WalkError>,
    ) -> Result<(), WalkError> {
        self.program.set_ranges(ranges);
        let control = self.program.control_mut();
        control.pid = pid.0;
        control.range_count = ranges.len() as u32;
        (control.walk.at, control.walk.range, control.walk.tries) = (0, 0, 0);
        loop {
            let before = *self.program.control_mut();
            let control = self.program.control_mut();
            (control.walk.found, control.walk.tables, control.walk.given_up) = (0, 0, 0);
            self.program.run("walk")?;
            let control = *self.program.control_mut();
            let status = control.status();
            if status == Status::Gone {
                return Err(WalkError::Gone);
            }
            let space = AddressSpace { started: control.started, mm: control.mm, stack: control.stack };
            let (found, tables) = (self.program.found(), self.program.tables());
            each(&Seen { space, found, tables, given_up: control.walk.given_up })?;
            if status == Status::Done {
                return Ok(());
            }
            let place = |control: &program::Control| (control.walk.range, control.walk.at);
            if place(&before) == place(&control) {
                return Err(WalkError::Io(io::Error::other("the walk of page tables does not advance")));
            }
        }
    }

    /// Returns the entry that maps `address` of this process, and its size.
    fn own_entry(&mut self, address: u64) -> Result<Option<(u64, EntrySize)>, WalkError> {
        let page = HugePage::containing(address);
        let own = Pid(std::process::id() as i32);
        let mut entry = None;
        self.raw_walk(own, &[page.range()], |seen| {
            for found in seen.found {
                let of_page =
                    |table: &[u64; PAGES as usize]| table[((address - page.start()) >> 12) as usize];
                let value = seen.tables.get(found.table as usize).map_or(found.entry, of_page);
                entry = Some((value, found.size()));
            }
            Ok(())
        })?;
        Ok(entry.filter(|(entry, _)| *entry != 0))
    }
}

/// Result of one run of the program.
struct Seen<'a> {
    /// Address space that was walked.
    space: AddressSpace,
    /// Entries, in ascending order.
    found: &'a [Found],
    /// Tables that some of the entries point to.
    tables: &'a [[u64; PAGES as usize]],
    /// Number of regions left out, because they changed under each of several tries.
    given_up: u32,
}

/// Meaning of frames on this machine.
#[derive(Clone, Copy, Debug)]
struct Frames {
    /// Meaning of the bits of entries.
    layout: Layout,
    /// Bits of an entry that hold a frame's address.
    mask: u64,
    /// Frame of the shared page of zeros.
    zero: u64,
    /// Frame of the shared 2 MiB page of zeros, if the kernel uses one.
    huge_zero: Option<u64>,
}

impl Frames {
    /// Returns true if a huge entry maps the 2 MiB page of zeros.
    fn is_huge_zero(&self, entry: u64) -> bool {
        self.huge_zero == Some(self.huge_frame(entry))
    }

    /// Returns the address of the 2 MiB frame that an entry maps. In an entry that may not be
    /// accessed, the kernel inverts only the bits of a 2 MiB frame.
    fn huge_frame(&self, entry: u64) -> u64 {
        self.layout.frame(entry, self.mask & !(HugePage::SIZE - 1))
    }

    /// Returns `found`, which must be ascending. If one of 16 contiguous 2 MiB entries is accessed,
    /// marks all 16 as accessed: the processor may note it in any of them. Entries that another run
    /// of the program found do not count.
    fn with_contiguous<'a>(&self, found: &'a [Found]) -> Cow<'a, [Found]> {
        let layout = self.layout;
        let together = |one: &Found| {
            let present = layout.present | layout.contiguous;
            one.size() == EntrySize::Huge2m && layout.contiguous != 0 && one.entry & present == present
        };
        let group = |one: &Found| HugePage::containing(one.start).number() / 16;
        if !found.iter().any(together) {
            return Cow::Borrowed(found);
        }
        let mut all = found.to_vec();
        for part in
            all.chunk_by_mut(|one, other| together(one) && together(other) && group(one) == group(other))
        {
            let accessed = part.iter().fold(0, |bits, one| bits | one.entry & layout.accessed);
            part.iter_mut().filter(|one| together(one)).for_each(|one| one.entry |= accessed);
        }
        Cow::Owned(all)
    }

    /// Passes to `each` the regions within `ranges` that an entry maps and that hold anything.
    fn regions(
        &self,
        found: &Found,
        tables: &[[u64; PAGES as usize]],
        ranges: &[VirtRange],
        each: &mut impl FnMut(RegionBits),
    ) {
        let mut pages = regions_of(found, ranges).peekable();
        if pages.peek().is_none() {
            return;
        }
        let contents = match tables.get(found.table as usize) {
            Some(table) => contents(self.layout, table, self.mask, self.zero),
            None => huge_contents(self.layout, found.entry, self.is_huge_zero(found.entry)),
        };
        if contents != Contents::default() {
            pages.for_each(|page| each(RegionBits::of(page, found.size(), contents)));
        }
    }
}

/// Returns the regions in `ranges` (ascending, disjoint) that one entry maps, from its first walked
/// address on. An entry of 1 GiB may map regions of several ranges. The program reports it once.
fn regions_of(found: &Found, ranges: &[VirtRange]) -> impl Iterator<Item = HugePage> {
    let first = ranges.partition_point(|range| range.end() <= found.start);
    let end = match found.size() {
        EntrySize::Huge1g => (found.start & !(GIB - 1)) + GIB,
        _ => found.start + HugePage::SIZE,
    };
    let mapped = VirtRange::new(found.start, end);
    let parts = ranges[first..].iter().map_while(move |range| range.intersection(mapped?));
    parts.filter_map(HugeRange::within).flat_map(HugeRange::pages)
}

/// Returns the contents of a region that one huge entry, or a part of one, maps.
fn huge_contents(layout: Layout, entry: u64, zeros: bool) -> Contents {
    let mut contents = Contents::default();
    match layout.huge_state(entry) {
        State::Empty => {}
        State::Swapped => contents.swapped = PAGES,
        State::Present if zeros => contents.zero_page = PAGES,
        State::Present => {
            contents.present = PAGES;
            contents.accessed = [if layout.is_accessed(entry) { u64::MAX } else { 0 }; 8];
        }
    }
    contents
}

/// Returns the reason why the program was not loaded, in words for the user.
fn refusal(root: &KernelRoot, source: io::Error) -> OpenError {
    let lockdown = root.read("sys/kernel/security/lockdown").unwrap_or_default();
    if lockdown.contains("[confidentiality]") {
        return OpenError::Lockdown;
    }
    match process::read_own_status(root) {
        Ok(own) if !own.capabilities.bpf_tracing() => OpenError::NotAllowed,
        _ => OpenError::Refused(source.to_string()),
    }
}

#[cfg(test)]
#[path = "page_tables/synthetic_tests.rs"]
mod synthetic;
#[cfg(test)]
#[path = "page_tables/synthetic_arm64_tests.rs"]
mod synthetic_arm64;
#[cfg(test)]
mod tests;
