//! Time and memory of the daemon's policy on a synthetic snapshot of any size: no process runs.
//! Prints the results as JSON.
//!
//! usage: cargo bench -p megapage-daemon --bench decide -- PROCESSES BYTES [STEPS]

use megapage_daemon::Config;
use megapage_decide::{Action, Obtained, Outcome, step};
use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_own_status;
use megapage_snapshot::{
    AccessClass, AccessProfile, Accessed, CostSource, Leaf, Machine, Mapping, Memory, Node, PAGES, Process,
    ProcessId, Region, Snapshot, TranslationCost,
};
use megapage_units::{Bytes, HugeCount, HugePage, Pid, VirtRange};
use serde::Serialize;
use std::time::{Duration, Instant};

/// First address of the synthetic mappings.
const BASE: u64 = 0x7f00_0000_0000;
/// One region in this many is hot; the others are cold.
const HOT: u64 = 4;

/// Arguments: the number of processes, their total memory, and the number of steps. The processes
/// have the same size and are on base pages. The machine has a quarter more memory than they have.
/// Steps are a second apart.
struct Args {
    processes: u32,
    bytes: Bytes,
    steps: u32,
}

impl Args {
    fn parse() -> Option<Args> {
        // cargo adds --bench.
        let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
        let (processes, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let steps = words.next().map_or(Some(10), |word| word.parse().ok())?;
        Some(Args { processes, bytes, steps })
    }
}

/// Results of all steps.
#[derive(Debug, Serialize)]
struct Found {
    processes: u32,
    regions: u64,
    steps: u32,
    mean_ms: f64,
    worst_ms: f64,
    /// Promotions of all steps; every one succeeds.
    promotions: u64,
    /// Entries in the policy's state.
    tracked: usize,
    /// Largest growth of this process's resident memory.
    state_bytes: u64,
}

fn main() {
    let args = Args::parse().expect("usage: decide PROCESSES BYTES [STEPS]");
    let mut state = Config::default().state().expect("the defaults are sound");
    let mut snapshot = snapshot(&args);
    let before = resident();
    let (mut times, mut promotions, mut grown) = (Vec::new(), 0, 0);
    for second in 1..=u64::from(args.steps) {
        let now = Duration::from_secs(second);
        snapshot.taken = now;
        snapshot.processes.iter_mut().for_each(|process| process.cpu += Duration::from_millis(100));
        let begun = Instant::now();
        let actions = step(now, &snapshot, &mut state);
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        for action in actions {
            if let Action::Promote { process, region, .. } = &action {
                promotions += 1;
                make_huge(&mut snapshot, *process, *region);
            }
            state.note(now, &Outcome { action, obtained: Obtained::Done });
        }
        grown = grown.max(resident().saturating_sub(before));
    }
    let found = Found {
        processes: args.processes,
        regions: snapshot.processes.iter().map(|process| process.regions.len() as u64).sum(),
        steps: args.steps,
        mean_ms: times.iter().sum::<f64>() / times.len().max(1) as f64,
        worst_ms: times.iter().copied().fold(0.0, f64::max),
        promotions,
        tracked: state.tracked(),
        state_bytes: grown,
    };
    println!("{}", serde_json::to_string(&found).expect("plain values"));
}

fn resident() -> u64 {
    read_own_status(&KernelRoot::live()).expect("the own memory").rss.0
}

/// Marks a region as one huge page. The process with pid N has index N - 1 in the snapshot.
fn make_huge(snapshot: &mut Snapshot, id: ProcessId, page: HugePage) {
    let process = &mut snapshot.processes[id.pid.0 as usize - 1];
    if let Some(region) = process.regions.iter_mut().find(|region| region.page == page) {
        region.leaf = Leaf::Huge2m;
    }
}

fn snapshot(args: &Args) -> Snapshot {
    let total = Bytes(args.bytes.0 / 4 * 5);
    let free = total.saturating_sub(args.bytes);
    let huge_available = free.0 / HugePage::SIZE;
    let regions = (args.bytes.0 / HugePage::SIZE / u64::from(args.processes.max(1))).max(1);
    Snapshot {
        taken: Duration::ZERO,
        machine: Machine {
            memory: Memory { total, free, available: free, ..Memory::default() },
            nodes: vec![Node { node: 0, free, huge_available, fragmentation: Some(0.0) }],
            ..Machine::default()
        },
        sampling: None,
        processes: (1..=args.processes.cast_signed()).map(|pid| process(pid, regions)).collect(),
        missed: Vec::new(),
    }
}

fn process(pid: i32, regions: u64) -> Process {
    let id = ProcessId { pid: Pid(pid), start_ticks: pid as u64, start_stack: 0x7fff_0000_0000 + pid as u64 };
    let resident = HugeCount(regions).bytes();
    let end = BASE + resident.0;
    Process {
        cpu: Duration::from_secs(1000),
        rss: resident,
        rss_anonymous: resident,
        mappings: VirtRange::new(BASE, end).into_iter().map(Mapping::anonymous).collect(),
        regions: (0..regions).map(region).collect(),
        translation: Some(TranslationCost { share: 0.2, low: 0.1, high: 0.3, source: CostSource::Measured }),
        ..Process::without_memory(id, "modelled")
    }
}

fn region(number: u64) -> Region {
    let coverage = if number.is_multiple_of(HOT) { PAGES } else { 0 };
    let sampled = Duration::ZERO;
    let last = (coverage > 0).then_some(sampled);
    Region {
        accessed: Some(Accessed { coverage, average: f32::from(coverage), last, sampled }),
        profile: Some(AccessProfile { visits: f64::from(coverage) * 1e3, class: AccessClass::Random }),
        ..Region::of_base_pages(HugePage::containing(BASE).offset(number), PAGES)
    }
}
