//! Tests the JVM's switches on synthetic programs and machines: other releases, and obstacles.

use crate::synthetic;

use megapage_kernel::thp::ThpShmem;
use megapage_launch::jvm::Java;
use megapage_launch::machine::Machine;
use megapage_launch::mechanism::{Plan, Refusal, choose};
use megapage_launch::program::{Program, Runtime};
use megapage_launch::request::{Heap, Mechanism, Request};
use megapage_units::{Bytes, PageSize};
use synthetic::{machine, program};

fn java(release: &str) -> Program {
    Program {
        path: "/usr/bin/java".into(),
        runtime: Some(Runtime::Jvm),
        java: Some(Java::of_release(release)),
        ..program()
    }
}

fn version(version: &str) -> Program {
    java(&format!("JAVA_VERSION=\"{version}\"\n"))
}

fn request(heap: Heap, arguments: &[&str]) -> Request {
    let arguments = arguments.iter().map(Into::into).collect();
    Request { arguments, heap, watched: true, ..Request::plain("java") }
}

fn arguments(program: &Program, heap: Heap, words: &[&str], machine: &Machine) -> Vec<String> {
    choose(program, &request(heap, words), machine).unwrap().arguments
}

fn reason(plan: &Plan) -> &str {
    &plan.considered.iter().find(|it| it.mechanism == Mechanism::Runtime).unwrap().reason
}

const THP: [&str; 1] = ["-XX:+UseTransparentHugePages"];

#[test]
fn a_pool_that_holds_heap_code_cache_and_tables_is_used() {
    let java = version("17.0.15");
    // 1 GiB of pool: 240 MiB of code cache, and some for tables, leave a little more than 740 MiB.
    for (heap, expected) in [("-Xmx740m", true), ("-Xmx770m", false)] {
        let plan = choose(&java, &request(Heap::Auto, &[heap, "Main"]), &machine()).unwrap();
        assert_eq!(plan.arguments[0] == "-XX:+UseLargePages", expected, "{heap}: {:?}", plan.arguments);
        assert_eq!(plan.used(), [Mechanism::Runtime]);
    }
    assert!(
        arguments(&java, Heap::Auto, &["-Xmx900m", "-XX:ReservedCodeCacheSize=32m", "Main"], &machine())
            .contains(&"-XX:+UseLargePages".to_string())
    );
    assert_eq!(arguments(&java, Heap::Auto, &["Main"], &machine()), THP, "a heap without a size");
    let short = choose(&java, &request(Heap::Hugetlb2M, &["-Xmx1g", "Main"]), &machine()).unwrap();
    assert_eq!(short.arguments, THP);
    assert!(
        reason(&short).contains("the JVM takes") && reason(&short).contains("megapage pool set 2m:+"),
        "{short:?}"
    );
    let required = Request { require: true, ..request(Heap::Hugetlb2M, &["-Xmx1g", "Main"]) };
    let Err(Refusal::Unobtainable(why)) = choose(&java, &required, &machine()) else {
        panic!("it is refused")
    };
    assert!(why.contains("the pool of 2m pages has 512 available"), "{why}");
}

#[test]
fn each_release_gets_the_switches_that_it_knows() {
    let words = ["-Xmx512m", "Main"];
    for (release, expected) in [
        ("1.8.0_412", vec!["-XX:+UseLargePages"]),
        ("11.0.23", vec!["-XX:+UseLargePages"]),
        ("17.0.15", vec!["-XX:+UseLargePages", "-XX:LargePageSizeInBytes=2m"]),
        ("21.0.3", vec!["-XX:+UseLargePages", "-XX:LargePageSizeInBytes=2m"]),
    ] {
        assert_eq!(arguments(&version(release), Heap::Hugetlb2M, &words, &machine()), expected, "{release}");
    }
    // Pages of 1 GiB beside a default of 2 MiB came with Java 17.
    let rich = Machine { pool_1g: Bytes::gib(4), ..machine() };
    assert_eq!(
        arguments(&version("21.0.3"), Heap::Hugetlb1G, &words, &rich)[1],
        "-XX:LargePageSizeInBytes=1g"
    );
    assert_eq!(arguments(&version("11.0.23"), Heap::Hugetlb1G, &words, &rich), THP);
    let mut by_default = rich.clone();
    by_default.surroundings.default_page = Some(PageSize::HUGE_1G);
    assert_eq!(arguments(&version("11.0.23"), Heap::Hugetlb1G, &words, &by_default), ["-XX:+UseLargePages"]);
    let other = java("JAVA_VERSION=\"17.0.1\"\nJVM_VARIANT=\"Openj9\"\n");
    let plan = choose(&other, &request(Heap::Hugetlb2M, &words), &machine()).unwrap();
    assert!(plan.arguments.is_empty() && reason(&plan).contains("Openj9 is not HotSpot"), "{plan:?}");
}

#[test]
fn zgc_is_promoted_from_outside_where_its_shared_heap_gets_no_thp_on_request() {
    let java = version("17.0.15");
    let off = Machine { shared_thp_off: || Some(ThpShmem::Never), ..machine() };
    let plan = choose(&java, &request(Heap::Auto, &["-XX:+UseZGC", "Main"]), &off).unwrap();
    assert_eq!((plan.used(), &plan.arguments[..]), (vec![Mechanism::Outside], &[][..]), "{plan:?}");
    assert!(reason(&plan).contains("shmem_enabled is 'never'") && plan.java.is_some(), "{plan:?}");
    // Other collectors use private memory. For ZGC, a setting that grants requests is enough.
    assert_eq!(arguments(&java, Heap::Auto, &["-XX:+UseG1GC", "Main"], &off), THP);
    assert_eq!(arguments(&java, Heap::Auto, &["-XX:+UseZGC", "Main"], &machine()), THP);
    let pool = ["-XX:+UseZGC", "-Xmx256m", "Main"];
    assert_eq!(arguments(&java, Heap::Auto, &pool, &off)[0], "-XX:+UseLargePages", "the pool is not THP");
}

#[test]
fn the_reason_names_the_part_of_the_heap_that_the_switch_reaches() {
    let java = version("17.0.15");
    let reach = |collector: &str| {
        let plan = choose(&java, &request(Heap::Thp, &[collector, "Main"]), &machine()).unwrap();
        assert_eq!(plan.arguments, THP);
        reason(&plan).to_string()
    };
    assert!(reach("-XX:+UseSerialGC").ends_with("reaches the whole Java heap"));
    assert!(reach("-XX:+UseShenandoahGC").ends_with("reaches the heap that Shenandoah starts with (-Xms)"));
}

#[test]
fn scripts_and_tools_are_told_their_own_way() {
    let tool = Program { path: "/usr/bin/javac".into(), ..version("17.0.15") };
    assert_eq!(arguments(&tool, Heap::Thp, &["A.java"], &machine()), ["-J-XX:+UseTransparentHugePages"]);
    let variable = |plan: &Plan, name: &str| {
        let found = plan.environment.iter().find(|(own, _)| own == name)?;
        Some(found.1.to_string_lossy().into_owned())
    };
    let source =
        Program { script_arguments: vec!["--source 17".into(), "Main".into()], ..version("17.0.15") };
    let plan = choose(&source, &request(Heap::Thp, &[]), &machine()).unwrap();
    assert_eq!(variable(&plan, "JDK_JAVA_OPTIONS").as_deref(), Some(THP[0]));
    assert!(plan.arguments.is_empty() && reason(&plan).contains("prints a line"));

    let script = Program { java: Some(Java::of_release("JAVA_VERSION=\"11.0.2\"")), ..program() };
    let asked = Request { jvm: true, ..request(Heap::Hugetlb2M, &["run"]) };
    let mut rich = Machine { pool_2m: Bytes::gib(4), ..machine() };
    rich.environment.insert("JAVA_TOOL_OPTIONS".into(), "-Xmx1g".into());
    let plan = choose(&script, &asked, &rich).unwrap();
    assert_eq!(variable(&plan, "JAVA_TOOL_OPTIONS").as_deref(), Some("-Xmx1g -XX:+UseLargePages"));
    assert_eq!(plan.used(), [Mechanism::Runtime], "malloc of the shell stays");
    let asked = Request { jvm: true, ..request(Heap::Auto, &["run"]) };
    let plan = choose(&script, &asked, &rich).unwrap();
    assert_eq!(
        variable(&plan, "JAVA_TOOL_OPTIONS").as_deref(),
        Some("-Xmx1g -XX:+UseTransparentHugePages"),
        "every JVM below inherits it: pages of the pool are for the one that was asked for"
    );
}

#[test]
fn the_users_own_choice_stays_and_what_is_in_its_way_is_said() {
    let java = version("17.0.15");
    let own = ["-XX:+UseLargePages", "-Xmx2g", "Main"];
    let plan = choose(&java, &request(Heap::Auto, &own), &machine()).unwrap();
    assert!(plan.arguments.is_empty() && reason(&plan) == "the arguments choose already: -XX:+UseLargePages");
    assert!(plan.notes.iter().any(|note| note.contains("megapage pool set 2m:+")), "{:?}", plan.notes);
    let by_variable = {
        let mut machine = machine();
        machine.environment.insert("JAVA_TOOL_OPTIONS".into(), "-XX:-UseTransparentHugePages".into());
        choose(&java, &request(Heap::Auto, &["Main"]), &machine).unwrap()
    };
    assert!(reason(&by_variable).contains("choose already: -XX:-UseTransparentHugePages"));
}
