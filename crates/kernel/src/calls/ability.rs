//! Kernel abilities that megapage uses beyond the oldest release that it runs on. Each has the
//! release that brought it, and its replacement or loss on a kernel without it.
//!
//! [`ABILITIES`] is the one table. `megapage doctor` prints it, docs/machines.md is generated from
//! it, and code asks [`Ability::standing`] instead of reading an error number. An ability is tried
//! if a trial is cheap and harmless. Otherwise the release of the kernel answers, which a
//! distribution's backport may contradict.

mod release;
mod table;
mod trial;

pub use release::Release;
pub use table::{
    ABILITIES, BOOT_POOLS_PER_NODE, BPF_PAGE_WALK, COLLAPSE, EXT4_LARGE_FOLIOS, FILE_COLLAPSE, HUGETLB_CMA,
    HUGETLB_MREMAP, MTHP, PAGEMAP_SCAN, POPULATE_WRITE, PROCESS_MADVISE, SHMEM_MTHP, SPLIT_FREES_ZEROS, THP,
    THP_DISABLE_EXCEPT_ADVISED, XFS_LARGE_FOLIOS,
};

use crate::KernelRoot;
use crate::process::read_own_status;
use std::sync::OnceLock;

/// Ability that some kernels have and others lack.
#[derive(Debug)]
pub struct Ability {
    /// Name in JSON, lower case with hyphens.
    pub id: &'static str,
    /// Call, file or parameter, in the kernel's own words.
    pub name: &'static str,
    /// First release of mainline Linux that has it.
    pub since: Release,
    /// Documentation of `since`: a man page, or the commit that brought it.
    pub source: &'static str,
    /// Loss or replacement without it, in one sentence.
    pub without: &'static str,
    /// Way to find out its presence.
    probe: Probe,
    /// Answer of the running kernel.
    cached: OnceLock<Option<bool>>,
}

/// Way to find out the presence of an ability.
#[derive(Clone, Copy, Debug)]
enum Probe {
    /// By the kernel's release only: trying would change the machine, or take memory.
    Release,
    /// By one of these files; a captured tree holds them too.
    Files(&'static [&'static str]),
    /// As `Release`, but absent if this file lacks a line with this beginning: then the kernel was
    /// built without it.
    Line(&'static str, &'static str),
    /// By files, as this function reads them; a kernel of any release may be built without this
    /// option. `None`: no file shows it.
    Built(fn(&KernelRoot) -> Option<bool>, &'static str),
    /// By a call on memory of this process. `None`: this process cannot find out.
    Call(fn() -> Option<bool>),
}

megapage_units::named! {
    /// Source of the knowledge about an ability.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum KnownBy {
        /// The kernel was asked.
        Trial = "trial",
        /// The release of the kernel shows it; a backport is not seen.
        Release = "release",
    }
}

/// Presence of an ability, and the source of that knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// True if the kernel has it, or if neither a trial nor the release shows it.
    pub present: bool,
    /// Source of that knowledge.
    pub known_by: KnownBy,
}

/// Returns every ability with its standing on the kernel of `root`, the oldest first.
pub fn standings(root: &KernelRoot) -> Vec<(&'static Ability, Standing)> {
    ABILITIES.iter().map(|ability| (*ability, ability.standing(root))).collect()
}

impl Ability {
    /// Returns its standing on the kernel of `root`. Tries the running kernel once in the life of
    /// the process.
    pub fn standing(&self, root: &KernelRoot) -> Standing {
        let tried = match self.probe {
            Probe::Release => None,
            Probe::Files(files) => files.iter().any(|file| root.path(file).exists()).then_some(true),
            Probe::Line(file, beginning) => match root.read(file) {
                Ok(text) if !text.lines().any(|line| line.starts_with(beginning)) => Some(false),
                _ => None,
            },
            Probe::Built(is_built, _) => is_built(root),
            Probe::Call(_) if !root.is_live() => None,
            Probe::Call(call) => *self.cached.get_or_init(call),
        };
        if let Some(present) = tried {
            return Standing { present, known_by: KnownBy::Trial };
        }
        match Release::of(root).map(|release| self.is_in(release)) {
            // The file is missing on a kernel whose release has the ability: not configured.
            Some(true) if matches!(self.probe, Probe::Files(_)) => {
                Standing { present: false, known_by: KnownBy::Trial }
            }
            Some(present) => Standing { present, known_by: KnownBy::Release },
            None => Standing { present: true, known_by: KnownBy::Release },
        }
    }

    /// Returns true if the kernel of `root` has it.
    pub fn is_there(&self, root: &KernelRoot) -> bool {
        self.standing(root).present
    }

    /// Returns true if a kernel of this release has it, as far as releases show. Also for a kernel
    /// that does not run.
    pub fn is_in(&self, release: Release) -> bool {
        release >= self.since
    }

    /// Returns the message that it is missing. Blames a filter of system calls only if a trial was
    /// refused that the running kernel's release allows, and this process has a filter.
    pub fn lacking(&self) -> String {
        let root = KernelRoot::live();
        let refused = self.cached.get() == Some(&Some(false));
        let filtered = || read_own_status(&root).is_ok_and(|own| own.seccomp_filter);
        match refused && Release::of(&root).is_some_and(|release| self.is_in(release)) && filtered() {
            true => format!("a filter of system calls (seccomp) refuses {}", self.name),
            false => format!("this kernel lacks {}", self.title()),
        }
    }

    /// Returns the name for error messages, with the release or the build option that brings it:
    /// `MADV_COLLAPSE (Linux 6.1)`.
    pub fn title(&self) -> String {
        match self.probe {
            Probe::Built(_, option) => format!("{} ({option})", self.name),
            _ => format!("{} (Linux {})", self.name, self.since),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_testing::{Call, in_child, refuse};
    use std::collections::BTreeSet;

    fn captured(release: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, KernelRoot) {
        let mut all = vec![("proc/sys/kernel/osrelease", release)];
        all.extend_from_slice(files);
        crate::root::captured_tree(&all)
    }

    #[test]
    fn the_table_is_whole() {
        let ids: BTreeSet<&str> = ABILITIES.iter().map(|ability| ability.id).collect();
        assert_eq!(ids.len(), ABILITIES.len(), "two rows of one name");
        for ability in ABILITIES {
            assert!(!ability.source.is_empty() && !ability.name.contains('|'), "{}", ability.id);
            assert!(ability.without.ends_with('.') && !ability.without.contains('|'), "{}", ability.id);
            assert!(ability.id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
        }
        assert!(ABILITIES.is_sorted_by_key(|ability| ability.since), "ascending by release");
    }

    #[test]
    fn a_captured_kernel_answers_by_its_release() {
        for (release, has) in [("5.10.0-32-cloud-amd64\n", false), ("6.1.0\n", true), ("7.3.4", true)] {
            let (_tree, root) = captured(release, &[]);
            let expected = Standing { present: has, known_by: KnownBy::Release };
            assert_eq!(COLLAPSE.standing(&root), expected, "{release}");
        }
        let (_tree, root) = captured("not a release\n", &[]);
        assert!(COLLAPSE.is_there(&root), "nothing is refused for an unknown name");
    }

    #[test]
    fn a_file_is_believed_before_a_release() {
        let file = ("sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", "always [never]\n");
        let (_tree, root) = captured("5.14.0-570.el9\n", &[file]);
        assert_eq!(MTHP.standing(&root), Standing { present: true, known_by: KnownBy::Trial }, "a backport");
        let (_tree, root) = captured("6.12.0\n", &[]);
        assert_eq!(MTHP.standing(&root), Standing { present: false, known_by: KnownBy::Trial });
        let (_tree, root) = captured("6.1.0\n", &[]);
        assert_eq!(MTHP.standing(&root), Standing { present: false, known_by: KnownBy::Release });
    }

    #[test]
    fn a_kernel_built_without_cma_is_seen() {
        let (_tree, root) = captured("6.12.0\n", &[("proc/meminfo", "MemTotal: 1 kB\n")]);
        assert_eq!(HUGETLB_CMA.standing(&root), Standing { present: false, known_by: KnownBy::Trial });
        let (_tree, root) = captured("6.12.0\n", &[("proc/meminfo", "MemTotal: 1 kB\nCmaTotal: 0 kB\n")]);
        assert_eq!(HUGETLB_CMA.standing(&root), Standing { present: true, known_by: KnownBy::Release });
    }

    #[test]
    fn the_running_kernel_agrees_with_its_release() {
        let root = KernelRoot::live();
        let release = Release::of(&root).expect("the kernel has a release");
        for ability in ABILITIES.iter().filter(|ability| matches!(ability.probe, Probe::Call(_))) {
            let standing = ability.standing(&root);
            let (id, since) = (ability.id, ability.since);
            // A backport may bring an ability early. A later kernel without it means a wrong row or
            // a wrong trial.
            assert!(standing.present || release < since, "{id}: {standing:?} on {release}");
        }
    }

    #[test]
    fn what_a_filter_refuses_the_kernel_does_not_lack() {
        let root = KernelRoot::live();
        if Release::of(&root).is_none_or(|release| !COLLAPSE.is_in(release)) {
            return megapage_testing::skip("needs Linux 6.1");
        }
        let is_parent =
            in_child("calls::ability::tests::what_a_filter_refuses_the_kernel_does_not_lack", || {
                assert!(
                    COLLAPSE.lacking().starts_with("this kernel lacks MADV_COLLAPSE"),
                    "nothing was tried"
                );
                refuse(Call { number: libc::SYS_process_madvise, argument: None }, libc::ENOSYS);
                assert!(!COLLAPSE.is_there(&root));
                assert_eq!(COLLAPSE.lacking(), "a filter of system calls (seccomp) refuses MADV_COLLAPSE");
            });
        assert!(is_parent || !COLLAPSE.is_there(&root));
    }

    #[test]
    fn a_kernel_without_sysfs_is_not_one_without_transparent_huge_pages() {
        let meminfo = |text| ("proc/meminfo", text);
        let (with, without) = ("MemTotal: 1 kB\nAnonHugePages: 0 kB\n", "MemTotal: 1 kB\n");
        let present = |files: &[(&str, &str)]| THP.standing(&captured("6.1.0-37-rt-amd64", files).1).present;
        assert!(!present(&[("sys/kernel/mm/ksm/run", "0\n"), meminfo(without)]), "Debian's -rt");
        let enabled = ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        assert!(present(&[enabled, meminfo(without)]));
        assert!(present(&[meminfo(with)]), "a chroot");
        assert!(present(&[meminfo(without)]) && present(&[]), "a sandbox that shows nothing");
        assert!(present(&[("sys/kernel/mm/ksm/run", "0\n"), meminfo(with)]), "the directory is hidden");
    }

    #[test]
    fn a_message_names_the_release_or_the_option() {
        assert_eq!(COLLAPSE.title(), "MADV_COLLAPSE (Linux 6.1)");
        assert_eq!(THP.title(), "transparent huge pages (CONFIG_TRANSPARENT_HUGEPAGE)");
    }
}
