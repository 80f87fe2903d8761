//! What memory of a program is for.

use serde::Serialize;

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// malloc's: the preloaded heap, or glibc's (brk, arenas). Where no library of ours provides malloc, what it maps cannot be
    /// distinguished from what the program maps by itself, and all private anonymous memory that is nothing else is in here.
    Heap,
    /// Private anonymous memory that the program has mapped by itself, past malloc.
    OwnMappings,
    /// What a language runtime that manages its own heap maps (JVM, Node.js, Go): heap, compiled code, metadata.
    RuntimeHeap,
    /// Shared memory: tmpfs, memfd, SysV, shared anonymous, hugetlbfs.
    Shared,
    /// Data of mapped files, and of devices.
    Files,
    /// Executables and libraries: code, constants, data, .bss; what the kernel maps (vdso).
    Text,
    /// Stacks, of threads where the kernel shows them.
    Stacks,
}

impl Kind {
    /// All of them, in the order of reports.
    pub const ALL: [Kind; 7] = [
        Kind::Heap,
        Kind::OwnMappings,
        Kind::RuntimeHeap,
        Kind::Shared,
        Kind::Files,
        Kind::Text,
        Kind::Stacks,
    ];

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Heap => "heap",
            Kind::OwnMappings => "own_mappings",
            Kind::RuntimeHeap => "runtime_heap",
            Kind::Shared => "shared",
            Kind::Files => "files",
            Kind::Text => "text",
            Kind::Stacks => "stacks",
        }
    }
}
