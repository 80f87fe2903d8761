//! Programs that fill their memory and then compute.

use super::{Use, program};
use crate::hardware::Hardware;
use crate::trace::{Program, Span};
use megapage_snapshot::AccessClass;
use megapage_units::Bytes;

/// Returns NPB conjugate gradient, class D (NPB 3.3, cg.f: `na` 1.5 million, `nonzer` 21, 100
/// iterations of 26 products). A matrix of 726 million values and their columns (8.1 GiB) is
/// streamed. Meanwhile five vectors of `na` values (60 MB) are read at random, by these columns.
/// They lie behind the matrix; before it lies memory that is needed only to make the matrix. The
/// matrix gets 6.3 % of the visits: 2600 times all of it in the time of the work.
pub(super) fn cg(hardware: &Hardware) -> Program {
    let vectors = Span::of_bytes(0, Bytes::mib(60)).count;
    let matrix = Span::of_bytes(0, Bytes::mib(8300)).count;
    let all = Span::of_bytes(0, Bytes::gib(16)).count;
    let (matrix, vectors) = (Span::new(all - vectors - matrix, matrix), Span::new(all - vectors, vectors));
    let uses = [
        Use { span: matrix, pages: 512, share: 0.063, class: AccessClass::Streaming },
        Use { span: vectors, pages: 512, share: 0.937, class: AccessClass::Random },
    ];
    // 39 % of the cycles (recalled), 1952 s on base pages beside mg.D.
    program(hardware, "cg.D", &uses, 0.39, 1952.0)
}

/// Returns a program that streams all its memory, at this translation cost on base pages.
pub(super) fn streaming(hardware: &Hardware, name: &str, size: Bytes, share: f64) -> Program {
    let uses = [Use { span: Span::of_bytes(0, size), pages: 512, share: 1.0, class: AccessClass::Streaming }];
    program(hardware, name, &uses, share, 1000.0)
}

/// Regions of the Graph500 and XSBench instances: with the testbed's 8 regions a second, a scan
/// from low to high addresses takes 1000 s (fitted).
const LARGE: u32 = 8000;
/// The share of the regions, at high addresses, that is hot (fitted on HawkEye's 300 s).
const HOT: f64 = 0.29;

/// Returns a program of which the last part is hot.
fn hot_at_the_end(hardware: &Hardware, name: &str, class: AccessClass, share: f64, seconds: f64) -> Program {
    let hot = (f64::from(LARGE) * HOT) as u32;
    let uses = [
        // The cold part is read rarely: a tenth of the pages of a region.
        Use { span: Span::new(0, LARGE - hot), pages: 51, share: 0.01, class: AccessClass::Random },
        Use { span: Span::new(LARGE - hot, hot), pages: 512, share: 0.99, class },
    ];
    program(hardware, name, &uses, share, seconds)
}

/// Returns Graph500: breadth-first search; visited lists and parents are hot. Its 40 % of cycles in
/// walks and its run time are assumptions.
pub(super) fn graph500(hardware: &Hardware, name: &str) -> Program {
    hot_at_the_end(hardware, name, AccessClass::Random, 0.40, 2500.0)
}

/// Returns XSBench: random look-ups in cross-section tables. Its 30 % of cycles in walks is an
/// assumption; its run time is fitted on the 22 % that HawkEye gains over Linux.
pub(super) fn xsbench(hardware: &Hardware, name: &str) -> Program {
    hot_at_the_end(hardware, name, AccessClass::Random, 0.30, 1060.0)
}

/// Returns the first pair of the table that compares HawkEye-PMU with HawkEye-G.
pub(super) fn random_and_sequential(hardware: &Hardware) -> Vec<Program> {
    let span = Span::of_bytes(0, Bytes::gib(4));
    let random = [Use { span, pages: 512, share: 1.0, class: AccessClass::Random }];
    let sequential = [Use { span, pages: 512, share: 1.0, class: AccessClass::Streaming }];
    vec![
        // 582 s on base pages; its cost is fitted so that HawkEye-PMU takes 328 s.
        program(hardware, "random", &random, RANDOM_SHARE, 582.0),
        program(hardware, "sequential", &sequential, 0.01, 582.0),
    ]
}

const RANDOM_SHARE: f64 = 0.70;

/// Returns the second pair.
pub(super) fn cg_and_mg(hardware: &Hardware) -> Vec<Program> {
    let mut mg = streaming(hardware, "mg.D", Bytes::gib(24), 0.0104);
    // The same length as cg.D, so that they compete all the time.
    if let Some(crate::trace::Operation::Work { seconds }) = mg.operations.last_mut() {
        *seconds *= 1.952;
    }
    vec![cg(hardware), mg]
}

/// Returns three instances of each, a second apart.
pub(super) fn three_plus_three(hardware: &Hardware) -> Vec<Program> {
    let mut programs = Vec::new();
    for at in 0..3 {
        programs.push(graph500(hardware, &format!("graph500-{}", at + 1)));
        programs.push(xsbench(hardware, &format!("xsbench-{}", at + 1)));
    }
    for (at, program) in programs.iter_mut().enumerate() {
        program.start = at as f64;
    }
    programs
}

/// Returns SPEC CPU2006 omnetpp: an event simulator that follows pointers.
pub(super) fn omnetpp(hardware: &Hardware) -> Program {
    let span = Span::of_bytes(0, Bytes::mib(200));
    let uses = [Use { span, pages: 512, share: 1.0, class: AccessClass::Dependent }];
    program(hardware, "omnetpp", &uses, 0.10, 300.0)
}
