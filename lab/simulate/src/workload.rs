//! Generated workloads: those of the Ingens and HawkEye papers, as traces.
//!
//! The input is the published data of a workload (its size, its translation cost on base pages);
//! the output is the effect of a policy. Visits are solved for, so that the published translation
//! cost on base pages is met: that row is fitted, all others of the workload are not.
//! `megapage-lab papers` says which rows are which.

mod compute;
mod faults;
mod redis;

use crate::hardware::Hardware;
use crate::machine::Setup;
use crate::trace::{Operation, Program, Span, Trace};
use megapage_plan::translation::{Part, translation};
use megapage_snapshot::AccessClass;
use megapage_units::Bytes;

/// A generated workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The name that a user gives.
    pub name: &'static str,
    /// Its description, in one line.
    pub what: &'static str,
    /// The machine's memory.
    pub memory: Bytes,
    /// The free memory fragmentation index at the start.
    pub fragmentation: f64,
    /// True if the pages that fragment it can be moved away.
    pub movable: bool,
    /// 2 MiB blocks that background compaction empties in a second.
    pub compaction: f64,
    make: Make,
}

impl Workload {
    /// Returns the trace, for a machine like this.
    pub fn trace(&self, hardware: &Hardware) -> Trace {
        Trace {
            memory: Some(self.memory),
            fragmentation: Some(self.fragmentation),
            origin: format!("generated: {}", self.name),
            processes: (self.make)(hardware),
        }
    }

    /// Returns the machine on which the paper ran it.
    pub fn setup(&self) -> Setup {
        Setup {
            fragmentation: self.fragmentation,
            movable: self.movable,
            compaction: self.compaction,
            ..Setup::new(self.memory)
        }
    }
}

/// Returns the workload of this name.
pub fn by_name(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

/// All workloads.
pub const WORKLOADS: &[Workload] = &[
    Workload {
        memory: Bytes::gib(128),
        ..workload("touch", "writes one byte to each base page of 100 GB (fault table)", |_| faults::touch())
    },
    Workload {
        memory: Bytes::gib(48),
        fragmentation: redis::UNMOVABLE,
        movable: false,
        compaction: redis::COMPACTION,
        ..workload(
            "redis",
            "Redis in three phases on 48 GB: fill with 4 KB values, delete 80 %, fill with 2 MB values",
            |_| redis::bloat(),
        )
    },
    workload(
        "redis-sparse",
        "Redis after half of its values were deleted, under load (memory against throughput)",
        redis::sparse,
    ),
    workload("redis-fill", "Redis filled with 45 GB of 2 MB values (page faults)", |_| faults::redis_fill()),
    workload("sparsehash", "a hash table that grows (page faults)", |_| faults::sparsehash()),
    workload("jvm", "a Java virtual machine starts up and touches part of its heap (page faults)", |_| {
        faults::jvm()
    }),
    workload("vm", "a virtual machine starts up and its memory is populated (page faults)", |_| faults::vm()),
    workload("cg.D", "NPB conjugate gradient, 16 GB: a small part of it is read at random", |hardware| {
        vec![compute::cg(hardware)]
    }),
    workload("mg.D", "NPB multigrid, 24 GB: streams", |hardware| {
        vec![compute::streaming(hardware, "mg.D", Bytes::gib(24), 0.0104)]
    }),
    workload("bt.D", "NPB block tridiagonal solver, 10 GB", |hardware| {
        vec![compute::streaming(hardware, "bt.D", Bytes::gib(10), 0.064)]
    }),
    workload("sp.D", "NPB scalar pentadiagonal solver, 12 GB", |hardware| {
        vec![compute::streaming(hardware, "sp.D", Bytes::gib(12), 0.047)]
    }),
    workload("ft.D", "NPB fast Fourier transform, 78 GB", |hardware| {
        vec![compute::streaming(hardware, "ft.D", Bytes::gib(78), 0.039)]
    }),
    fragmented(
        "graph500",
        "Graph500 in fragmented memory: its hot part lies at high addresses",
        |hardware| vec![compute::graph500(hardware, "graph500")],
    ),
    fragmented("xsbench", "XSBench in fragmented memory: its hot part lies at high addresses", |hardware| {
        vec![compute::xsbench(hardware, "xsbench")]
    }),
    fragmented(
        "random",
        "random reads of 4 GB beside sequential reads of 4 GB, in fragmented memory",
        compute::random_and_sequential,
    ),
    fragmented("cg-mg", "cg.D beside mg.D, in fragmented memory", compute::cg_and_mg),
    fragmented(
        "three-plus-three",
        "three Graph500 and three XSBench compete for huge pages, in fragmented memory",
        compute::three_plus_three,
    ),
    workload("omnetpp", "SPEC omnetpp, 0.2 GB: follows pointers", |hardware| {
        vec![compute::omnetpp(hardware)]
    }),
];

type Make = fn(&Hardware) -> Vec<Program>;

/// Returns a workload on the papers' machine of 96 GiB, with its memory in one piece.
const fn workload(name: &'static str, what: &'static str, make: Make) -> Workload {
    Workload { name, what, memory: Bytes::gib(96), fragmentation: 0.0, movable: true, compaction: 0.0, make }
}

/// Returns a workload on that machine in fragmented memory.
const fn fragmented(name: &'static str, what: &'static str, make: Make) -> Workload {
    Workload { fragmentation: 1.0, ..workload(name, what, make) }
}

/// Accesses to a part of a program's memory, in proportion to the others.
#[derive(Clone, Copy, Debug)]
struct Use {
    span: Span,
    /// Pages visited of each region.
    pages: u16,
    /// The share of all visits that go to it.
    share: f64,
    class: AccessClass,
}

impl Use {
    fn part(&self, visits: f64) -> Part {
        Part {
            regions: f64::from(self.span.count),
            pages: f64::from(self.span.count) * f64::from(self.pages),
            visits: visits * self.share,
            class: self.class,
            huge: false,
        }
    }

    fn access(&self, visits: f64) -> Operation {
        Operation::Access {
            span: self.span,
            pages: self.pages,
            visits: visits * self.share / f64::from(self.span.count),
            class: self.class,
        }
    }
}

/// Returns the visits per second of work at which translation costs `share` of the cycles on base
/// pages.
fn solve(hardware: &Hardware, uses: &[Use], share: f64) -> f64 {
    // The cost rises with the visits: bisection on a logarithmic scale.
    let (mut low, mut high) = (1.0f64, 1e12f64);
    for _ in 0..100 {
        let middle = (low * high).sqrt();
        let load: Vec<Part> = uses.iter().map(|part| part.part(middle)).collect();
        if translation(&hardware.walks, &load, None).share() < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Returns a program that touches its memory, and then works for `seconds`, as measured on base
/// pages, translation included.
fn program(hardware: &Hardware, name: &str, uses: &[Use], share: f64, seconds: f64) -> Program {
    let visits = solve(hardware, uses, share);
    let mut operations = vec![Operation::Phase("fill".to_string())];
    let regions = uses.iter().map(|part| part.span.first + part.span.count).max().unwrap_or(1);
    operations.push(Operation::Touch { span: Span::new(0, regions), pages: 512, content: 512, own_ns: 0.0 });
    operations.extend(uses.iter().map(|part| part.access(visits)));
    operations.push(Operation::Phase("work".to_string()));
    let load: Vec<Part> = uses.iter().map(|part| part.part(visits)).collect();
    let each = translation(&hardware.walks, &load, None).seconds();
    operations.push(Operation::Work { seconds: seconds / each });
    Program { name: name.to_string(), start: 0.0, operations }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_a_valid_trace_and_survives_being_written() {
        for workload in WORKLOADS {
            let trace = workload.trace(&Hardware::haswell());
            trace.check().unwrap_or_else(|error| panic!("{}: {error}", workload.name));
            let text = crate::trace::write(&trace);
            assert_eq!(crate::trace::read(&text).unwrap(), trace, "{}", workload.name);
            assert!(text.len() < 10_000, "{}: {} bytes", workload.name, text.len());
        }
    }

    #[test]
    fn the_published_cost_is_met_on_base_pages() {
        let hardware = Hardware::haswell();
        let uses = [Use { span: Span::new(0, 2048), pages: 512, share: 1.0, class: AccessClass::Random }];
        let visits = solve(&hardware, &uses, 0.39);
        let share = translation(&hardware.walks, &[uses[0].part(visits)], None).share();
        assert!((share - 0.39).abs() < 1e-6, "{share}");
    }
}
