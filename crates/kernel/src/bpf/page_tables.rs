//! The page tables of a process, copied by a BPF program (`bpf/page_tables.bpf.c`): what is present in each 2 MiB
//! region, how it is mapped, and which base pages have their accessed bit set.
//!
//! x86-64, and arm64 with base pages of 4 KiB. Takes Linux 6.2 with BTF, and CAP_BPF with CAP_PERFMON or CAP_SYS_ADMIN. Nothing is changed, and
//! no lock of the process is taken. About 0.5 ms for each GiB on base pages.

mod entry;
mod held;
mod learn;
#[doc(hidden)]
pub mod physical;
mod program;

use crate::{KernelError, KernelRoot, process};
use entry::State;
pub use entry::{Contents, Layout, contents};
use megapage_snapshot::PAGES;
use megapage_units::{HUGE_2M, Pid, VirtRange};
use program::{Found, MOST_RANGES, Program, Status};
use std::borrow::Cow;
use std::io;
use thiserror::Error;

/// Bytes that one entry of level 3 maps.
const GIB: u64 = 1 << 30;

/// Why page tables cannot be read on this machine, or by this user.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A captured tree.
    #[error("a captured tree has no page tables")]
    NotLive,
    /// Another architecture.
    #[error("page tables are read on x86-64 and arm64 only")]
    Architecture,
    /// The entry of a page that may not be accessed is like none that is known.
    #[error("this kernel writes page tables in a way that is not known (entry {entry:#x})")]
    Unknown {
        /// That entry.
        entry: u64,
    },
    /// The kernel lets only others load BPF programs.
    #[error(
        "loading a BPF program is not permitted: run as root, or with CAP_BPF and CAP_PERFMON (setcap cap_bpf,cap_perfmon,cap_sys_nice,cap_sys_ptrace=ep on a copy of megapage that only those may execute whom you trust with it (mode 0750): it reads others' memory maps)"
    )]
    NotAllowed,
    /// The kernel does not take the program.
    #[error("the kernel does not take the BPF program ({0}); it needs Linux 6.2 with BTF")]
    Refused(String),
    /// Under kernel_lockdown(7) no program may read kernel memory.
    #[error("lockdown=confidentiality forbids BPF programs to read kernel memory (kernel_lockdown(7))")]
    Lockdown,
    /// No way led from the page tables to memory that we had written.
    #[error(
        "the kernel's direct map of memory was not found in {tries} tries: page tables cannot be followed"
    )]
    NoDirectMap {
        /// How many places were tried.
        tries: u64,
    },
    /// A kernel file.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A system call, such as one for lack of memory.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Why a walk gave nothing, or not all.
#[derive(Debug, Error)]
pub enum WalkError {
    /// There is no such process, or it has no address space any more, or had another one before the walk's end.
    #[error("the process has ended or executed another program")]
    Gone,
    /// A system call.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Identifies one address space of one process: two that compare equal are the same; execve(2) makes a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSpace {
    started: u64,
    mm: u64,
    stack: u64,
}

/// The size of the entry that maps a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntrySize {
    /// A table of 4 KiB entries.
    Base,
    /// One entry of 2 MiB: a transparent huge page, or one of hugetlb.
    Huge2m,
    /// A part of one entry of 1 GiB: hugetlb.
    Huge1g,
}

/// One 2 MiB region in which something is mapped or swapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRegion {
    /// The first address, a multiple of 2 MiB.
    pub start: u64,
    /// What maps it.
    pub size: EntrySize,
    /// What is there. Of a huge entry: 512 pages or none, and all accessed or none.
    pub contents: Contents,
}

/// The mapping that holds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableMapping {
    /// Its addresses.
    pub range: VirtRange,
    /// Whether hugetlb pages back it.
    pub hugetlb: bool,
}

/// Reads the page tables of other processes.
#[derive(Debug)]
pub struct PageTables {
    program: Program,
    frames: Frames,
}

impl PageTables {
    /// Loads the program, and learns from memory of this process where the kernel maps physical memory and which
    /// pages are the shared ones of zeros. About 10 ms; 2.2 MiB of memory, and where the kernel uses a 2 MiB page
    /// of zeros, that one page until this process ends.
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

    /// Which address space `pid` has now.
    pub fn address_space(&mut self, pid: Pid) -> Result<AddressSpace, WalkError> {
        self.walk(pid, &[], |_| ())
    }

    /// Hands every region of `ranges` (sorted, disjoint, whole regions) that holds anything to `each`, ascending.
    /// A region that changed under each of several tries is left out. The answer shows which address space it
    /// was; regions that were handed out before an error are of the same one.
    pub fn walk(
        &mut self,
        pid: Pid,
        ranges: &[VirtRange],
        mut each: impl FnMut(TableRegion),
    ) -> Result<AddressSpace, WalkError> {
        let mut space = None;
        let frames = self.frames;
        // At least one run, which shows the address space.
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

    /// The mapping at `address`; `None` where nothing is mapped there.
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

    /// Walks at most [`MOST_RANGES`] ranges in as many runs as it takes, and hands over what each one found.
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

    /// The entry that maps `address` of this process, and of which size it is.
    fn own_entry(&mut self, address: u64) -> Result<Option<(u64, EntrySize)>, WalkError> {
        let start = address & !(HUGE_2M as u64 - 1);
        let Some(range) = VirtRange::new(start, start + HUGE_2M as u64) else { return Ok(None) };
        let own = Pid(std::process::id() as i32);
        let mut entry = None;
        self.raw_walk(own, &[range], |seen| {
            for found in seen.found {
                let of_page = |table: &[u64; PAGES as usize]| table[((address - start) >> 12) as usize];
                let value = seen.tables.get(found.table as usize).map_or(found.entry, of_page);
                entry = Some((value, found.size()));
            }
            Ok(())
        })?;
        Ok(entry.filter(|(entry, _)| *entry != 0))
    }
}

/// What one run of the program has found.
struct Seen<'a> {
    /// Of which address space.
    space: AddressSpace,
    /// Entries, ascending,
    found: &'a [Found],
    /// and the tables that some of them point to.
    tables: &'a [[u64; PAGES as usize]],
    /// Regions left out, since they changed under each of several tries.
    given_up: u32,
}

/// What frames mean on this machine.
#[derive(Clone, Copy, Debug)]
struct Frames {
    /// What entries mean.
    layout: Layout,
    /// The bits of an entry that hold a frame's address.
    mask: u64,
    /// The shared page of zeros.
    zero: u64,
    /// The shared 2 MiB page of zeros, where the kernel uses one.
    huge_zero: Option<u64>,
}

impl Frames {
    /// Whether a huge entry maps the 2 MiB page of zeros.
    fn is_huge_zero(&self, entry: u64) -> bool {
        self.huge_zero == Some(self.huge_frame(entry))
    }

    /// The address of the 2 MiB frame that an entry maps. Of one that may not be accessed the kernel inverts the bits of a
    /// 2 MiB frame alone.
    fn huge_frame(&self, entry: u64) -> u64 {
        self.layout.frame(entry, self.mask & !(HUGE_2M as u64 - 1))
    }

    /// `found`, ascending, with each of 16 contiguous 2 MiB entries accessed where one of them was: the processor notes it
    /// in any of them. What another run of the program has found does not count.
    fn with_contiguous<'a>(&self, found: &'a [Found]) -> Cow<'a, [Found]> {
        let layout = self.layout;
        let together = |one: &Found| {
            let present = layout.present | layout.contiguous;
            one.size() == EntrySize::Huge2m && layout.contiguous != 0 && one.entry & present == present
        };
        let group = |one: &Found| one.start / (16 * HUGE_2M as u64);
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

    /// The regions, within `ranges`, that an entry stands for and that hold anything.
    fn regions(
        &self,
        found: &Found,
        tables: &[[u64; PAGES as usize]],
        ranges: &[VirtRange],
        each: &mut impl FnMut(TableRegion),
    ) {
        let mut hand_over = |start, contents| {
            if contents != Contents::default() {
                each(TableRegion { start, size: found.size(), contents });
            }
        };
        if let Some(table) = tables.get(found.table as usize) {
            return hand_over(found.start, contents(self.layout, table, self.mask, self.zero));
        }
        let contents = huge_contents(self.layout, found.entry, self.is_huge_zero(found.entry));
        huge_regions(found, ranges, |start| hand_over(start, contents));
    }
}

/// The starts of the regions, within `ranges`, that one huge entry stands for.
fn huge_regions(found: &Found, ranges: &[VirtRange], mut each: impl FnMut(u64)) {
    let index = ranges.partition_point(|range| range.end() <= found.start);
    let Some(range) = ranges.get(index) else { return };
    let end = match found.size() {
        EntrySize::Huge1g => range.end().min((found.start & !(GIB - 1)) + GIB),
        _ => range.end().min(found.start + HUGE_2M as u64),
    };
    (found.start..end).step_by(HUGE_2M).for_each(&mut each);
}

/// What a region that is a huge entry, or a part of one, holds.
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

/// Why the program was not loaded, as the user should hear it.
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
