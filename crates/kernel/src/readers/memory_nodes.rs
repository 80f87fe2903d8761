//! NUMA nodes from which a process may have memory, by its cpuset (proc_pid_status(5),
//! `Mems_allowed_list`) and its memory policy (numa(7), set_mempolicy(2)).

use crate::{KernelError, KernelRoot};
use megapage_units::Pid;

/// The nodes of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNodes {
    /// Nodes that the cpuset allows, ascending. Empty where the kernel does not say.
    pub allowed: Vec<u32>,
    /// Nodes that the policy binds to (MPOL_BIND); `None`: none, or not known.
    pub bound: Option<Vec<u32>>,
}

impl MemoryNodes {
    /// Reads the nodes of process `pid`, or of the caller. The policy is that of the stack: the
    /// process's own, unless the stack was given another one. It is read for the caller alone,
    /// since that walks all page tables.
    pub fn read(root: &KernelRoot, pid: Option<Pid>) -> Result<MemoryNodes, KernelError> {
        let who = pid.map_or("self".to_string(), |pid| pid.to_string());
        let status = root.read(format!("proc/{who}/status"))?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
        // Without CONFIG_NUMA there is no such file, and no policy.
        let maps =
            if pid.is_none() { root.read("proc/self/numa_maps").unwrap_or_default() } else { String::new() };
        Ok(MemoryNodes { allowed: allowed.and_then(list).unwrap_or_default(), bound: bound(&maps) })
    }

    /// Returns true if memory may come from `node`.
    pub fn may_use(&self, node: u32) -> bool {
        (self.allowed.is_empty() || self.allowed.contains(&node))
            && self.bound.as_ref().is_none_or(|bound| bound.contains(&node))
    }
}

/// Returns the nodes of `ADDRESS bind:0-1 stack ...`.
fn bound(maps: &str) -> Option<Vec<u32>> {
    let line = maps.lines().find(|line| line.split(' ').any(|word| word == "stack"))?;
    // `bind=static:0` and `bind=relative:0` are binding, too.
    let (mode, nodes) = line.split(' ').nth(1)?.split_once(':')?;
    (mode == "bind" || mode.starts_with("bind=")).then(|| list(nodes)).flatten()
}

/// Returns `0-1,3` as numbers; `None` where it is no list of nodes, or names more than there can
/// be.
fn list(text: &str) -> Option<Vec<u32>> {
    const MOST_NODES: u32 = 1 << 10;
    let mut nodes = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST_NODES {
            return None;
        }
        nodes.extend(first..=last);
    }
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(allowed: &str, maps: &str) -> MemoryNodes {
        let status = format!("Name:\tx\nMems_allowed_list:\t{allowed}\nvoluntary_ctxt_switches:\t1\n");
        let files = [("proc/self/status", status.as_str()), ("proc/self/numa_maps", maps)];
        let (_tree, root) = crate::root::captured_tree(&files);
        MemoryNodes::read(&root, None).unwrap()
    }

    #[test]
    fn the_cpuset_and_the_policy_are_read() {
        let maps = "55d0 default file=/bin/x\n7ffd000 bind:1 stack anon=3 dirty=3 N1=3\n";
        let found = nodes("0-1,3", maps);
        assert_eq!(found, MemoryNodes { allowed: vec![0, 1, 3], bound: Some(vec![1]) });
        assert!(found.may_use(1) && !found.may_use(0) && !found.may_use(2));
        let found = nodes("0", "7ffd000 prefer:1 stack anon=3\n");
        assert_eq!(found, MemoryNodes { allowed: vec![0], bound: None }, "a preference is no limit");
        assert_eq!(nodes("0", "7ffd000 bind=static:0-1 stack\n").bound, Some(vec![0, 1]));
        assert!(nodes("", "").may_use(7), "nothing is known");
        assert!(nodes("0-99999999", "").allowed.is_empty());
    }

    #[test]
    fn this_process_has_a_node() {
        let found = MemoryNodes::read(&KernelRoot::live(), None).unwrap();
        assert!(found.allowed.is_empty() || found.allowed.iter().any(|node| found.may_use(*node)));
    }
}
