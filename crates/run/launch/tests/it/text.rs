//! Tests the choice of a way to bring text onto huge pages, on synthetic files, programs and
//! machines.

use crate::synthetic;

use megapage_launch::machine::Machine;
use megapage_launch::mechanism::Refusal;
use megapage_launch::program::{Linkage, Privilege, Program};
use megapage_launch::request::Text;
use megapage_launch::text::{TextFile, TextMechanism, TextPlan, choose};
use megapage_remap::check::{Check, SegmentCheck};
use megapage_remap::layout::{LINKER_FLAGS, linker_flags};
use megapage_remap::{Placement, Segment};
use megapage_units::Bytes;
use synthetic::program;

const MIB: u64 = 1 << 20;

/// Returns a machine without the library for the heap, on which text may be moved.
fn machine() -> Machine {
    Machine { library: Err("not installed".into()), text_refused: || None, ..synthetic::machine() }
}

/// Returns a file with one segment of code: `prime_bytes` can be primed, `anonymous_bytes` moved.
fn file(prime_bytes: u64, anonymous_bytes: u64) -> TextFile {
    let segment = Segment {
        header: 0,
        read: true,
        write: false,
        execute: true,
        offset: 0,
        address: 0,
        file_size: 64 * MIB,
        memory_size: 64 * MIB,
        align: 0x1000,
    };
    let check = Check {
        file: "/bin/program".into(),
        placement: Placement::Independent,
        linker: None,
        segments: vec![SegmentCheck { segment, bss_bytes: 0, congruent: true, prime_bytes, anonymous_bytes }],
        relro: None,
        placed_at_huge: prime_bytes > 0,
        now_bytes: None,
        prime_bytes,
        anonymous_bytes,
        relinked_bytes: 64 * MIB,
        flags: linker_flags(None),
        other_flags: LINKER_FLAGS.to_vec(),
    };
    TextFile {
        path: "/bin/program".into(),
        loaded_as: "program".into(),
        is_program: true,
        at_start: true,
        check,
    }
}

fn chosen(asked: Text, file: TextFile, program: &Program, machine: &Machine) -> TextPlan {
    choose(vec![file], program, machine, asked, false).unwrap()
}

#[test]
fn the_files_own_pages_come_first() {
    let by = |asked, prime, own| {
        chosen(asked, file(prime * MIB, own * MIB), &program(), &machine()).files[0].mechanism
    };
    assert_eq!(by(Text::Auto, 60, 62), Some(TextMechanism::File));
    assert_eq!(by(Text::Auto, 0, 62), Some(TextMechanism::Thp));
    assert_eq!(by(Text::Auto, 10, 62), Some(TextMechanism::Thp), "much less");
    assert_eq!(by(Text::Auto, 0, 0), None);
    assert_eq!(by(Text::File, 60, 62), Some(TextMechanism::File));
    assert_eq!(by(Text::File, 0, 62), None);
    assert_eq!(by(Text::Thp, 60, 62), Some(TextMechanism::Thp));
    assert_eq!(by(Text::Huge2M, 60, 62), Some(TextMechanism::Huge2M));
    let plan = chosen(Text::File, file(0, 62 * MIB), &program(), &machine());
    assert!(plan.files[0].reason.contains("--text thp moves its segments"), "{plan:?}");
}

#[test]
fn what_cannot_be_preloaded_keeps_its_file() {
    type Change = fn(&mut Program, &mut Machine);
    let obstacles: [(Change, &str); 10] = [
        (|program, _| program.linkage = Linkage::Static, "statically linked"),
        (|program, _| program.linkage = Linkage::Musl, "musl"),
        (|program, _| program.linkage = Linkage::OtherLoader("/lib/ld.so".into()), "/lib/ld.so"),
        (|program, _| program.privilege = Some(Privilege::SetUser(0)), "set-user-ID"),
        (|program, _| program.native = false, "cannot load"),
        (|program, _| program.sanitizer = Some("asan"), "a sanitizer (asan)"),
        (|_, machine| machine.text_refused = || Some("PR_SET_MDWE".into()), "PR_SET_MDWE"),
        (|_, machine| machine.text_library = Err("not installed".into()), "not installed"),
        (
            |_, machine| _ = machine.needed.insert("libc.so.6".into(), Default::default()),
            "libc.so.6 is not found",
        ),
        (|_, machine| machine.collapse_off = true, "PR_SET_THP_DISABLE"),
    ];
    for (change, expected) in obstacles {
        let (mut program, mut machine) = (program(), machine());
        change(&mut program, &mut machine);
        let plan = chosen(Text::Thp, file(60 * MIB, 62 * MIB), &program, &machine);
        assert_eq!(plan.files[0].mechanism, None, "{expected}");
        assert!(plan.files[0].reason.contains(expected), "{expected}: {}", plan.files[0].reason);
        assert!(plan.environment(true).is_none());
        let plan = chosen(Text::Auto, file(10 * MIB, 62 * MIB), &program, &machine);
        assert_eq!(plan.files[0].mechanism, Some(TextMechanism::File), "{expected}");
        let refused = choose(vec![file(0, 62 * MIB)], &program, &machine, Text::Auto, true).unwrap_err();
        assert!(matches!(&refused, Refusal::Unobtainable(why) if why.contains(expected)), "{refused}");
    }
    let short = Machine { pool_2m: Bytes::mib(60), ..machine() };
    let plan = chosen(Text::Huge2M, file(0, 62 * MIB), &program(), &short);
    assert!(plan.files[0].reason.contains("has 60 MiB available, and 62 MiB are needed"), "{plan:?}");
    // Whole GiB get pages of 1 GiB if the pool has them; the rest gets pages of 2 MiB.
    let long = |gib: u64| {
        let mut long = file(0, (gib << 30) + 62 * MIB);
        let segment = &mut long.check.segments[0].segment;
        // At any address, it holds this number of whole GiB.
        let bytes = ((gib + 1) << 30) - 4096;
        (segment.file_size, segment.memory_size) = (bytes, bytes);
        long
    };
    let pools = |pool_2m: u64, pool_1g: u64| Machine {
        pool_2m: Bytes::mib(pool_2m),
        pool_1g: Bytes::gib(pool_1g),
        ..machine()
    };
    let asked = |file, machine: &Machine| chosen(Text::Huge1G, file, &program(), machine).files[0].clone();
    assert_eq!(asked(long(2), &pools(62, 2)).mechanism, Some(TextMechanism::Huge1G));
    assert!(asked(long(2), &pools(61, 2)).reason.contains("has 61 MiB available, and 62 MiB are needed"));
    assert!(
        asked(long(2), &pools(1086, 1)).reason.contains("1.06 GiB available"),
        "{:?}",
        asked(long(2), &pools(1086, 1))
    );
    let some = asked(long(2), &pools(4096, 1));
    assert_eq!(some.mechanism, Some(TextMechanism::Huge2M));
    assert!(
        some.reason.contains("the pool of 1g pages has 1 GiB available, and 2 GiB are needed"),
        "{some:?}"
    );
    assert!(asked(long(0), &pools(62, 2)).reason.contains("no segment holds a whole GiB"));
    let required = choose(vec![long(2)], &program(), &pools(4096, 1), Text::Huge1G, true);
    assert!(matches!(required, Err(Refusal::Unobtainable(why)) if why.contains("1 GiB available")));
    let later = TextFile { at_start: false, is_program: false, ..file(0, 62 * MIB) };
    let plan = chosen(Text::Thp, later, &program(), &machine());
    assert!(plan.files[0].reason.contains("only --text file reaches it"), "{plan:?}");
}

#[test]
fn the_library_is_told_what_to_move() {
    let library = TextFile {
        path: "/lib/libbig.so.1.2.3".into(),
        loaded_as: "libbig.so".into(),
        is_program: false,
        ..file(0, 62 * MIB)
    };
    let files = vec![file(60 * MIB, 62 * MIB), library.clone()];
    let plan = choose(files, &program(), &machine(), Text::Auto, true).unwrap();
    let (path, variables) = plan.environment(true).unwrap();
    assert_eq!(path.to_str(), Some("/lib/libmegapage_text.so"));
    let value = |name: &str| variables.iter().find(|it| it.0 == name).map(|it| it.1.to_str().unwrap());
    assert_eq!(value("MEGAPAGE_TEXT"), Some("thp"));
    assert_eq!(value("MEGAPAGE_TEXT_OBJECTS"), Some("libbig.so"), "the program is primed");
    assert_eq!(value("MEGAPAGE_TEXT_REQUIRE"), Some("1"));
    let files = vec![file(0, 62 * MIB), library];
    let plan = choose(files, &program(), &machine(), Text::Huge2M, false).unwrap();
    let (_, variables) = plan.environment(false).unwrap();
    assert_eq!(variables.iter().find(|it| it.0 == "MEGAPAGE_TEXT").unwrap().1, "2m");
    assert_eq!(variables.iter().find(|it| it.0 == "MEGAPAGE_TEXT_OBJECTS").unwrap().1, ".:libbig.so");
    assert!(variables.iter().all(|it| it.0 != "MEGAPAGE_TEXT_REQUIRE"));
}

#[test]
fn what_has_nothing_to_gain_stands_in_nobodys_way() {
    let small = file(0, 0);
    let library = TextFile { path: "/lib/libbig.so".into(), is_program: false, ..file(60 * MIB, 62 * MIB) };
    assert!(choose(vec![small.clone(), library], &program(), &machine(), Text::File, true).is_ok());
    let refused = choose(vec![small], &program(), &machine(), Text::File, true).unwrap_err();
    assert!(refused.to_string().starts_with("--require: --text file: /bin/program: "), "{refused}");
    assert!(choose(Vec::new(), &program(), &machine(), Text::File, true).is_err());
}

#[test]
fn a_limit_of_memory_that_the_copy_would_break_keeps_it_where_it_is() {
    let limited = |mib| Machine { memory_room: Some(Bytes::mib(mib)), ..machine() };
    let plan = chosen(Text::Thp, file(0, 62 * MIB), &program(), &limited(70));
    assert_eq!(plan.files[0].mechanism, None);
    assert!(plan.files[0].reason.contains("leaves 70 MiB, and the copy takes 62 MiB"), "{plan:?}");
    let roomy = chosen(Text::Thp, file(0, 62 * MIB), &program(), &limited(80));
    assert_eq!(roomy.files[0].mechanism, Some(TextMechanism::Thp));
    // hugetlb pages come from the pool, and the file's own pages can be evicted.
    let mechanism =
        |asked| chosen(asked, file(60 * MIB, 62 * MIB), &program(), &limited(1)).files[0].mechanism;
    assert_eq!(mechanism(Text::Huge2M), Some(TextMechanism::Huge2M));
    assert_eq!(mechanism(Text::Auto), Some(TextMechanism::File));
    let refused = choose(vec![file(0, 62 * MIB)], &program(), &limited(70), Text::Thp, true).unwrap_err();
    assert!(refused.to_string().contains("memory limit"), "{refused}");
}

#[test]
fn data_cannot_be_had_without_transparent_huge_pages() {
    let off = Machine { collapse_off: true, ..machine() };
    let mut data = file(0, 62 * MIB);
    data.check.segments[0].segment.write = true;
    assert!(choose(vec![file(0, 62 * MIB)], &program(), &off, Text::Huge2M, true).is_ok(), "code is hugetlb");
    let refused = choose(vec![data], &program(), &off, Text::Huge2M, true).unwrap_err();
    assert!(refused.to_string().contains("PR_SET_THP_DISABLE"), "{refused}");
}
