//! The BPF program and the memory that it shares with this process. Layouts are as in
//! `bpf/page_tables.bpf.c` and `bpf/walk.h`.
//!
//! File-level obligation: the maps are mapped whole and as long as the kernel states. A program
//! writes to them only while `run` holds `&mut self`, so that no reference to their contents is
//! alive then. The structures are plain words, for which any bytes are valid.

#![allow(unsafe_code)]

use super::EntrySize;
use crate::bpf::{self, Aligned, io_error};
use crate::mapped::Mapped;
use libbpf_rs::{MapCore, Object, ProgramInput};
use megapage_snapshot::PAGES;
use megapage_units::{Pid, VirtRange};
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;

/// Most ranges that one walk takes.
pub const MOST_RANGES: usize = 1024;
const MOST_FOUND: usize = 2048;
const MOST_TABLES: usize = 512;
const VM_HUGETLB: u64 = 0x0040_0000;

/// `struct walk`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub direct_map: u64,
    pub frame_mask: u64,
    pub end: u64,
    pub levels: u32,
    pub tries: u32,
    pub top: u64,
    pub at: u64,
    pub range: u32,
    pub found: u32,
    pub tables: u32,
    pub given_up: u32,
}

/// `struct control`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Control {
    pub walk: Walk,
    pub pid: i32,
    pub range_count: u32,
    pub status: u32,
    padding: u32,
    pub started: u64,
    pub mm: u64,
    pub stack: u64,
    pub tries: u64,
    pub magic: [u64; 8],
}

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Done,
    More,
    Gone,
    NotFound,
}

impl Control {
    pub fn status(&self) -> Status {
        match self.status {
            0 => Status::Done,
            1 => Status::More,
            2 => Status::Gone,
            _ => Status::NotFound,
        }
    }
}

/// `struct found`: an entry, and the index of its copied table if it points to one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub start: u64,
    pub entry: u64,
    pub level: u32,
    pub table: u32,
}

impl Found {
    pub fn size(&self) -> EntrySize {
        match (self.level, self.table as usize) {
            (_, 0..MOST_TABLES) => EntrySize::Base,
            (3, _) => EntrySize::Huge1g,
            _ => EntrySize::Huge2m,
        }
    }
}

/// `struct range`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
}

/// `struct mapping`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Mapping {
    address: u64,
    pid: i32,
    status: i32,
    start: u64,
    end: u64,
    flags: u64,
}

/// Loaded program.
#[derive(Debug)]
pub(super) struct Program {
    object: Object,
    control: Shared<Control>,
    ranges: Shared<Range>,
    found: Shared<Found>,
    tables: Shared<[u64; PAGES as usize]>,
}

/// Compiled program.
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/page_tables.bpf.o")));

impl Program {
    /// Loads the program into the kernel.
    pub fn load() -> io::Result<Program> {
        let object = bpf::load(OBJECT)?;
        let control = Shared::map(&object, "control", 1)?;
        let ranges = Shared::map(&object, "ranges", MOST_RANGES)?;
        let found = Shared::map(&object, "found", MOST_FOUND)?;
        let tables = Shared::map(&object, "tables", MOST_TABLES)?;
        Ok(Program { object, control, ranges, found, tables })
    }

    pub fn control_mut(&mut self) -> &mut Control {
        &mut self.control.as_mut_slice()[0]
    }

    /// Sets the ranges of the next walk.
    ///
    /// # Panics
    /// With more than [`MOST_RANGES`].
    pub fn set_ranges(&mut self, ranges: &[VirtRange]) {
        for (place, range) in self.ranges.as_mut_slice()[..ranges.len()].iter_mut().zip(ranges) {
            *place = Range { start: range.start(), end: range.end() };
        }
    }

    /// Returns the entries that the last run found.
    pub fn found(&self) -> &[Found] {
        let count = self.control.as_slice()[0].walk.found as usize;
        &self.found.as_slice()[..count.min(MOST_FOUND)]
    }

    /// Returns the tables that the last run copied.
    pub fn tables(&self) -> &[[u64; PAGES as usize]] {
        let count = self.control.as_slice()[0].walk.tables as usize;
        &self.tables.as_slice()[..count.min(MOST_TABLES)]
    }

    /// Runs the program with this name on the control block.
    pub fn run(&mut self, name: &str) -> io::Result<()> {
        self.run_on(name, None)
    }

    /// Returns the mapping of `pid` at `address`, and true if it is of hugetlb. Errors: ENOENT if
    /// there is none, ESRCH if the process has gone, EBUSY while its address space changes.
    pub fn find_mapping(&mut self, pid: Pid, address: u64) -> io::Result<(VirtRange, bool)> {
        let mut mapping = Mapping { address, pid: pid.0, ..Mapping::default() };
        // SAFETY: the structure is plain words without padding, and lives through the borrow.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut((&raw mut mapping).cast::<u8>(), size_of::<Mapping>()) };
        self.run_on("find_mapping", Some(bytes))?;
        if mapping.status != 0 {
            return Err(io::Error::from_raw_os_error(-mapping.status));
        }
        let range = VirtRange::new(mapping.start, mapping.end);
        Ok((range.ok_or(io::Error::from_raw_os_error(libc::EINVAL))?, mapping.flags & VM_HUGETLB != 0))
    }

    fn run_on(&mut self, name: &str, context: Option<&mut [u8]>) -> io::Result<()> {
        let input = ProgramInput { context_in: context, ..ProgramInput::default() };
        bpf::program(&mut self.object, name)?.test_run(input).map_err(io_error)?;
        Ok(())
    }
}

/// BPF array that is mapped into our memory.
#[derive(Debug)]
struct Shared<T> {
    memory: Mapped,
    count: usize,
    items: PhantomData<T>,
}

impl<T> Shared<T> {
    /// Maps the BPF map `name`, which has `count` elements of this type.
    fn map(object: &Object, name: &str, count: usize) -> io::Result<Shared<T>> {
        let map = bpf::map(object, name)?;
        if map.value_size() as usize != size_of::<T>() || map.max_entries() as usize != count {
            return Err(io::Error::other(format!("the BPF map {name} is not laid out as expected")));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let memory = Mapped::file(map.as_fd(), count * size_of::<T>(), access, libc::MAP_SHARED)?;
        Ok(Shared { memory, count, items: PhantomData })
    }

    fn as_slice(&self) -> &[T] {
        // SAFETY: the mapping is page-aligned and holds `count` elements; only `run` lets it
        // change.
        unsafe { std::slice::from_raw_parts(self.memory.address().cast(), self.count) }
    }

    fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and it is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.address().cast(), self.count) }
    }
}
