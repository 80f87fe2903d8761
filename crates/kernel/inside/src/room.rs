//! The room that limits leave to this process: the machine's memory, its control groups, its own
//! limits, and strict accounting. Kernel files are read without allocating: before `main`, and by
//! threads of the library.
//!
//! Sources: Documentation/admin-guide/cgroup-v2.rst (Memory), .../cgroup-v1/memory.rst,
//! getrlimit(2), proc_meminfo(5).
//!
//! File-level obligation: prlimit(2) fills a structure of the right type.

#![allow(unsafe_code)]

use crate::own_values::{first_number, memory_available_and_total, read_file};
use crate::system::call;
use megapage_units::{BASE_PAGE, HUGE_2M};
use std::io::Write;

/// The longest path of a group's directory; a group with a longer one counts as without a limit.
const PATH: usize = 480;
/// The most levels of groups that are looked at, from the process's own upwards.
const MOST_LEVELS: usize = 32;
/// The most groups with a limit that are kept.
const MOST_GROUPS: usize = 4;
/// Divisor of a process's addresses, for the part that strict accounting keeps for its user. See
/// `__vm_enough_memory` of mm/util.c (at most vm.user_reserve_kbytes, which is not read).
const KEPT_FOR_USER: u64 = 32;
/// The order of blocks of 2 MiB.
const ORDER_2M: usize = (HUGE_2M / BASE_PAGE).ilog2() as usize;
/// Bytes of free huge pages that stay unused: some are kept for other uses (zones, atomic
/// allocations, those of a processor).
const FREE_MARGIN: u64 = 16 << 20;
/// Limits from here on count as none: version 1 writes the highest number of pages.
const UNLIMITED: u64 = 1 << 60;

/// A limit, and what it leaves, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The limit.
    pub limit: u64,
    /// Bytes left below it, including memory that the kernel takes back before it refuses any.
    pub left: u64,
    /// True if memory counts from its first touch on, and not already when it is mapped.
    pub of_touched: bool,
}

/// Reader of a file, whose path ends in a NUL, into a buffer; answers the length.
type Read<'a> = &'a mut dyn FnMut(&[u8], &mut [u8]) -> Option<usize>;

/// A control group with a limit on memory.
#[derive(Clone, Copy, Debug)]
struct Group {
    directory: [u8; PATH],
    len: usize,
    v1: bool,
}

impl Group {
    const NONE: Group = Group { directory: [0; PATH], len: 0, v1: false };

    /// Returns the group `path` of a hierarchy. `None` where its name is too long.
    fn new(mount: &str, path: &[u8], v1: bool) -> Option<Group> {
        let mut group = Group { v1, ..Group::NONE };
        let mut rest = &mut group.directory[..];
        rest.write_all(mount.as_bytes()).ok()?;
        rest.write_all(path).ok()?;
        group.len = PATH - rest.len();
        Some(group)
    }

    fn text(&self, name: &str, buffer: &mut [u8], read: Read<'_>) -> Option<usize> {
        let mut path = [0u8; PATH + 32];
        let mut rest = &mut path[..];
        rest.write_all(&self.directory[..self.len]).ok()?;
        write!(rest, "/{name}\0").ok()?;
        let len = PATH + 32 - rest.len();
        read(&path[..len], buffer)
    }

    fn value(&self, name: &str, read: Read<'_>) -> Option<u64> {
        let mut text = [0u8; 32];
        let len = self.text(name, &mut text, read)?;
        // "max" has no number.
        first_number(&text[..len]).filter(|value| *value < UNLIMITED)
    }

    /// Returns the lower one of a hard limit and one from which on the kernel reclaims.
    fn limit(&self, read: Read<'_>) -> Option<u64> {
        if self.v1 {
            return self.value("memory.limit_in_bytes", read);
        }
        let hard = self.value("memory.max", read);
        self.value("memory.high", read).into_iter().chain(hard).min()
    }

    fn room(&self, read: Read<'_>) -> Option<Room> {
        let limit = self.limit(read)?;
        let usage = self.value(if self.v1 { "memory.usage_in_bytes" } else { "memory.current" }, read)?;
        let mut text = [0u8; 4096];
        let len = self.text("memory.stat", &mut text, read).unwrap_or(0);
        let [inactive, active]: [&[u8]; 2] = match self.v1 {
            true => [b"\ntotal_inactive_file ", b"\ntotal_active_file "],
            false => [b"\ninactive_file ", b"\nactive_file "],
        };
        let field = |name| field(&text[..len], name).unwrap_or(0);
        let reclaimed = field(inactive) + field(active) / 2;
        let left = limit.saturating_sub(usage.saturating_sub(reclaimed));
        Some(Room { limit, left, of_touched: true })
    }
}

/// Returns the number after `name` in a text.
fn field(text: &[u8], name: &[u8]) -> Option<u64> {
    let at = text.windows(name.len()).position(|window| window == name)? + name.len();
    first_number(&text[at..])
}

/// The limits that a process was started with.
#[derive(Debug)]
pub struct Limits {
    groups: [Group; MOST_GROUPS],
    count: usize,
    /// True if the kernel commits no more than it has (vm.overcommit_memory of 2).
    is_strict: bool,
    /// True if RLIMIT_DATA is set.
    data: bool,
    /// True if RLIMIT_AS is set.
    addresses: bool,
}

impl Limits {
    /// No limits.
    pub const NONE: Limits = Limits {
        groups: [Group::NONE; MOST_GROUPS],
        count: 0,
        is_strict: false,
        data: false,
        addresses: false,
    };

    /// Finds the limits of the calling process. Groups above a container's are not seen.
    pub fn find() -> Limits {
        let mut limits = Limits::NONE;
        limits.find_groups(&mut read_file);
        limits.data = own_limit(libc::RLIMIT_DATA).is_some();
        limits.addresses = own_limit(libc::RLIMIT_AS).is_some();
        limits.is_strict = value(b"/proc/sys/vm/overcommit_memory\0", &mut read_file) == Some(2);
        limits
    }

    /// Returns true if there is any limit, beside the machine's memory.
    pub fn any(&self) -> bool {
        self.count > 0 || self.of_mappings()
    }

    /// Returns true if there is a limit on what the process maps, touched or not.
    pub fn of_mappings(&self) -> bool {
        self.is_strict || self.data || self.addresses
    }

    /// Returns true if RLIMIT_AS was set.
    pub fn of_addresses(&self) -> bool {
        self.addresses
    }

    /// Returns true if the kernel commits no more than it has (vm.overcommit_memory of 2). It then
    /// takes a part of all addresses off what a process may commit.
    pub fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// Calls `visit` with the room that each limit leaves now, but for the machine's memory.
    pub fn rooms(&self, visit: impl FnMut(Room)) {
        self.rooms_by(&mut read_file, visit);
    }

    /// Finds the control groups with a limit. Takes for granted that hierarchies are mounted as
    /// systemd and container engines do it.
    fn find_groups(&mut self, read: Read<'_>) {
        let mut text = [0u8; 4096];
        let Some(len) = read(b"/proc/self/cgroup\0", &mut text) else { return };
        for line in text[..len].split(|&byte| byte == b'\n') {
            let mut fields = line.splitn(3, |&byte| byte == b':');
            let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let v1 = controllers.split(|&byte| byte == b',').any(|name| name == b"memory");
            let mounts: &[&str] = match (number, v1) {
                (_, true) => &["/sys/fs/cgroup/memory"],
                (b"0", _) => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
                _ => continue,
            };
            mounts.iter().for_each(|mount| self.find_levels(mount, path, v1, read));
        }
    }

    fn find_levels(&mut self, mount: &str, path: &[u8], v1: bool, read: Read<'_>) {
        let mut level = path;
        for _ in 0..MOST_LEVELS {
            if let Some(group) = Group::new(mount, level, v1)
                && group.limit(read).is_some()
                && self.count < MOST_GROUPS
            {
                self.groups[self.count] = group;
                self.count += 1;
            }
            match level.iter().rposition(|&byte| byte == b'/') {
                Some(at) if level.len() > 1 => level = &level[..at],
                _ => return,
            }
        }
    }

    fn rooms_by(&self, read: Read<'_>, mut visit: impl FnMut(Room)) {
        self.groups[..self.count].iter().filter_map(|group| group.room(read)).for_each(&mut visit);
        if !self.of_mappings() {
            return;
        }
        let mut text = [0u8; 128];
        let len = read(b"/proc/self/statm\0", &mut text).unwrap_or(0);
        let mut pages = text[..len].split(|byte| *byte == b' ').map(first_number);
        let (size, data) = (pages.next().flatten(), pages.nth(4).flatten());
        if self.is_strict {
            let mut text = [0u8; 2048];
            let len = read(b"/proc/meminfo\0", &mut text).unwrap_or(0);
            let kib = |name: &[u8]| Some(field(&text[..len], name)? << 10);
            if let (Some(limit), Some(used)) = (kib(b"\nCommitLimit:"), kib(b"\nCommitted_AS:")) {
                // The kernel keeps this part of all addresses of the process for its user.
                let kept = size.unwrap_or(0) * BASE_PAGE as u64 / KEPT_FOR_USER;
                let left = limit.saturating_sub(used).saturating_sub(kept);
                visit(Room { limit, left, of_touched: false });
            }
        }
        if self.data || self.addresses {
            for (resource, pages) in [(libc::RLIMIT_AS, size), (libc::RLIMIT_DATA, data)] {
                if let (Some(limit), Some(pages)) = (own_limit(resource), pages) {
                    let left = limit.saturating_sub(pages * BASE_PAGE as u64);
                    visit(Room { limit, left, of_touched: false });
                }
            }
        }
    }
}

/// Returns the room in the machine's memory: what is available without swapping.
pub fn machine_room() -> Option<Room> {
    memory_available_and_total().map(|(left, limit)| Room { limit, left, of_touched: true })
}

/// Returns the bytes of huge pages that are free on each node, so that the kernel neither compacts
/// nor reclaims memory for one. They are what the free lists hold beyond twice the reserve below
/// which the kernel reclaims, and beyond a margin. `None` where it does not say.
pub fn free_huge_pages() -> Option<u64> {
    free_huge_pages_by(&mut read_file)
}

/// Computes [`free_huge_pages`]. Sources: proc_pid_buddyinfo(5);
/// Documentation/admin-guide/sysctl/vm.rst, min_free_kbytes.
fn free_huge_pages_by(read: Read<'_>) -> Option<u64> {
    let reserve = value(b"/proc/sys/vm/min_free_kbytes\0", read)? << 10;
    let mut text = [0u8; 4096];
    let len = read(b"/proc/buddyinfo\0", &mut text)?;
    // The last line may be cut off.
    let end = text[..len].iter().rposition(|&byte| byte == b'\n')?;
    let (mut least, mut node, mut free) = (u64::MAX, None, 0);
    for line in text[..end].split(|&byte| byte == b'\n') {
        let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        // "Node 0, zone Normal", then how many blocks of each order there are.
        let of = words.nth(1).and_then(first_number);
        if of != node {
            least = if node.is_some() { least.min(free) } else { least };
            (node, free) = (of, 0);
        }
        let huge = words.skip(2 + ORDER_2M).map_while(first_number).zip(0..);
        free += huge.map(|(blocks, more)| (blocks << more) * HUGE_2M as u64).sum::<u64>();
    }
    node.map(|_| least.min(free).saturating_sub(2 * reserve + FREE_MARGIN))
}

/// Returns how often a request for memory, of any process, has waited for compaction or reclaim
/// since the machine was booted (/proc/vmstat). `None` where the kernel does not say.
pub fn stalls() -> Option<u64> {
    let mut text = [0u8; 4096];
    let len = read_file(b"/proc/vmstat\0", &mut text)?;
    let lines = text[..len].split(|&byte| byte == b'\n');
    let counted = lines.filter(|line| line.starts_with(b"allocstall") || line.starts_with(b"compact_stall"));
    Some(counted.filter_map(|line| first_number(line.rsplit(|&byte| byte == b' ').next()?)).sum())
}

fn value(path: &[u8], read: Read<'_>) -> Option<u64> {
    let mut text = [0u8; 32];
    let len = read(path, &mut text)?;
    first_number(&text[..len])
}

/// Returns the soft limit of the process on a resource, in bytes; `None` where there is none.
pub fn own_limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is what prlimit(2) fills for the calling process; nothing is set.
    let _ = unsafe { call(libc::SYS_prlimit64, [0, resource as usize, 0, &raw mut limit as usize]) };
    (limit.rlim_cur < UNLIMITED).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader<'a>(files: &'a [(&str, &str)]) -> impl FnMut(&[u8], &mut [u8]) -> Option<usize> + 'a {
        move |path, buffer| {
            let path = std::str::from_utf8(path.strip_suffix(b"\0").unwrap()).unwrap();
            let text = files.iter().find(|(name, _)| *name == path)?.1.as_bytes();
            buffer[..text.len()].copy_from_slice(text);
            Some(text.len())
        }
    }

    fn rooms(limits: &Limits, files: &[(&str, &str)]) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        limits.rooms_by(&mut reader(files), |room| found.push((room.limit, room.left)));
        found
    }

    fn group_rooms(files: &[(&str, &str)]) -> Vec<(u64, u64)> {
        let mut limits = Limits::NONE;
        limits.find_groups(&mut reader(files));
        assert_eq!(limits.any(), limits.count > 0);
        rooms(&limits, files)
    }

    #[test]
    fn every_level_with_a_limit_counts_and_cached_files_are_room() {
        let files = [
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "1000\n"),
            ("/sys/fs/cgroup/a/b/memory.high", "900\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "700\n"),
            ("/sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_anon 9\ninactive_file 40\nactive_file 20\n"),
            ("/sys/fs/cgroup/a/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.high", "max\n"),
            ("/sys/fs/cgroup/memory.max", "2000\n"),
            ("/sys/fs/cgroup/memory.high", "max\n"),
            ("/sys/fs/cgroup/memory.current", "2500\n"),
        ];
        assert_eq!(group_rooms(&files), [(900, 250), (2000, 0)]);
        let without = [("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/memory.max", "max\n")];
        assert_eq!(group_rooms(&without), []);
    }

    #[test]
    fn version_1_has_names_of_its_own_and_a_number_for_no_limit() {
        let files = [
            ("/proc/self/cgroup", "4:memory,cpu:/x/y\n1:name=systemd:/z\n0::/z\n"),
            ("/sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "800\n"),
            ("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "500\n"),
            ("/sys/fs/cgroup/memory/x/memory.stat", "cache 9\ninactive_file 7\ntotal_inactive_file 100\n"),
        ];
        assert_eq!(group_rooms(&files), [(800, 400)]);
    }

    #[test]
    fn what_cannot_be_read_sets_no_limit() {
        let long = format!("0::/{}\n", "x".repeat(3000));
        assert_eq!(group_rooms(&[("/proc/self/cgroup", &long)]), []);
        let deep = format!("0::{}", "/x".repeat(1000));
        assert_eq!(group_rooms(&[("/proc/self/cgroup", &deep)]), []);
        assert_eq!(group_rooms(&[("/proc/self/cgroup", "\n:\n::\n0:\n\u{7f}\n0::")]), []);
        assert_eq!(group_rooms(&[]), []);
    }

    #[test]
    fn strict_accounting_is_a_limit() {
        let limits = Limits { is_strict: true, ..Limits::NONE };
        let files = [("/proc/meminfo", "MemTotal: 9 kB\nCommitLimit:    100 kB\nCommitted_AS:      60 kB\n")];
        assert_eq!(rooms(&limits, &files), [(100 << 10, 40 << 10)]);
        assert!(limits.is_strict());
        let with_addresses = [files[0], ("/proc/self/statm", "64 9 9 9 0 9 0\n")];
        assert_eq!(rooms(&limits, &with_addresses), [(100 << 10, 32 << 10)]);
        assert_eq!(rooms(&limits, &[]), []);
    }

    #[test]
    fn free_huge_pages_are_those_of_the_poorest_node_beyond_the_reserve() {
        let free = |buddyinfo| {
            let files = [("/proc/sys/vm/min_free_kbytes", "8192\n"), ("/proc/buddyinfo", buddyinfo)];
            free_huge_pages_by(&mut reader(&files)).map(|bytes| bytes >> 20)
        };
        let one = "Node 0, zone      DMA      0      0      0      0      0      0      0      0      0      1      1 \n\
                   Node 0, zone   Normal  10486   7621   1537    660    393    197    122    171    180     40      5 \n";
        assert_eq!(free(one), Some(2 + 4 + 80 + 20 - 16 - 16));
        let two = format!("{one}Node 1, zone   Normal  9 9 9 9 9 9 9 9 9 20 0 \nNode 2, zone Nor");
        assert_eq!(free(&two), Some(8));
        assert_eq!(free("Node 0, zone Normal 9 9 9 9 9 9 9 9 9 0 0 \n"), Some(0));
        assert_eq!(free("Node 0, zone Normal 9 9\n"), Some(0));
        assert_eq!((free(""), free("\n")), (None, None));
        assert!(free_huge_pages().is_some());
    }

    #[test]
    fn limits_of_the_process_are_read_without_allocation() {
        megapage_testing::in_child("room::tests::limits_of_the_process_are_read_without_allocation", || {
            assert!(!Limits::find().addresses);
            let status = std::fs::read_to_string("/proc/self/statm").unwrap();
            let size = status.split(' ').next().unwrap().parse::<u64>().unwrap() * BASE_PAGE as u64;
            let limit = size + (512 << 20);
            let both = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            // SAFETY: the structure is valid, and read only.
            unsafe {
                libc::setrlimit(libc::RLIMIT_AS, &both);
                libc::setrlimit(libc::RLIMIT_DATA, &both);
            }
            let mut found = [Room { limit: 0, left: 0, of_touched: false }; 8];
            let mut count = 0;
            let before = crate::counted_tests::allocations();
            let limits = Limits::find();
            limits.rooms(|room| {
                found[count] = room;
                count += 1;
            });
            let machine = machine_room().unwrap();
            assert_eq!(crate::counted_tests::allocations(), before);
            assert!(limits.addresses && limits.any() && machine.left < machine.limit);
            let own: Vec<&Room> = found[..count].iter().filter(|room| room.limit == limit).collect();
            let [addresses, data] = own[..] else { panic!("{found:?}") };
            assert!(addresses.left <= 512 << 20 && addresses.left > 400 << 20, "{addresses:?}");
            assert!(data.left > addresses.left, "{data:?}");
        });
    }
}
