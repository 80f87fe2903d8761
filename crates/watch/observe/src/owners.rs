//! The owners of processes: users by name, control groups, pods. Each name is looked up once.

use megapage_kernel::KernelRoot;
use megapage_kernel::identity::account_of;
use megapage_kernel::process::read_cgroup;
use megapage_snapshot::{Outline, group};
use std::collections::HashMap;

/// Directory in which the kubelet keeps a directory for each pod of the node, named after the pod.
const PODS: &str = "var/log/pods";

/// Names that were looked up; `None`: there is no name.
#[derive(Debug, Default)]
pub struct Owners {
    users: HashMap<u32, Option<String>>,
    pods: HashMap<String, Option<String>>,
}

impl Owners {
    /// Completes the outlines. A process that has ended meanwhile gets no control group.
    pub fn complete(&mut self, root: &KernelRoot, outlines: &mut [Outline]) {
        let mut listed = false;
        for outline in outlines {
            outline.cgroup = read_cgroup(root, outline.pid).unwrap_or_default();
            let name = || account_of(outline.uid).ok().flatten().map(|account| account.name);
            outline.user = self.users.entry(outline.uid).or_insert_with(name).clone();
            let Some(pod) = group::pod(&outline.cgroup) else { continue };
            if !self.pods.contains_key(&pod) && !std::mem::replace(&mut listed, true) {
                self.list(root);
            }
            outline.pod_name = self.pods.entry(pod).or_default().clone();
        }
    }

    /// Reads the names of all pods. A container may not see the node's logs; then pods have no
    /// names.
    fn list(&mut self, root: &KernelRoot) {
        let names = root.list(PODS).unwrap_or_default();
        let found = names.iter().filter_map(|name| group::pod_of_directory(name));
        self.pods.extend(found.map(|(uid, name)| (uid, Some(name))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outline::outlines_of;
    use megapage_units::Pid;

    #[test]
    fn users_and_pods_have_names() {
        let tree = tempfile::tempdir().unwrap();
        let uid = "0d1e2f30-1111-2222-3333-444455556666";
        let process = |pid: u32, group: &str| {
            let directory = tree.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&directory).unwrap();
            let status = format!("Name:\tp\nTgid:\t{pid}\nUid:\t0\t0\t0\t0\nVmRSS:\t8 kB\n");
            std::fs::write(directory.join("status"), status).unwrap();
            std::fs::write(directory.join("cgroup"), format!("0::{group}\n")).unwrap();
        };
        process(5, &format!("/kubepods/pod{uid}/4f"));
        process(6, "/system.slice/a.service");
        process(7, &format!("/kubepods/pod{}/4f", uid.replace('0', "a")));
        std::fs::create_dir_all(tree.path().join(format!("var/log/pods/shop_cart-0_{uid}"))).unwrap();
        let root = KernelRoot::captured(tree.path());
        let mut outlines = outlines_of(&root, &[Pid(5), Pid(6), Pid(7)]);
        Owners::default().complete(&root, &mut outlines);
        let names: Vec<Option<&str>> = outlines.iter().map(|it| it.pod_name.as_deref()).collect();
        assert_eq!(names, [Some("shop/cart-0"), None, None]);
        assert_eq!(outlines[1].cgroup, "/system.slice/a.service");
        assert_eq!(outlines[0].user.as_deref(), Some("root"));
    }
}
