use super::*;
use std::fs;

/// Returns the result for a tree of processes: number, parent, name, and 1 if it may have THP.
fn found(processes: &[(i32, i32, &str, u8)]) -> Option<SwitchedOff> {
    let tree = tempfile::tempdir().unwrap();
    let thp = tree.path().join("sys/kernel/mm/transparent_hugepage");
    fs::create_dir_all(&thp).unwrap();
    for (name, text) in [
        ("enabled", "always [madvise] never\n"),
        ("defrag", "always defer defer+madvise [madvise] never\n"),
        ("hpage_pmd_size", "2097152\n"),
    ] {
        fs::write(thp.join(name), text).unwrap();
    }
    for (pid, parent, name, enabled) in processes {
        let directory = tree.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&directory).unwrap();
        let status = format!(
            "Name:\t{name}\nState:\tS (sleeping)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{parent}\nTHP_enabled:\t{enabled}\n"
        );
        fs::write(directory.join("status"), status).unwrap();
    }
    let root = KernelRoot::captured(tree.path());
    SwitchedOff::of(&root, &read_status(&root, Pid(processes[0].0)).unwrap())
}

#[test]
fn the_uppermost_process_is_named() {
    let chain = |of_bun, of_own| {
        [(30, 20, "megapage", of_own), (20, 10, "sh", of_bun), (10, 1, "bun", of_bun), (1, 0, "init", 1)]
    };
    assert_eq!(found(&chain(1, 1)), None);
    let off = found(&chain(0, 0)).unwrap();
    assert_eq!((off.by.as_str(), off.on_purpose), ("inherited from bun (process 10)", false));
    assert!(
        off.note().contains("inherited from bun (process 10): cleared for this program"),
        "{}",
        off.note()
    );
    let off = found(&chain(1, 0)).unwrap();
    assert_eq!((off.by.as_str(), off.on_purpose), ("set between sh (process 20) and it", false));
    let in_container = found(&[(1, 0, "megapage", 0)]).unwrap();
    assert!(in_container.by.contains("outside") && !in_container.on_purpose);
}

#[test]
fn what_was_on_purpose_stays() {
    let by_unit = found(&[(30, 1, "megapage", 0), (1, 0, "systemd", 1)]).unwrap();
    assert!(by_unit.on_purpose && by_unit.note().contains("left so"), "{}", by_unit.note());
    // A manager that has the flag itself did not set it for a unit.
    assert!(!found(&[(30, 1, "megapage", 0), (1, 0, "systemd", 0)]).unwrap().on_purpose);
}
