//! Limits that keep the calling process from hugetlb pages though the pool has some: those of its
//! control groups, its memory policy, its cpuset. Read without allocating, for code inside malloc.
//!
//! Sources: Documentation/admin-guide/cgroup-v2.rst (HugeTLB), .../cgroup-v1/hugetlb.rst,
//! get_mempolicy(2).
//!
//! File-level obligation: the masks that get_mempolicy(2) fills are as long as it is given.

#![allow(unsafe_code)]

use crate::own_values::{first_number, hugetlb_free_on_node, read_file};
use crate::system::call;
use megapage_units::PageSize;
use std::io::Write;

/// Longest path that is looked at, with its terminating NUL. A longer one counts as absent.
const PATH: usize = 512;
/// The most levels of groups that are read, from the process's own upwards.
const MOST_LEVELS: usize = 32;
/// Bits of a mask of nodes; no kernel for x86-64 or arm64 is built for more (NODES_SHIFT of at most
/// 10).
const MOST_NODES: usize = 1024;

/// Bytes of hugetlb pages of one size that the control groups of the calling process still allow.
/// `None`: no limit that can be seen. Groups above a container's are not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugetlbRoom {
    /// Charged when pages are faulted in (`hugetlb.<size>.max`; version 1: `limit_in_bytes`).
    pub fault: Option<u64>,
    /// Charged when pages are mapped (`hugetlb.<size>.rsvd.max`; version 1: `rsvd.limit_in_bytes`).
    pub reservation: Option<u64>,
}

/// Free pages of one size, by the nodes from which the calling thread may have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeByNode {
    /// On all nodes.
    pub all: u64,
    /// On those that the cpuset allows.
    pub cpuset: u64,
    /// On those of them that the memory policy (MPOL_BIND) allows as well.
    pub policy: u64,
}

/// Reads what the control groups leave for pages of `size`. Takes for granted that they are mounted
/// as systemd and container engines do it.
pub fn hugetlb_room(size: PageSize) -> HugetlbRoom {
    let mut text = [0u8; 4096];
    let Some(len) = read_file(b"/proc/self/cgroup\0", &mut text) else { return HugetlbRoom::default() };
    room_of(&text[..len], size, &mut |path| {
        let mut text = [0u8; 32];
        let len = read_file(path, &mut text)?;
        first_number(&text[..len])
    })
}

/// Returns the room by the text of `/proc/self/cgroup`. `read` answers the value in the file of a
/// path that ends in a NUL.
fn room_of(groups: &[u8], size: PageSize, read: &mut dyn FnMut(&[u8]) -> Option<u64>) -> HugetlbRoom {
    let mut room = HugetlbRoom::default();
    for line in groups.split(|&byte| byte == b'\n') {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let v1 = controllers.split(|&byte| byte == b',').any(|name| name == b"hugetlb");
        let mounts: &[&str] = match (number, v1) {
            (_, true) => &["/sys/fs/cgroup/hugetlb"],
            (b"0", _) => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
            _ => continue,
        };
        for mount in mounts {
            let mut level = path;
            for _ in 0..MOST_LEVELS {
                let mut left = |reservation| level_room(mount, level, size, v1, reservation, read);
                room.fault = least(room.fault, left(false));
                room.reservation = least(room.reservation, left(true));
                match level.iter().rposition(|&byte| byte == b'/') {
                    Some(at) if level.len() > 1 => level = &level[..at],
                    _ => break,
                }
            }
        }
    }
    room
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// Returns the bytes that one group leaves; `None` where it sets no limit.
fn level_room(
    mount: &str,
    group: &[u8],
    size: PageSize,
    v1: bool,
    reservation: bool,
    read: &mut dyn FnMut(&[u8]) -> Option<u64>,
) -> Option<u64> {
    let [limit, usage] = match (v1, reservation) {
        (false, false) => ["max", "current"],
        (false, true) => ["rsvd.max", "rsvd.current"],
        (true, false) => ["limit_in_bytes", "usage_in_bytes"],
        (true, true) => ["rsvd.limit_in_bytes", "rsvd.usage_in_bytes"],
    };
    let mut value = |name: &str| {
        let mut path = [0u8; PATH];
        let mut rest = &mut path[..];
        rest.write_all(mount.as_bytes()).ok()?;
        rest.write_all(group).ok()?;
        let mib = size.bytes().0 >> 20;
        let (count, unit) = if mib >= 1024 { (mib >> 10, "GB") } else { (mib, "MB") };
        write!(rest, "/hugetlb.{count}{unit}.{name}\0").ok()?;
        let left = rest.len();
        read(&path[..PATH - left])
    };
    // "max" has no number.
    let limit = value(limit)?;
    Some(limit.saturating_sub(value(usage)?))
}

/// Returns the free pages of `size`: on all nodes, on those that the calling thread's cpuset
/// allows, and on those that its memory policy allows as well. `None` where the kernel has no
/// nodes, or does not report it.
pub fn hugetlb_free_by_node(size: PageSize) -> Option<FreeByNode> {
    const MPOL_F_MEMS_ALLOWED: usize = 4;
    const MPOL_BIND: libc::c_int = 2;
    let (_, cpuset) = policy(MPOL_F_MEMS_ALLOWED)?;
    let (mode, bound) = policy(0)?;
    // Flags such as MPOL_F_STATIC_NODES are in the upper bits.
    let binds = mode & 0xff == MPOL_BIND;
    let mut free = FreeByNode::default();
    for node in 0..MOST_NODES {
        let is_in = |mask: &[u64]| mask[node / 64] & (1 << (node % 64)) != 0;
        // Nodes are numbered with gaps where some are offline.
        let Some(pages) = hugetlb_free_on_node(size, node) else {
            if node >= 64 && !is_in(&cpuset) {
                break;
            }
            continue;
        };
        free.all = free.all.saturating_add(pages);
        if is_in(&cpuset) {
            free.cpuset = free.cpuset.saturating_add(pages);
            if !binds || is_in(&bound) {
                free.policy = free.policy.saturating_add(pages);
            }
        }
    }
    Some(free)
}

/// Calls get_mempolicy(2); returns the mode, and a mask of nodes.
fn policy(flags: usize) -> Option<(libc::c_int, [u64; MOST_NODES / 64])> {
    let mut mode: libc::c_int = 0;
    let mut mask = [0u64; MOST_NODES / 64];
    // SAFETY: the mode is writable, and the mask holds as many bits as is passed; no address is
    // passed.
    let answer = unsafe {
        let mode = (&raw mut mode) as usize;
        call(libc::SYS_get_mempolicy, [mode, mask.as_mut_ptr() as usize, MOST_NODES, 0, flags])
    };
    answer.is_ok().then_some((mode, mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: PageSize = PageSize::HUGE_2M;

    fn room(groups: &str, files: &[(&str, u64)]) -> HugetlbRoom {
        room_of(groups.as_bytes(), SIZE, &mut |path| {
            let path = std::str::from_utf8(path.strip_suffix(b"\0").unwrap()).unwrap();
            files.iter().find(|(name, _)| *name == path).map(|(_, value)| *value)
        })
    }

    #[test]
    fn the_least_of_all_levels_counts() {
        let files = [
            ("/sys/fs/cgroup/a/hugetlb.2MB.max", 100),
            ("/sys/fs/cgroup/a/hugetlb.2MB.current", 90),
            ("/sys/fs/cgroup/a/b/hugetlb.2MB.max", 50),
            ("/sys/fs/cgroup/a/b/hugetlb.2MB.current", 10),
            ("/sys/fs/cgroup/a/b/hugetlb.2MB.rsvd.max", 7),
            ("/sys/fs/cgroup/a/b/hugetlb.2MB.rsvd.current", 9),
            // No limit: its file says "max".
            ("/sys/fs/cgroup/hugetlb.2MB.current", 90),
        ];
        assert_eq!(room("0::/a/b\n", &files), HugetlbRoom { fault: Some(10), reservation: Some(0) });
        assert_eq!(room("0::/a\n", &files), HugetlbRoom { fault: Some(10), reservation: None });
        assert_eq!(room("0::/\n", &files), HugetlbRoom::default());
        assert_eq!(room("1:cpu:/a/b\n", &files), HugetlbRoom::default(), "another controller's hierarchy");
    }

    #[test]
    fn version_1_has_names_of_its_own() {
        let files = [
            ("/sys/fs/cgroup/hugetlb/x/hugetlb.2MB.limit_in_bytes", 8),
            ("/sys/fs/cgroup/hugetlb/x/hugetlb.2MB.usage_in_bytes", 4),
            ("/sys/fs/cgroup/hugetlb/hugetlb.2MB.rsvd.limit_in_bytes", 8),
            ("/sys/fs/cgroup/hugetlb/hugetlb.2MB.rsvd.usage_in_bytes", 2),
        ];
        let groups = "12:cpuset:/y\n5:hugetlb:/x\n1:name=systemd:/z\n0::/z\n";
        assert_eq!(room(groups, &files), HugetlbRoom { fault: Some(4), reservation: Some(6) });
        assert_eq!(room("5:hugetlb,memory:/x/y/z", &files).fault, Some(4), "its ancestors count");
    }

    #[test]
    fn what_cannot_be_read_sets_no_limit() {
        let long = format!("0::/{}", "x".repeat(4000));
        assert_eq!(room(&long, &[]), HugetlbRoom::default());
        let deep = format!("0::{}", "/x".repeat(1000));
        assert_eq!(room(&deep, &[]), HugetlbRoom::default());
        assert_eq!(room("\n:\n::\n0:\n\u{7f}\n0::", &[]), HugetlbRoom::default());
    }

    #[test]
    fn the_nodes_of_this_machine_are_read() {
        let Some(_pool) = megapage_testing::PoolGuard::reserve(SIZE, 4) else { return };
        let Some(free) = hugetlb_free_by_node(SIZE) else {
            megapage_testing::skip("needs a kernel with NUMA");
            return;
        };
        // Without a memory policy a process may have the pages of all nodes.
        assert!(free.policy <= free.cpuset && free.cpuset <= free.all, "{free:?}");
        assert!(free.all >= 4, "{free:?}");
    }
}
