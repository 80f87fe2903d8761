use super::*;
use megapage_kernel::guard::Rounds;
use megapage_testing::skip;
use std::io::Read;
use std::process::{Command, Stdio};

fn id(root: &KernelRoot, pid: Pid) -> ProcessId {
    let stat = read_stat(root, pid).unwrap();
    ProcessId { pid, start_ticks: stat.start_ticks, start_stack: stat.start_stack }
}

#[test]
fn another_program_under_the_same_number_is_not_touched() {
    let root = KernelRoot::live();
    // The shell waits for a line, then becomes another program.
    let mut child = Command::new("sh")
        .args(["-c", "echo ready; read line; exec sleep 60"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
    let pid = Pid(child.id() as i32);
    let before = id(&root, pid);
    if before.start_stack == 0 {
        child.kill().unwrap();
        child.wait().unwrap();
        return skip("the kernel does not show where a stack starts");
    }
    let mut part = Part::guarded(&root, before, Vec::new()).unwrap();
    assert!(part.is_there());
    part.is_huge = true;
    drop(child.stdin.take());
    while id(&root, pid) == before {
        std::thread::yield_now();
    }
    assert!(!part.is_there());
    assert_eq!(part.undo(), (true, 0), "nothing of it is left");
    assert_eq!(part.make(true), Err(ENDED.into()));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_guard_tries_longer_than_queues_take() {
    let Rounds { count, pause } = GUARD_ROUNDS;
    assert!(count >= UNDO_ATTEMPTS && pause >= SETTLE);
}

#[test]
fn regions_on_larger_folios_take_no_part() {
    let orders = |order: usize| {
        let mut folios = [0; 10];
        (folios[0], folios[order]) = (256, 256);
        Some(folios)
    };
    assert!(is_restored(orders(0)) && is_restored(None));
    assert!(!is_restored(orders(4)) && !is_restored(orders(9)));
}
