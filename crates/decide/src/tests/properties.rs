//! Properties of every policy on any snapshot, also on absurd ones.

use super::made::{SECOND, at, id};
use crate::{
    Action, Asked, Fault, FaultSize, Headroom, Limits, ModelAction, Obtained, Outcome, POLICIES, Reservation,
    State, step, step_on_model,
};
use megapage_snapshot::{
    AccessClass, AccessProfile, Accessed, BackingBytes, CostSource, Counters, Leaf, Machine, MappedObject,
    Mapping, MappingFlags, MappingKind, Memory, MemoryLimit, Missed, MissedWhy, Node, PAGES, Pressure,
    Process, ProcessId, Region, Snapshot, TranslationCost,
};
use megapage_units::{BASE_PAGE, Bytes, HugePage, PageSize, Pid, VirtRange};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Generates any share, absurd ones included.
fn any_share() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => 0.0..=1.0f64,
        1 => select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300]),
    ]
}

fn any_pages() -> impl Strategy<Value = u16> {
    prop_oneof![6 => 0..=PAGES, 2 => Just(PAGES), 1 => any::<u16>()]
}

fn any_bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![6 => (0..64u64).prop_map(Bytes::gib), 1 => any::<u64>().prop_map(Bytes)]
}

fn any_time() -> impl Strategy<Value = Duration> {
    prop_oneof![8 => (0..10_000u64).prop_map(Duration::from_secs), 1 => Just(Duration::MAX)]
}

fn any_region() -> impl Strategy<Value = Region> {
    let page = prop_oneof![20 => (0..40u64).prop_map(at), 1 => any::<u64>().prop_map(HugePage::containing)];
    let leaf =
        select(vec![Leaf::Base, Leaf::Base, Leaf::Huge2m, Leaf::Huge2m, Leaf::Hugetlb2m, Leaf::Hugetlb1g]);
    let accessed = (any_pages(), any::<f32>(), option::of(any_time()), any_time())
        .prop_map(|(coverage, average, last, sampled)| Accessed { coverage, average, last, sampled });
    let class = select(vec![AccessClass::Streaming, AccessClass::Random, AccessClass::Dependent]);
    let visits = prop_oneof![4 => 0.0..1e7f64, 1 => any_share()];
    let profile = (visits, class).prop_map(|(visits, class)| AccessProfile { visits, class });
    let folios = any_pages().prop_map(|pages| [pages; 10]);
    (
        (page, 0..3u32, prop::bool::weighted(0.9), any_pages(), leaf),
        (any_pages(), option::of(any_pages()), option::of(accessed), option::of(profile), option::of(folios)),
    )
        .prop_map(
            |((page, mapping, whole, present, leaf), (swapped, zeros, accessed, profile, folios))| Region {
                page,
                mapping,
                whole,
                present,
                zero_page: 0,
                swapped: swapped % 64,
                leaf,
                folios,
                zeros,
                accessed,
                profile,
            },
        )
}

fn any_mapping() -> impl Strategy<Value = Mapping> {
    let kind = select(vec![
        MappingKind::Anonymous,
        MappingKind::Anonymous,
        MappingKind::Heap,
        MappingKind::Shared,
        MappingKind::File,
        MappingKind::Hugetlb,
    ]);
    let guard = prop::bool::weighted(0.1);
    let guards = (guard, guard, guard, guard, guard);
    (kind, guards, any::<bool>(), 0..30u64).prop_map(
        |(kind, (no_huge, locked, userfault, shared, device), huge, first)| Mapping {
            range: VirtRange::new(at(first).start(), at(first + 30).start()).unwrap(),
            kind,
            name: String::new(),
            flags: MappingFlags {
                no_huge,
                locked,
                userfault,
                shared,
                device,
                huge,
                ..MappingFlags::default()
            },
            thp_eligible: None,
            object: (kind == MappingKind::Shared).then_some(MappedObject {
                device: (0, 1),
                inode: first % 3,
                offset: first << 21,
            }),
        },
    )
}

fn any_process() -> impl Strategy<Value = Process> {
    let sorted = vec(any_region(), 0..24).prop_map(|mut regions| {
        regions.sort_by_key(|region| region.page);
        regions.dedup_by_key(|region| region.page);
        regions
    });
    let regions = prop_oneof![9 => sorted, 1 => vec![any_region()].prop_map(|regions| regions)];
    let cost = (any_share(), any::<bool>()).prop_map(|(share, measured)| TranslationCost {
        share,
        low: share,
        high: share,
        source: if measured { CostSource::Measured } else { CostSource::Estimated },
    });
    (
        (0..3u64, 1..8i32, prop::bool::weighted(0.1)),
        (vec(any_mapping(), 0..3), regions, option::of(cost), option::of(0..2u32)),
        (any_time(), any_bytes()),
        option::of((0..2u8, any_bytes(), any_bytes())),
    )
        .prop_map(
            |(
                (start_stack, parent, thp_disabled),
                (mappings, regions, translation, sharing_children),
                (cpu, rss),
                limit,
            )| Process {
                id: ProcessId { pid: Pid(1), start_ticks: 100, start_stack },
                parent: Pid(parent),
                name: String::new(),
                uid: 0,
                cgroup: "/a".to_string(),
                memory_limit: limit.map(|(group, limit, usage)| MemoryLimit {
                    group: format!("/{group}"),
                    limit,
                    usage,
                }),
                threads: 1,
                cpu,
                rss,
                rss_anonymous: rss,
                swap: Bytes::ZERO,
                page_tables: Bytes::ZERO,
                backing: BackingBytes::default(),
                thp_disabled,
                mappings,
                regions,
                sharing_children,
                translation,
                sampling: None,
            },
        )
}

/// Gives each process another pid.
fn numbered(mut processes: Vec<Process>) -> Vec<Process> {
    for (pid, process) in (1..).zip(&mut processes) {
        process.id.pid = Pid(pid);
    }
    processes
}

fn any_snapshot() -> impl Strategy<Value = Snapshot> {
    let node = (any_bytes(), 0..10_000u64, option::of(any_share())).prop_map(
        |(free, huge_available, fragmentation)| Node { node: 0, free, huge_available, fragmentation },
    );
    let pressure = (any_share(), any_share()).prop_map(|(some_10s, full_10s)| Pressure {
        some_10s: 100.0 * some_10s,
        full_10s,
        ..Pressure::default()
    });
    let missed = (1..8i32, any::<bool>()).prop_map(|(pid, denied)| Missed {
        pid: Pid(pid),
        why: if denied { MissedWhy::Denied } else { MissedWhy::Gone },
        what: String::new(),
    });
    (
        vec(any_process(), 0..5).prop_map(numbered),
        (any_bytes(), any_bytes()),
        vec(node, 0..3),
        (option::of(pressure), vec(missed, 0..3)),
    )
        .prop_map(|(processes, (total, available), nodes, (pressure, missed))| Snapshot {
            taken: Duration::ZERO,
            machine: Machine {
                memory: Memory { total, free: available, available, ..Memory::default() },
                nodes,
                pools: Vec::new(),
                thp: None,
                counters: Counters::new(),
                pressure,
            },
            sampling: None,
            processes,
            missed,
        })
}

fn any_obtained() -> impl Strategy<Value = Option<Obtained>> {
    use Obtained::*;
    option::of(select(vec![Done, Done, Busy, Impossible, NoMemory, Denied, Gone, Unsupported]))
}

const LIMITS: Limits = Limits {
    moved: Bytes(20 << 20),
    scanned: Bytes(10 << 20),
    actions: 30,
    sample_ranges: 5,
    settle: Duration::from_secs(2),
    cool_down: Duration::from_secs(300),
    changed_pages: 64,
    relief: 0.3,
    back_off: Duration::from_secs(10),
    back_off_most: Duration::from_secs(3600),
    fork_quiet: Duration::from_secs(30),
};

fn check(policy: &str, snapshot: &Snapshot, asked: &[Asked]) -> Result<(), TestCaseError> {
    prop_assert!(asked.len() <= LIMITS.actions);
    let (mut moved, mut scanned) = (0, 0);
    let mut blocks = BTreeSet::new();
    for asked in asked {
        let action = match asked {
            Asked::Action(action) => action,
            Asked::Model(ModelAction::PreZero { blocks, .. }) => {
                moved += blocks * HugePage::SIZE;
                prop_assert!(moved <= LIMITS.moved.0);
                continue;
            }
            Asked::Model(ModelAction::Sample { ranges, .. }) => {
                prop_assert!(!ranges.is_empty() && ranges.len() <= LIMITS.sample_ranges);
                prop_assert!(ranges.is_sorted_by(|a, b| a.end() < b.start()));
                continue;
            }
        };
        match action {
            Action::Promote { process, region, size, .. } => {
                let present = snapshot
                    .processes
                    .iter()
                    .find(|other| other.id == *process)
                    .and_then(|process| process.regions.iter().find(|other| other.page == *region))
                    .map_or(PAGES, |region| region.present);
                // Blocks of a smaller size are at least half present.
                let pages = if *size == PageSize::HUGE_2M { PAGES } else { PAGES.min(2 * present) };
                moved += u64::from(pages) * BASE_PAGE as u64;
            }
            Action::Recover { .. } => scanned += HugePage::SIZE,
            Action::ZeroScan { regions, .. } => {
                prop_assert!(!regions.is_empty() && regions.is_sorted_by(|a, b| a < b));
                scanned += regions.len() as u64 * HugePage::SIZE;
            }
            Action::Demote { .. } => {}
        }
        prop_assert!(moved <= LIMITS.moved.0);
        prop_assert!(scanned <= LIMITS.scanned.0);

        let Some((id, start)) = action.place() else { continue };
        let process = snapshot.processes.iter().find(|process| process.id == id).unwrap();
        let region = process.regions.iter().find(|region| region.page == start).unwrap();
        let mapping = &process.mappings[region.mapping as usize];
        let flags = &mapping.flags;
        prop_assert!(!(flags.no_huge || flags.locked || flags.userfault || flags.device));
        prop_assert!(mapping.range.intersection(region.range()) == Some(region.range()) && region.whole);
        if mapping.kind == MappingKind::Shared {
            // Shared memory is only promoted, once for all processes that map it.
            let promotes = matches!(action, Action::Promote { .. });
            prop_assert!(flags.shared && promotes);
            let block = process.shared_block(region).unwrap();
            prop_assert!(blocks.insert(block), "{block:?} twice");
            prop_assert_eq!(block.offset % HugePage::SIZE, 0);
        } else {
            prop_assert!(!flags.shared && matches!(mapping.kind, MappingKind::Anonymous | MappingKind::Heap));
            prop_assert_ne!(process.sharing_children, Some(1));
        }
        if let Action::Promote { size, .. } = action {
            prop_assert!(region.leaf == Leaf::Base && region.present > 0 && !process.thp_disabled);
            prop_assert!(*size > PageSize::BASE && *size <= PageSize::HUGE_2M);
            prop_assert!(policy != "freebsd" || region.present == PAGES);
        } else {
            prop_assert_eq!(region.leaf, Leaf::Huge2m);
        }
    }
    Ok(())
}

/// Returns the requests of one step to a machine of either kind.
fn ask(now: Duration, snapshot: &Snapshot, state: &mut State, is_model: bool) -> Vec<Asked> {
    match is_model {
        true => step_on_model(now, snapshot, state),
        false => step(now, snapshot, state).into_iter().map(Asked::Action).collect(),
    }
}

/// Returns the bound of tracked entries: all processes and regions, for each of the places that
/// store some.
fn most_tracked(snapshot: &Snapshot) -> usize {
    6 * (8 + snapshot.processes.iter().map(|process| 1 + process.regions.len()).sum::<usize>())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(120) })]

    #[test]
    fn every_policy_keeps_budgets_and_guards_and_is_deterministic(
        policy in 0..POLICIES.len(),
        is_model in any::<bool>(),
        steps in vec((any_snapshot(), 0..400u64, any_obtained()), 1..6),
    ) {
        let name = POLICIES[policy].name;
        let mut states = [0, 1].map(|_| State::new(POLICIES[policy].make(), LIMITS));
        let mut now = Duration::ZERO;
        for (snapshot, later, obtained) in steps {
            now += Duration::from_secs(later);
            let asked = states.each_mut().map(|state| ask(now, &snapshot, state, is_model));
            prop_assert_eq!(&asked[0], &asked[1]);
            check(name, &snapshot, &asked[0])?;
            for state in &mut states {
                for asked in &asked[0] {
                    let Some(obtained) = obtained else { break };
                    match asked.clone() {
                        Asked::Action(action) => state.note(now, &Outcome { action, obtained }),
                        Asked::Model(action) => state.note_model(now, &action, obtained),
                    }
                }
                prop_assert!(state.tracked() <= most_tracked(&snapshot), "{}", state.tracked());
            }
        }
        let empty = Snapshot { processes: Vec::new(), missed: Vec::new(), ..super::made::snapshot(now, 0.5, Vec::new()) };
        step(now, &empty, &mut states[0]);
        prop_assert_eq!(states[0].tracked(), 0);
    }

    #[test]
    fn a_running_machine_is_asked_for_what_a_modelled_one_is_but_for_what_only_that_does(
        policy in 0..POLICIES.len(),
        snapshot in any_snapshot(),
    ) {
        // Without a bound on the work of a step, which samples and zeroing would share.
        let unbound = Limits { moved: Bytes(1 << 60), actions: 1 << 30, ..LIMITS };
        let [mut live, mut model] = [0, 1].map(|_| State::new(POLICIES[policy].make(), unbound));
        let asked = step_on_model(SECOND, &snapshot, &mut model).into_iter();
        let actions: Vec<Action> = asked
            .filter_map(|asked| match asked {
                Asked::Action(action) => Some(action),
                Asked::Model(ModelAction::Sample { .. } | ModelAction::PreZero { .. }) => None,
            })
            .collect();
        prop_assert_eq!(step(SECOND, &snapshot, &mut live), actions);
    }

    #[test]
    fn faults_and_reservations_are_answered_whatever_is_asked(
        policy in 0..POLICIES.len(),
        snapshot in any_snapshot(),
        (present, eligible, reserved) in (any_pages(), any::<bool>(), any::<bool>()),
        (total, free, fragmentation) in (any_bytes(), any_bytes(), option::of(any_share())),
        reservations in vec((any_pages(), any_time()), 0..5),
    ) {
        let mut state = State::new(POLICIES[policy].make(), LIMITS);
        step(SECOND, &snapshot, &mut state);
        let headroom = Headroom { total, free, huge_available: 1, zeroed: 0, fragmentation };
        let fault = Fault { process: id(1), region: at(0), present, eligible, reserved, headroom };
        let answer = state.on_fault(&fault);
        prop_assert!(eligible || answer == FaultSize::Base);
        if let FaultSize::Mthp(size) = answer {
            prop_assert!(size > PageSize::BASE && size < PageSize::HUGE_2M);
        }
        let reservations: Vec<Reservation> = reservations
            .into_iter()
            .map(|(populated, changed)| Reservation { process: id(1), region: at(0), populated, changed })
            .collect();
        prop_assert!(state.policy().breaks(&reservations).is_none_or(|at| reservations[at].populated < PAGES));
    }

    #[test]
    fn on_a_constant_snapshot_no_region_is_both_promoted_and_demoted(
        policy in 0..POLICIES.len(),
        snapshot in any_snapshot(),
    ) {
        let mut state = State::new(POLICIES[policy].make(), LIMITS);
        let mut asked: BTreeMap<(ProcessId, HugePage), bool> = BTreeMap::new();
        for second in 1..80 {
            for action in super::made::run(SECOND * second * 25, &snapshot, &mut state) {
                if let Some(place) = action.place() {
                    let promotes = matches!(action, Action::Promote { .. });
                    prop_assert_eq!(*asked.entry(place).or_insert(promotes), promotes);
                }
            }
        }
    }
}
