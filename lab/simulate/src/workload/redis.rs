//! Redis: memory that is filled, thinned out and filled again.

use super::{Use, program};
use crate::hardware::Hardware;
use crate::trace::{Operation, Program, Span};
use megapage_snapshot::AccessClass;
use megapage_units::Bytes;

/// Share of 2 MiB blocks that hold some memory of the kernel's own (fitted). Free memory in them is
/// of no use for huge pages. It is half of all free memory when Redis has 32 GB; from there on
/// Ingens is conservative.
pub(super) const UNMOVABLE: f64 = 0.18;
/// Blocks that Ingens's background compaction empties in a second. This is an assumption: any rate
/// that repairs the scatter of the deletions during the wait gives the same.
pub(super) const COMPACTION: f64 = 100.0;

/// Values of the three-phase run that the papers do not give. `WAIT`: seconds from the end of the
/// deletions to the first large value. `REFILL`: speed of large values, in MB/s. `STAY`: seconds at
/// the end.
///
/// Fitted on Linux and Ingens, which have 28 and 20 GB of bloat when memory runs out. Promotions
/// during the wait make bloat; while large values come, bloat grows about as fast as data.
const WAIT: f64 = 1600.0;
const REFILL: f64 = 13.0;
const STAY: f64 = 30.0;

/// Returns Redis with 11 million values of 4 KB (45 GB), 80 % of them deleted at random, then
/// 17,000 values of 2 MB (34 GB).
pub(super) fn bloat() -> Vec<Program> {
    // "45 GB" of a "48 GB" machine: both in the same unit.
    let small = Span::of_bytes(0, Bytes::gib(45));
    let large = Span::of_bytes(small.count, Bytes::gib(34));
    let per_page = 4096.0 / (REFILL * 1e6) * 1e9;
    let phase = |name: &str| Operation::Phase(name.to_string());
    // The remaining values are looked up rarely: only enough to show that a page was accessed
    // lately.
    let read =
        |span: Span, pages: u16| Operation::Access { span, pages, visits: 1.0, class: AccessClass::Random };
    let operations = vec![
        phase("fill"),
        // 0.75 us of Redis's own work for a value.
        Operation::Touch { span: small, pages: 512, content: 512, own_ns: 750.0 },
        phase("delete"),
        Operation::Free { span: small, keep: 0.2, own_ns: 750.0 },
        read(small, 102),
        phase("wait"),
        Operation::Idle { seconds: WAIT },
        phase("refill"),
        Operation::Touch { span: large, pages: 512, content: 512, own_ns: per_page },
        phase("full"),
        Operation::Idle { seconds: STAY },
    ];
    vec![Program { name: "redis".to_string(), start: 0.0, operations }]
}

/// Returns Redis with 33.2 GB of values, of which 51 % are deleted at random. That leaves 16.2 GB
/// on base pages; then load on them.
pub(super) fn sparse(hardware: &Hardware) -> Vec<Program> {
    let span = Span::of_bytes(0, Bytes((33.2 * (1u64 << 30) as f64) as u64));
    let uses = [Use { span, pages: 512, share: 1.0, class: AccessClass::Random }];
    // 106.1 K/s on base pages and 113.8 K/s on huge ones: 7 % of the cycles (fitted).
    let mut program = program(hardware, "redis", &uses, 0.07, 3600.0);
    let at = program.operations.len() - 2;
    let thin =
        [Operation::Phase("delete".to_string()), Operation::Free { span, keep: 16.2 / 33.2, own_ns: 750.0 }];
    program.operations.splice(at..at, thin);
    vec![program]
}
