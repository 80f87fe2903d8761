//! One workload under several policies.

use crate::machine::{Machine, Run, Setup};
use crate::testbed::{Speed, policy};
use crate::trace::{Invalid, Trace};
use megapage_decide::{POLICIES, Policy, by_name};
use megapage_plan::translation::HostPages;
use serde::Serialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use thiserror::Error;

/// Failure of a comparison.
#[derive(Debug, Error)]
pub enum CompareError {
    /// There is no policy of that name.
    #[error("no policy is named '{name}'; known: {known}")]
    Policy {
        /// The name that was asked for.
        name: String,
        /// The known names.
        known: String,
    },
    /// The trace cannot be replayed.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The trace does not say how much memory there is, and no option does.
    #[error("the trace does not say how much memory the machine has; give it with --memory")]
    NoMemory,
    /// The machine has too little memory to be simulated.
    #[error("a machine of {0} is too small; give it at least 16 MiB with --memory")]
    TooSmall(megapage_units::Bytes),
}

/// The trace and the machine that runs were simulated on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scene {
    /// The origin of the trace.
    pub origin: String,
    /// The machine's memory, in bytes.
    pub memory_bytes: u64,
    /// The fragmentation index at the start.
    pub fragmentation: f64,
    /// True if the programs ran in a virtual machine.
    pub virtualized: bool,
    /// The pages by which the host backed its memory; `None` if they did not.
    pub host_pages: Option<HostPages>,
    /// The seed.
    pub seed: u64,
}

impl Scene {
    pub(crate) fn of(trace: &Trace, setup: &Setup) -> Scene {
        Scene {
            origin: trace.origin.clone(),
            memory_bytes: setup.memory.0,
            fragmentation: setup.fragmentation,
            virtualized: setup.host_pages.is_some(),
            host_pages: setup.host_pages,
            seed: setup.seed,
        }
    }
}

/// A workload under several policies.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The trace and the machine.
    #[serde(flatten)]
    pub scene: Scene,
    /// The runs, in the order in which the policies were asked for.
    pub runs: Vec<Run>,
}

/// Returns the policies that papers compare, for a request of all.
pub fn all_policies() -> Vec<String> {
    POLICIES
        .iter()
        .filter(|known| !known.name.ends_with("-code"))
        .map(|known| known.name.to_string())
        .collect()
}

/// Simulates `trace` under each of the policies, on a thread for each spare processor. Without a
/// `speed` each policy promotes at its own pace.
pub fn compare(
    trace: &Trace,
    setup: &Setup,
    policies: &[String],
    speed: Option<Speed>,
    threads: usize,
) -> Result<Comparison, CompareError> {
    let jobs: Vec<(&str, Setup)> = policies.iter().map(|name| (name.as_str(), setup.clone())).collect();
    let runs = run_all(trace, &jobs, speed, threads)?;
    Ok(Comparison { scene: Scene::of(trace, setup), runs })
}

/// Simulates `trace` under each policy on its machine, in this order, on `threads` threads.
pub(crate) fn run_all(
    trace: &Trace,
    jobs: &[(&str, Setup)],
    speed: Option<Speed>,
    threads: usize,
) -> Result<Vec<Run>, CompareError> {
    trace.check()?;
    for (name, setup) in jobs {
        if setup.memory.0 < 16 << 20 {
            return Err(CompareError::TooSmall(setup.memory));
        }
        if make(name, speed).is_none() {
            let known: Vec<&str> = POLICIES.iter().map(|known| known.name).collect();
            return Err(CompareError::Policy { name: name.to_string(), known: known.join(", ") });
        }
    }
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Run>>> = Mutex::new(vec![None; jobs.len()]);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((name, setup)) = jobs.get(at) else { return Ok(()) };
            let Some(policy) = make(name, speed) else { continue };
            let machine = Machine::new(setup.clone(), trace, policy)?;
            let run = machine.run(|_| ());
            lock(&results)[at] = Some(run);
        }
    };
    let ended: Vec<Result<(), Invalid>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.clamp(1, jobs.len().max(1))).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    for result in ended {
        result?;
    }
    let runs = lock(&results).drain(..).flatten().collect();
    Ok(runs)
}

fn make(name: &str, speed: Option<Speed>) -> Option<Box<dyn Policy>> {
    match speed {
        Some(speed) => policy(name, speed),
        None => by_name(name),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Operation, Program, Span};
    use megapage_snapshot::AccessClass;
    use megapage_units::Bytes;

    /// Largest ratio that counts as equal.
    const EQUAL: f64 = 1.005;

    /// Checks that `megapage` takes no more time than any other policy, and no more memory than
    /// HawkEye.
    fn assert_best(name: &str, memory: Bytes, fragmentation: f64, processes: Vec<Program>) {
        let trace = Trace { origin: name.to_string(), processes, ..Trace::default() };
        let setup = Setup { fragmentation, ..Setup::new(memory) };
        let policies: Vec<String> =
            ["linux", "ingens", "hawkeye-g", "hawkeye-pmu", "megapage"].map(String::from).to_vec();
        let comparison = compare(&trace, &setup, &policies, Some(Speed::TESTBED), 2).unwrap();
        let (ours, others) = comparison.runs.split_last().unwrap();
        assert!(ours.is_complete(), "{name}");
        for other in others {
            let (own, its) = (ours.total_seconds(), other.total_seconds());
            assert!(own <= its * EQUAL, "{name}: {own} s, {} takes {its} s", other.policy);
            if other.policy.starts_with("hawkeye") {
                let (own, its) = (ours.peak_bytes, other.peak_bytes);
                assert!(own as f64 <= its as f64 * EQUAL, "{name}: {own} bytes, {} {its}", other.policy);
            }
        }
    }

    fn program(name: &str, operations: Vec<Operation>) -> Program {
        Program { name: name.to_string(), start: 0.0, operations }
    }

    #[test]
    fn ours_is_not_slower_where_a_heap_is_touched_in_part_while_memory_lasts() {
        let span = Span::new(0, 8000);
        let touch = Operation::Touch { span, pages: 234, content: 234, own_ns: 6_000.0 };
        assert_best("heap", Bytes::mib(19_700), 0.0, vec![program("heap", vec![touch])]);
    }

    #[test]
    fn ours_is_not_slower_where_who_needs_huge_pages_comes_first_anyway() {
        let span = Span::new(0, 512);
        let works = |name, class, visits| {
            let operations = vec![
                Operation::Touch { span, pages: 512, content: 512, own_ns: 0.0 },
                Operation::Access { span, pages: 512, visits, class },
                Operation::Work { seconds: 60.0 },
            ];
            program(name, operations)
        };
        let programs =
            vec![works("random", AccessClass::Random, 1e5), works("streams", AccessClass::Streaming, 1e4)];
        assert_best("pair", Bytes::gib(12), 1.0, programs);
    }
}
