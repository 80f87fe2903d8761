use super::*;

#[test]
fn a_phase_counts_what_was_sent_in_it() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let asked: Vec<Asked> =
        (1..=1000).map(|ms| Asked { sent: at(ms), took: Duration::from_nanos(ms) }).collect();
    let phase = Phase::of(&asked, at(501), at(2000));
    assert_eq!((phase.requests, phase.p50_ns, phase.p999_ns, phase.max_ns), (500, 750, 1000, 1000));
    assert_eq!(Phase::of(&asked, at(2000), at(3000)), Phase::default());
}

#[test]
fn what_cannot_be_run_is_refused() {
    let snapshot = Snapshot { configurations: vec![], size: Bytes::mib(1) };
    assert!(snapshot.validate().unwrap_err().to_string().contains("values of 1 MiB"));
    let named = Snapshot { size: Bytes::gib(1), configurations: vec!["huge".into()] };
    assert!(named.validate().unwrap_err().to_string().contains("known: base, thp, run-snapshot"));
    let lines = Snapshot { size: Bytes::gib(1), ..snapshot }.dry_run(&Plan::of(1));
    let ours = "megapage run --fork snapshot -- redis-server";
    assert!(lines.iter().any(|line| line.starts_with(ours)), "{lines:?}");
}
