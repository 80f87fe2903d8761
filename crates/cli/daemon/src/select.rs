//! Choice of the processes that are watched.

use crate::config::{Processes, uid};
use megapage_kernel::process::{Status, list_processes, read_cgroup, read_status};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_units::{Bytes, Pid};
use regex_lite::Regex;
use std::collections::{BTreeMap, BTreeSet};

/// Function that returns, in one line, why megapage must not touch a process, from knowledge
/// elsewhere; `None` if it may. Each pass asks it about each process that the configuration
/// chooses, but not about those that it names by number.
pub type Veto = Box<dyn FnMut(&KernelRoot, Pid) -> Option<String> + Send>;

/// Choice of a configuration, compiled.
#[derive(Debug)]
pub struct Select {
    include: Vec<Regex>,
    exclude: Vec<Regex>,
    pids: BTreeSet<Pid>,
    cgroups: Vec<String>,
    /// Users whose processes are chosen; `None` for all users.
    users: Option<Vec<u32>>,
    exclude_users: Vec<u32>,
    /// True if neither names nor identifiers choose.
    all: bool,
    /// True if the exclusions are not known in full: then no process is chosen.
    is_unsure: bool,
    heed_trials: bool,
    least_resident: Bytes,
    most: usize,
}

/// Processes that were chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// Chosen processes, ascending.
    pub pids: Vec<Pid>,
    /// Number of further processes: they are smaller, or their user has more than half of all.
    pub left_out: usize,
    /// Chosen processes that a veto excludes, with the reason.
    pub vetoed: Vec<(Pid, String)>,
}

impl Select {
    /// Compiles a choice that was checked. An entry that is wrong nevertheless, such as a user that
    /// is gone, chooses nothing. If it is an exclusion, no process at all is chosen.
    pub fn new(processes: &Processes) -> Select {
        let compile = |patterns: &[String]| -> Vec<Regex> {
            patterns.iter().filter_map(|one| Regex::new(one).ok()).collect()
        };
        let uids =
            |users: &[String]| -> Vec<u32> { users.iter().filter_map(|user| uid(user).ok()).collect() };
        let (exclude, exclude_users) = (compile(&processes.exclude), uids(&processes.exclude_users));
        let is_unsure =
            exclude.len() < processes.exclude.len() || exclude_users.len() < processes.exclude_users.len();
        Select {
            include: compile(&processes.include),
            exclude,
            pids: processes.pids.iter().map(|pid| Pid(*pid)).collect(),
            cgroups: processes.cgroups.clone(),
            users: (!processes.users.is_empty()).then(|| uids(&processes.users)),
            exclude_users,
            all: processes.include.is_empty() && processes.pids.is_empty(),
            is_unsure,
            heed_trials: processes.heed_trials,
            least_resident: processes.least_resident,
            most: processes.most,
        }
    }

    /// Returns the chosen processes that exist now, without those that `veto` excludes. A process
    /// that ends meanwhile is skipped.
    pub fn now(&self, root: &KernelRoot, veto: &mut Veto) -> Result<Selected, KernelError> {
        let own = Pid(std::process::id().cast_signed());
        let (mut found, mut vetoed): (Vec<Found>, Vec<(Pid, String)>) = Default::default();
        for pid in list_processes(root)? {
            let Ok(status) = read_status(root, pid) else { continue };
            if self.wants(root, &status, own) {
                let named = self.pids.contains(&status.pid);
                if let Some(why) = (self.heed_trials && !named).then(|| veto(root, pid)).flatten() {
                    vetoed.push((pid, why));
                    continue;
                }
                // Not all resident memory: that would count a memory file as often as it is mapped.
                let size = status.rss_anonymous + status.hugetlb;
                found.push(Found { named, size, pid: status.pid, user: status.uids[0] });
            }
        }
        found.sort_by_key(|found| (!found.named, std::cmp::Reverse(found.size), found.pid));
        let left_out = found.len().saturating_sub(self.most);
        let mut pids = fairly(&found, self.most);
        pids.sort();
        Ok(Selected { pids, left_out, vetoed })
    }

    fn wants(&self, root: &KernelRoot, status: &Status, own: Pid) -> bool {
        let named = self.pids.contains(&status.pid);
        // A kernel thread has no page tables, and neither has a process that has ended.
        let has_memory = status.page_tables > Bytes::ZERO && !status.is_zombie();
        let own_family = status.pid == own || status.parent == own;
        if self.is_unsure || !has_memory || own_family || (status.pid == Pid(1) && !named) {
            return false;
        }
        let matches = |patterns: &[Regex]| patterns.iter().any(|pattern| pattern.is_match(&status.name));
        if matches(&self.exclude) || self.exclude_users.contains(&status.uids[0]) {
            return false;
        }
        if named {
            return true;
        }
        let chosen = self.all || matches(&self.include);
        chosen
            && status.rss + status.hugetlb >= self.least_resident
            && self.users.as_ref().is_none_or(|users| users.contains(&status.uids[0]))
            && (self.cgroups.is_empty() || self.in_cgroups(root, status.pid))
    }

    fn in_cgroups(&self, root: &KernelRoot, pid: Pid) -> bool {
        let Ok(path) = read_cgroup(root, pid) else { return false };
        self.cgroups.iter().any(|group| {
            let rest = path.strip_prefix(group.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// A process that may be chosen.
struct Found {
    named: bool,
    size: Bytes,
    pid: Pid,
    user: u32,
}

/// Returns the first `most` of these. No user gets more than half of the places, as long as there
/// are others' processes.
fn fairly(found: &[Found], most: usize) -> Vec<Pid> {
    let share = most.div_ceil(2);
    let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
    let (first, beyond): (Vec<&Found>, Vec<&Found>) = found.iter().partition(|found| {
        let count = of_user.entry(found.user).or_default();
        *count += usize::from(!found.named);
        found.named || *count <= share
    });
    first.into_iter().chain(beyond).take(most).map(|found| found.pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates processes from (pid, name, parent, uid, MiB, cgroup); one without memory is a kernel
    /// thread.
    fn tree(processes: &[(i32, &str, i32, u32, u64, &str)]) -> (tempfile::TempDir, KernelRoot) {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        for (pid, name, parent, uid, mib, cgroup) in processes {
            let directory = root.path(format!("proc/{pid}"));
            std::fs::create_dir_all(&directory).unwrap();
            let kib = mib << 10;
            let memory = format!("VmPTE:\t40 kB\nVmRSS:\t{kib} kB\nRssAnon:\t{kib} kB\n");
            let memory = if *mib > 0 { memory } else { String::new() };
            let text = format!(
                "Name:\t{name}\nState:\tS (sleeping)\nTgid:\t{pid}\nPPid:\t{parent}\nUid:\t{uid}\t0\t0\t0\n{memory}"
            );
            std::fs::write(directory.join("status"), text).unwrap();
            std::fs::write(directory.join("cgroup"), format!("4:memory:{cgroup}\n0::/\n")).unwrap();
        }
        (tree, root)
    }

    fn chosen(processes: Processes) -> (Vec<i32>, usize) {
        let own = std::process::id().cast_signed();
        let (_keep, root) = tree(&[
            (1, "systemd", 0, 0, 500, "/"),
            (2, "kswapd0", 0, 0, 0, "/"),
            (10, "redis-server", 1, 7, 400, "/db/redis"),
            (11, "java", 1, 8, 300, "/batch"),
            (12, "javac", 11, 8, 200, "/batch/x"),
            (13, "small", 1, 0, 20, "/"),
            (own, "megapage", 1, 0, 900, "/"),
            (own + 1, "redis-child", own, 0, 900, "/"),
        ]);
        let selected = Select::new(&processes).now(&root, &mut knows(&[])).unwrap();
        (selected.pids.iter().map(|pid| pid.0).collect(), selected.left_out)
    }

    /// Returns a veto on these processes.
    fn knows(pids: &'static [i32]) -> Veto {
        Box::new(|_, pid| pids.contains(&pid.0).then(|| format!("{pid} does not gain")))
    }

    fn default() -> Processes {
        Processes::default()
    }

    fn list(text: &str) -> Vec<String> {
        vec![text.to_string()]
    }

    #[test]
    fn all_that_are_large_but_the_first_the_kernels_and_ourselves() {
        assert_eq!(chosen(default()), (vec![10, 11, 12], 0));
        assert_eq!(chosen(Processes { least_resident: Bytes::mib(250), ..default() }).0, [10, 11]);
        assert_eq!(chosen(Processes { most: 1, ..default() }), (vec![10], 2));
    }

    #[test]
    fn no_user_takes_all_places_from_others() {
        let own = std::process::id().cast_signed();
        let mut processes: Vec<(i32, &str, i32, u32, u64, &str)> =
            (10..30).map(|pid| (pid, "greedy", 1, 7, 900, "/")).collect();
        processes.extend([(40, "honest", 1, 8, 100, "/"), (own, "megapage", 1, 0, 900, "/")]);
        let select = |most, named: &[i32]| {
            let (_keep, root) = tree(&processes);
            let processes = Processes { most, pids: named.to_vec(), include: list("."), ..default() };
            let selected = Select::new(&processes).now(&root, &mut knows(&[])).unwrap();
            (selected.pids.iter().map(|pid| pid.0).collect::<Vec<_>>(), selected.left_out)
        };
        assert_eq!(select(4, &[]), (vec![10, 11, 12, 40], 17));
        assert_eq!(select(1, &[]), (vec![10], 20));
        assert_eq!(select(2, &[28, 29]), (vec![28, 29], 19), "who is named comes first");
    }

    #[test]
    fn memory_files_do_not_count_as_often_as_they_are_mapped() {
        let (_keep, root) = tree(&[(10, "file", 1, 7, 0, "/"), (11, "heap", 1, 8, 100, "/")]);
        let status = root.read("proc/10/status").unwrap();
        let mapped =
            format!("{status}VmPTE:\t40 kB\nVmRSS:\t9000000 kB\nRssAnon:\t10 kB\nRssShmem:\t8999990 kB\n");
        std::fs::write(root.path("proc/10/status"), mapped).unwrap();
        let selected = Select::new(&Processes { most: 1, ..default() }).now(&root, &mut knows(&[])).unwrap();
        assert_eq!(selected.pids, [Pid(11)]);
    }

    #[test]
    fn names_numbers_groups_and_users_choose() {
        assert_eq!(chosen(Processes { include: list("java"), ..default() }).0, [11, 12]);
        assert_eq!(chosen(Processes { include: list("^java$"), pids: vec![13], ..default() }).0, [11, 13]);
        assert_eq!(chosen(Processes { pids: vec![1], ..default() }).0, [1], "named, though it is the first");
        assert_eq!(chosen(Processes { include: list("systemd"), ..default() }).0, [0; 0]);
        assert_eq!(chosen(Processes { cgroups: list("/batch/"), ..default() }).0, [11, 12]);
        assert_eq!(chosen(Processes { cgroups: list("/b"), ..default() }).0, [0; 0]);
        assert_eq!(chosen(Processes { users: list("7"), ..default() }).0, [10]);
    }

    #[test]
    fn an_unknown_user_selects_no_process_and_excluding_an_unknown_user_selects_none() {
        let gone = || list("no-such-user");
        assert_eq!(chosen(Processes { users: gone(), ..default() }).0, [0; 0]);
        let users = vec!["no-such-user".to_string(), "7".to_string()];
        assert_eq!(chosen(Processes { users, ..default() }).0, [10]);
        assert_eq!(chosen(Processes { exclude_users: gone(), ..default() }).0, [0; 0]);
        assert_eq!(chosen(Processes { exclude: list("("), ..default() }).0, [0; 0]);
        assert_eq!(chosen(Processes { include: list("("), ..default() }).0, [0; 0]);
    }

    #[test]
    fn who_is_excluded_is_left_alone_though_named() {
        assert_eq!(chosen(Processes { exclude: list("^java"), pids: vec![11], ..default() }).0, [0; 0]);
        assert_eq!(chosen(Processes { exclude_users: list("8"), ..default() }).0, [10]);
    }

    #[test]
    fn what_is_known_not_to_gain_is_left_alone_and_takes_no_place() {
        let (_keep, root) = tree(&[
            (10, "redis-server", 1, 7, 400, "/"),
            (11, "java", 1, 8, 300, "/"),
            (13, "small", 1, 0, 20, "/"),
        ]);
        let now = |processes: Processes| Select::new(&processes).now(&root, &mut knows(&[10, 13])).unwrap();
        let selected = now(Processes { most: 1, ..default() });
        assert_eq!((selected.pids, selected.left_out), (vec![Pid(11)], 0));
        assert_eq!(
            selected.vetoed,
            [(Pid(10), "10 does not gain".to_string())],
            "small ones are not asked for"
        );
        let selected = now(Processes { pids: vec![10], ..default() });
        assert_eq!((selected.pids, selected.vetoed), (vec![Pid(10)], vec![]), "named by number");
        let selected = now(Processes { heed_trials: false, ..default() });
        assert_eq!((selected.pids, selected.vetoed), (vec![Pid(10), Pid(11)], vec![]));
    }
}
