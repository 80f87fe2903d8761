//! What memory of a program is for.

use serde::Serialize;

megapage_units::named! {
    /// What memory is for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Kind {
        /// malloc's: the preloaded heap, or glibc's (brk, arenas). Where no library of ours
        /// provides malloc, what it maps cannot be distinguished from what the program maps by
        /// itself, and all private anonymous memory that is nothing else is in here.
        Heap = "heap",
        /// Private anonymous memory that the program has mapped by itself, past malloc.
        OwnMappings = "own_mappings",
        /// What a language runtime that manages its own heap maps (JVM, Node.js, Go): heap,
        /// compiled code, metadata.
        RuntimeHeap = "runtime_heap",
        /// Shared memory: tmpfs, memfd, SysV, shared anonymous, hugetlbfs.
        Shared = "shared",
        /// Data of mapped files, and of devices.
        Files = "files",
        /// Executables and libraries: code, constants, data, .bss; what the kernel maps (vdso).
        Text = "text",
        /// Stacks, of threads where the kernel shows them.
        Stacks = "stacks",
    }
}
