//! Limits that stand in the way of huge pages: of a process, of a login, and of the machine.

use crate::process::{list_processes, read_status};
use crate::{KernelError, KernelRoot};
use megapage_units::{Bytes, Pid};
use std::fmt;

/// A resource limit in bytes (getrlimit(2)); `None` is RLIM_INFINITY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<Bytes>);

impl Limit {
    /// Returns true if `bytes` are within the limit.
    pub fn admits(self, bytes: Bytes) -> bool {
        self.0.is_none_or(|limit| bytes <= limit)
    }
}

/// Formats as `unlimited` or `8 MiB`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.pad("unlimited"),
            Some(bytes) => bytes.fmt(f),
        }
    }
}

/// The soft limits of a process that bear on huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// RLIMIT_MEMLOCK: mlock(2), and SHM_HUGETLB for users outside `vm.hugetlb_shm_group`.
    pub locked: Limit,
    /// RLIMIT_AS: all mappings together.
    pub address_space: Limit,
    /// RLIMIT_DATA: private writable mappings together, private hugetlb ones included.
    pub data: Limit,
}

impl Limits {
    /// Reads the limits of process `pid`, or of the caller: `/proc/PID/limits`
    /// (proc_pid_limits(5)).
    pub fn read(root: &KernelRoot, pid: Option<Pid>) -> Result<Limits, KernelError> {
        let path = pid.map_or("proc/self/limits".to_string(), |pid| format!("proc/{pid}/limits"));
        let text = root.read(&path)?;
        let soft = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.split_whitespace().next());
            match number {
                Some("unlimited") => Ok(Limit(None)),
                number => match number.and_then(|number| number.parse().ok()) {
                    Some(bytes) => Ok(Limit(Some(Bytes(bytes)))),
                    None => Err(KernelError::Parse {
                        path: root.path(&path),
                        line: 1,
                        what: format!("expected a line '{name}' with a number"),
                    }),
                },
            }
        };
        Ok(Limits {
            locked: soft("Max locked memory")?,
            address_space: soft("Max address space")?,
            data: soft("Max data size")?,
        })
    }
}

/// Returns the first process (lowest number) that user `uid` runs, and its limits. `None` where it
/// runs none whose limits can be read. A process that ends meanwhile is skipped.
pub fn limits_of_user(root: &KernelRoot, uid: u32) -> Option<(Pid, Limits)> {
    list_processes(root).ok()?.into_iter().find_map(|pid| {
        // The real user's limit counts, but a process with another effective user is not that
        // user's own.
        let status = read_status(root, pid).ok()?;
        let owned = status.uids.iter().all(|own| *own == uid) && !status.is_zombie();
        owned.then(|| Some((pid, Limits::read(root, Some(pid)).ok()?))).flatten()
    })
}

/// Returns the soft limit on locked memory that pam_limits gives a login of this user, and the file
/// that sets it. `None`: no file does, and a login keeps what it inherits. The limit does not apply
/// to services: systemd has `LimitMEMLOCK=`. Source: limits.conf(5).
pub fn login_memlock(
    root: &KernelRoot,
    name: &str,
    uid: u32,
    gid: u32,
    groups: &[String],
) -> Option<(String, Limit)> {
    let drop_ins = root.list("etc/security/limits.d").unwrap_or_default();
    let files = std::iter::once("etc/security/limits.conf".to_string()).chain(
        drop_ins
            .iter()
            .filter(|name| name.ends_with(".conf"))
            .map(|name| format!("etc/security/limits.d/{name}")),
    );
    // An entry for the user beats one for a group, which beats the default. The later of equals
    // wins.
    let mut best: Option<(u8, String, Limit)> = None;
    for file in files {
        let Ok(text) = root.read(&file) else { continue };
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let [domain, kind, "memlock", value] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                continue;
            };
            if !matches!(kind, "soft" | "-") {
                continue;
            }
            let rank = match domain {
                domain if domain == name => 3,
                // Only an entry by its name applies to root.
                _ if uid == 0 => continue,
                domain
                    if domain
                        .strip_prefix('@')
                        .is_some_and(|group| groups.iter().any(|own| own == group)) =>
                {
                    2
                }
                // A range of groups counts as a group, a range of users as a user.
                domain if domain.contains(':') => match domain.strip_prefix('@') {
                    Some(range) if in_range(range, gid) => 2,
                    None if in_range(domain, uid) => 3,
                    _ => continue,
                },
                "*" => 1,
                _ => continue,
            };
            let limit = match value {
                "unlimited" | "infinity" | "-1" => Limit(None),
                kib => match kib.parse() {
                    Ok(kib) => Limit(Some(Bytes::kib(kib))),
                    Err(_) => continue,
                },
            };
            if best.as_ref().is_none_or(|(former, ..)| rank >= *former) {
                best = Some((rank, format!("/{file}"), limit));
            }
        }
    }
    best.map(|(_, file, limit)| (file, limit))
}

/// Returns true if `id` lies in `min:max`, where either may be absent, but not both.
fn in_range(range: &str, id: u32) -> bool {
    let Some((min, max)) = range.split_once(':') else { return false };
    match (min.parse::<u32>(), max.parse::<u32>()) {
        (Ok(min), Ok(max)) => (min..=max).contains(&id),
        (Ok(min), Err(_)) if max.is_empty() => id >= min,
        // limits.conf(5): `:max` means exactly that one.
        (Err(_), Ok(max)) if min.is_empty() => id == max,
        _ => false,
    }
}

/// The machine's settings that bear on huge pages
/// (Documentation/admin-guide/sysctl/{vm,kernel}.rst). A setting that the kernel lacks is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sysctls {
    /// `vm.hugetlb_shm_group`: the group that may use SHM_HUGETLB.
    pub hugetlb_shm_group: Option<u32>,
    /// `vm.overcommit_memory`: 0 heuristic, 1 always, 2 strict.
    pub overcommit_memory: Option<u64>,
    /// `vm.max_map_count`: mappings of one process.
    pub max_map_count: Option<u64>,
    /// `kernel.shmmax`: the largest SysV segment.
    pub shmmax: Option<Bytes>,
    /// `kernel.shmall`: all SysV segments together, in base pages.
    pub shmall: Option<u64>,
}

impl Sysctls {
    /// Reads them all.
    pub fn read(root: &KernelRoot) -> Sysctls {
        let number = |name: &str| root.read_u64(format!("proc/sys/{name}")).ok();
        Sysctls {
            hugetlb_shm_group: number("vm/hugetlb_shm_group").and_then(|gid| u32::try_from(gid).ok()),
            overcommit_memory: number("vm/overcommit_memory"),
            max_map_count: number("vm/max_map_count"),
            shmmax: number("kernel/shmmax").map(Bytes),
            shmall: number("kernel/shmall"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree as tree;

    const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max data size             unlimited            unlimited            bytes
Max locked memory         8388608              16777216             bytes
Max address space         1073741824           unlimited            bytes
";

    #[test]
    fn soft_limits_of_a_process_and_of_a_user() {
        let status = "Name:\tjava\nUid:\t998\t998\t998\t998\nGid:\t9\t9\t9\t9\nCapEff:\t0\n";
        let (_keep, root) = tree(&[
            ("proc/30/limits", LIMITS),
            ("proc/30/status", status),
            ("proc/4/status", "Name:\tinit\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapEff:\t0\n"),
            ("proc/sys/x", ""),
        ]);
        let (pid, limits) = limits_of_user(&root, 998).unwrap();
        assert_eq!(pid, Pid(30));
        assert_eq!(limits.locked, Limit(Some(Bytes::mib(8))));
        assert_eq!(limits.data, Limit(None));
        assert_eq!(limits.address_space.to_string(), "1 GiB");
        assert!(limits.locked.admits(Bytes::mib(8)) && !limits.locked.admits(Bytes::mib(9)));
        assert!(limits_of_user(&root, 7).is_none());
        let (_keep, root) = tree(&[("proc/30/limits", "Max data size  some\n")]);
        let error = Limits::read(&root, Some(Pid(30))).unwrap_err().to_string();
        assert!(error.contains("expected a line 'Max locked memory'"), "{error}");
    }

    #[test]
    fn a_login_gets_the_most_particular_entry() {
        let (_keep, root) = tree(&[
            (
                "etc/security/limits.conf",
                "# comment\n* soft memlock 64\n* hard memlock 128 # not soft\n@db - memlock 2048\n\
                 oracle soft memlock unlimited\n2000:3000 soft memlock 4\n",
            ),
            ("etc/security/limits.d/90.conf", "*\t-\tmemlock\t32\nbad - memlock lots\n"),
            ("etc/security/limits.d/90.conf.bak", "* - memlock 1\n"),
        ]);
        let of = |name: &str, uid, groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
            login_memlock(&root, name, uid, uid, &groups)
        };
        let kib = |kib| Limit(Some(Bytes::kib(kib)));
        assert_eq!(of("eve", 5, &[]), Some(("/etc/security/limits.d/90.conf".into(), kib(32))));
        assert_eq!(of("ann", 5, &["db"]).unwrap().1, kib(2048));
        assert_eq!(of("oracle", 5, &["db"]).unwrap().1, Limit(None));
        assert_eq!(of("joe", 2500, &[]).unwrap().1, kib(4));
        assert_eq!(of("bad", 5, &[]).unwrap().1, kib(32));
        assert_eq!(of("root", 0, &["db"]), None);
        let (_keep, root) = tree(&[]);
        assert_eq!(login_memlock(&root, "eve", 5, 5, &[]), None);
    }

    #[test]
    fn ranges_are_inclusive() {
        assert!(in_range("5:9", 5) && in_range("5:9", 9) && !in_range("5:9", 10));
        assert!(in_range("5:", 7) && !in_range("5:", 4));
        assert!(in_range(":7", 7) && !in_range(":7", 6));
        assert!(!in_range(":", 7) && !in_range("a:b", 7));
    }

    #[test]
    fn what_the_kernel_lacks_is_none() {
        let (_keep, root) = tree(&[
            ("proc/sys/kernel/shmmax", "18446744073692774399\n"),
            ("proc/sys/vm/hugetlb_shm_group", "27\n"),
        ]);
        let sysctls = Sysctls::read(&root);
        assert_eq!(sysctls.shmmax, Some(Bytes(18_446_744_073_692_774_399)));
        assert_eq!(sysctls.hugetlb_shm_group, Some(27));
        assert_eq!(sysctls.shmall, None);
    }
}
