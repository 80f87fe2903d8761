//! Identity and rights of a user, and signs that the caller is confined to a container or a user
//! namespace.
//!
//! File-level obligation of the unsafe code: the C library's reentrant look-ups get a buffer that
//! outlives every pointer they store in it. All that they point to is copied before the buffer
//! goes.

#![allow(unsafe_code)]

mod files;

use crate::KernelRoot;
use crate::c_library::getauxval;
use files::Wanted;
use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr;

/// Returns true if the C library is linked into the program, so that no module of the name service
/// fits it. Then the kernel has mapped no dynamic loader. Source: getauxval(3), AT_BASE.
fn is_static() -> bool {
    getauxval(libc::AT_BASE) == 0
}

/// An account, as the name service knows it (/etc/passwd, LDAP, systemd and so on). A static
/// program sees only the files in /etc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The login name.
    pub name: String,
    /// The user.
    pub uid: u32,
    /// The group that a login starts with.
    pub gid: u32,
    /// All groups of a login, `gid` among them.
    pub groups: Vec<u32>,
}

/// The largest buffer tried for one entry of the name service.
const LARGEST_ENTRY: usize = 1 << 20;

/// Returns the account with this login name. If there is none and the name is a number, returns the
/// account with this user number. `Ok(None)`: no such account. Source: getpwnam_r(3),
/// getgrouplist(3).
pub fn account(name: &str) -> io::Result<Option<Account>> {
    if is_static() {
        let by_name = files::account(Path::new("/"), Wanted::Name(name))?;
        return match (by_name, name.parse()) {
            (None, Ok(uid)) => account_of(uid),
            (found, _) => Ok(found),
        };
    }
    // A name with a zero byte in it can't be an account's.
    let Ok(text) = CString::new(name) else { return Ok(None) };
    let by_name = lookup(account_entry, |entry, buffer, length, found| {
        // SAFETY: per `lookup`, the pointers are valid for the call, and `length` is the buffer's
        // length.
        unsafe { libc::getpwnam_r(text.as_ptr(), entry, buffer, length, found) }
    })?;
    match (by_name, name.parse()) {
        (None, Ok(uid)) => account_of(uid),
        (found, _) => found.map(with_groups).transpose(),
    }
}

/// Returns the account of a user number; `Ok(None)`: it has none. Source: getpwuid_r(3).
pub fn account_of(uid: u32) -> io::Result<Option<Account>> {
    if is_static() {
        return files::account(Path::new("/"), Wanted::Number(uid));
    }
    lookup(account_entry, |entry, buffer, length, found| {
        // SAFETY: as in `account`.
        unsafe { libc::getpwuid_r(uid, entry, buffer, length, found) }
    })?
    .map(with_groups)
    .transpose()
}

/// Returns the name of an entry, and a conversion of the entry. The groups are left empty.
fn account_entry(entry: &libc::passwd) -> (*const libc::c_char, impl FnOnce(String) -> Account + use<>) {
    let (uid, gid) = (entry.pw_uid, entry.pw_gid);
    (entry.pw_name, move |name| Account { name, uid, gid, groups: Vec::new() })
}

/// Runs one look-up with growing buffers, and copies what it finds. `read` returns the name of an
/// entry, and a conversion that gets that name.
fn lookup<E, F: FnOnce(String) -> T, T>(
    read: impl Fn(&E) -> (*const libc::c_char, F),
    mut call: impl FnMut(*mut E, *mut libc::c_char, usize, *mut *mut E) -> libc::c_int,
) -> io::Result<Option<T>> {
    let mut buffer: Vec<libc::c_char> = vec![0; 4096];
    loop {
        let mut entry = MaybeUninit::<E>::uninit();
        let mut found = ptr::null_mut();
        match call(entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found) {
            0 if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: the call stored a valid entry there.
                let (name, convert) = read(unsafe { &*found });
                // SAFETY: the strings of the entry lie in `buffer`.
                let name = unsafe { CStr::from_ptr(name) };
                return Ok(Some(convert(name.to_string_lossy().into_owned())));
            }
            libc::ERANGE if buffer.len() < LARGEST_ENTRY => buffer.resize(buffer.len() * 4, 0),
            // The manual page lists these, beside 0, as "not found" on some systems.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

fn with_groups(mut account: Account) -> io::Result<Account> {
    // NGROUPS_MAX: a process can't have more.
    const MOST_GROUPS: usize = 65_536;
    let name = CString::new(account.name.as_str()).map_err(io::Error::other)?;
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: `groups` has room for `count` entries, and the name is a C string.
        let result =
            unsafe { libc::getgrouplist(name.as_ptr(), account.gid, groups.as_mut_ptr(), &mut count) };
        if result >= 0 {
            groups.truncate(count.max(0) as usize);
            account.groups = groups;
            return Ok(account);
        }
        if groups.len() >= MOST_GROUPS {
            return Err(io::Error::other(format!("{} is in too many groups", account.name)));
        }
        groups.resize(groups.len() * 4, 0);
    }
}

/// Returns the name of a group; `None` where it has none, or the look-up fails. Source:
/// getgrgid_r(3).
pub fn group_name(gid: u32) -> Option<String> {
    if is_static() {
        return files::group_name(Path::new("/"), gid);
    }
    let read = |entry: &libc::group| (entry.gr_name.cast_const(), |name| name);
    let found = lookup(read, |entry, buffer, length, found| {
        // SAFETY: as in `account`.
        unsafe { libc::getgrgid_r(gid, entry, buffer, length, found) }
    });
    found.ok().flatten()
}

/// A set of capabilities (capabilities(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// No capability.
    pub const NONE: Capabilities = Capabilities(0);

    /// Returns true with CAP_DAC_OVERRIDE: access to files whatever their permissions.
    pub fn dac_override(self) -> bool {
        self.has(1)
    }

    /// Returns true with CAP_DAC_READ_SEARCH: reading files whatever their permissions.
    /// CAP_DAC_OVERRIDE implies it. Other users' `/proc/PID/pagemap` require it, even of root.
    pub fn dac_read_search(self) -> bool {
        self.dac_override() || self.has(2)
    }

    /// Returns true with CAP_IPC_LOCK: SHM_HUGETLB for users outside `vm.hugetlb_shm_group`, and no
    /// limit on locked memory.
    pub fn ipc_lock(self) -> bool {
        self.has(14)
    }

    /// Returns true with CAP_SYS_PTRACE: looking at processes of other users.
    pub fn sys_ptrace(self) -> bool {
        self.has(19)
    }

    /// Returns true with CAP_SYS_ADMIN: mounting, among much else.
    pub fn sys_admin(self) -> bool {
        self.has(21)
    }

    /// Returns true with CAP_SYS_NICE: process_madvise(2) on another process.
    pub fn sys_nice(self) -> bool {
        self.has(23)
    }

    /// Returns true with CAP_BPF and CAP_PERFMON: loading BPF programs that read the kernel's
    /// memory. CAP_SYS_ADMIN implies both.
    pub fn bpf_tracing(self) -> bool {
        self.sys_admin() || (self.has(39) && self.has(38))
    }

    fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }
}

/// Returns true if the caller's user namespace is not the machine's own: capabilities then hold
/// within it only.
///
/// The initial namespace maps all users to themselves (user_namespaces(7)). Another namespace might
/// do the same. It can't be distinguished, and behaves the same for what is asked here.
pub fn in_user_namespace(root: &KernelRoot) -> bool {
    root.read("proc/self/uid_map").is_ok_and(|text| {
        let values: Vec<&str> = text.split_whitespace().collect();
        values != ["0", "0", "4294967295"]
    })
}

/// Returns groups as the user namespace above the caller's numbers them (`/proc/self/gid_map`).
/// These are the machine's own numbers unless namespaces are nested. A group that is not mapped
/// there is left out.
pub fn groups_of_machine(root: &KernelRoot, groups: &[u32]) -> Vec<u32> {
    let Ok(map) = root.read("proc/self/gid_map") else { return groups.to_vec() };
    let lines: Vec<[u64; 3]> = map
        .lines()
        .filter_map(|line| {
            let numbers: Vec<u64> = line.split_whitespace().filter_map(|it| it.parse().ok()).collect();
            numbers.try_into().ok()
        })
        .collect();
    let outside = |group: &u32| {
        let group = u64::from(*group);
        let line = lines.iter().find(|[inside, _, count]| group >= *inside && group - inside < *count)?;
        u32::try_from(line[1] + (group - line[0])).ok()
    };
    groups.iter().filter_map(outside).collect()
}

/// Returns the sign that this is a container, where it is one: a mark that container managers
/// leave, or a process namespace other than the machine's own. A mark does not count in the
/// machine's own process and control group namespaces: virtual machines made from a container's
/// image keep it.
pub fn container(root: &KernelRoot) -> Option<String> {
    // PROC_PID_INIT_INO and PROC_CGROUP_INIT_INO of the kernel's include/linux/proc_ns.h.
    let initial = [("pid", "pid:[4026531836]"), ("cgroup", "cgroup:[4026531835]")];
    let is_initial = |(name, link): (&str, &str)| {
        std::fs::read_link(root.path(format!("proc/self/ns/{name}"))).is_ok_and(|found| found == *link)
    };
    if initial.into_iter().all(is_initial) {
        return None;
    }
    // Left by docker, podman and CRI-O, and systemd respectively.
    for mark in [".dockerenv", "run/.containerenv", "run/systemd/container"] {
        if root.read(mark).is_ok() {
            return Some(format!("/{mark}"));
        }
    }
    // Set by systemd-nspawn, LXC and podman for the first process.
    let environment = root.read("proc/1/environ").unwrap_or_default();
    let mark = environment.split('\0').find(|entry| entry.starts_with("container="));
    if let Some(mark) = mark {
        return Some(format!("/proc/1/environ: {mark}"));
    }
    // Kubernetes leaves no mark, but it makes a process namespace, as others do.
    let namespace = std::fs::read_link(root.path("proc/self/ns/pid")).ok()?;
    (namespace != *initial[0].1).then(|| format!("/proc/self/ns/pid: {}", namespace.display()))
}

/// Returns true if SELinux is there and enforcing (selinux(8)).
pub fn selinux_enforcing(root: &KernelRoot) -> bool {
    root.read("sys/fs/selinux/enforce").is_ok_and(|text| text.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn accounts_are_found_by_name_and_by_number() {
        let root = account("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(account("0").unwrap(), Some(root));
        assert_eq!(account("no-such-user-here").unwrap(), None);
        assert_eq!(account("nul\0byte").unwrap(), None);
        assert_eq!(account_of(4_000_000_001).unwrap(), None);
        assert_eq!(group_name(0).as_deref(), Some("root"));
        assert_eq!(group_name(4_000_000_001), None);
        assert!(!is_static(), "tests are linked dynamically");
    }

    #[test]
    fn containers_and_namespaces_are_known_by_their_files() {
        let directory = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(directory.path());
        assert_eq!(container(&root), None);
        assert!(!in_user_namespace(&root));
        fs::create_dir_all(directory.path().join("proc/self")).unwrap();
        fs::create_dir_all(directory.path().join("proc/1")).unwrap();
        fs::write(directory.path().join("proc/self/uid_map"), "         0          0 4294967295\n").unwrap();
        assert!(!in_user_namespace(&root));
        fs::write(directory.path().join("proc/self/uid_map"), "0 100000 65536\n").unwrap();
        assert_eq!(groups_of_machine(&root, &[0, 27]), [0, 27], "nothing says otherwise");
        fs::write(directory.path().join("proc/self/gid_map"), "0 1000 1\n5 100005 10\n").unwrap();
        assert_eq!(groups_of_machine(&root, &[0, 7, 65_534]), [1000, 100_007]);
        assert!(in_user_namespace(&root));
        fs::write(directory.path().join("proc/1/environ"), "TERM=x\0container=lxc\0").unwrap();
        assert_eq!(container(&root).as_deref(), Some("/proc/1/environ: container=lxc"));
        fs::remove_file(directory.path().join("proc/1/environ")).unwrap();
        assert_eq!(container(&root), None);
        fs::create_dir_all(directory.path().join("proc/self/ns")).unwrap();
        let namespace = directory.path().join("proc/self/ns/pid");
        std::os::unix::fs::symlink("pid:[4026532000]", &namespace).unwrap();
        assert_eq!(container(&root).as_deref(), Some("/proc/self/ns/pid: pid:[4026532000]"));
        fs::remove_file(namespace).unwrap();
        fs::write(directory.path().join(".dockerenv"), "").unwrap();
        assert_eq!(container(&root).as_deref(), Some("/.dockerenv"));
        let link = |name: &str, to: &str| {
            std::os::unix::fs::symlink(to, directory.path().join("proc/self/ns").join(name)).unwrap();
        };
        link("pid", "pid:[4026531836]");
        assert!(container(&root).is_some(), "the other namespace is not known");
        link("cgroup", "cgroup:[4026531835]");
        assert_eq!(container(&root), None);
        assert!(!selinux_enforcing(&root));
        fs::create_dir_all(directory.path().join("sys/fs/selinux")).unwrap();
        fs::write(directory.path().join("sys/fs/selinux/enforce"), "1").unwrap();
        assert!(selinux_enforcing(&root));
    }
}
