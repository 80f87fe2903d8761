use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn fair(looked: &[(i32, u64, u32)]) -> Fair {
    let mut fair = Fair::new(MOST_REGIONS);
    looked.iter().for_each(|(pid, at, user)| fair.looked(Pid(*pid), *user, SECOND * *at as u32));
    fair
}

#[test]
fn a_user_with_many_costly_processes_lets_another_ones_come_first() {
    let mut looked: Vec<(i32, u64, u32)> = (1..100).map(|pid| (pid, 1, 7)).collect();
    looked.extend([(200, 1, 8), (201, 1, 8)]);
    let fair = fair(&looked);
    let root = KernelRoot::captured("/nonexistent");
    let mut turns = fair.turns(&root, looked.iter().map(|(pid, ..)| Pid(*pid)));
    let mut order = Vec::new();
    for _ in 0..4 {
        let (pid, user) = turns.next().unwrap();
        order.push(pid.0);
        assert!(turns.took(user, if user == 7 { SECOND } else { SECOND / 100 }, 1));
    }
    assert_eq!(order, [1, 200, 201, 2]);
    assert_eq!(turns.remaining().count(), 97);
}

#[test]
fn who_was_left_out_comes_first_in_the_next_pass() {
    let fair = fair(&[(1, 5, 7), (2, 3, 7), (3, 4, 7)]);
    let root = KernelRoot::captured("/nonexistent");
    let pids = [1, 2, 3, 4].map(Pid);
    // 4 was never observed, and its user is unknown.
    let mut turns = fair.turns(&root, pids.into_iter());
    let order: Vec<i32> = std::iter::from_fn(|| turns.next()).map(|(pid, _)| pid.0).collect();
    assert_eq!(order, [2, 3, 1, 4]);
}

#[test]
fn processes_beyond_a_bound_take_no_pass_for_themselves() {
    let fair = fair(&[(50, 1, 7), (51, 1, 7)]);
    let tree = tempfile::tempdir().unwrap();
    let root = KernelRoot::captured(tree.path());
    for pid in 1..50 {
        let directory = tree.path().join(format!("proc/{pid}"));
        std::fs::create_dir_all(&directory).unwrap();
        let text = format!("Name:\tx\nTgid:\t{pid}\nUid:\t7\t7\t7\t7\n");
        std::fs::write(directory.join("status"), text).unwrap();
    }
    let mut turns = fair.turns(&root, (1..52).map(Pid));
    let mut order = Vec::new();
    while let Some((pid, user)) = turns.next() {
        order.push(pid.0);
        if pid.0 < 50 {
            turns.note_beyond(user);
        }
    }
    assert_eq!(order, [1, 50, 2, 51, 3, 4]);
    assert_eq!(turns.remaining().count(), 45);
}

#[test]
fn regions_are_bounded_for_each_user_and_for_all() {
    let fair = fair(&[(1, 1, 7), (2, 1, 8), (3, 1, 9)]);
    let root = KernelRoot::captured("/nonexistent");
    let mut turns = fair.turns(&root, [1, 2, 3].map(Pid).into_iter());
    assert!(turns.took(7, SECOND, MOST_REGIONS / 2) && !turns.took(7, SECOND, 1));
    assert!(turns.took(8, SECOND, MOST_REGIONS / 2));
    assert!(!turns.took(9, SECOND, 1), "there is no room left");
}

#[test]
fn as_many_regions_are_stored_as_the_machine_has_room_for() {
    assert_eq!(most_regions(Bytes::gib(1 << 12), None), MOST_REGIONS);
    assert_eq!(most_regions(Bytes::gib(16), None), 1 << 16);
    // They take 2.5 MB at 600 bytes each; 128 whole regions would be all of the memory.
    assert_eq!(most_regions(Bytes::mib(256), None), LEAST_REGIONS);
    assert_eq!(most_regions(Bytes::gib(1 << 12), Some(Bytes::mib(64))), 27962);
}

#[test]
fn one_beyond_a_bound_is_left_alone_for_longer_each_time() {
    let mut fair = Fair::new(MOST_REGIONS);
    let id = ProcessId { pid: Pid(1), start_ticks: 5, start_stack: 0 };
    assert!(!fair.left_alone(id, SECOND));
    fair.note_beyond(id, SECOND);
    assert!(fair.left_alone(id, SECOND * 60) && !fair.left_alone(id, SECOND * 61));
    fair.note_beyond(id, SECOND * 61);
    assert!(fair.left_alone(id, SECOND * 180));
    assert!(!fair.left_alone(ProcessId { start_ticks: 6, ..id }, SECOND * 180), "another one");
}

#[test]
fn a_large_process_may_have_more_mappings() {
    assert_eq!(most_mappings(Bytes::ZERO), LEAST_MAPPINGS);
    assert_eq!(most_mappings(Bytes::mib(64)), LEAST_MAPPINGS + 1024);
    assert_eq!(most_mappings(Bytes::gib(64)), MOST_MAPPINGS);
}
