//! Tests of every kind of finding on fabricated facts: absent from healthy ones, present with one
//! fault.

mod made;

use self::made::*;
use crate::catalog::{self, CATALOG, Kind, Severity};
use crate::facts::*;
use crate::finding::{Basis, Finding, Outcome, Verdict};
use crate::{Diagnosis, diagnose, verdicts};
use megapage_kernel::cgroup::Cgroups;
use megapage_kernel::hugetlb::PoolCounts;
use megapage_kernel::identity::Capabilities;
use megapage_kernel::memory_nodes::MemoryNodes;
use megapage_kernel::probe::{Answer, Trial};
use megapage_kernel::thp::ThpEnabled;
use megapage_launch::program::{Allocator, Linkage};
use megapage_units::{Bytes, PageSize};

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

/// Returns Debian's defaults: THP on request, no page reserved, no group for segments.
fn usual() -> Facts {
    let mut facts = healthy();
    thp(&mut facts).enabled = ThpEnabled::Madvise;
    for one in &mut facts.pools {
        one.counts = pool(0, 0, 0);
    }
    facts.mounts.clear();
    facts.sysctls.hugetlb_shm_group = Some(0);
    facts
}

#[test]
fn a_usual_machine_is_no_case_for_the_doctor() {
    let diagnosis = Diagnosis::of(&usual());
    assert!(diagnosis.findings.len() >= 3, "{:?}", diagnosis.findings);
    assert!(!diagnosis.has_findings(), "{:?}", diagnosis.findings);
    assert_eq!(
        diagnosis.summary,
        "Nothing is wrong: programs get transparent huge pages where they ask, and megapage run asks for any program; no \
         hugetlb page is reserved, which only programs need that ask for those."
    );
    // If pages are reserved, the right to them matters.
    let mut facts = usual();
    facts.pools[0].counts = pool(8, 8, 0);
    let diagnosis = Diagnosis::of(&facts);
    assert!(diagnosis.has_findings());
    assert_eq!(
        diagnosis.summary,
        "One thing stands between user tomcat and huge pages: this user may not make SysV segments of hugetlb pages."
    );
}

#[test]
fn the_summary_counts_and_concludes_about_the_program() {
    let mut facts = healthy();
    assert!(Diagnosis::of(&facts).summary.ends_with(" hugetlb pages of 2m are available."), "{facts:?}");
    thp(&mut facts).defrag = megapage_kernel::thp::ThpDefrag::Never;
    let summary = Diagnosis::of(&facts).summary;
    assert_eq!(
        summary,
        "Huge pages work for user tomcat, with a warning: page faults never make room for a huge page."
    );
    thp(&mut facts).enabled = ThpEnabled::Never;
    with_program(&mut facts, |_| {});
    let reach = Reach { command: "megapage run -- java".into(), how: "runtime: a reason".into() };
    facts.reach = Some(Ok(reach));
    let summary = Diagnosis::of(&facts).summary;
    assert!(summary.starts_with("2 things stand between user tomcat and huge pages; first: "), "{summary}");
    assert!(summary.ends_with(" gets them by: megapage run -- java (runtime: a reason)."), "{summary}");
    facts.reach = Some(Err("it is static".into()));
    assert!(Diagnosis::of(&facts).summary.ends_with(": it is static."));
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
    // This kind excludes all others; tests/captured.rs tests it.
    let apart = catalog::BASE_PAGES_OTHER.id.as_str();
    let mut covered: Vec<&str> = cases().iter().map(|(kind, _)| kind.id.as_str()).chain([apart]).collect();
    let mut all: Vec<&str> = CATALOG.findings.iter().map(|kind| kind.id.as_str()).collect();
    covered.sort_unstable();
    all.sort_unstable();
    assert_eq!(covered, all);
    all.dedup();
    assert_eq!(all.len(), CATALOG.findings.len(), "an identifier is used twice");
    for kind in &CATALOG.findings {
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
                // Only a trial of a transparent huge page can get base pages.
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
    facts.pools[0].counts = pool(0, 0, 0);
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

    facts.pools[0].counts = pool(10, 4, 4);
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
    // The owner's permissions decide for the owner, even if others have more.
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
    without_thp(&mut facts);
    assert_eq!(verdict(&facts, "MADV_HUGEPAGE").errno, Some(22));
    assert_eq!(verdict(&facts, "without asking").outcome, Outcome::BasePages);
}

#[test]
fn settings_that_cannot_be_read_close_no_way() {
    let mut facts = healthy();
    facts.thp = None;
    assert_eq!(verdict(&facts, "MADV_HUGEPAGE").outcome, Outcome::Works);
    assert_eq!(verdict(&facts, "promotion").outcome, Outcome::Works);
    assert!(verdicts(&facts).iter().all(|verdict| verdict.way != "memory without asking"), "not known");
    assert!(find(&facts, &catalog::THP_ABSENT).is_none());
    facts.tunables = Some("glibc.malloc.hugetlb=1".into());
    assert!(find(&facts, &catalog::TUNABLE_DEAD).is_none(), "{:?}", diagnose(&facts));
}

#[test]
fn what_was_tried_beats_what_was_reasoned() {
    let mut facts = healthy();
    facts.pools[0].counts = pool(0, 0, 0);
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

    // An expected refusal explains itself.
    let mut facts = healthy();
    facts.pools[0].counts = pool(0, 0, 0);
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
    facts.pools[0].counts = PoolCounts { overcommit: Some(9), ..pool(4, 0, 0) };
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
    assert!(!dead("glibc.malloc.hugetlb=0", |facts| facts.pools[0].counts = pool(0, 0, 0)));
    assert!(!dead("glibc.malloc.check=3", |facts| facts.pools[0].counts = pool(0, 0, 0)));
}

#[test]
fn morecore_is_dead_from_glibc_2_34_on() {
    let dead = |value: &str, glibc| {
        let facts = Facts { morecore: Some(value.into()), glibc, ..healthy() };
        find(&facts, &catalog::MORECORE_DEAD)
    };
    assert!(dead("yes", Some((2, 33))).is_none());
    assert!(dead("no", Some((2, 36))).is_none());
    let finding = dead("2M", Some((2, 34))).unwrap();
    assert_eq!(finding.evidence[0].value, "2M");
    assert!(finding.remedy[0].starts_with("megapage run"));
    assert_eq!(dead("thp", None).unwrap().evidence[1].value, "another C library");
}

#[test]
fn remedies_are_filled_in() {
    let mut facts = healthy();
    facts.sysctls.hugetlb_shm_group = Some(0);
    facts.pools[0].counts = pool(0, 0, 0);
    facts.pools.push(Pool { page_size: PageSize::HUGE_1G, counts: pool(1, 0, 0), on_nodes: None });
    with_program(&mut facts, |program| program.linkage = Linkage::Static);
    let remedy = |kind: &Kind| find(&facts, kind).unwrap().remedy;
    assert!(remedy(&catalog::SHM_NOT_PERMITTED)[1].ends_with("hugepages tomcat"));
    assert_eq!(remedy(&catalog::POOL_EMPTY), ["megapage pool set 2MB:+512"]);
    assert_eq!(remedy(&catalog::POOL_TAKEN)[1], "megapage pool set 1GB:+1");
    assert_eq!(remedy(&catalog::PROGRAM_STATIC), ["megapage run --mechanism outside /usr/bin/app"]);
    // Group 0 has a name on every machine, but here it means to the kernel that no group is set.
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
fn persistent_segments_are_named_up_to_five() {
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
