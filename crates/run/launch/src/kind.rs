//! Purposes of a program's memory.

use serde::Serialize;

megapage_units::named! {
    /// Purposes of memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Kind {
        /// Memory of malloc: the preloaded heap, or glibc's (brk, arenas). If no library of ours
        /// provides malloc, its mappings cannot be distinguished from those of the program itself.
        /// Then all private anonymous memory without another kind is in here.
        Heap = "heap",
        /// Private anonymous memory that the program has mapped itself, not by malloc.
        OwnMappings = "own_mappings",
        /// Mappings of a language runtime that manages its own heap (JVM, Node.js, Go): heap,
        /// compiled code, metadata.
        RuntimeHeap = "runtime_heap",
        /// Shared memory: tmpfs, memfd, SysV, shared anonymous, hugetlbfs.
        Shared = "shared",
        /// Data of mapped files, and of devices.
        Files = "files",
        /// Executables and libraries (code, constants, data, .bss), and the kernel's mappings
        /// (vdso).
        Text = "text",
        /// Stacks; those of threads only if the kernel shows them.
        Stacks = "stacks",
    }
}
