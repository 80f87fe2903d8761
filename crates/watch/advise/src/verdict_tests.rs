use super::*;
use crate::{Judged, Shared};
use megapage_act::promote::SharedMemory;
use megapage_launch::mechanism::{Considered, Plan};
use megapage_snapshot::{CostSource, Mapping, MappingFlags, ProcessId, TranslationCost};
use megapage_units::{HUGE_2M, HugePage, Pid, VirtRange};
use std::time::Duration;

const BASE: u64 = 0x7000_0000_0000;

/// Returns a process of `regions` regions, each with `present` pages.
fn process(name: &str, regions: u64, present: u16, leaf: Leaf, kind: MappingKind) -> Process {
    let huge = HUGE_2M as u64;
    let region = |n| Region { leaf, ..Region::of_base_pages(HugePage::containing(BASE).offset(n), present) };
    let id = ProcessId { pid: Pid(7), start_ticks: 1, start_stack: 1 };
    let resident = Bytes(regions * u64::from(present) * 4096);
    Process {
        rss: resident,
        rss_anonymous: resident,
        mappings: vec![Mapping {
            kind,
            flags: MappingFlags::default(),
            ..Mapping::anonymous(VirtRange::new(BASE, BASE + regions * huge).unwrap())
        }],
        regions: (0..regions).map(region).collect(),
        sharing_children: Some(0),
        ..Process::without_memory(id, name)
    }
}

fn facts(gain: [f64; 3]) -> Facts {
    let [low, likely, high] = gain;
    let share = |gain: f64| 1.0 - 1.0 / gain;
    Facts {
        process: process("program", 512, 512, Leaf::Base, MappingKind::Anonymous),
        shared: Shared::default(),
        command: vec!["program".into(), "two words".into()],
        retitled: false,
        directory: None,
        has_thp: true,
        thp_always: true,
        observed: Duration::from_millis(2500),
        ended: false,
        judged: Ok(Judged {
            cost: TranslationCost {
                share: share(likely),
                low: share(low),
                high: share(high),
                source: CostSource::Estimated,
            },
            gain: Gain { low, likely, high, source: CostSource::Estimated },
            estimate: None,
            notes: Vec::new(),
            trial: None,
        }),
        zero_share: None,
        plan: Ok(Plan::of(
            vec![Considered {
                mechanism: Mechanism::Preload,
                used: true,
                reason: "libmegapage.so provides malloc".into(),
            }],
            Heap::Auto,
        )),
        forks: Vec::new(),
        pool_2m: Bytes::ZERO,
        reach: Bytes::mib(8),
        attach: Attach::Allowed,
    }
}

#[test]
fn only_a_gain_at_the_lower_end_is_advised() {
    for (gain, verdict) in [
        ([1.2, 1.4, 1.6], Verdict::UseHugePages),
        ([1.03, 1.03, 1.03], Verdict::UseHugePages),
        ([1.029, 1.2, 1.5], Verdict::TryIt),
        ([1.0, 1.02, 1.3], Verdict::DoNotUse),
        ([1.0, 1.0, 1.01], Verdict::DoNotUse),
    ] {
        let advice = judge(&facts(gain));
        assert_eq!(advice.verdict, verdict, "{gain:?}");
        assert_eq!(advice.recommended, verdict == Verdict::UseHugePages);
        assert!(!advice.why.is_empty());
        let wanted = matches!(verdict, Verdict::UseHugePages | Verdict::TryIt);
        assert_eq!(advice.kind != PageKind::None, wanted);
        assert_eq!(!advice.how.is_empty(), wanted);
    }
}

/// Checks that without timed accesses the verdict is never that huge pages are not worth it.
#[test]
fn a_guess_is_undecided() {
    let cost = facts([1.0; 3]).judged.unwrap().cost;
    let guess = |is_guess| megapage_observe::cost::estimate::Estimate {
        cost,
        gain: megapage_observe::cost::estimate::Factor { low: 1.0, likely: 1.0, high: 1.01 },
        walks: 1e6,
        walks_when_huge: 0.0,
        visits: 1e6,
        saved_ns: 1.0,
        is_guess,
        footprint: 1e9,
        streaming: 0.0,
        under_way: 0.1,
        class: AccessClass::Dependent,
        regions: 100,
        touches: 1e4,
        cpu_seconds: 5.0,
        profiles: Vec::new(),
    };
    for (is_guess, verdict) in [(true, Verdict::TryIt), (false, Verdict::DoNotUse)] {
        let mut facts = facts([1.0, 1.0, 1.01]);
        facts.judged.as_mut().unwrap().estimate = Some(guess(is_guess));
        assert_eq!(judge(&facts).verdict, verdict);
    }
}

#[test]
fn small_and_huge_programs_are_reported_without_a_number() {
    let mut small = facts([1.5, 1.5, 1.5]);
    small.process = process("small", 4, 512, Leaf::Base, MappingKind::Anonymous);
    assert_eq!(judge(&small).verdict, Verdict::DoNotUse);
    small.judged = Err("idle".into());
    assert_eq!(judge(&small).gain.map(|gain| gain.likely), Some(1.0));
    let mut huge = facts([1.5, 1.5, 1.5]);
    huge.process = process("huge", 100, 512, Leaf::Huge2m, MappingKind::Anonymous);
    assert_eq!(judge(&huge).verdict, Verdict::AlreadyHuge);
    let mut hugetlb = facts([1.5, 1.5, 1.5]);
    hugetlb.process = process("huge", 100, 512, Leaf::Hugetlb2m, MappingKind::Hugetlb);
    assert_eq!(judge(&hugetlb).verdict, Verdict::AlreadyHuge);
}

#[test]
fn what_is_unknown_is_reported_with_the_reason() {
    let mut unknown = facts([1.0; 3]);
    unknown.judged = Err("process 7 is denied to us".into());
    let advice = judge(&unknown);
    assert_eq!((advice.verdict, advice.recommended, advice.gain), (Verdict::Unknown, false, None));
    assert_eq!(advice.why, ["process 7 is denied to us"]);
}

#[test]
fn memory_says_what_would_be_filled() {
    let mut sparse = facts([1.2, 1.4, 1.6]);
    sparse.process = process("sparse", 100, 400, Leaf::Base, MappingKind::Anonymous);
    let advice = judge(&sparse);
    assert_eq!(advice.memory.filled, Bytes(100 * 112 * 4096));
    assert!(advice.risks.iter().any(|risk| risk.contains("filled with zeros")), "{:?}", advice.risks);
    // Regions less than half touched are not promoted.
    sparse.process = process("sparse", 100, 200, Leaf::Base, MappingKind::Anonymous);
    assert_eq!(judge(&sparse).memory.filled, Bytes::ZERO);
    sparse.process = process("shared", 100, 512, Leaf::Base, MappingKind::Shared);
    let memory = judge(&sparse).memory;
    assert_eq!((memory.shared, memory.promotable), (Bytes::mib(200), Bytes::ZERO));
}

#[test]
fn forks_are_a_risk_and_rule_out_the_pool() {
    let mut pool = facts([1.2, 1.4, 1.6]);
    pool.pool_2m = Bytes::gib(4);
    assert_eq!(judge(&pool).kind, PageKind::Hugetlb2m);
    pool.forks = vec!["program".into()];
    let advice = judge(&pool);
    assert_eq!(advice.kind, PageKind::Thp);
    assert!(advice.risks.iter().any(|risk| risk.contains("imports fork (program)")), "{:?}", advice.risks);
    pool.process.sharing_children = Some(2);
    assert!(judge(&pool).risks.iter().any(|risk| risk.contains("2 forked children")));
}

#[test]
fn ways_are_commands_that_a_shell_takes() {
    let advice = judge(&facts([1.2, 1.4, 1.6]));
    let ways: Vec<&str> = advice.how.iter().map(|how| how.what.as_str()).collect();
    assert_eq!(ways, ["megapage run -- program 'two words'", "megapage run --attach 7"]);
    let mut other = facts([1.2, 1.4, 1.6]);
    other.attach = Attach::Lacks("it belongs to user 1".into());
    assert!(judge(&other).how.iter().any(|how| how.what == "sudo megapage run --attach 7"));
    other.attach = Attach::Impossible("this kernel lacks MADV_COLLAPSE (Linux 6.1)".into());
    let ways = |facts: &Facts| judge(facts).how.into_iter().map(|how| how.what).collect::<Vec<_>>();
    assert_eq!(ways(&other), ["megapage run -- program 'two words'"], "no right makes a kernel newer");
    other.plan = Err("unknown".into());
    assert!(ways(&other)[0].starts_with("echo always > "), "{:?}", ways(&other));
}

#[test]
fn a_kernel_without_transparent_huge_pages_is_not_told_to_use_them() {
    let mut other = facts([1.2, 1.4, 1.6]);
    other.has_thp = false;
    other.attach = Attach::Impossible("this kernel lacks transparent huge pages".into());
    other.plan = Err("unknown".into());
    let advice = judge(&other);
    assert_eq!((advice.kind, &advice.how[..]), (PageKind::Hugetlb2m, &[][..]));
    assert!(advice.risks[0].contains("no transparent huge pages"), "{:?}", advice.risks);
}

#[test]
fn programs_with_a_setting_of_their_own_are_given_it() {
    let mut redis = facts([1.2, 1.4, 1.6]);
    redis.process.name = "redis-server".into();
    redis.process.thp_disabled = true;
    let advice = judge(&redis);
    assert_eq!(advice.how[0].what, "disable-thp no");
    assert!(advice.how.iter().all(|how| !how.what.contains("--attach")), "prctl forbids it");
    assert!(advice.risks.iter().any(|risk| risk.contains("BGSAVE")), "{:?}", advice.risks);
}

#[test]
fn one_that_has_ended_is_not_attached_to() {
    let mut facts = facts([1.2, 1.4, 1.6]);
    let attached = |advice: &Advice| advice.how.iter().any(|how| how.what.contains("--attach"));
    let running = judge(&facts);
    assert!(attached(&running) && !running.ended);
    facts.ended = true;
    let advice = judge(&facts);
    assert!(!attached(&advice) && advice.ended, "{:?}", advice.how);
    // The next run can be started differently.
    assert!(advice.how.iter().any(|how| how.what.starts_with("megapage run -- program")), "{:?}", advice.how);
    let said = |why: &String| why.starts_with("it has ended, after 2.5 s of observation");
    assert!(advice.why.iter().any(said), "{:?}", advice.why);
    assert!(!running.why.iter().any(said));
}

#[test]
fn shared_memory_has_settings_of_its_own() {
    let mut backend = facts([1.0, 1.0, 1.0]);
    backend.process = process("postgres", 64, 512, Leaf::Base, MappingKind::Shared);
    backend.judged = Err("it was idle".into());
    let advice = judge(&backend);
    assert_eq!((advice.verdict, advice.recommended, advice.gain), (Verdict::Unknown, false, None));
    assert!(advice.why[0].contains("128 MiB of shared memory"), "{:?}", advice.why);
    // 64 pages for the buffers, and a tenth more. Neither a heap nor a collapse reaches them.
    let ways = |advice: &Advice| advice.how.iter().map(|how| how.what.clone()).collect::<Vec<_>>();
    assert_eq!(ways(&advice), ["huge_pages = on, after megapage pool set 2MB:+71"]);
}

#[test]
fn memory_that_can_never_be_huge_is_not_advised_to_be() {
    for flags in [
        MappingFlags { no_huge: true, ..MappingFlags::default() },
        MappingFlags { locked: true, ..MappingFlags::default() },
        MappingFlags { userfault: true, ..MappingFlags::default() },
    ] {
        let mut never = facts([1.2, 1.4, 1.6]);
        never.process.mappings[0].flags = flags;
        let advice = judge(&never);
        assert_eq!((advice.verdict, advice.memory.promotable), (Verdict::DoNotUse, Bytes::ZERO), "{flags:?}");
    }
}

#[test]
fn what_was_retitled_is_not_offered_as_a_command() {
    let mut facts = facts([1.2, 1.4, 1.6]);
    facts.directory = Some("/srv/data".into());
    let way = &judge(&facts).how[0];
    assert_eq!(way.what, "megapage run -- program 'two words'");
    assert!(way.why.starts_with("from the next start, in /srv/data: "), "{}", way.why);
    facts.command = vec!["/usr/bin/redis-server".into()];
    facts.retitled = true;
    let way = &judge(&facts).how[0];
    assert_eq!(way.what, "megapage run -- /usr/bin/redis-server ARGUMENTS");
    assert!(way.why.contains("title"), "{}", way.why);
}

#[test]
fn a_setting_that_does_nothing_here_is_not_offered() {
    let mut redis = facts([1.2, 1.4, 1.6]);
    redis.process.name = "redis-server".into();
    let offers = |facts: &Facts| judge(facts).how.iter().any(|how| how.what == "disable-thp no");
    assert!(offers(&redis));
    let commands = |facts: &Facts| judge(facts).how.into_iter().map(|how| how.what).collect::<Vec<_>>();
    // The order of the recipe.
    assert_eq!(
        commands(&redis)[1..],
        [
            "megapage run --fork snapshot -- program 'two words' --disable-thp no",
            "megapage run --attach 7 --fork snapshot"
        ]
    );
    redis.command = ["redis-server", "--disable-thp", "no"].map(String::from).into();
    assert_eq!(commands(&redis)[1], "megapage run --fork snapshot -- redis-server --disable-thp no", "once");
    redis.thp_always = false;
    assert!(!offers(&redis));
    assert!(judge(&redis).risks.iter().any(|risk| risk.contains("BGSAVE")), "the risk stays");
}

#[test]
fn of_a_program_on_huge_pages_no_walks_are_reported() {
    let mut huge = facts([1.0; 3]);
    huge.process = process("huge", 100, 512, Leaf::Huge2m, MappingKind::Anonymous);
    huge.judged.as_mut().unwrap().notes = vec!["a word on walks".into()];
    assert_eq!(judge(&huge).why.len(), 1);
}

#[test]
fn bloat_is_not_nothing_to_do() {
    let mut huge = facts([1.0; 3]);
    huge.process = process("huge", 200, 512, Leaf::Huge2m, MappingKind::Anonymous);
    for (share, bloat) in [(None, None), (Some(0.05), None), (Some(0.75), Some(Bytes::mib(300)))] {
        huge.zero_share = share;
        let advice = judge(&huge);
        assert_eq!((advice.verdict, advice.memory.bloat()), (Verdict::AlreadyHuge, bloat), "{share:?}");
        assert_eq!(advice.sentence().contains("about 300 MiB hold only zeros"), bloat.is_some());
        assert_eq!(advice.sentence().contains("nothing to do"), bloat.is_none());
        assert_eq!(advice.how.iter().any(|how| how.what.contains("daemon")), bloat.is_some());
        let reclaim = format!("sudo megapage reclaim {}", advice.pid);
        assert_eq!(advice.how.first().is_some_and(|how| how.what == reclaim), bloat.is_some());
    }
}

#[test]
fn shared_memory_is_promoted_where_it_lies_right() {
    let memory = |promotable: u64, misplaced: u64| SharedMemory {
        resident_bytes: 200 << 20,
        promotable_bytes: promotable << 20,
        misplaced_bytes: misplaced << 20,
        reasons: vec!["as it is".into()],
        ..SharedMemory::default()
    };
    let mut group = facts([1.2, 1.4, 1.6]);
    // The leader has touched 128 of the 200 MiB.
    group.process = process("postgres", 64, 512, Leaf::Base, MappingKind::Shared);
    group.shared.others = [8, 9]
        .map(|pid| {
            let mut other = process("postgres", 3, 512, Leaf::Base, MappingKind::Anonymous);
            other.id.pid = Pid(pid);
            other
        })
        .to_vec();
    group.shared.root = Some(Pid(8));
    group.shared.memory = Some(memory(190, 0));
    let advice = judge(&group);
    assert_eq!(advice.others, [Pid(8), Pid(9)]);
    let found = &advice.memory;
    assert_eq!((found.shared, found.shared_promotable), (Bytes::mib(200), Bytes::mib(190)));
    assert_eq!(found.promotable, Bytes::mib(12), "private memory is that of all");
    let ways: Vec<&str> = advice.how.iter().map(|how| how.what.as_str()).collect();
    assert_eq!(ways[0], "megapage run --attach 8", "the one that outlives the others");
    assert!(ways[1].starts_with("huge_pages = on") && ways.len() == 2, "{ways:?}");
    assert!(advice.why.contains(&"as it is".to_string()));

    group.shared.memory = Some(memory(0, 200));
    let advice = judge(&group);
    let ways: Vec<&str> = advice.how.iter().map(|how| how.what.as_str()).collect();
    assert!(ways[0].starts_with("huge_pages = on") && ways[1].starts_with("echo advise > /"), "{ways:?}");
    assert_eq!(ways.len(), 2);
    let wrong = Attach::Impossible("this kernel lacks MADV_COLLAPSE".into());
    let old = Facts { attach: wrong, ..group.clone() };
    assert_eq!(judge(&old).how.len(), 1, "the kernel's placement does not help there");

    let huge = SharedMemory { huge_bytes: 190 << 20, ..memory(0, 0) };
    group.shared.memory = Some(huge);
    assert_eq!(judge(&group).verdict, Verdict::AlreadyHuge);
}

#[test]
fn shared_memory_that_is_huge_is_distinguished_from_what_is_not() {
    let mut backend = facts([1.0; 3]);
    for (leaf, huge) in [(Leaf::Base, Bytes::ZERO), (Leaf::Huge2m, Bytes::mib(128))] {
        backend.process = process("postgres", 64, 512, leaf, MappingKind::Shared);
        let memory = judge(&backend).memory;
        assert_eq!((memory.shared, memory.shared_huge), (Bytes::mib(128), huge));
    }
}
