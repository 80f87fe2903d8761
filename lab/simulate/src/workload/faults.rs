//! Programs that spend their time in page faults.
//!
//! Sizes are solved from two published columns each, Linux with base pages and with huge ones, as
//! `regions` and the program's own seconds. The other columns are predictions, except HawkEye-2M of
//! Redis and of the VM.

use crate::trace::{Operation, Program, Span, Writer};
use megapage_units::Bytes;

fn single(name: &str, operations: Vec<Operation>) -> Vec<Program> {
    vec![Program { name: name.to_string(), start: 0.0, operations }]
}

/// Returns a program that writes one byte to each base page of 100 GB, and ends.
pub(super) fn touch() -> Vec<Program> {
    let span = Span::of_bytes(0, Bytes::gib(100));
    single("touch", vec![Operation::Touch { span, pages: 512, content: 512, own_ns: 0.0 }])
}

/// Returns Redis with 45 GB of values, which it lets read(2) write to their place (networking.c:
/// arguments from 32 KiB on). The work for each 4 KiB is solved from the Linux-2M column (437 K/s),
/// the cost of writing to memory from HawkEye-2M.
pub(super) fn redis_fill() -> Vec<Program> {
    let span = Span::of_bytes(0, Bytes::gib(45));
    single("redis", vec![Operation::Fill { span, writer: Writer::Kernel, own_ns: 879.0 }])
}

/// Returns SparseHash. Solved: 12.0 million pages, written in full as the table grows, and 0.3 s of
/// the program's own work.
pub(super) fn sparsehash() -> Vec<Program> {
    let fill = Operation::Fill { span: Span::new(0, 23_420), writer: Writer::Program, own_ns: 0.0 };
    single("sparsehash", vec![fill, Operation::Work { seconds: 0.29 }])
}

/// Returns the JVM. Solved: 39,900 regions with 234 touched pages each, because a heap is not
/// touched in full.
pub(super) fn jvm() -> Vec<Program> {
    let span = Span::new(0, 39_900);
    single("jvm", vec![Operation::Touch { span, pages: 234, content: 234, own_ns: 0.0 }])
}

/// Returns the VM. Solved: 19,500 regions. The hypervisor's own work is the small difference of two
/// columns, and 1 % of these decides it. The value of 0.44 s is the remainder of the HawkEye-2M
/// column beside its faults, which is thus fitted as well.
pub(super) fn vm() -> Vec<Program> {
    let populate = Operation::Populate { span: Span::new(0, 19_500), pages: 512 };
    single("vm", vec![populate, Operation::Work { seconds: 0.44 }])
}
