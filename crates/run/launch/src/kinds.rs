//! What a process's memory is for: every mapping is of exactly one kind, so that the kinds add up to all that is present.

use crate::jvm::heap::JavaHeap;
pub use crate::kind::Kind;
use crate::memory::Memory;
use crate::program::Runtime;
use crate::why::{Base, Setting, Why};
use megapage_kernel::object::ObjectId;
use megapage_kernel::shared_memory::MemoryDevices;
use megapage_kernel::smaps::Mapping;
use megapage_units::{Bytes, PageSize, VirtRange};
use std::collections::BTreeSet;

/// glibc's malloc takes address space for a thread's arena in pieces of this length, at multiples of it (HEAP_MAX_SIZE in
/// malloc/arena.c), and opens them from the start on.
const ARENA: u64 = 64 << 20;
/// Pieces that lie side by side are one mapping. The class space of a JVM (1 GiB) begins at such a multiple, too.
const LONGEST_ARENA: u64 = 512 << 20;
/// Where the kernel puts no mapping unless asked: arenas lie above, heaps with compressed pointers below.
const LOW: u64 = 32 << 30;
/// The kernel joins a library's .bss with memory of the same permissions that lies behind it. What is longer is taken for that.
const LONGEST_LIBRARY_BSS: u64 = 512 << 10;
/// The guard below a thread's stack is no longer than this.
const LONGEST_GUARD: u64 = 1 << 20;

impl HeapRuntime {
    /// That of a program, where it has such a one.
    pub fn of(runtime: Option<Runtime>) -> Option<HeapRuntime> {
        match runtime? {
            Runtime::Jvm => Some(HeapRuntime::Jvm),
            Runtime::Node => Some(HeapRuntime::V8),
            Runtime::Go => Some(HeapRuntime::Go),
            Runtime::Python | Runtime::Php => None,
        }
    }
}

/// A runtime that manages a heap of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapRuntime {
    /// A JVM.
    Jvm,
    /// Node.js, or another program with V8.
    V8,
    /// Go.
    Go,
}

/// What mappings alone do not report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clues<'a> {
    /// The ranges of the preloaded heap, where it provides malloc.
    pub heap: Option<&'a [VirtRange]>,
    /// The runtime, as the program's file shows; a library of one is found by its name.
    pub runtime: Option<HeapRuntime>,
    /// The Java heap, of a JVM.
    pub java_heap: Option<JavaHeap>,
    /// The program's file.
    pub executable: Option<&'a str>,
    /// Where text was moved to.
    pub text: &'a [VirtRange],
}

/// Whether the preloaded heap, which lies in `ranges`, has mapped this.
pub(crate) fn is_preloaded_heap(mapping: &Mapping, ranges: &[VirtRange]) -> bool {
    (is_anonymous(mapping) || mapping.is_extent()) && overlaps(mapping, ranges)
}

fn overlaps(mapping: &Mapping, ranges: &[VirtRange]) -> bool {
    ranges.iter().any(|range| range.intersection(mapping.range).is_some())
}

/// Private memory that is no file's: anonymous, or of the pool.
fn is_anonymous(mapping: &Mapping) -> bool {
    let of_pool = mapping.kernel_page_size > PageSize::BASE || mapping.name.starts_with("/anon_hugepage");
    mapping.permissions.ends_with('p') && (mapping.inode == 0 && !mapping.is_special() || of_pool)
}

fn is_executable(mapping: &Mapping) -> bool {
    mapping.permissions.as_bytes().get(2) == Some(&b'x')
}

/// Device and inode of a file that is mapped privately, on base pages.
fn file_of(mapping: &Mapping) -> Option<ObjectId> {
    let is_file = mapping.permissions.ends_with('p') && !is_anonymous(mapping);
    is_file.then(|| mapping.object()).flatten()
}

/// What the mappings of one process show of each other.
struct Context<'a> {
    clues: &'a Clues<'a>,
    devices: &'a MemoryDevices,
    runtime: Option<HeapRuntime>,
    /// Files with a part mapped executable.
    programs: BTreeSet<ObjectId>,
}

/// The kind of each of a process's mappings, in their order (ascending addresses, all of the process).
pub fn kinds(mappings: &[Mapping], clues: &Clues<'_>, devices: &MemoryDevices) -> Vec<Kind> {
    let programs = mappings.iter().filter(|it| is_executable(it)).filter_map(file_of).collect();
    let maps_library = |start: &str| {
        let named = |it: &&Mapping| it.name.rsplit('/').next().is_some_and(|name| name.starts_with(start));
        mappings.iter().filter(|it| is_executable(it)).any(|it| named(&it))
    };
    let runtime = clues.runtime.or_else(|| match () {
        () if maps_library("libjvm.so") => Some(HeapRuntime::Jvm),
        () if maps_library("libnode.so") || maps_library("libv8.so") => Some(HeapRuntime::V8),
        () => None,
    });
    let context = Context { clues, devices, runtime, programs };
    let mut kinds: Vec<Kind> = Vec::with_capacity(mappings.len());
    for (index, mapping) in mappings.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| (&mappings[before], kinds[before]));
        kinds.push(context.kind(mapping, before, mappings.get(index + 1)));
    }
    kinds
}

impl Context<'_> {
    fn kind(&self, mapping: &Mapping, before: Option<(&Mapping, Kind)>, after: Option<&Mapping>) -> Kind {
        let name = mapping.name.as_str();
        let before = before.filter(|(before, _)| before.range.end() == mapping.range.start());
        let after = after.filter(|after| after.range.start() == mapping.range.end());
        if overlaps(mapping, self.clues.text)
            || name.starts_with("[anon:megapage text")
            || mapping.is_special()
        {
            return Kind::Text;
        }
        if self.clues.java_heap.is_some_and(|heap| heap.holds(mapping)) {
            return Kind::RuntimeHeap;
        }
        if self.clues.heap.is_some_and(|ranges| is_preloaded_heap(mapping, ranges)) {
            return Kind::Heap;
        }
        if mapping.permissions.ends_with('s') {
            let of_pool = mapping.kernel_page_size > PageSize::BASE;
            return match of_pool || self.devices.holds(mapping.device, name) {
                true => Kind::Shared,
                false => Kind::Files,
            };
        }
        if let Some(file) = file_of(mapping) {
            return if self.programs.contains(&file) { Kind::Text } else { Kind::Files };
        }
        if is_stack(mapping, before.map(|(before, _)| before)) {
            return Kind::Stacks;
        }
        if before.is_some_and(|before| self.is_bss(mapping, before)) {
            return Kind::Text;
        }
        self.anonymous(mapping, after)
    }

    /// What of private anonymous memory is neither a stack nor a program's.
    fn anonymous(&self, mapping: &Mapping, after: Option<&Mapping>) -> Kind {
        let name = mapping.name.as_str();
        if name == "[heap]" || name.starts_with("[anon: glibc: ") {
            return Kind::Heap;
        }
        // Go reserves the same pieces, and calls malloc for C alone. The preloaded heap has no such arenas.
        let has_arenas = self.clues.heap.is_none() && self.runtime != Some(HeapRuntime::Go);
        match self.runtime {
            Some(_) if has_arenas && is_arena(mapping, after) => Kind::Heap,
            Some(_) => Kind::RuntimeHeap,
            None if name.starts_with("[anon: Go: ") => Kind::RuntimeHeap,
            None if self.clues.heap.is_some() || is_executable(mapping) => Kind::OwnMappings,
            None => Kind::Heap,
        }
    }

    /// Whether this is what a program or library has behind its data without a place in the file.
    fn is_bss(&self, mapping: &Mapping, (before, kind): (&Mapping, Kind)) -> bool {
        let of_executable = self.clues.executable.is_some_and(|executable| before.name == executable);
        kind == Kind::Text
            && mapping.name.is_empty()
            && mapping.kernel_page_size == PageSize::BASE
            && mapping.permissions.starts_with("rw-")
            && before.permissions.ends_with('p')
            && before.inode != 0
            && (of_executable || mapping.range.len().0 <= LONGEST_LIBRARY_BSS)
    }
}

/// The main thread's stack; a thread's where it is named, or where the kernel marks what is mapped with MAP_STACK (as
/// MADV_NOHUGEPAGE, Linux 6.7) and a guard lies below or within.
fn is_stack(mapping: &Mapping, before: Option<&Mapping>) -> bool {
    let name = &mapping.name;
    if name.starts_with("[stack") || name.starts_with("[anon: glibc: pthread stack") {
        return true;
    }
    let is_guard =
        |it: &Mapping| it.permissions == "---p" && it.inode == 0 && it.range.len().0 <= LONGEST_GUARD;
    // A guard that is no mapping of its own: `gu`.
    let guarded = before.is_some_and(is_guard) || mapping.has_flag("gu");
    name.is_empty() && mapping.permissions == "rw-p" && mapping.has_flag("nh") && guarded
}

/// Whether this is the opened part of glibc's arenas, by where they start and end.
fn is_arena(mapping: &Mapping, after: Option<&Mapping>) -> bool {
    let start = mapping.range.start();
    let closed = after.filter(|after| after.permissions == "---p" && after.inode == 0);
    let end = closed.map_or(mapping.range.end(), |after| after.range.end());
    mapping.name.is_empty()
        && mapping.permissions == "rw-p"
        && start >= LOW
        && start.is_multiple_of(ARENA)
        && end.is_multiple_of(ARENA)
        && end - start <= LONGEST_ARENA
}

/// One kind's memory at one moment, and why what is on base pages is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindMemory {
    /// What there is of it.
    pub memory: Memory,
    /// What of it is not on huge pages, by reason.
    pub base: Base,
}

/// All memory by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds([KindMemory; Kind::ALL.len()]);

impl Kinds {
    /// Of a process's mappings, which are of these kinds.
    pub fn of(mappings: &[Mapping], kinds: &[Kind], setting: &Setting) -> Kinds {
        let mut sums = Kinds::default();
        for (mapping, kind) in mappings.iter().zip(kinds) {
            let memory = Memory::of([mapping]);
            if memory.total() == Bytes::ZERO {
                continue;
            }
            let sum = &mut sums.0[*kind as usize];
            sum.memory += memory;
            sum.base.add(setting.why(mapping, *kind), memory.not_huge());
            sum.base.add(Why::SwappedOut, memory.swapped);
        }
        sums
    }

    /// One of them.
    pub fn get(&self, kind: Kind) -> &KindMemory {
        &self.0[kind as usize]
    }

    pub(crate) fn get_mut(&mut self, kind: Kind) -> &mut KindMemory {
        &mut self.0[kind as usize]
    }

    /// Those with any memory.
    pub fn present(&self) -> impl Iterator<Item = (Kind, &KindMemory)> {
        let all = Kind::ALL.into_iter().map(|kind| (kind, self.get(kind)));
        all.filter(|(_, it)| it.memory.total() > Bytes::ZERO)
    }

    /// The sum: all that is present, and swapped out.
    pub fn total(&self) -> Memory {
        let mut sum = Memory::default();
        self.0.iter().for_each(|it| sum += it.memory);
        sum
    }
}

#[cfg(test)]
mod tests;
