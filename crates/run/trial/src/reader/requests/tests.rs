use super::*;

fn tree(calls: u64, segments: u64) -> (tempfile::TempDir, KernelRoot) {
    let tree = tempfile::tempdir().unwrap();
    put(&tree, calls, segments);
    let root = KernelRoot::captured(tree.path());
    (tree, root)
}

fn put(tree: &tempfile::TempDir, calls: u64, segments: u64) {
    std::fs::create_dir_all(tree.path().join("proc/9/net")).unwrap();
    let put = |path: &str, text: String| std::fs::write(tree.path().join("proc/9").join(path), text).unwrap();
    put("io", format!("syscr: {calls}\nsyscw: 0\n"));
    put("net/snmp", format!("Tcp: InSegs\nTcp: {segments}\n"));
}

#[test]
fn what_moves_is_counted() {
    for (calls, segments, expected) in [
        (60, 900, Ok("calls that read and write")),
        (10, 900, Ok("TCP segments received by the whole machine")),
        (10, 10, Err("name another metric")),
    ] {
        let (keep, root) = tree(1000, 5000);
        let pids = [Pid(9)];
        let service = Service { root: &root, pids: &pids, group: None };
        let mut wait = |_| put(&keep, 1000 + calls, 5000 + segments);
        match (Counted::open(&Metric::Requests, &service, &mut wait), expected) {
            (Ok((counted, _)), Ok(words)) => assert_eq!(counted.in_words(), words),
            (Err(why), Err(expected)) => assert!(why.contains(expected), "{why}"),
            (found, _) => panic!("{calls} {segments}: {}", found.is_ok()),
        }
    }
}

#[test]
fn a_process_that_has_ended_has_done_what_it_has() {
    let (keep, root) = tree(1000, 0);
    let pids = [Pid(9)];
    let service = Service { root: &root, pids: &pids, group: None };
    let (mut counted, _) = Counted::open(&Metric::Calls, &service, &mut |_| {}).unwrap();
    assert_eq!(counted.read(), 1000.0);
    std::fs::remove_dir_all(keep.path().join("proc/9")).unwrap();
    assert_eq!(counted.read(), 1000.0);
}
