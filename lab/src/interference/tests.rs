use super::*;

fn options() -> Interference {
    Interference { cases: Vec::new(), chase: Bytes::kib(64), stream: Bytes::mib(1), slice: 10 }
}

#[test]
fn the_chase_visits_every_line() {
    let Program::Chase { next, .. } = Program::of("chase", &options()) else { panic!("a chase") };
    let (mut at, mut steps) = (0, 0);
    loop {
        at = next[at] as usize;
        steps += 1;
        if at == 0 {
            break;
        }
    }
    assert_eq!(steps, (64 << 10) / 64);
}

#[test]
fn programs_work_and_pages_are_cleared_no_faster_than_asked() {
    for case in Interference::CASES {
        assert!(Program::of(case, &options()).work(Duration::from_millis(1)) > 0.0, "{case}");
    }
    for way in Way::ALL {
        let cleared = match Cleared::by(way, false) {
            Err(error) if way == Way::Kernel => return megapage_testing::skip(&error.to_string()),
            cleared => cleared.unwrap(),
        };
        let stop = AtomicBool::new(true);
        assert_eq!(cleared.run(None, &stop).unwrap(), 0, "{way:?}");
        let mut program = Program::of("chase", &options());
        let rate = 64 << 20;
        // One page at once, and then no more than the rate allows in the whole time.
        let most = rate as f64 + HUGE_2M as f64 / 0.1;
        let mut said = String::new();
        // Other tests may have the processors all the time, or take the pool's pages meanwhile.
        let is_cleared = |_| match pair(&mut program, &cleared, Some(rate), Duration::from_millis(100)) {
            Ok((speed, bytes)) => {
                assert!(speed > 0.0 && bytes <= most, "{way:?}: {bytes}");
                bytes > 0.0
            }
            Err(error) => {
                said = format!("{error:#}");
                false
            }
        };
        assert!((0..20).any(is_cleared), "{way:?}: nothing was cleared in 20 tries; {said}");
    }
}

#[test]
fn options_are_checked_and_gates_can_fail() {
    assert!(options().validate().is_ok());
    assert!(Interference { slice: 9, ..options() }.validate().is_err());
    assert!(Interference { chase: Bytes::kib(63), ..options() }.validate().is_err());
    assert!(Interference { stream: Bytes::gib(9), ..options() }.validate().is_err());
    let found = |speed: f64| InterferenceFound {
        chase_bytes: 1,
        stream_bytes: 1,
        kernel_pages: "thp",
        rows: vec![Row {
            program: "chase",
            way: "kernel",
            asked_bytes_per_second: Some(PAPER_RATE),
            cleared_bytes_per_second: Spread::default(),
            speed: Interval::of([speed], WANTED),
            samples: vec![speed],
            cleared_samples: vec![1e9],
        }],
    };
    let holds = |speed| found(speed).gates().iter().map(|gate| gate.holds).collect::<Vec<_>>();
    assert_eq!((holds(0.95), holds(0.93)), (vec![true], vec![false]));
}
