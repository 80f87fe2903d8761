//! Runs from which the papers' values are taken.

use super::{Done, Runs};
use megapage_simulate::HostPages;
use megapage_simulate::machine::{Machine, Setup};
use megapage_simulate::testbed::{Speed, policy};
use megapage_simulate::trace::{Operation, Program, Span, Trace};
use megapage_simulate::workload::by_name;
use megapage_snapshot::AccessClass;
use megapage_units::Bytes;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One run: a workload under a policy.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// A unique name.
    pub name: &'static str,
    workload: &'static str,
    policy: &'static str,
    speed: Speed,
    /// True if memory is zero-filled at the start.
    zeroed: bool,
    virtualized: bool,
    /// True if memory is fragmented at the start, in addition to the workload's own setting.
    fragmented: bool,
}

const fn job(name: &'static str, workload: &'static str, policy: &'static str) -> Job {
    Job {
        name,
        workload,
        policy,
        speed: Speed::TESTBED,
        zeroed: false,
        virtualized: false,
        fragmented: false,
    }
}

impl Job {
    const fn zeroed(self) -> Job {
        Job { zeroed: true, ..self }
    }

    const fn virtualized(self) -> Job {
        Job { virtualized: true, ..self }
    }

    const fn fragmented(self) -> Job {
        Job { fragmented: true, ..self }
    }

    /// Returns a job without khugepaged's sleeps: Ingens promotes on notice from the page fault.
    /// Its limit is the memory that may be copied in a step (256 MiB a second).
    const fn unpaced(self) -> Job {
        Job { speed: Speed(128.0), ..self }
    }

    pub(super) fn run(&self) -> Done {
        let (trace, mut setup) = match by_name(self.workload) {
            Some(workload) => (workload.trace(&workload.setup().hardware), workload.setup()),
            None => golden(),
        };
        setup.zeroed = self.zeroed;
        setup.host_pages = self.virtualized.then_some(HostPages::Same);
        if self.fragmented {
            setup.fragmentation = 1.0;
        }
        let policy = policy(self.policy, self.speed).expect("the jobs name policies that exist");
        let mut machine = Machine::new(setup, &trace, policy).expect("generated traces are valid");
        let (mut conserved, mut steps) = (true, 0u64);
        while machine.step() {
            steps += 1;
            if steps.is_multiple_of(100) {
                conserved &= machine.is_conserved();
            }
        }
        Done { run: machine.finish(), conserved }
    }
}

/// All runs. The slowest come first, so that no thread ends long after the others.
pub const JOBS: &[Job] = &[
    job("redis/hawkeye-g", "redis", "hawkeye-g"),
    job("redis/ingens", "redis", "ingens"),
    job("redis/linux", "redis", "linux"),
    job("redis/freebsd", "redis", "freebsd"),
    job("cg-mg/hawkeye-pmu", "cg-mg", "hawkeye-pmu"),
    job("cg-mg/hawkeye-g", "cg-mg", "hawkeye-g"),
    job("redis-sparse/linux-4k", "redis-sparse", "linux-4k"),
    job("redis-sparse/linux", "redis-sparse", "linux"),
    job("redis-sparse/hawkeye-g", "redis-sparse", "hawkeye-g"),
    job("three-plus-three/linux", "three-plus-three", "linux"),
    job("three-plus-three/ingens", "three-plus-three", "ingens"),
    job("three-plus-three/hawkeye-g", "three-plus-three", "hawkeye-g"),
    job("graph500/linux", "graph500", "linux"),
    job("graph500/ingens", "graph500", "ingens"),
    job("graph500/hawkeye-g", "graph500", "hawkeye-g"),
    job("xsbench/linux", "xsbench", "linux"),
    job("xsbench/ingens", "xsbench", "ingens"),
    job("xsbench/hawkeye-g", "xsbench", "hawkeye-g"),
    job("xsbench/hawkeye-pmu", "xsbench", "hawkeye-pmu"),
    job("graph500/linux, virtual", "graph500", "linux").virtualized(),
    job("graph500/hawkeye-g, virtual", "graph500", "hawkeye-g").virtualized(),
    job("xsbench/linux, virtual", "xsbench", "linux").virtualized(),
    job("xsbench/hawkeye-g, virtual", "xsbench", "hawkeye-g").virtualized(),
    job("cg.D/linux, virtual, fragmented", "cg.D", "linux").virtualized().fragmented(),
    job("cg.D/hawkeye-g, virtual, fragmented", "cg.D", "hawkeye-g").virtualized().fragmented(),
    job("cg.D/linux-4k", "cg.D", "linux-4k"),
    job("cg.D/linux", "cg.D", "linux"),
    job("cg.D/linux-4k, virtual", "cg.D", "linux-4k").virtualized(),
    job("cg.D/linux, virtual", "cg.D", "linux").virtualized(),
    job("mg.D/linux-4k", "mg.D", "linux-4k"),
    job("mg.D/linux", "mg.D", "linux"),
    job("bt.D/linux-4k", "bt.D", "linux-4k"),
    job("sp.D/linux-4k", "sp.D", "linux-4k"),
    job("ft.D/linux-4k", "ft.D", "linux-4k"),
    job("random/linux-4k", "random", "linux-4k"),
    job("random/hawkeye-pmu", "random", "hawkeye-pmu"),
    job("random/hawkeye-g", "random", "hawkeye-g"),
    job("touch/linux-4k", "touch", "linux-4k"),
    job("touch/linux", "touch", "linux"),
    job("touch/ingens", "touch", "ingens-code").unpaced(),
    job("touch/linux-4k, zeroed", "touch", "linux-4k").zeroed(),
    job("touch/linux, zeroed", "touch", "linux").zeroed(),
    job("redis-fill/linux-4k", "redis-fill", "linux-4k"),
    job("redis-fill/linux", "redis-fill", "linux"),
    job("redis-fill/ingens", "redis-fill", "ingens-code").unpaced(),
    job("redis-fill/hawkeye-4k", "redis-fill", "hawkeye-4k").zeroed(),
    job("redis-fill/hawkeye-g", "redis-fill", "hawkeye-g").zeroed(),
    job("sparsehash/linux-4k", "sparsehash", "linux-4k"),
    job("sparsehash/linux", "sparsehash", "linux"),
    job("sparsehash/ingens", "sparsehash", "ingens-code").unpaced(),
    job("sparsehash/hawkeye-4k", "sparsehash", "hawkeye-4k").zeroed(),
    job("sparsehash/hawkeye-g", "sparsehash", "hawkeye-g").zeroed(),
    job("jvm/linux-4k", "jvm", "linux-4k"),
    job("jvm/linux", "jvm", "linux"),
    job("jvm/ingens", "jvm", "ingens-code").unpaced(),
    job("jvm/hawkeye-4k", "jvm", "hawkeye-4k").zeroed(),
    job("jvm/hawkeye-g", "jvm", "hawkeye-g").zeroed(),
    job("vm/linux-4k", "vm", "linux-4k"),
    job("vm/linux", "vm", "linux"),
    job("vm/ingens", "vm", "ingens-code").unpaced(),
    job("vm/hawkeye-4k", "vm", "hawkeye-4k").zeroed(),
    job("vm/hawkeye-g", "vm", "hawkeye-g").zeroed(),
    job("golden", "", "hawkeye-g"),
];

/// Returns the three processes of the value that explains HawkEye's order. The value names regions
/// and their order, not their coverages: the order leaves one choice of buckets.
fn golden() -> (Trace, Setup) {
    let coverages: [(&str, &[u16]); 3] =
        [("A", &[480, 20, 30]), ("B", &[470, 410, 360, 370]), ("C", &[455, 512, 430, 449, 10])];
    let programs = coverages.map(|(name, coverages)| {
        let count = coverages.len() as u32;
        let mut operations =
            vec![Operation::Touch { span: Span::new(0, count), pages: 512, content: 512, own_ns: 0.0 }];
        for (at, &pages) in (0..).zip(coverages) {
            operations.push(Operation::Access {
                span: Span::new(at, 1),
                pages,
                // Each page is accessed many times a second: every one is seen.
                visits: f64::from(pages) * 100.0,
                class: AccessClass::Random,
            });
        }
        operations.push(Operation::Work { seconds: 60.0 });
        Program { name: name.to_string(), start: 0.0, operations }
    });
    let trace = Trace { processes: programs.to_vec(), ..Trace::default() };
    (trace, Setup { fragmentation: 1.0, ..Setup::new(Bytes::gib(1)) })
}

/// Runs all jobs.
pub(super) fn all(threads: usize, progress: impl Fn(usize, usize) + Sync) -> Runs {
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new(Runs::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, JOBS.len()) {
            scope.spawn(|| {
                while let Some(job) = JOBS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let done = job.run();
                    results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(job.name, done);
                    progress(ended.fetch_add(1, Ordering::Relaxed) + 1, JOBS.len());
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}
