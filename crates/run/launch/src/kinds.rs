//! Purposes of a process's memory. Every mapping is of exactly one kind, so the kinds add up to all
//! present memory.

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

/// Length of the pieces of address space that glibc's malloc takes for a thread's arena, at
/// multiples of it (HEAP_MAX_SIZE in malloc/arena.c). It opens a piece from the start on.
const ARENA: u64 = 64 << 20;
/// The longest mapping of arenas: adjacent pieces are one mapping. The class space of a JVM (1 GiB)
/// begins at such a multiple, too.
const LONGEST_ARENA: u64 = 512 << 20;
/// Lower bound of arenas. Below it the kernel places a mapping only on request, and heaps with
/// compressed pointers lie there.
const LOW: u64 = 32 << 30;
/// The longest .bss of a library. The kernel joins a .bss with memory of the same permissions
/// behind it: a longer mapping is taken for such memory.
const LONGEST_LIBRARY_BSS: u64 = 512 << 10;
/// The longest guard below a thread's stack.
const LONGEST_GUARD: u64 = 1 << 20;

impl HeapRuntime {
    /// Returns the heap runtime of a program, if it has one.
    pub fn of(runtime: Option<Runtime>) -> Option<HeapRuntime> {
        match runtime? {
            Runtime::Jvm => Some(HeapRuntime::Jvm),
            Runtime::Node => Some(HeapRuntime::V8),
            Runtime::Go => Some(HeapRuntime::Go),
            Runtime::Python | Runtime::Php => None,
        }
    }
}

/// A runtime that manages its own heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapRuntime {
    /// A JVM.
    Jvm,
    /// Node.js, or another program with V8.
    V8,
    /// Go.
    Go,
}

/// Facts that the mappings alone do not show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clues<'a> {
    /// The ranges of the preloaded heap, if it provides malloc.
    pub heap: Option<&'a [VirtRange]>,
    /// The runtime, from the program's file. A library with a runtime is found by its name.
    pub runtime: Option<HeapRuntime>,
    /// The Java heap, if the program is a JVM.
    pub java_heap: Option<JavaHeap>,
    /// The program's file.
    pub executable: Option<&'a str>,
    /// The ranges to which text was moved.
    pub text: &'a [VirtRange],
}

/// Returns true if the mapping belongs to the preloaded heap, which lies in `ranges`.
pub(crate) fn is_preloaded_heap(mapping: &Mapping, ranges: &[VirtRange]) -> bool {
    (is_anonymous(mapping) || mapping.is_extent()) && overlaps(mapping, ranges)
}

fn overlaps(mapping: &Mapping, ranges: &[VirtRange]) -> bool {
    ranges.iter().any(|range| range.intersection(mapping.range).is_some())
}

/// Returns true for private memory without a file: anonymous, or from the pool.
fn is_anonymous(mapping: &Mapping) -> bool {
    let of_pool = mapping.kernel_page_size > PageSize::BASE || mapping.name.starts_with("/anon_hugepage");
    mapping.permissions.ends_with('p') && (mapping.inode == 0 && !mapping.is_special() || of_pool)
}

fn is_executable(mapping: &Mapping) -> bool {
    mapping.permissions.as_bytes().get(2) == Some(&b'x')
}

/// Returns device and inode of a file that is mapped privately, on base pages.
fn file_of(mapping: &Mapping) -> Option<ObjectId> {
    let is_file = mapping.permissions.ends_with('p') && !is_anonymous(mapping);
    is_file.then(|| mapping.object()).flatten()
}

/// Facts that a process's mappings show about each other.
struct Context<'a> {
    clues: &'a Clues<'a>,
    devices: &'a MemoryDevices,
    runtime: Option<HeapRuntime>,
    /// Files with a part mapped executable.
    programs: BTreeSet<ObjectId>,
}

/// Returns the kind of each of a process's mappings. `mappings` holds all of them, by ascending
/// address.
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

    /// Returns the kind of private anonymous memory that is neither a stack nor a program's .bss.
    fn anonymous(&self, mapping: &Mapping, after: Option<&Mapping>) -> Kind {
        let name = mapping.name.as_str();
        if name == "[heap]" || name.starts_with("[anon: glibc: ") {
            return Kind::Heap;
        }
        // Go reserves pieces of the same length, and calls malloc only for C. The preloaded heap
        // has no such arenas.
        let has_arenas = self.clues.heap.is_none() && self.runtime != Some(HeapRuntime::Go);
        match self.runtime {
            Some(_) if has_arenas && is_arena(mapping, after) => Kind::Heap,
            Some(_) => Kind::RuntimeHeap,
            None if name.starts_with("[anon: Go: ") => Kind::RuntimeHeap,
            None if self.clues.heap.is_some() || is_executable(mapping) => Kind::OwnMappings,
            None => Kind::Heap,
        }
    }

    /// Returns true if this is the .bss of a program or library: memory behind its data, without a
    /// place in the file.
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

/// Returns true for a stack: the main thread's, or one with a thread's name. Also for a mapping
/// with a guard below or within that the kernel marks as mapped with MAP_STACK (as MADV_NOHUGEPAGE,
/// Linux 6.7).
fn is_stack(mapping: &Mapping, before: Option<&Mapping>) -> bool {
    let name = &mapping.name;
    if name.starts_with("[stack") || name.starts_with("[anon: glibc: pthread stack") {
        return true;
    }
    let is_guard =
        |it: &Mapping| it.permissions == "---p" && it.inode == 0 && it.range.len().0 <= LONGEST_GUARD;
    // A guard within the mapping: flag `gu`.
    let guarded = before.is_some_and(is_guard) || mapping.has_flag("gu");
    name.is_empty() && mapping.permissions == "rw-p" && mapping.has_flag("nh") && guarded
}

/// Returns true if this is the open part of glibc's arenas, by its start and end.
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

/// Memory of one kind at one moment, with the reasons for its base pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindMemory {
    /// The memory.
    pub memory: Memory,
    /// The part that is not on huge pages, by reason.
    pub base: Base,
}

/// All memory by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds([KindMemory; Kind::ALL.len()]);

impl Kinds {
    /// Sums up a process's mappings, which are of these kinds.
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

    /// Returns the memory of one kind.
    pub fn get(&self, kind: Kind) -> &KindMemory {
        &self.0[kind as usize]
    }

    pub(crate) fn get_mut(&mut self, kind: Kind) -> &mut KindMemory {
        &mut self.0[kind as usize]
    }

    /// Returns the kinds with any memory.
    pub fn present(&self) -> impl Iterator<Item = (Kind, &KindMemory)> {
        let all = Kind::ALL.into_iter().map(|kind| (kind, self.get(kind)));
        all.filter(|(_, it)| it.memory.total() > Bytes::ZERO)
    }

    /// Returns the sum of all memory, present and swapped out.
    pub fn total(&self) -> Memory {
        let mut sum = Memory::default();
        self.0.iter().for_each(|it| sum += it.memory);
        sum
    }
}

#[cfg(test)]
mod tests;
