use super::*;
use crate::trace::{Program, Span, Writer};
use megapage_decide::by_name;
use megapage_snapshot::AccessClass;

fn trace(operations: Vec<Operation>) -> Trace {
    Trace {
        processes: vec![Program { name: "test".to_string(), start: 0.0, operations }],
        ..Trace::default()
    }
}

fn touch(first: u32, count: u32) -> Operation {
    Operation::Touch { span: Span::new(first, count), pages: 512, content: 512, own_ns: 0.0 }
}

fn machine(gib: u64, trace: &Trace, policy: &str) -> Machine {
    Machine::new(Setup::new(Bytes::gib(gib)), trace, by_name(policy).unwrap()).unwrap()
}

fn run(gib: u64, trace: &Trace, policy: &str) -> Run {
    machine(gib, trace, policy)
        .run(|machine| assert!(!machine.run.steps.is_multiple_of(16) || machine.is_conserved()))
}

#[test]
fn faults_cost_what_is_configured() {
    let trace = trace(vec![touch(0, 1024)]);
    let base = run(3, &trace, "linux-4k");
    let huge = run(3, &trace, "linux");
    let (base, huge) = (&base.processes[0], &huge.processes[0]);
    assert_eq!((base.account.faults, huge.account.faults), (1024 * 512, 1024));
    assert_eq!(base.account.pages_touched, huge.account.pages_touched);
    assert!((base.account.fault_seconds - 524_288.0 * 3.53e-6).abs() < 1e-6);
    assert!((huge.account.fault_seconds - 1024.0 * 465e-6).abs() < 1e-6);
    let Fate::Finished { at } = base.fate else { panic!("{:?}", base.fate) };
    assert!((at - 524_288.0 * (3.53 + 0.473 + 0.038) * 1e-6).abs() < 1e-3, "{at}");
}

#[test]
fn a_page_is_written_as_fast_as_what_holds_it_and_by_the_kernel_without_entering_it() {
    const PAGES: f64 = 512.0 * 1024.0;
    let seconds = |policy: &str, writer: Writer, zeroed: bool| {
        let fill = Operation::Fill { span: Span::new(0, 1024), writer, own_ns: 10.0 };
        let setup = Setup { zeroed, ..Setup::new(Bytes::gib(3)) };
        let run = Machine::new(setup, &trace(vec![fill]), by_name(policy).unwrap()).unwrap().run(|_| ());
        run.processes[0].seconds(run.seconds)
    };
    let near = |found: f64, page_us: f64, why: &str| {
        let expected = PAGES * page_us * 1e-6;
        assert!((found - expected).abs() < 1e-3 * expected, "{why}: {found}, not {expected}");
    };
    near(seconds("linux-4k", Writer::Program, false), 3.53 + 0.473 + 0.15 + 0.01, "second-level cache");
    near(seconds("linux-4k", Writer::Kernel, false), 3.53 + 0.15 + 0.01, "by the kernel");
    near(seconds("linux-4k", Writer::Program, true), 2.68 + 0.473 + 0.91 + 0.01, "zeroed ahead");
    near(seconds("linux", Writer::Kernel, false), 465.0 / 512.0 + 0.50 + 0.01, "last-level cache");
    near(seconds("hawkeye-g", Writer::Kernel, true), 13.0 / 512.0 + 0.91 + 0.01, "huge, zeroed ahead");
}

#[test]
fn the_same_run_twice_is_the_same_to_the_byte() {
    let trace = trace(vec![
        touch(0, 300),
        Operation::Access { span: Span::new(100, 200), pages: 400, visits: 1e4, class: AccessClass::Random },
        Operation::Work { seconds: 60.0 },
        Operation::Free { span: Span::new(0, 300), keep: 0.3, own_ns: 10.0 },
        Operation::Work { seconds: 60.0 },
    ]);
    for policy in ["linux", "ingens", "hawkeye-g", "freebsd"] {
        let once = serde_json::to_string(&run(1, &trace, policy)).unwrap();
        assert_eq!(once, serde_json::to_string(&run(1, &trace, policy)).unwrap());
    }
}

#[test]
fn without_memory_the_largest_process_is_killed_and_gives_all_back() {
    let mut trace = trace(vec![touch(0, 200), Operation::Idle { seconds: 100.0 }]);
    let operations = vec![Operation::Idle { seconds: 5.0 }, touch(0, 400), Operation::Idle { seconds: 9.0 }];
    trace.processes.push(Program { name: "greedy".to_string(), start: 0.0, operations });
    for policy in ["linux", "linux-4k", "freebsd", "ingens", "hawkeye-g"] {
        let mut machine = machine(1, &trace, policy);
        while machine.step() {
            assert!(machine.is_conserved(), "{policy}");
        }
        let run = machine.finish();
        assert!(matches!(run.processes[0].fate, Fate::Finished { .. }), "{policy}");
        assert!(matches!(run.processes[1].fate, Fate::OutOfMemory { .. }), "{policy}");
        let last = run.processes[1].last().unwrap();
        assert!(last.resident_bytes > 300 << 21, "{policy}: {last:?}");
    }
}

#[test]
fn freebsd_binds_nothing_that_was_not_touched() {
    let half = Operation::Touch { span: Span::new(0, 100), pages: 256, content: 256, own_ns: 0.0 };
    let trace = trace(vec![half, touch(100, 50), Operation::Work { seconds: 50.0 }]);
    let mut machine = machine(1, &trace, "freebsd");
    while machine.step() {
        let process = &machine.processes[0];
        assert_eq!(process.present_pages, process.content_pages);
    }
    let run = machine.finish();
    assert_eq!(run.processes[0].last().unwrap().huge_pages, 50);
    assert_eq!(run.promotions, 0, "they became huge in place, at the last fault");
}

#[test]
fn linux_binds_what_was_not_touched_and_hawkeye_gives_it_back_under_pressure() {
    let tenth = Operation::Touch { span: Span::new(0, 480), pages: 51, content: 51, own_ns: 0.0 };
    let trace = trace(vec![tenth, Operation::Work { seconds: 200.0 }]);
    let linux = run(1, &trace, "linux").processes[0].last().unwrap();
    assert_eq!(linux.resident_bytes, 480 << 21);
    let hawkeye = run(1, &trace, "hawkeye-g").processes[0].last().unwrap();
    assert!(hawkeye.resident_bytes < 75 * (1 << 30) / 100, "{hawkeye:?}");
    assert_eq!(linux.useful_bytes, hawkeye.useful_bytes);
}

#[test]
fn promotion_makes_a_program_faster() {
    let trace = trace(vec![
        touch(0, 256),
        Operation::Access { span: Span::new(0, 256), pages: 512, visits: 2e5, class: AccessClass::Random },
        Operation::Work { seconds: 2000.0 },
    ]);
    let never = run(1, &trace, "linux-4k");
    let ingens = run(1, &trace, "ingens");
    let always = run(1, &trace, "linux");
    let seconds = |run: &Run| run.processes[0].seconds(run.seconds);
    assert_eq!(ingens.promotions, 256);
    assert!(seconds(&never) > 1.2 * seconds(&always));
    assert!(seconds(&ingens) < seconds(&never) && seconds(&ingens) > seconds(&always));
    let (first, last) = (ingens.processes[0].points[1], ingens.processes[0].last().unwrap());
    assert!(first.cost > 2.0 * last.cost, "{first:?} {last:?}");
}

#[test]
fn no_policy_goes_back_and_forth_on_a_steady_load() {
    let trace = trace(vec![
        Operation::Touch { span: Span::new(0, 200), pages: 200, content: 200, own_ns: 0.0 },
        touch(200, 100),
        Operation::Access { span: Span::new(0, 300), pages: 200, visits: 1e4, class: AccessClass::Random },
        Operation::Work { seconds: 3000.0 },
    ]);
    for known in megapage_decide::POLICIES {
        let run = run(1, &trace, known.name);
        assert!(run.promotions <= 300 + run.demotions, "{}: {run:?}", known.name);
        assert!(run.demotions <= 300, "{}: {} demotions", known.name, run.demotions);
    }
}

#[test]
fn reruns_of_a_marked_part_do_it_as_often_again() {
    let trace = trace(vec![
        touch(0, 4),
        Operation::Mark,
        Operation::Work { seconds: 2.0 },
        Operation::Idle { seconds: 1.0 },
        Operation::Repeat { times: 3 },
    ]);
    let run = run(1, &trace, "linux");
    assert!((run.processes[0].account.work_seconds - 8.0).abs() < 1e-9);
    assert!((run.processes[0].seconds(run.seconds) - 12.0).abs() < 0.1);
}

#[test]
fn what_huge_pages_save_is_the_difference_to_base_pages() {
    let trace = trace(vec![
        touch(0, 256),
        Operation::Access { span: Span::new(0, 256), pages: 512, visits: 2e5, class: AccessClass::Random },
        Operation::Work { seconds: 300.0 },
    ]);
    let (base, huge) = (run(1, &trace, "linux-4k"), run(1, &trace, "linux"));
    assert_eq!((base.saved_seconds, base.made_huge, base.saved_ns_per_promotion), (0.0, 0, None));
    let walks = |run: &Run| run.processes[0].account.translation_seconds;
    let saved = walks(&base) - walks(&huge);
    assert!((huge.saved_seconds / saved - 1.0).abs() < 1e-9, "{} {saved}", huge.saved_seconds);
    assert_eq!((huge.made_huge, huge.promotions), (256, 0), "all at faults");
    let each = huge.saved_ns_per_promotion.unwrap();
    assert!((each - saved * 1e9 / 256.0).abs() < 1.0, "{each}");
    let share = saved / (saved + huge.total_seconds()) * 100.0;
    assert!((huge.gain_percent() - share).abs() < 1e-9);
}

#[test]
fn no_more_is_huge_at_once_than_the_budget() {
    let trace = trace(vec![
        touch(0, 256),
        Operation::Access { span: Span::new(0, 256), pages: 512, visits: 2e5, class: AccessClass::Random },
        Operation::Work { seconds: 100.0 },
    ]);
    for known in megapage_decide::POLICIES {
        let setup = Setup { budget: Some(40), ..Setup::new(Bytes::gib(1)) };
        let mut machine = Machine::new(setup, &trace, known.make()).unwrap();
        while machine.step() {
            let huge = machine.processes[0].huge_regions;
            assert!(huge <= 40 && machine.is_conserved(), "{}: {huge}", known.name);
        }
        let run = machine.finish();
        assert_eq!(run.made_huge, if known.name == "linux-4k" { 0 } else { 40 }, "{}", known.name);
    }
}
