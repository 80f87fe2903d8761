//! Holders of hugetlb pages besides mappings: files on hugetlbfs, open memory files, and System V
//! segments. A file keeps its pages until it is removed, mapped or not.

use crate::mounts::HugetlbfsMount;
use crate::{KernelError, KernelRoot, optional};
use megapage_units::{Bytes, PageSize, Pid};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Levels of directories below a hugetlbfs mount that are searched at most.
const DEEPEST: usize = 8;
/// `HUGETLBFS_MAGIC` of statfs(2).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// Unit of `st_blocks` in bytes, on every file system.
const STAT_BLOCK: u64 = 512;

/// A file whose pages come from a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugetlbFile {
    /// Its path, or the name that memfd_create(2) was given.
    pub name: PathBuf,
    /// The size of its pages.
    pub page_size: PageSize,
    /// Its length.
    pub length: Bytes,
    /// The pages that it holds, in bytes.
    pub allocated: Bytes,
    /// Its owner.
    pub uid: u32,
    /// Device and inode: equal for one file, however often it is found.
    pub identity: (u64, u64),
}

/// A System V shared memory segment. The kernel does not say here whether it is on hugetlb pages.
/// The smaps of a process that has it attached show that. The `rss` column is not used: it is 512
/// times too large for a segment on 2 MiB pages, seen on Linux 6.18.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysvSegment {
    /// The identifier; the inode number of its mappings.
    pub id: u64,
    /// The key, as ipcs(1) prints it; 0 for IPC_PRIVATE.
    pub key: i32,
    /// Its length.
    pub length: Bytes,
    /// Number of times that it is attached.
    pub attached: u64,
    /// Its owner.
    pub uid: u32,
}

/// Returns the regular files on a hugetlbfs mount, `most` at most, and true if there may be more.
/// Directories that this process may not read are skipped. Directories more than eight levels deep
/// are skipped, too, and there may be more in them.
pub fn files(root: &KernelRoot, mount: &HugetlbfsMount, most: usize) -> (Vec<HugetlbFile>, bool) {
    let mut found = Vec::new();
    let mut complete = true;
    let mut pending = vec![(mount.mount.point.clone(), 0)];
    while let Some((directory, depth)) = pending.pop() {
        let below_root = directory.strip_prefix("/").unwrap_or(&directory);
        let Ok(entries) = fs::read_dir(root.path(below_root)) else { continue };
        for entry in entries.flatten() {
            let path = directory.join(entry.file_name());
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() && depth < DEEPEST {
                pending.push((path, depth + 1));
            } else if metadata.is_dir() || (metadata.is_file() && found.len() == most) {
                complete = false;
            } else if metadata.is_file() {
                found.push(file(path, mount.page_size, &metadata));
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    (found, !complete)
}

/// Returns the hugetlb memory files (memfd_create(2) with MFD_HUGETLB) that `pid` has open. Needs
/// the right to trace the process. Returns none on a captured tree, where a descriptor leads
/// nowhere.
pub fn memfds(root: &KernelRoot, pid: Pid) -> Result<Vec<HugetlbFile>, KernelError> {
    let directory = format!("proc/{pid}/fd");
    let mut found: Vec<HugetlbFile> = Vec::new();
    for number in root.list(&directory)? {
        let path = root.path(format!("{directory}/{number}"));
        // A descriptor that was closed meanwhile is skipped.
        let Ok(target) = fs::read_link(&path) else { continue };
        let target = target.to_string_lossy();
        let Some(name) = target.strip_prefix("/memfd:").and_then(|name| name.strip_suffix(" (deleted)"))
        else {
            continue;
        };
        let Ok(statfs) = rustix::fs::statfs(&path) else { continue };
        if statfs.f_type as u64 != HUGETLBFS_MAGIC {
            continue;
        }
        let Ok(metadata) = fs::metadata(&path) else { continue };
        let Some(page_size) = PageSize::new(metadata.blksize()) else { continue };
        let file = file(Path::new(name).to_path_buf(), page_size, &metadata);
        if !found.iter().any(|other| other.identity == file.identity) {
            found.push(file);
        }
    }
    Ok(found)
}

fn file(name: PathBuf, page_size: PageSize, metadata: &fs::Metadata) -> HugetlbFile {
    HugetlbFile {
        name,
        page_size,
        length: Bytes(metadata.len()),
        allocated: Bytes(metadata.blocks() * STAT_BLOCK),
        uid: metadata.uid(),
        identity: (metadata.dev(), metadata.ino()),
    }
}

/// Returns true if `pid` maps something that may be on hugetlb pages, by the names in
/// `/proc/PID/maps`. This is far cheaper than smaps, which alone can say for certain. Needs the
/// right to trace the process.
pub fn may_map_hugetlb(root: &KernelRoot, pid: Pid, mounts: &[HugetlbfsMount]) -> Result<bool, KernelError> {
    let maps = root.read(format!("proc/{pid}/maps"))?;
    Ok(maps.lines().any(|line| {
        let Some(name) = line.find('/').map(|at| &line[at..]) else { return false };
        ["/anon_hugepage", "/memfd:", "/SYSV"].iter().any(|prefix| name.starts_with(prefix))
            || mounts.iter().any(|mount| Path::new(name).starts_with(&mount.mount.point))
    }))
}

/// Reads the System V shared memory segments of this IPC namespace (`/proc/sysvipc/shm`,
/// proc_sysvipc(5)).
pub fn sysv_segments(root: &KernelRoot) -> Result<Vec<SysvSegment>, KernelError> {
    const SHM: &str = "proc/sysvipc/shm";
    // Empty on a kernel without System V IPC.
    let text = optional(root.read(SHM))?.unwrap_or_default();
    text.lines()
        .enumerate()
        .skip(1)
        .map(|(index, line)| {
            segment(line).ok_or_else(|| KernelError::Parse {
                path: root.path(SHM),
                line: index + 1,
                what: format!("expected a segment, found '{line}'"),
            })
        })
        .collect()
}

/// Parses `key shmid perms size cpid lpid nattch uid gid ...`.
fn segment(line: &str) -> Option<SysvSegment> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    Some(SysvSegment {
        key: fields.first()?.parse().ok()?,
        id: fields.get(1)?.parse().ok()?,
        length: Bytes(fields.get(3)?.parse().ok()?),
        attached: fields.get(6)?.parse().ok()?,
        uid: fields.get(7)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::Mount;

    fn mount(point: &str) -> HugetlbfsMount {
        let mount = Mount {
            device: (0, 40),
            directory: "/".into(),
            point: point.into(),
            fs_type: "hugetlbfs".into(),
            options: vec!["rw".into()],
            super_options: vec!["pagesize=2M".into()],
        };
        HugetlbfsMount { mount, page_size: PageSize::HUGE_2M, size: None, uid: 0, gid: 0, mode: 0o755 }
    }

    #[test]
    fn files_are_found_below_the_mount_and_counted() {
        let tree = tempfile::tempdir().unwrap();
        let deep = tree.path().join("dev/hugepages/app/one");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("map_0"), vec![1; 8192]).unwrap();
        fs::write(tree.path().join("dev/hugepages/map_1"), "x").unwrap();
        let root = KernelRoot::captured(tree.path());
        let (found, more) = files(&root, &mount("/dev/hugepages"), 10);
        let names: Vec<_> = found.iter().map(|file| file.name.to_str().unwrap()).collect();
        assert_eq!(names, ["/dev/hugepages/app/one/map_0", "/dev/hugepages/map_1"]);
        assert_eq!(found[0].length, Bytes(8192));
        assert!(found[0].allocated >= Bytes(8192) && !more);
        let (found, more) = files(&root, &mount("/dev/hugepages"), 1);
        assert!(found.len() == 1 && more, "the bound is reported");
        assert_eq!(files(&root, &mount("/not/there"), 1), (Vec::new(), false));
    }

    #[test]
    fn maps_name_what_may_be_huge() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        for (pid, line, expected) in [
            (1, "7f00-7f10 rw-p 00000000 00:11 5    /anon_hugepage (deleted)", true),
            (2, "7f00-7f10 rw-s 00000000 00:27 5    /dev/hugepages/file", true),
            (3, "7f00-7f10 rw-s 00000000 00:11 0    /SYSV00001234 (deleted)", true),
            (4, "7f00-7f10 rw-s 00000000 00:27 5    /dev/hugepages2/file", false),
            (5, "7f00-7f10 rw-p 00000000 00:00 0    [heap]", false),
            (6, "7f00-7f10 rw-p 00000000 00:00 0", false),
        ] {
            fs::create_dir_all(tree.path().join(format!("proc/{pid}"))).unwrap();
            fs::write(tree.path().join(format!("proc/{pid}/maps")), format!("{line}\n")).unwrap();
            let answer = may_map_hugetlb(&root, Pid(pid), &[mount("/dev/hugepages")]).unwrap();
            assert_eq!(answer, expected, "{line}");
        }
        assert!(may_map_hugetlb(&root, Pid(7), &[]).unwrap_err().is_gone());
    }

    #[test]
    fn segments_are_read() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        assert!(sysv_segments(&root).unwrap().is_empty());
        fs::create_dir_all(tree.path().join("proc/sysvipc")).unwrap();
        let table = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid\n\
                     \u{20}     4660          7   600               4194304   820   820      1  1000     0\n";
        fs::write(tree.path().join("proc/sysvipc/shm"), table).unwrap();
        let segment = SysvSegment { id: 7, key: 4660, length: Bytes::mib(4), attached: 1, uid: 1000 };
        assert_eq!(sysv_segments(&root).unwrap(), [segment]);
    }
}
