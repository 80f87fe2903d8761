//! Every kind of finding on fabricated facts: absent from healthy ones, present where one thing is wrong.

use crate::catalog::{self, ALL, Kind, Severity};
use crate::facts::*;
use crate::finding::{Basis, Finding, Outcome, Verdict};
use crate::{Diagnosis, diagnose, verdicts};
use megapage_kernel::cgroup::{CgroupVersion, Cgroups, Charge, HugetlbCharge, Level, Lineage};
use megapage_kernel::hugetlb::PoolFigures;
use megapage_kernel::identity::Capabilities;
use megapage_kernel::limits::{Limit, Limits, Sysctls};
use megapage_kernel::memory_nodes::MemoryNodes;
use megapage_kernel::probe::{Answer, Trial};
use megapage_kernel::thp::{Khugepaged, ThpDefrag, ThpEnabled, ThpSettings, ThpShmem, ThpSize};
use megapage_launch::program::{Allocator, Import, Linkage, Privilege, Program, Runtime};
use megapage_units::{Bytes, PageSize};
use std::path::PathBuf;

const SIZE: PageSize = PageSize::HUGE_2M;
const SYS_NICE: Capabilities = Capabilities(1 << 23);
const UNLIMITED: Limit = Limit(None);

/// A machine and a user for whom everything works.
fn healthy() -> Facts {
    Facts {
        user: User {
            name: "tomcat".into(),
            uid: 998,
            gid: 997,
            groups: vec![997, 27],
            groups_of_machine: vec![997, 27],
            capabilities: SYS_NICE,
            is_caller: true,
        },
        kernel: Kernel::default(),
        subject: None,
        thp: Some(ThpSettings {
            enabled: ThpEnabled::Always,
            defrag: ThpDefrag::Madvise,
            shmem: Some(ThpShmem::Advise),
            pmd_size: Bytes::mib(2),
            sizes: vec![
                size(64 << 10, ThpEnabled::Never),
                size(1 << 20, ThpEnabled::Always),
                size(2 << 20, ThpEnabled::Inherit),
            ],
            khugepaged: Some(Khugepaged {
                defrag: true,
                max_ptes_none: 511,
                pages_to_scan: 4096,
                scan_sleep_ms: 10_000,
                pages_collapsed: 0,
            }),
            shrink_underused: Some(true),
        }),
        thp_allowed: Some(true),
        default_size: Some(SIZE),
        pools: vec![Pool { page_size: SIZE, figures: pool(100, 90, 10), on_nodes: None }],
        memory: Memory {
            total: Bytes::gib(16),
            available: Bytes::gib(8),
            in_huge_blocks: Some(Bytes::gib(4)),
        },
        sysctls: Sysctls {
            hugetlb_shm_group: Some(27),
            overcommit_memory: Some(0),
            max_map_count: Some(65_530),
            shmmax: Some(Bytes(u64::MAX - (1 << 24))),
            shmall: Some(u64::MAX - (1 << 24)),
        },
        limits: Some(UserLimits {
            limits: Limits { locked: UNLIMITED, address_space: UNLIMITED, data: UNLIMITED },
            source: "this process".into(),
        }),
        login_memlock: None,
        mounts: vec![HugetlbMount {
            point: "/dev/hugepages".into(),
            page_size: SIZE,
            size: None,
            read_only: false,
            steps: vec![
                step("/", 0, 0, 0o755),
                step("/dev", 0, 0, 0o755),
                step("/dev/hugepages", 0, 27, 0o1770),
            ],
        }],
        kept_segments: Vec::new(),
        cgroups: Cgroups::default(),
        nodes: MemoryNodes::default(),
        confinement: Confinement::default(),
        glibc: Some((2, 36)),
        tunables: None,
        trials: Vec::new(),
        untried: None,
        program: None,
    }
}

fn size(bytes: u64, enabled: ThpEnabled) -> ThpSize {
    ThpSize { page_size: PageSize::new(bytes).unwrap(), enabled, shmem: Some(ThpShmem::Inherit) }
}

fn pool(total: u64, free: u64, reserved: u64) -> PoolFigures {
    PoolFigures { total, free, reserved: Some(reserved), surplus: 0, overcommit: Some(0) }
}

fn step(path: &str, uid: u32, gid: u32, mode: u32) -> Step {
    Step { path: path.into(), uid, gid, mode }
}

fn thp(facts: &mut Facts) -> &mut ThpSettings {
    facts.thp.as_mut().unwrap()
}

fn tried(facts: &mut Facts, trial: Trial, answer: Answer) {
    facts.trials.push(Tried { trial, outcome: Ok(answer) });
}

fn refused(call: &'static str, errno: i32) -> Answer {
    Answer::Refused { call, errno }
}

/// A hugetlb limit on the user's group. `None`: unlimited.
fn limited(facts: &mut Facts, fault: Option<Bytes>, reservation: Option<Bytes>, usage: Bytes) {
    facts.cgroups.hugetlb = Some(Lineage {
        version: CgroupVersion::V2,
        path: "/app".into(),
        levels: vec![Level {
            directory: "/cgroup/app".into(),
            figures: vec![HugetlbCharge {
                page_size: SIZE,
                fault: Charge { limit: fault, usage },
                reservation: Charge { limit: reservation, usage },
            }],
        }],
        complete: true,
    });
}

fn with_program(facts: &mut Facts, change: impl FnOnce(&mut Program)) {
    let mut program = Program::ordinary("/usr/bin/app");
    change(&mut program);
    facts.program = Some(program);
}

fn import(symbol: &str) -> Import {
    Import { symbol: symbol.into(), file: PathBuf::from("/usr/lib/libx.so") }
}

/// What is wrong where each kind of finding is to appear.
type Case = (&'static Kind, fn(&mut Facts));

fn cases() -> Vec<Case> {
    use catalog::*;
    vec![
        (&THP_ABSENT, |facts| facts.thp = None),
        (&THP_NEVER, |facts| thp(facts).enabled = ThpEnabled::Never),
        (&THP_ON_REQUEST, |facts| thp(facts).enabled = ThpEnabled::Madvise),
        (&THP_DISABLED, |facts| facts.thp_allowed = Some(false)),
        (&THP_DEFRAG_NEVER, |facts| thp(facts).defrag = ThpDefrag::Never),
        (&THP_DEFRAG_STALLS, |facts| thp(facts).defrag = ThpDefrag::Always),
        (&KHUGEPAGED_OFF, |facts| thp(facts).khugepaged.as_mut().unwrap().pages_to_scan = 0),
        (&SHMEM_THP_OFF, |facts| thp(facts).shmem = Some(ThpShmem::Never)),
        (&MTHP_OFF, |facts| thp(facts).sizes[1].enabled = ThpEnabled::Never),
        (&MEMORY_FRAGMENTED, |facts| facts.memory.in_huge_blocks = Some(Bytes::mib(300))),
        (&MEMORY_SHORT, |facts| facts.memory.available = Bytes::mib(800)),
        (&HUGETLB_ABSENT, |facts| {
            facts.pools.clear();
            facts.default_size = None;
        }),
        (&POOL_EMPTY, |facts| facts.pools[0].figures = pool(0, 0, 0)),
        (&POOL_TAKEN, |facts| facts.pools[0].figures = pool(100, 30, 30)),
        (&POOL_ELSEWHERE, |facts| {
            facts.nodes = MemoryNodes { allowed: vec![0, 1], bound: Some(vec![1]) };
            facts.pools[0].on_nodes = Some(0);
        }),
        (&POOL_ON_DEMAND, |facts| {
            facts.pools[0].figures = PoolFigures { overcommit: Some(9), ..pool(4, 0, 0) }
        }),
        (&POOL_SIZE_UNUSED, |facts| {
            facts.pools.push(Pool { page_size: PageSize::HUGE_1G, figures: pool(0, 0, 0), on_nodes: None });
        }),
        (&SHM_NOT_PERMITTED, |facts| facts.sysctls.hugetlb_shm_group = Some(0)),
        (&SHM_BY_MEMLOCK, |facts| {
            facts.sysctls.hugetlb_shm_group = Some(0);
            tried(facts, Trial::ShmPermission { size: SIZE, bytes: SIZE.bytes() }, Answer::Obtained);
        }),
        (&SHMMAX_SMALL, |facts| facts.sysctls.shmmax = Some(Bytes::mib(32))),
        (&MEMLOCK_LIMITED, |facts| facts.limits.as_mut().unwrap().limits.locked = Limit(Some(Bytes::mib(8)))),
        (&ADDRESS_SPACE_LIMITED, |facts| {
            facts.limits.as_mut().unwrap().limits.address_space = Limit(Some(Bytes::gib(4)));
        }),
        (&OVERCOMMIT_STRICT, |facts| facts.sysctls.overcommit_memory = Some(2)),
        (&MAP_COUNT_LOW, |facts| facts.memory.total = Bytes::gib(129)),
        (&HUGETLBFS_NOT_MOUNTED, |facts| facts.mounts.clear()),
        (&HUGETLBFS_DENIED, |facts| facts.mounts[0].steps[2].mode = 0o750),
        (&HUGETLBFS_SIZE_LIMITED, |facts| facts.mounts[0].size = Some(Bytes::mib(64))),
        (&SEGMENTS_KEPT, |facts| {
            let kept = |number: u64| KeptSegment {
                path: format!("/dev/hugepages/megapage.0.app/s{number}").into(),
                memory: Bytes::mib(20 - 2 * number),
            };
            facts.kept_segments = (0..7).map(kept).collect();
        }),
        (&CGROUP_HUGETLB_FULL, |facts| limited(facts, Some(Bytes::mib(8)), None, Bytes::mib(7))),
        (&CGROUP_HUGETLB_SIGBUS, |facts| limited(facts, Some(Bytes::mib(64)), None, Bytes::ZERO)),
        (&CGROUP_HUGETLB_HIDDEN, |facts| {
            limited(facts, None, None, Bytes::ZERO);
            facts.cgroups.hugetlb.as_mut().unwrap().complete = false;
        }),
        (&CGROUP_MEMORY_TIGHT, |facts| {
            let figures = Charge { limit: Some(Bytes::gib(1)), usage: Bytes::mib(1000) };
            facts.cgroups.memory = Some(Lineage {
                version: CgroupVersion::V2,
                path: "/app".into(),
                levels: vec![Level { directory: "/cgroup/app".into(), figures }],
                complete: true,
            });
        }),
        (&CONTAINER, |facts| facts.confinement.container = Some("/run/.containerenv".into())),
        (&SECCOMP_FILTER, |facts| facts.confinement.seccomp_filter = true),
        (&SELINUX_ENFORCING, |facts| facts.confinement.selinux_enforcing = true),
        (&COLLAPSE_UNSUPPORTED, |facts| tried(facts, Trial::CollapseOther, refused("process_madvise", 22))),
        (&OUTSIDE_NOT_PERMITTED, |facts| facts.user.capabilities = Capabilities::NONE),
        (&POPULATE_UNSUPPORTED, |facts| tried(facts, Trial::PopulateWrite, refused("madvise", 22))),
        (&REFUSED_UNEXPLAINED, |facts| tried(facts, Trial::MapHugetlb(SIZE), refused("mmap", 1))),
        (&GLIBC_OLD, |facts| facts.glibc = Some((2, 31))),
        (&TUNABLE_SET, |facts| facts.tunables = Some("glibc.malloc.hugetlb=0:glibc.malloc.hugetlb=2".into())),
        (&TUNABLE_DEAD, |facts| {
            facts.tunables = Some("glibc.malloc.hugetlb=2".into());
            facts.pools[0].figures = pool(0, 0, 0);
        }),
        (&PROGRAM_PRIVILEGED, |facts| {
            with_program(facts, |program| program.privilege = Some(Privilege::SetUser(0)));
        }),
        (&PROGRAM_STATIC, |facts| with_program(facts, |program| program.linkage = Linkage::Static)),
        (&PROGRAM_NOT_GLIBC, |facts| with_program(facts, |program| program.linkage = Linkage::Musl)),
        (&PROGRAM_FOREIGN, |facts| with_program(facts, |program| program.native = false)),
        (&PROGRAM_OWN_ALLOCATOR, |facts| {
            with_program(facts, |program| program.allocator = Some(Allocator::InExecutable));
        }),
        (&PROGRAM_FORKS, |facts| with_program(facts, |program| program.forks.push(import("fork")))),
        (&PROGRAM_LIBRARIES_MISSING, |facts| {
            with_program(facts, |program| program.missing.push("libnone.so.1".into()));
        }),
        (&PROGRAM_JVM, |facts| with_program(facts, |program| program.runtime = Some(Runtime::Jvm))),
        (&PROGRAM_GO, |facts| with_program(facts, |program| program.runtime = Some(Runtime::Go))),
        (&PROGRAM_NODE, |facts| with_program(facts, |program| program.runtime = Some(Runtime::Node))),
        (&PROGRAM_PYTHON, |facts| with_program(facts, |program| program.runtime = Some(Runtime::Python))),
        (&PROGRAM_PHP, |facts| with_program(facts, |program| program.runtime = Some(Runtime::Php))),
        (&PROGRAM_DISABLES_THP, |facts| {
            with_program(facts, |program| program.executable = "/usr/bin/redis-server".into());
        }),
    ]
}

fn find(facts: &Facts, kind: &Kind) -> Option<Finding> {
    diagnose(facts).into_iter().find(|finding| finding.id == kind.id)
}

#[test]
fn pages_on_other_nodes_explain_a_refusal() {
    let mut facts = healthy();
    tried(&mut facts, Trial::MapHugetlb(SIZE), Answer::Refused { call: "mmap", errno: 12 });
    assert!(find(&facts, &catalog::REFUSED_UNEXPLAINED).is_some());
    facts.nodes = MemoryNodes { allowed: vec![1], bound: None };
    facts.pools[0].on_nodes = Some(0);
    assert!(find(&facts, &catalog::REFUSED_UNEXPLAINED).is_none());
    let found = find(&facts, &catalog::POOL_ELSEWHERE).unwrap();
    assert!(found.evidence.iter().any(|one| one.source.starts_with("Mems_allowed_list") && one.value == "1"));
    assert_eq!(found.remedy[0], "megapage pool set 2m=NODE:+1");
}

#[test]
fn root_of_a_user_namespace_is_not_in_the_machines_group() {
    let mut facts = healthy();
    facts.confinement.user_namespace = true;
    facts.sysctls.hugetlb_shm_group = Some(0);
    facts.user.groups = vec![0];
    facts.user.groups_of_machine = vec![1000];
    tried(&mut facts, Trial::ShmHugetlb(SIZE), Answer::Refused { call: "shmget", errno: 1 });
    assert!(find(&facts, &catalog::REFUSED_UNEXPLAINED).is_none(), "{:?}", diagnose(&facts));
    assert!(find(&facts, &catalog::SHM_NOT_PERMITTED).is_some());
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let mut facts = healthy();
    assert_eq!(diagnose(&facts), []);
    with_program(&mut facts, |program| {
        program.allocator = Some(Allocator::Library("libjemalloc.so.2".into()))
    });
    assert_eq!(diagnose(&facts), [], "a preloaded malloc comes before a library's");
    assert!(verdicts(&facts).iter().all(|verdict| verdict.outcome == Outcome::Works));
    assert!(!Diagnosis::of(&facts).has_findings());
}

#[test]
fn each_kind_is_found_where_one_thing_is_wrong() {
    for (kind, change) in cases() {
        let mut facts = healthy();
        change(&mut facts);
        let Some(finding) = find(&facts, kind) else { panic!("{} is not found", kind.id) };
        assert!(finding.evidence.iter().all(|evidence| !evidence.value.is_empty()), "{finding:?}");
        assert_eq!(Diagnosis::of(&facts).has_findings(), diagnose(&facts)[0].severity > Severity::Note);
    }
}

#[test]
fn each_kind_has_a_case_and_an_identifier_of_its_own() {
    // Told instead of all others: tests/captured.rs.
    let apart = catalog::BASE_PAGES_OTHER.id;
    let mut covered: Vec<&str> = cases().iter().map(|(kind, _)| kind.id).chain([apart]).collect();
    let mut all: Vec<&str> = ALL.iter().map(|kind| kind.id).collect();
    covered.sort_unstable();
    all.sort_unstable();
    assert_eq!(covered, all);
    all.dedup();
    assert_eq!(all.len(), ALL.len(), "an identifier is used twice");
    for kind in ALL {
        assert!(
            kind.id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
            "{}",
            kind.id
        );
        assert!(!kind.title.ends_with('.') && kind.explanation.ends_with('.'), "{}", kind.id);
    }
}

#[test]
fn what_explains_a_verdict_is_among_the_findings() {
    let trials = [
        Trial::MapHugetlb(SIZE),
        Trial::ShmHugetlb(SIZE),
        Trial::Hugetlbfs { directory: "/dev/hugepages".into(), size: SIZE },
        Trial::MadviseThp,
        Trial::CollapseOther,
    ];
    let answers = [refused("mmap", 12), refused("shmget", 1), refused("open", 13), refused("madvise", 22)];
    let others = [Answer::Obtained, Answer::Killed(7), Answer::BasePages];
    let answers = answers.into_iter().chain(others).map(Some);
    for (kind, change) in cases() {
        for answer in answers.clone().chain([None]) {
            let mut facts = healthy();
            change(&mut facts);
            for trial in trials.clone() {
                // Only a transparent huge page can turn out to be none.
                let fits = answer != Some(Answer::BasePages) || trial == Trial::MadviseThp;
                if let (Some(answer), None, true) = (answer, facts.answer(&trial), fits) {
                    tried(&mut facts, trial, answer);
                }
            }
            let diagnosis = Diagnosis::of(&facts);
            for verdict in &diagnosis.verdicts {
                let reasons = &verdict.because;
                assert_eq!(reasons.is_empty(), verdict.outcome == Outcome::Works, "{verdict:?}");
                let known = |id| diagnosis.findings.iter().any(|finding| finding.id == id);
                assert!(reasons.iter().all(|id| known(*id)), "{}: {verdict:?}", kind.id);
            }
        }
    }
}

fn verdict(facts: &Facts, way: &str) -> Verdict {
    let all = verdicts(facts);
    all.iter().find(|verdict| verdict.way.contains(way)).unwrap_or_else(|| panic!("{way}: {all:?}")).clone()
}

#[test]
fn a_short_pool_is_errno_12_and_a_missing_group_errno_1() {
    let mut facts = healthy();
    facts.pools[0].figures = pool(0, 0, 0);
    let mapped = verdict(&facts, "MAP_HUGETLB");
    assert_eq!((mapped.outcome, mapped.errno, mapped.basis), (Outcome::Fails, Some(12), Basis::Reasoned));
    assert_eq!(
        mapped.sentence,
        "Fails for user tomcat with errno 12 (ENOMEM) because no page of 2m is reserved."
    );
    assert_eq!(mapped.because, ["pool-empty"]);
    assert_eq!(verdict(&facts, "SHM_HUGETLB").errno, Some(12));

    facts.user.groups_of_machine = vec![997];
    let segment = verdict(&facts, "SHM_HUGETLB");
    assert_eq!(segment.errno, Some(1), "the permission is checked before the pool");
    assert_eq!(
        segment.sentence,
        "Fails for user tomcat with errno 1 (EPERM) because the user is not in group 27 \
         (vm.hugetlb_shm_group) and lacks CAP_IPC_LOCK."
    );
    assert_eq!(segment.because, ["shm-not-permitted"]);

    facts.pools[0].figures = pool(10, 4, 4);
    let taken = verdict(&facts, "MAP_HUGETLB");
    assert_eq!(
        taken.sentence,
        "Fails for user tomcat with errno 12 (ENOMEM) because of 10 pages of 2m none is available: \
         4 free, 4 of them reserved by others."
    );
}

#[test]
fn the_segment_sizes_come_before_the_permission() {
    let mut facts = healthy();
    facts.user.groups_of_machine = vec![];
    facts.sysctls.shmall = Some(1);
    assert_eq!(verdict(&facts, "SHM_HUGETLB").errno, Some(28));
    facts.sysctls.shmmax = Some(Bytes(4096));
    assert_eq!(verdict(&facts, "SHM_HUGETLB").errno, Some(22));
}

#[test]
fn cap_ipc_lock_counts_outside_of_user_namespaces_only() {
    let mut facts = healthy();
    facts.user.groups_of_machine = vec![];
    facts.user.capabilities = Capabilities(u64::MAX);
    assert_eq!(verdict(&facts, "SHM_HUGETLB").outcome, Outcome::Works);
    facts.confinement.user_namespace = true;
    let segment = verdict(&facts, "SHM_HUGETLB");
    assert_eq!(segment.errno, Some(1));
    assert!(segment.sentence.contains("user namespace"), "{}", segment.sentence);
    let outside = verdict(&facts, "another process");
    assert_eq!((outside.errno, &outside.because[..]), (Some(1), &["outside-not-permitted"][..]));
}

#[test]
fn a_control_group_kills_at_the_fault_and_refuses_at_the_reservation() {
    let mut facts = healthy();
    limited(&mut facts, Some(Bytes::mib(8)), None, Bytes::mib(8));
    let killed = verdict(&facts, "MAP_HUGETLB");
    assert_eq!((killed.outcome, killed.errno), (Outcome::Kills, None));
    assert!(killed.sentence.contains("with SIGBUS because"), "{}", killed.sentence);
    limited(&mut facts, None, Some(Bytes::mib(8)), Bytes::mib(8));
    assert_eq!(verdict(&facts, "MAP_HUGETLB").errno, Some(12));
    // A limit on reservations that is no larger makes the limit on faults harmless.
    limited(&mut facts, Some(Bytes::mib(8)), Some(Bytes::mib(8)), Bytes::ZERO);
    assert_eq!(diagnose(&facts), []);
}

#[test]
fn directories_on_the_way_count_too() {
    let mut facts = healthy();
    facts.mounts[0].steps[1].mode = 0o700;
    let file = verdict(&facts, "hugetlbfs");
    assert_eq!(file.errno, Some(13));
    assert!(file.sentence.contains("/dev belongs to 0:0 with mode 0700"), "{}", file.sentence);
    // The class of the owner decides for the owner, also where others may do more.
    facts.mounts[0].steps[1] = step("/dev", 998, 0, 0o077);
    assert_eq!(verdict(&facts, "hugetlbfs").errno, Some(13));
    facts.user.capabilities = Capabilities(u64::MAX);
    assert_eq!(verdict(&facts, "hugetlbfs").outcome, Outcome::Works);
    facts.mounts[0].read_only = true;
    assert_eq!(verdict(&facts, "hugetlbfs").errno, Some(30));
    facts.mounts[0].read_only = false;
    facts.mounts[0].size = Some(Bytes::mib(1));
    assert_eq!(verdict(&facts, "hugetlbfs").errno, Some(12));
}

#[test]
fn transparent_pages_follow_the_setting_and_the_flag() {
    let mut facts = healthy();
    thp(&mut facts).enabled = ThpEnabled::Madvise;
    assert_eq!(verdict(&facts, "MADV_HUGEPAGE").outcome, Outcome::Works);
    assert_eq!(verdict(&facts, "without asking").outcome, Outcome::BasePages);
    thp(&mut facts).sizes[2].enabled = ThpEnabled::Never;
    assert_eq!(verdict(&facts, "MADV_HUGEPAGE").because, ["thp-never"]);
    let remedy = &find(&facts, &catalog::THP_NEVER).unwrap().remedy;
    assert!(remedy[0].starts_with("echo inherit > ") && remedy[0].contains("hugepages-2048kB"), "{remedy:?}");
    thp(&mut facts).sizes[2].enabled = ThpEnabled::Always;
    facts.thp_allowed = Some(false);
    assert_eq!(verdict(&facts, "MADV_HUGEPAGE").because, ["thp-disabled-for-process"]);
    facts.thp = None;
    assert_eq!(verdict(&facts, "MADV_HUGEPAGE").errno, Some(22));
    assert_eq!(verdict(&facts, "without asking").outcome, Outcome::BasePages);
}

#[test]
fn what_was_tried_beats_what_was_reasoned() {
    let mut facts = healthy();
    facts.pools[0].figures = pool(0, 0, 0);
    tried(&mut facts, Trial::MapHugetlb(SIZE), Answer::Obtained);
    let mapped = verdict(&facts, "MAP_HUGETLB");
    assert_eq!((mapped.outcome, mapped.basis), (Outcome::Works, Basis::Tried), "the pool grew meanwhile");

    let mut facts = healthy();
    tried(&mut facts, Trial::MapHugetlb(SIZE), Answer::Killed(7));
    let mapped = verdict(&facts, "MAP_HUGETLB");
    assert_eq!((mapped.outcome, &mapped.because[..]), (Outcome::Kills, &["refused-unexplained"][..]));

    let mut facts = healthy();
    tried(&mut facts, Trial::MadviseThp, Answer::BasePages);
    assert_eq!(verdict(&facts, "MADV_HUGEPAGE").because, ["memory-fragmented"]);
    assert!(find(&facts, &catalog::MEMORY_FRAGMENTED).is_some());
    assert!(find(&facts, &catalog::REFUSED_UNEXPLAINED).is_none());

    // A refusal that was expected explains itself.
    let mut facts = healthy();
    facts.pools[0].figures = pool(0, 0, 0);
    tried(&mut facts, Trial::MapHugetlb(SIZE), refused("mmap", 12));
    assert!(find(&facts, &catalog::REFUSED_UNEXPLAINED).is_none());
    assert_eq!(verdict(&facts, "MAP_HUGETLB").basis, Basis::Tried);
}

#[test]
fn what_works_says_how_far() {
    let mut facts = healthy();
    assert_eq!(verdict(&facts, "MAP_HUGETLB").sentence, "Works for user tomcat, up to 160 MiB.");
    limited(&mut facts, Some(Bytes::mib(64)), None, Bytes::mib(60));
    assert_eq!(verdict(&facts, "SHM_HUGETLB").sentence, "Works for user tomcat, up to 4 MiB.");
    facts.cgroups = Cgroups::default();
    facts.pools[0].figures = PoolFigures { overcommit: Some(9), ..pool(4, 0, 0) };
    let sentence = verdict(&facts, "MAP_HUGETLB").sentence;
    assert_eq!(sentence, "Works for user tomcat, up to 18 MiB, taken on demand.");
}

#[test]
fn a_collapse_that_the_flag_forbids_is_not_the_kernels_lack() {
    let mut facts = healthy();
    tried(&mut facts, Trial::CollapseOther, refused("process_madvise", 22));
    assert_eq!(verdict(&facts, "another process").because, ["collapse-unsupported"]);
    facts.thp_allowed = Some(false);
    assert_eq!(verdict(&facts, "another process").because, ["thp-disabled-for-process"]);
    assert!(find(&facts, &catalog::COLLAPSE_UNSUPPORTED).is_none());
    facts.thp_allowed = Some(true);
    thp(&mut facts).enabled = ThpEnabled::Never;
    assert_eq!(verdict(&facts, "another process").because, ["thp-never"]);
    assert!(find(&facts, &catalog::REFUSED_UNEXPLAINED).is_none());
}

#[test]
fn trials_that_failed_are_said() {
    let mut facts = healthy();
    tried(&mut facts, Trial::MadviseThp, Answer::Obtained);
    assert_eq!(Diagnosis::of(&facts).untried, None);
    facts.trials.push(Tried { trial: Trial::PopulateWrite, outcome: Err("no answer within 10 s".into()) });
    let said = Diagnosis::of(&facts).untried.unwrap();
    assert_eq!(said, "1 of 2 trials could not be made: no answer within 10 s");
}

#[test]
fn a_tunable_is_dead_where_its_pages_are_not_to_be_had() {
    let dead = |tunables: &str, change: fn(&mut Facts)| {
        let mut facts = healthy();
        facts.tunables = Some(tunables.into());
        change(&mut facts);
        find(&facts, &catalog::TUNABLE_DEAD).is_some()
    };
    assert!(!dead("glibc.malloc.hugetlb=1", |_| ()));
    assert!(dead("glibc.malloc.hugetlb=1", |facts| thp(facts).enabled = ThpEnabled::Never));
    assert!(dead("glibc.malloc.hugetlb=1", |facts| facts.thp_allowed = Some(false)));
    assert!(dead("glibc.malloc.hugetlb=1", |facts| facts.glibc = Some((2, 34))));
    assert!(dead("glibc.malloc.hugetlb=1073741824", |_| ()));
    assert!(!dead("glibc.malloc.hugetlb=2097152", |_| ()));
    assert!(!dead("glibc.malloc.hugetlb=0", |facts| facts.pools[0].figures = pool(0, 0, 0)));
    assert!(!dead("glibc.malloc.check=3", |facts| facts.pools[0].figures = pool(0, 0, 0)));
}

#[test]
fn remedies_are_filled_in() {
    let mut facts = healthy();
    facts.sysctls.hugetlb_shm_group = Some(0);
    facts.pools[0].figures = pool(0, 0, 0);
    facts.pools.push(Pool { page_size: PageSize::HUGE_1G, figures: pool(1, 0, 0), on_nodes: None });
    with_program(&mut facts, |program| program.linkage = Linkage::Static);
    let remedy = |kind: &Kind| find(&facts, kind).unwrap().remedy;
    assert!(remedy(&catalog::SHM_NOT_PERMITTED)[1].ends_with("hugepages tomcat"));
    assert_eq!(remedy(&catalog::POOL_EMPTY), ["megapage pool set 2MB:+512"]);
    assert_eq!(remedy(&catalog::POOL_TAKEN)[1], "megapage pool set 1GB:+1");
    assert_eq!(remedy(&catalog::PROGRAM_STATIC), ["megapage run --mechanism outside /usr/bin/app"]);
    // Group 0 has a name on every machine, and is the kernel's word for none here.
    facts.sysctls.hugetlb_shm_group = Some(4_000_000_000);
    let joined = find(&facts, &catalog::SHM_NOT_PERMITTED).unwrap().remedy;
    assert_eq!(joined, ["usermod --append --groups 4000000000 tomcat"]);
}

#[test]
fn the_limit_file_is_named_as_the_kernel_does() {
    let mut facts = healthy();
    limited(&mut facts, Some(Bytes::mib(64)), None, Bytes::ZERO);
    let finding = find(&facts, &catalog::CGROUP_HUGETLB_SIGBUS).unwrap();
    assert_eq!(finding.evidence[0].source, "/cgroup/app/hugetlb.2MB.max");
    assert_eq!(finding.remedy, ["echo 67108864 > /cgroup/app/hugetlb.2MB.rsvd.max"]);
}

#[test]
fn kept_segments_are_named_up_to_five() {
    let (_, change) = cases().into_iter().find(|(kind, _)| kind.id == "segments-kept").unwrap();
    let mut facts = healthy();
    change(&mut facts);
    let finding = diagnose(&facts).into_iter().find(|finding| finding.id == "segments-kept").unwrap();
    assert_eq!(finding.evidence.len(), 6);
    assert_eq!(finding.evidence[0].source, "/dev/hugepages/megapage.0.app/s0");
    assert_eq!(
        (finding.evidence[5].source.as_str(), finding.evidence[5].value.as_str()),
        ("2 more", "18 MiB")
    );
    assert!(finding.remedy[1].ends_with("remove /dev/hugepages/megapage.0.app/s0"), "{:?}", finding.remedy);
}
