//! Tests the choice of mechanisms on synthetic programs and machines.

use crate::synthetic;

use megapage_launch::broker::Broker;
use megapage_launch::machine::Machine;
use megapage_launch::mechanism::{Plan, Refusal, choose};
use megapage_launch::program::{Allocator, Import, Linkage, Privilege, Program, Runtime};
use megapage_launch::request::{Fork, Heap, Mechanism, Request, Shm};
use megapage_launch::versions::Versions;
use megapage_units::Bytes;
use synthetic::{machine, program};

fn request(heap: Heap, mechanism: Option<Mechanism>) -> Request {
    Request { heap, mechanism, watched: true, ..Request::plain("program") }
}

fn auto(program: &Program, machine: &Machine) -> Plan {
    choose(program, &request(Heap::Auto, None), machine).unwrap()
}

fn variable(plan: &Plan, name: &str) -> Option<String> {
    let found = plan.environment.iter().find(|(own, _)| own == name)?;
    Some(found.1.to_string_lossy().into_owned())
}

fn reason(plan: &Plan, mechanism: Mechanism) -> &str {
    &plan.considered.iter().find(|it| it.mechanism == mechanism).unwrap().reason
}

fn fork() -> Import {
    Import { symbol: "fork".into(), file: "/bin/program".into() }
}

#[test]
fn a_plain_program_gets_the_preload_and_the_whole_chain() {
    let plan = auto(&program(), &machine());
    assert_eq!((plan.used(), plan.heap), (vec![Mechanism::Preload], Heap::Auto));
    assert_eq!(variable(&plan, "MEGAPAGE_HEAP").as_deref(), Some("auto"));
    assert_eq!(variable(&plan, "MEGAPAGE_RETURN_AFTER_MS").as_deref(), Some("1000"));
    assert_eq!(variable(&plan, "MEGAPAGE_POPULATE").as_deref(), Some("0"));
    assert_eq!(variable(&plan, "MEGAPAGE_CHILDREN"), None);
    assert!(variable(&plan, "LD_PRELOAD").unwrap().starts_with("/lib/libmegapage.so"));
    assert_eq!(plan.considered.len(), 4, "a reason for each");
}

#[test]
fn populating_is_asked_where_a_fault_may_be_refused() {
    let limited = Machine { hugetlb_may_be_refused: true, ..machine() };
    assert_eq!(variable(&auto(&program(), &limited), "MEGAPAGE_POPULATE").as_deref(), Some("1"));
}

#[test]
fn the_library_knows_the_filters_that_the_launcher_has() {
    let filtered = Machine { filters: Some("2".into()), ..machine() };
    assert_eq!(variable(&auto(&program(), &filtered), "MEGAPAGE_FILTERS").as_deref(), Some("2"));
    assert_eq!(variable(&auto(&program(), &machine()), "MEGAPAGE_FILTERS"), None);
}

#[test]
fn shared_memory_is_asked_of_the_preloaded_library_alone() {
    let asked = |shm, require| Request { shm, require, ..request(Heap::Auto, None) };
    let plan = choose(&program(), &asked(Shm::Hugetlb2M, true), &machine()).unwrap();
    assert_eq!(variable(&plan, "MEGAPAGE_SHM").as_deref(), Some("2m"));
    assert_eq!(variable(&auto(&program(), &machine()), "MEGAPAGE_SHM"), None);
    let fixed = Program { linkage: Linkage::Static, ..program() };
    let plan = choose(&fixed, &asked(Shm::Thp, false), &machine()).unwrap();
    assert_eq!(variable(&plan, "MEGAPAGE_SHM"), None);
    assert!(plan.notes.iter().any(|note| note.starts_with("--shm thp takes the preloaded library: ")));
    let refused = choose(&fixed, &asked(Shm::Thp, true), &machine()).unwrap_err();
    assert!(refused.to_string().contains("--shm thp takes"), "{refused}");
}

#[test]
fn a_program_that_forks_gets_thp_unless_asked_otherwise() {
    let forking = Program { forks: vec![fork()], ..program() };
    let plan = auto(&forking, &machine());
    assert_eq!(plan.heap, Heap::Thp);
    assert!(reason(&plan, Mechanism::Preload).contains("/bin/program imports fork"));
    let plan = choose(&forking, &request(Heap::Hugetlb2M, None), &machine()).unwrap();
    assert_eq!(plan.heap, Heap::Hugetlb2M);
}

#[test]
fn what_forks_split_is_repaired_by_the_heap_itself_or_from_outside() {
    let forks = |fork, heap, mechanism| Request { fork, ..request(heap, mechanism) };
    let machine = machine();
    for (fork, name) in [(Fork::Cheap, "cheap"), (Fork::Snapshot, "snapshot")] {
        let plan = choose(&program(), &forks(fork, Heap::Auto, None), &machine).unwrap();
        assert_eq!((plan.used(), plan.heap), (vec![Mechanism::Preload], Heap::Thp));
        assert_eq!(variable(&plan, "MEGAPAGE_FORK").as_deref(), Some(name));
        for heap in [Heap::Hugetlb1G, Heap::Hugetlb2M] {
            let refused = choose(&program(), &forks(fork, heap, None), &machine);
            assert_eq!(refused.unwrap_err(), Refusal::HugetlbForks { fork, heap });
        }
    }
    assert_eq!(variable(&auto(&program(), &machine), "MEGAPAGE_FORK"), None);
    let fixed = Program { linkage: Linkage::Static, ..program() };
    let asked = forks(Fork::Snapshot, Heap::Auto, None);
    let both = vec![Mechanism::Tunable, Mechanism::Outside];
    assert_eq!(choose(&fixed, &asked, &machine).unwrap().used(), both);
    // Without the right to promote, a note says so; with --require it is a refusal.
    let plain = Machine { promotion_lacks: Some("CAP_SYS_NICE lacks".into()), ..machine };
    let plan = choose(&fixed, &asked, &plain).unwrap();
    assert_eq!(plan.used(), [Mechanism::Tunable]);
    assert_eq!(plan.notes[0], "--fork snapshot: nothing repairs what forks split: CAP_SYS_NICE lacks");
    let required = Request { require: true, ..asked };
    assert!(matches!(choose(&fixed, &required, &plain), Err(Refusal::Unobtainable(_))));
    let nothing = forks(Fork::Cheap, Heap::None, None);
    assert!(choose(&program(), &nothing, &plain).unwrap().used().is_empty());
}

#[test]
fn what_the_preload_cannot_reach_falls_to_the_next_mechanism() {
    let cases: [(Program, &str, Vec<Mechanism>); 7] = [
        (Program { linkage: Linkage::Static, ..program() }, "statically linked", vec![Mechanism::Tunable]),
        (
            Program { linkage: Linkage::Static, heap_tunable: false, ..program() },
            "statically linked",
            vec![Mechanism::Outside],
        ),
        (
            Program { linkage: Linkage::Musl, heap_tunable: false, ..program() },
            "musl",
            vec![Mechanism::Outside],
        ),
        (
            Program { allocator: Some(Allocator::InExecutable), ..program() },
            "defines malloc itself",
            vec![Mechanism::Outside],
        ),
        (
            Program {
                allocator: Some(Allocator::Library("libjemalloc.so.2".into())),
                private_allocation: Some(Import { symbol: "mallocx".into(), file: "/bin/program".into() }),
                ..program()
            },
            "imports mallocx",
            vec![Mechanism::Outside],
        ),
        (
            Program { privilege: Some(Privilege::SetUser(7)), ..program() },
            "set-user-ID to user 7",
            vec![Mechanism::Outside],
        ),
        (Program { runtime: Some(Runtime::Go), ..program() }, "Go does not take", vec![Mechanism::Outside]),
    ];
    for (program, expected, used) in cases {
        let plan = auto(&program, &machine());
        assert!(reason(&plan, Mechanism::Preload).contains(expected), "{plan:?}");
        assert_eq!(plan.used(), used, "{expected}");
        assert_eq!(variable(&plan, "LD_PRELOAD"), None);
        let forced = choose(&program, &request(Heap::Auto, Some(Mechanism::Preload)), &machine());
        assert!(matches!(forced, Err(Refusal::NotApplicable { .. })), "{forced:?}");
    }
    let replaced = Program { allocator: Some(Allocator::Library("libjemalloc.so.2".into())), ..program() };
    let plan = auto(&replaced, &machine());
    assert!(reason(&plan, Mechanism::Preload).contains("in place of libjemalloc.so.2's"));
}

/// A library with the versions of its symbols.
type Library = (&'static str, &'static [&'static str]);

fn versions(files: &[Library]) -> Versions {
    let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    files.iter().map(|(file, names)| (file.to_string(), owned(names))).collect()
}

#[test]
fn a_library_is_not_preloaded_where_its_loader_would_refuse_it() {
    let gcc = ("libgcc_s.so.1", &["GCC_3.0", "GCC_4.2.0"][..]);
    let needed = versions(&[("libc.so.6", &["GLIBC_2.2.5", "GLIBC_2.17"]), gcc]);
    let machine = Machine { needed, ..machine() };
    let newer = ("libc.so.6", &["GLIBC_2.2.5", "GLIBC_2.9", "GLIBC_2.17", "GLIBC_2.40", "GLIBC_PRIVATE"][..]);
    let older = ("libc.so.6", &["GLIBC_2.2.5", "GLIBC_2.9", "GLIBC_2.12", "GLIBC_PRIVATE"][..]);
    let plan = auto(&Program { offered: versions(&[newer, gcc]), ..program() }, &machine);
    assert_eq!(plan.used(), [Mechanism::Preload], "{plan:?}");
    let cases: [(&[Library], &str); 4] = [
        (&[older, gcc], "its libc.so.6 goes up to GLIBC_2.12, and the library needs GLIBC_2.17"),
        (&[newer], "libgcc_s.so.1 is not found, and the library needs it"),
        (
            &[newer, ("libgcc_s.so.1", &[])],
            "its libgcc_s.so.1 defines no GCC_4.2.0, and the library needs it",
        ),
        // Another loader under the name of glibc's.
        (&[], "libc.so.6 is not found, and the library needs it"),
    ];
    for (offered, expected) in cases {
        let old = Program { offered: versions(offered), heap_tunable: false, ..program() };
        let plan = auto(&old, &machine);
        assert_eq!(reason(&plan, Mechanism::Preload), expected);
        assert_eq!((plan.used(), variable(&plan, "LD_PRELOAD")), (vec![Mechanism::Outside], None));
        let required = Request { require: true, ..request(Heap::Auto, Some(Mechanism::Preload)) };
        let refused = choose(&old, &required, &machine).unwrap_err().to_string();
        assert_eq!(refused, format!("--mechanism preload: {expected}"));
    }
}

#[test]
fn without_the_right_to_promote_a_static_program_runs_as_it_is() {
    let fixed = Program { linkage: Linkage::Static, heap_tunable: false, ..program() };
    let plain = Machine { promotion_lacks: Some("CAP_SYS_NICE".into()), ..machine() };
    let plan = auto(&fixed, &plain);
    assert_eq!((plan.used(), plan.environment.len()), (vec![], 0));
    assert!(plan.notes[0].contains("no mechanism applies"));
    let required = Request { require: true, ..request(Heap::Auto, None) };
    let refused = choose(&fixed, &required, &plain).unwrap_err();
    assert!(refused.to_string().starts_with("--require: no mechanism applies (runtime: "), "{refused}");
}

#[test]
fn the_tunable_says_what_glibc_does() {
    let plan = choose(&program(), &request(Heap::Auto, Some(Mechanism::Tunable)), &machine()).unwrap();
    assert_eq!(variable(&plan, "GLIBC_TUNABLES").as_deref(), Some("glibc.malloc.hugetlb=1"));
    let plan = choose(&program(), &request(Heap::Hugetlb2M, Some(Mechanism::Tunable)), &machine()).unwrap();
    assert_eq!(variable(&plan, "GLIBC_TUNABLES").as_deref(), Some("glibc.malloc.hugetlb=2"));
    let mut others = machine();
    others.environment.insert("GLIBC_TUNABLES".into(), "glibc.malloc.check=1".into());
    let plan = choose(&program(), &request(Heap::Thp, Some(Mechanism::Tunable)), &others).unwrap();
    assert_eq!(
        variable(&plan, "GLIBC_TUNABLES").as_deref(),
        Some("glibc.malloc.check=1:glibc.malloc.hugetlb=1")
    );
}

#[test]
fn runtimes_combine_with_what_reaches_the_rest() {
    let of = |runtime| Program { runtime: Some(runtime), forks: vec![fork()], ..program() };
    let plan = auto(&of(Runtime::Python), &machine());
    assert_eq!(plan.used(), [Mechanism::Preload]);
    assert_eq!(variable(&plan, "PYTHONMALLOC"), None, "its own allocator is faster");
    for runtime in [Runtime::Node, Runtime::Php] {
        let plan = auto(&of(runtime), &machine());
        assert_eq!(plan.used(), [Mechanism::Preload], "the library collapses its heap from inside");
        let plan = auto(&of(runtime), &Machine { collapses_own_mappings: false, ..machine() });
        assert_eq!(plan.used(), [Mechanism::Preload, Mechanism::Outside]);
    }
    let plan = auto(&of(Runtime::Php), &machine());
    assert!(reason(&plan, Mechanism::Runtime).contains("a child that finds it empty is killed"));
    let plan = auto(&of(Runtime::Php), &Machine { pool_2m: Bytes::ZERO, ..machine() });
    assert_eq!(plan.used(), [Mechanism::Runtime]);
}

#[test]
fn what_the_machine_cannot_give_is_refused_when_required() {
    let bare = Machine {
        pool_2m: Bytes::ZERO,
        thp: Err("set to 'never'".into()),
        promotion_lacks: Some("CAP_SYS_NICE".into()),
        ..machine()
    };
    for (heap, expected) in [
        (Heap::Auto, "set to 'never', and the hugetlb pools have no page available"),
        (Heap::Thp, "set to 'never'"),
        (Heap::Hugetlb2M, "the pool of 2m pages has none available"),
        (Heap::Hugetlb1G, "the pool of 1g pages has none available"),
    ] {
        let required = Request { require: true, ..request(heap, None) };
        let refused = choose(&program(), &required, &bare).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
        choose(&program(), &request(heap, None), &bare).expect("not required: it runs on what there is");
    }
    // A collapse ignores the settings.
    let able = Machine { promotion_lacks: None, ..bare };
    let required = Request { require: true, ..request(Heap::Thp, None) };
    let plan = choose(&program(), &required, &able).unwrap();
    assert!(plan.uses(Mechanism::Outside), "{plan:?}");
}

#[test]
fn nothing_asked_is_nothing_done() {
    let plan = choose(&program(), &request(Heap::None, None), &machine()).unwrap();
    assert_eq!((plan.used(), plan.environment.len(), plan.arguments.len()), (vec![], 0, 0));
}

fn broker(ready: Result<Bytes, String>) -> Option<Broker> {
    Some(Broker { socket: "/run/broker".into(), ready, kernel_lacks: None })
}

#[test]
fn a_broker_is_named_to_the_preloaded_heap_alone() {
    let with = Machine { broker: broker(Ok(Bytes::gib(1))), ..machine() };
    let plan = auto(&program(), &with);
    assert_eq!(variable(&plan, "MEGAPAGE_POOL").as_deref(), Some("/run/broker"));
    let pool = plan.pool.unwrap();
    assert_eq!((pool.used, pool.ready_bytes), (true, Some(1 << 30)));
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);

    let plan = choose(&program(), &request(Heap::Auto, Some(Mechanism::Tunable)), &with).unwrap();
    assert_eq!(variable(&plan, "MEGAPAGE_POOL"), None);
    assert!(!plan.pool.unwrap().used);
    assert_eq!(auto(&program(), &machine()).pool, None, "no pool was asked for");
}

#[test]
fn a_program_that_forks_gets_the_brokers_pages_with_a_word_and_one_that_clones_none() {
    let with = Machine { broker: broker(Ok(Bytes::gib(1))), ..machine() };
    let plan = auto(&Program { forks: vec![fork()], ..program() }, &with);
    assert!(variable(&plan, "MEGAPAGE_POOL").is_some());
    assert_eq!(variable(&plan, "MEGAPAGE_HEAP").as_deref(), Some("thp"), "what comes after them");
    assert!(plan.notes.iter().any(|note| note.contains("at its first fork")), "{:?}", plan.notes);
    for symbol in ["clone", "_Fork", "__libc_fork"] {
        let clones = Import { symbol: symbol.into(), file: "/bin/program".into() };
        let plan = auto(&Program { forks: vec![fork(), clones], ..program() }, &with);
        assert_eq!(variable(&plan, "MEGAPAGE_POOL"), None);
        assert!(plan.pool.unwrap().reason.contains(symbol));
    }
}

#[test]
fn a_kernel_that_moves_no_hugetlb_pages_leaves_a_brokers_alone() {
    let mut old = broker(Ok(Bytes::gib(1)));
    old.as_mut().unwrap().kernel_lacks = Some("mremap of hugetlb mappings (Linux 5.16)".into());
    let with = Machine { broker: old, ..machine() };
    let plan = auto(&program(), &with);
    assert_eq!(variable(&plan, "MEGAPAGE_POOL"), None);
    let pool = plan.pool.unwrap();
    assert!(!pool.used && pool.reason.contains("Linux 5.16"), "{pool:?}");
    let required = Request { require: true, ..request(Heap::Auto, None) };
    assert!(matches!(choose(&program(), &required, &with), Err(Refusal::Unobtainable(_))));
}

#[test]
fn a_broker_that_has_nothing_is_asked_later_unless_it_is_required() {
    let without = Machine { broker: broker(Err("no broker answers".into())), ..machine() };
    let plan = auto(&program(), &without);
    assert!(variable(&plan, "MEGAPAGE_POOL").is_some());
    assert_eq!(plan.pool.unwrap().ready_bytes, None);
    let required = Request { require: true, ..request(Heap::Auto, None) };
    match choose(&program(), &required, &without) {
        Err(Refusal::Unobtainable(why)) => assert!(why.contains("no broker answers"), "{why}"),
        other => panic!("{other:?}"),
    }
}
