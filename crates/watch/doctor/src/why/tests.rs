//! Tests of every reason on fabricated facts: a region that only waits for khugepaged, with one
//! thing changed.

use super::catalog::*;
use super::facts::{MappingExtra, Morecore, Tmpfs, WhyFacts};
use super::*;
use crate::catalog::{
    CGROUP_MEMORY_TIGHT, KHUGEPAGED_OFF, Kind, SHMEM_THP_OFF, THP_ABSENT, THP_DISABLED, THP_NEVER,
};
use megapage_kernel::cgroup::{CgroupVersion, Charge, Level, Lineage};
use megapage_kernel::thp::{
    CollapseLimits, Khugepaged, ThpDefrag, ThpEnabled, ThpSettings, ThpShmem, ThpSize,
};
use megapage_observe::{Machine, Memory, Node, PAGES, Process, ProcessId, Region};
use megapage_units::{HUGE_2M, HugePage, PageSize};

const REGION: u64 = HUGE_2M as u64;
const START: u64 = 0x7f00_0000_0000;

/// Returns one anonymous mapping of four regions, all on base pages, for which there is no
/// obstacle.
fn waiting() -> WhyFacts {
    let id = ProcessId { pid: Pid(4711), start_ticks: 1, start_stack: 1 };
    WhyFacts {
        machine: Machine {
            memory: Memory { total: Bytes::gib(16), free: Bytes::gib(4), ..Memory::default() },
            nodes: vec![Node {
                node: 0,
                free: Bytes::gib(4),
                huge_available: 900,
                fragmentation: Some(0.25),
            }],
            pools: Vec::new(),
            thp: Some(ThpSettings {
                enabled: ThpEnabled::Always,
                defrag: ThpDefrag::Madvise,
                shmem: Some(ThpShmem::Always),
                pmd_size: Bytes::mib(2),
                sizes: Vec::new(),
                khugepaged: Some(Khugepaged {
                    defrag: true,
                    max_ptes_none: 511,
                    pages_to_scan: 4096,
                    scan_sleep_ms: 10_000,
                    pages_collapsed: 3,
                }),
                shrink_underused: None,
            }),
            counters: [("thp_fault_fallback".to_string(), 12)].into(),
            pressure: None,
        },
        process: Process {
            uid: 998,
            rss: Bytes::gib(2),
            rss_anonymous: Bytes::gib(2),
            backing: BackingBytes { base: Bytes::mib(8), ..BackingBytes::default() },
            mappings: vec![Mapping {
                thp_eligible: Some(true),
                ..Mapping::anonymous(VirtRange::new(START, START + 4 * REGION).unwrap())
            }],
            regions: (0..4)
                .map(|number| Region::of_base_pages(HugePage::containing(START).offset(number), PAGES))
                .collect(),
            sharing_children: Some(0),
            ..Process::without_memory(id, "server")
        },
        extras: vec![MappingExtra::default()],
        shared: vec![Some(0); 4],
        pinned: Bytes::ZERO,
        limits: Some(CollapseLimits { max_ptes_swap: 64, max_ptes_shared: 256, full_scans: 17 }),
        memory_group: None,
        tmpfs: vec![
            Tmpfs { point: "/dev/shm".into(), huge: "never".into() },
            Tmpfs { point: "/dev/shm/huge".into(), huge: "always".into() },
        ],
        has_thp: true,
        collapse: true,
        morecore: None,
    }
}

#[test]
fn morecore_does_nothing_where_the_c_library_has_no_hook() {
    let with = |value: &str, libc: Option<&str>| {
        let morecore = Some(Morecore { value: value.into(), libc: libc.map(str::to_string) });
        Why::of(&WhyFacts { morecore, ..waiting() }, None).unwrap().start
    };
    let found = with("yes", Some("/usr/lib/x86_64-linux-gnu/libc.so.6"));
    assert_eq!(found.iter().map(|it| it.id).collect::<Vec<_>>(), ["morecore-dead"]);
    assert!(found[0].evidence[1].value.ends_with("libc.so.6") && found[0].remedy[0] == "megapage run server");
    assert!(with("yes", Some("/usr/lib/x86_64-linux-gnu/libc-2.31.so")).is_empty(), "it has the hook");
    assert!(with("no", Some("/usr/lib/x86_64-linux-gnu/libc.so.6")).is_empty());
    assert!(with("yes", None).is_empty(), "a static program has no library to say so");
}

fn thp(facts: &mut WhyFacts) -> &mut ThpSettings {
    facts.machine.thp.as_mut().unwrap()
}

fn khugepaged(facts: &mut WhyFacts) -> &mut Khugepaged {
    thp(facts).khugepaged.as_mut().unwrap()
}

fn mapping(facts: &mut WhyFacts) -> &mut Mapping {
    &mut facts.process.mappings[0]
}

fn shared_memory(facts: &mut WhyFacts, name: &str) {
    mapping(facts).kind = MappingKind::Shared;
    mapping(facts).name = name.into();
    facts.extras[0].offset = Some(0);
}

type Case = (&'static Kind, fn(&mut WhyFacts));

/// Returns changes of [`waiting`], each with the reason that is then decisive.
fn cases() -> Vec<Case> {
    vec![
        (&NOT_COLLAPSED_YET, |_| ()),
        (&SPECIAL_MAPPING, |facts| mapping(facts).flags.device = true),
        (&THP_ABSENT, |facts| facts.has_thp = false),
        (&MAPPING_SMALL, |facts| {
            mapping(facts).range = VirtRange::new(START + 4096, START + REGION + 8192).unwrap();
        }),
        (&MAPPING_EDGE, |facts| {
            mapping(facts).range = VirtRange::new(START + 4096, START + 4 * REGION).unwrap();
        }),
        (&FILE_MISPLACED, |facts| {
            shared_memory(facts, "/var/lib/index");
            mapping(facts).kind = MappingKind::File;
            facts.extras[0].offset = Some(4096);
        }),
        (&SHARED_MISPLACED, |facts| {
            shared_memory(facts, "/memfd:x (deleted)");
            facts.extras[0].offset = Some(4096);
        }),
        (&FILE_PAGES, |facts| {
            mapping(facts).kind = MappingKind::File;
            mapping(facts).thp_eligible = Some(false);
        }),
        (&ADVISED_AGAINST, |facts| mapping(facts).flags.no_huge = true),
        (&THP_DISABLED, |facts| facts.process.thp_disabled = true),
        (&THP_NEVER, |facts| thp(facts).enabled = ThpEnabled::Never),
        (&NOT_ADVISED, |facts| thp(facts).enabled = ThpEnabled::Madvise),
        (&SHMEM_THP_OFF, |facts| {
            shared_memory(facts, "/memfd:x (deleted)");
            thp(facts).shmem = Some(ThpShmem::Never);
        }),
        (&SHARED_NOT_ADVISED, |facts| {
            shared_memory(facts, "/dev/zero (deleted)");
            thp(facts).shmem = Some(ThpShmem::Advise);
        }),
        (&TMPFS_NOT_HUGE, |facts| shared_memory(facts, "/dev/shm/a")),
        (&USERFAULT, |facts| mapping(facts).flags.userfault = true),
        (&NOT_ELIGIBLE, |facts| mapping(facts).thp_eligible = Some(false)),
        (&NEVER_TOUCHED, |facts| {
            facts.process.regions[0].present = 0;
            facts.process.regions[0].zero_page = 7;
        }),
        (&SPARSE, |facts| {
            facts.process.regions[0].present = 200;
            khugepaged(facts).max_ptes_none = 311;
        }),
        (&SWAPPED_OUT, |facts| {
            facts.process.regions[0].present = 447;
            facts.process.regions[0].swapped = 65;
        }),
        (&SHARED_BY_FORK, |facts| facts.shared[0] = Some(257)),
        (&MERGED, |facts| {
            facts.shared[0] = Some(257);
            facts.extras[0].merged = Bytes::mib(1);
        }),
        (&KHUGEPAGED_OFF, |facts| khugepaged(facts).pages_to_scan = 0),
        (&CGROUP_MEMORY_TIGHT, |facts| {
            let charged = Charge { limit: Some(Bytes::gib(1)), usage: Bytes::mib(1023) };
            facts.memory_group = Some(Lineage {
                version: CgroupVersion::V2,
                path: "/app".into(),
                levels: vec![Level { directory: "/cgroup/app".into(), charged }],
                complete: true,
            });
        }),
        (&NONE_FREE, |facts| facts.machine.nodes[0].huge_available = 0),
    ]
}

/// Returns reasons that come after a decisive one.
fn further_cases() -> Vec<Case> {
    vec![
        (&PINNED, |facts| facts.pinned = Bytes::mib(64)),
        (&KHUGEPAGED_TAKES_FREE, |facts| {
            facts.machine.nodes[0].huge_available = 0;
            khugepaged(facts).defrag = false;
        }),
    ]
}

/// Returns the identifiers of the reasons for the region at [`START`].
fn found(facts: &WhyFacts) -> Vec<&'static str> {
    let why = Why::of(facts, Some(START + 0x1234)).unwrap();
    why.groups.first().map(|group| group.reasons.iter().map(|reason| reason.id).collect()).unwrap_or_default()
}

fn changed(change: impl Fn(&mut WhyFacts)) -> WhyFacts {
    let mut facts = waiting();
    change(&mut facts);
    facts
}

#[test]
fn who_runs_a_database_is_offered_what_needs_no_change_of_it() {
    let remedies = |change: fn(&mut WhyFacts)| {
        let why = Why::of(&changed(change), None).unwrap();
        why.groups[0].reasons[0].remedy.clone()
    };
    let attach = "megapage run --attach 4711";
    let off = remedies(|facts| {
        shared_memory(facts, "/dev/zero (deleted)");
        thp(facts).shmem = Some(ThpShmem::Never);
    });
    assert_eq!(off[0], attach);
    let denied = remedies(|facts| {
        shared_memory(facts, "/dev/zero (deleted)");
        thp(facts).shmem = Some(ThpShmem::Deny);
    });
    assert!(!denied.iter().any(|line| line.contains("--attach")), "{denied:?}");
    let misplaced = remedies(|facts| {
        shared_memory(facts, "/dev/zero (deleted)");
        facts.extras[0].offset = Some(4096);
    });
    assert!(
        misplaced[0].starts_with("echo advise >") && misplaced[1].contains("huge_pages = on"),
        "{misplaced:?}"
    );
    assert!(!misplaced.iter().any(|line| line.contains("mmap(")), "{misplaced:?}");
    assert_eq!(remedies(|facts| shared_memory(facts, "/dev/shm/a"))[0], attach);
}

#[test]
fn what_ksm_has_merged_is_not_offered_for_promotion() {
    // KSM merged fewer pages than khugepaged would refuse, and the program has not asked.
    let facts = changed(|facts| {
        facts.shared[0] = Some(3);
        facts.extras[0].merged = Bytes::mib(1);
        thp(facts).enabled = ThpEnabled::Madvise;
    });
    assert!(found(&facts).contains(&"merged"), "{:?}", found(&facts));
    let why = Why::of(&facts, Some(START + 0x1234)).unwrap();
    let mut remedies = why.groups.iter().flat_map(|group| &group.reasons).flat_map(|it| &it.remedy);
    assert!(!remedies.any(|line| line.contains("--attach")));
}

#[test]
fn no_remedy_is_named_that_the_kernel_lacks() {
    for (kind, change) in cases() {
        let mut facts = changed(change);
        let attaches = |facts: &WhyFacts| {
            let why = Why::of(facts, Some(START + 0x1234)).unwrap();
            let remedies = why.groups.iter().flat_map(|group| &group.reasons).flat_map(|it| &it.remedy);
            remedies.filter(|line| line.contains("--attach")).count()
        };
        let wanted = kind.remedies().iter().filter(|line| line.contains("--attach")).count();
        assert!(attaches(&facts) >= wanted, "{}", kind.id);
        facts.collapse = false;
        assert_eq!(attaches(&facts), 0, "{}", kind.id);
    }
}

#[test]
fn each_reason_is_the_decisive_one_where_one_thing_stands_in_the_way() {
    for (kind, change) in cases() {
        let facts = changed(change);
        assert_eq!(found(&facts), [kind.id]);
        let why = Why::of(&facts, Some(START + 0x1234)).unwrap();
        let reason = &why.groups[0].reasons[0];
        assert!(
            reason.evidence.iter().all(|one| !one.value.is_empty() && !one.source.is_empty()),
            "{reason:?}"
        );
        assert_eq!(why.has_findings(), kind.severity > Severity::Note);
    }
    for (kind, change) in further_cases() {
        let found = found(&changed(change));
        assert!(found.len() > 1 && found[1..].contains(&kind.id), "{found:?}");
    }
}

#[test]
fn each_reason_has_a_case_and_an_identifier_of_its_own() {
    let mut covered: Vec<&str> = cases().iter().chain(&further_cases()).map(|(kind, _)| kind.id).collect();
    covered.retain(|id| REASONS.iter().any(|kind| kind.id == *id));
    let mut all: Vec<&str> = REASONS.iter().map(|kind| kind.id).collect();
    covered.sort_unstable();
    all.sort_unstable();
    assert_eq!(covered, all);
    all.extend(crate::catalog::ALL.iter().map(|kind| kind.id));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "an identifier is used twice");
    for kind in REASONS {
        assert!(kind.id.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", kind.id);
        assert!(!kind.title.ends_with('.') && kind.explanation.ends_with('.'), "{}", kind.id);
    }
}

#[test]
fn the_report_of_a_run_has_no_reasons_of_its_own() {
    use megapage_launch::why::Why;
    for why in Why::ALL {
        let known = REASONS.iter().chain(crate::catalog::ALL).any(|kind| kind.id == why.name());
        // The heap's reasons stand for the former; the latter has none.
        assert_eq!(known, !matches!(why, Why::HeapsChoice | Why::Unexplained), "{}", why.name());
    }
}

#[test]
fn of_several_reasons_the_one_that_must_go_first_comes_first() {
    let facts = changed(|facts| {
        mapping(facts).range = VirtRange::new(START + 4096, START + 4 * REGION).unwrap();
        mapping(facts).flags.no_huge = true;
        facts.process.thp_disabled = true;
        thp(facts).enabled = ThpEnabled::Never;
        khugepaged(facts).pages_to_scan = 0;
    });
    assert_eq!(
        found(&facts),
        ["mapping-edge", "advised-against", "thp-disabled-for-process", "thp-never"],
        "khugepaged does not matter as long as these stand"
    );
}

#[test]
fn limits_are_met_exactly_before_they_stand_in_the_way() {
    let region = |change: fn(&mut Region)| found(&changed(|facts| change(&mut facts.process.regions[0])));
    assert_eq!(region(|region| region.present = 1), ["not-collapsed-yet"], "511 may be absent");
    let swapped = |region: &mut Region| (region.present, region.swapped) = (448, 64);
    assert_eq!(region(swapped), ["not-collapsed-yet"]);
    assert_eq!(found(&changed(|facts| facts.shared[0] = Some(256))), ["not-collapsed-yet"]);
    let zeros = |facts: &mut WhyFacts| {
        khugepaged(facts).max_ptes_none = 0;
        facts.process.regions[0].present = 511;
        facts.process.regions[0].zero_page = 1;
    };
    assert_eq!(found(&changed(zeros)), ["sparse"], "the page of zeros counts as absent");
}

#[test]
fn a_setting_for_the_size_and_advice_are_heeded() {
    let inherit = |enabled| ThpSize { page_size: PageSize::HUGE_2M, enabled, shmem: None };
    let never = changed(|facts| thp(facts).sizes.push(inherit(ThpEnabled::Never)));
    assert_eq!(found(&never), ["thp-never"], "the size's own setting beats the global one");
    let why = Why::of(&never, Some(START)).unwrap();
    assert!(why.groups[0].reasons[0].remedy[0].starts_with("echo inherit > "));
    let advised = changed(|facts| {
        thp(facts).enabled = ThpEnabled::Madvise;
        mapping(facts).flags.huge = true;
    });
    assert_eq!(found(&advised), ["not-collapsed-yet"]);
    let deepest = changed(|facts| shared_memory(facts, "/dev/shm/huge/a (deleted)"));
    assert_eq!(found(&deepest), ["not-collapsed-yet"], "the mount that is deepest holds the file");
    let forced = changed(|facts| {
        shared_memory(facts, "/dev/shm/a");
        thp(facts).shmem = Some(ThpShmem::Force);
    });
    assert_eq!(found(&forced), ["not-collapsed-yet"], "'force' overrides the mount");
    let special = changed(|facts| {
        mapping(facts).kind = MappingKind::Special;
        mapping(facts).thp_eligible = Some(false);
    });
    assert_eq!(
        found(&special),
        ["special-mapping"],
        "of what is explained the kernel's own word adds nothing"
    );
    let by_kernel = changed(|facts| {
        mapping(facts).kind = MappingKind::File;
        facts.extras[0].offset = Some(0);
    });
    assert_eq!(found(&by_kernel), ["not-collapsed-yet"], "the kernel says that the file takes part");
}

#[test]
fn the_pace_of_khugepaged_is_told() {
    let why = Why::of(&waiting(), Some(START)).unwrap();
    let evidence = &why.groups[0].reasons[0].evidence;
    assert_eq!(evidence[0].value, "512 of 512");
    // 2 GiB in rounds of 16 MiB, 10 s each: 128 rounds.
    assert_eq!(
        evidence[1].value,
        "4096 base pages, then a pause of 10 s: once through the 2 GiB of this process takes 21 min"
    );
    assert_eq!((evidence[2].value.as_str(), evidence[3].value.as_str()), ("17", "12"));
}

#[test]
fn what_is_huge_has_no_reasons_and_says_on_what() {
    let on = |leaf, kind| {
        let facts = changed(|facts| {
            facts.process.regions[0].leaf = leaf;
            mapping(facts).kind = kind;
            mapping(facts).flags.no_huge = true;
        });
        let why = Why::of(&facts, Some(START)).unwrap();
        assert!(why.groups.is_empty() && !why.has_findings());
        why.at.unwrap().on
    };
    assert_eq!(on(Leaf::Huge2m, MappingKind::Anonymous), "a transparent huge page of 2 MiB");
    assert_eq!(on(Leaf::Huge2m, MappingKind::Shared), "a huge page of 2 MiB of the page cache");
    assert_eq!(on(Leaf::Hugetlb2m, MappingKind::Hugetlb), "a hugetlb page of 2 MiB");
    assert_eq!(on(Leaf::Hugetlb1g, MappingKind::Hugetlb), "a hugetlb page of 1 GiB");
    let untouched = changed(|facts| {
        facts.process.regions.remove(0);
        mapping(facts).kind = MappingKind::Hugetlb;
    });
    let why = Why::of(&untouched, Some(START)).unwrap();
    assert_eq!(why.at.unwrap().on, "no page yet; hugetlb pages come with the first touch");
}

#[test]
fn ranges_are_grouped_by_mapping_and_decisive_reason() {
    let facts = changed(|facts| {
        khugepaged(facts).max_ptes_none = 100;
        // Regions 0, 1 and 3 wait; 2 is sparse; a huge one and an empty one are not listed.
        facts.process.regions[2].present = 10;
        let template = facts.process.regions[0].clone();
        mapping(facts).range = VirtRange::new(START, START + 6 * REGION).unwrap();
        facts.process.regions.push(Region {
            page: HugePage::containing(START).offset(4),
            leaf: Leaf::Huge2m,
            ..template.clone()
        });
        facts.process.regions.push(Region {
            page: HugePage::containing(START).offset(5),
            present: 0,
            swapped: 9,
            ..template.clone()
        });
        // Two small mappings of one kind form one group.
        for number in [10, 20] {
            let start = START + number * REGION;
            let small = Mapping {
                range: VirtRange::new(start + 8192, start + 5 * 8192).unwrap(),
                ..facts.process.mappings[0].clone()
            };
            facts.process.mappings.push(small);
            facts.extras.push(MappingExtra::default());
            let mapping = facts.process.mappings.len() as u32 - 1;
            facts.process.regions.push(Region {
                page: HugePage::containing(start),
                mapping,
                whole: false,
                present: 5,
                ..template.clone()
            });
        }
        facts.shared = vec![Some(0); facts.process.regions.len()];
    });
    let why = Why::of(&facts, None).unwrap();
    let groups: Vec<_> = why
        .groups
        .iter()
        .map(|group| (group.reasons[0].id, group.present, group.ranges, group.mapping.as_str()))
        .collect();
    let large = "7f0000000000-7f0000c00000 rw-p anonymous";
    assert_eq!(
        groups,
        [
            ("not-collapsed-yet", Bytes::mib(6), 2, large),
            ("sparse", Bytes::kib(40), 1, large),
            ("mapping-small", Bytes::kib(40), 2, "small mappings (anonymous)"),
        ]
    );
    assert_eq!(why.groups[1].first, VirtRange::new(START + 2 * REGION, START + 3 * REGION).unwrap());
}

#[test]
fn an_address_without_a_mapping_is_told_with_the_nearest() {
    let error = Why::of(&waiting(), Some(START + 4 * REGION)).unwrap_err().to_string();
    assert_eq!(
        error,
        "--why 4711:7f0000800000: nothing is mapped there; the nearest mapping is 7f0000000000-7f0000800000"
    );
    let empty = changed(|facts| facts.process.mappings.clear());
    let error = Why::of(&empty, Some(4096)).unwrap_err().to_string();
    assert_eq!(error, "--why 4711:1000: nothing is mapped there");
}

#[test]
fn targets_are_read() {
    let target = |text: &str| text.parse::<Target>();
    assert_eq!(target("4711"), Ok(Target { pid: Pid(4711), address: None }));
    let address = Some(0x7f00_dead_b000);
    assert_eq!(target("4711:7f00deadb000"), Ok(Target { pid: Pid(4711), address }));
    assert_eq!(target("4711:0x7F00DEADB000"), Ok(Target { pid: Pid(4711), address }));
    for text in ["", "redis", "-1", "0", ":7f00", "99999999999"] {
        assert_eq!(target(text), Err(ParseTargetError::Pid), "{text}");
    }
    for text in ["", "+7f", "heap", "0x", "10000000000000000", "7f00:7f00"] {
        assert_eq!(target(&format!("1:{text}")), Err(ParseTargetError::Address(text.into())));
    }
    assert_eq!(target("1:ffffffff81000000"), Err(ParseTargetError::Kernel(0xffff_ffff_8100_0000)));
}
