//! The values about processes that all users may see: cheap, and without a right to look into the
//! processes.

use megapage_kernel::process::{Status, list_processes, read_status};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_snapshot::Outline;
use megapage_units::{Bytes, Pid};

/// Returns the outlines of the processes with at least `least` of resident memory, hugetlb pages
/// included, ascending. Leaves out kernel threads and the calling process. Skips a process that
/// ends meanwhile. Lacks those of other users where `/proc` is mounted with `hidepid`.
pub fn outlines(root: &KernelRoot, least: Bytes) -> Result<Vec<Outline>, KernelError> {
    let own = Pid(std::process::id().cast_signed());
    let mut found = Vec::new();
    for pid in list_processes(root)? {
        if pid == own {
            continue;
        }
        // An unreadable status of one process is no reason to show no process.
        let Ok(status) = read_status(root, pid) else { continue };
        let outline = of(&status);
        if outline.resident() >= least.max(Bytes(1)) {
            found.push(outline);
        }
    }
    Ok(found)
}

/// Returns the outlines of these processes. Skips those that have ended.
pub fn outlines_of(root: &KernelRoot, pids: &[Pid]) -> Vec<Outline> {
    pids.iter().filter_map(|&pid| read_status(root, pid).ok()).map(|status| of(&status)).collect()
}

fn of(status: &Status) -> Outline {
    Outline {
        pid: status.pid,
        name: status.name.clone(),
        uid: status.uids[0],
        user: None,
        cgroup: String::new(),
        pod_name: None,
        rss: status.rss,
        hugetlb: status.hugetlb,
        swap: status.swap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(processes: &[(i32, u64, u64)]) -> (tempfile::TempDir, KernelRoot) {
        let tree = tempfile::tempdir().unwrap();
        for (pid, rss, hugetlb) in processes {
            let directory = tree.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&directory).unwrap();
            let text = format!(
                "Name:\tp{pid}\nTgid:\t{pid}\nUid:\t7\t0\t0\t0\nVmRSS:\t{rss} kB\nVmSwap:\t5 kB\n\
                 HugetlbPages:\t{hugetlb} kB\n"
            );
            std::fs::write(directory.join("status"), text).unwrap();
        }
        let root = KernelRoot::captured(tree.path());
        (tree, root)
    }

    #[test]
    fn those_with_enough_memory_are_listed() {
        let (tree, root) = tree(&[(1, 100, 0), (20, 10, 2048), (3, 99, 0), (4, 0, 0)]);
        std::fs::create_dir_all(tree.path().join("proc/77")).unwrap();
        let pids = |least| -> Vec<i32> {
            outlines(&root, Bytes::kib(least)).unwrap().iter().map(|outline| outline.pid.0).collect()
        };
        assert_eq!(pids(100), [1, 20]);
        assert_eq!(pids(0), [1, 3, 20], "one without user memory is a kernel thread");
        let [one] = &outlines_of(&root, &[Pid(20), Pid(77), Pid(78)])[..] else {
            panic!("20 alone is there")
        };
        assert_eq!((one.name.as_str(), one.uid, one.swap), ("p20", 7, Bytes::kib(5)));
        assert_eq!(one.resident(), Bytes::kib(2058));
    }

    #[test]
    fn the_caller_is_not_among_them() {
        let own = Pid(std::process::id().cast_signed());
        let found = outlines(&KernelRoot::live(), Bytes::ZERO).unwrap();
        assert!(!found.is_empty() && found.iter().all(|outline| outline.pid != own));
    }
}
