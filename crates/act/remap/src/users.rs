//! Processes that have a file mapped, and the way in which they map it.

use megapage_kernel::mounts::{self, Mount};
use megapage_kernel::shared_memory::MemoryDevices;
use megapage_kernel::trusted::open_regular;
use megapage_kernel::{KernelError, KernelRoot, maps, process, smaps};
use megapage_units::{Bytes, HUGE_2M, Pid};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Process that has a file mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct User {
    /// The process.
    pub pid: i32,
    /// Its name, at most 15 bytes.
    pub command: String,
    /// Bytes of the file that its page tables map.
    pub mapped_bytes: u64,
    /// Bytes of these that are mapped by 2 MiB entries.
    pub huge_bytes: u64,
    /// Bytes that it maps private and writable: the kernel maps them by base pages, whatever the
    /// file's folios.
    pub private_writable_bytes: u64,
    /// Bytes that it maps at an address that disagrees with the place in the file modulo 2 MiB: no
    /// 2 MiB entry can map them.
    pub misplaced_bytes: u64,
}

impl User {
    /// Returns the reason that its mappings of the file stay on base pages, however the file lies
    /// in memory; `None` if there is none.
    pub fn barred(&self) -> Option<String> {
        let what = match (self.private_writable_bytes, self.misplaced_bytes) {
            (0, 0) => return None,
            (private, 0) => format!("{} private and writable", Bytes(private)),
            (0, misplaced) => format!("{} at an address that disagrees with the offset", Bytes(misplaced)),
            (private, misplaced) => {
                format!("{} private and writable, {} misplaced", Bytes(private), Bytes(misplaced))
            }
        };
        Some(format!("{} {} maps {what}", self.command, self.pid))
    }
}

/// File that a process maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile {
    /// Its path, as the process named it.
    pub path: PathBuf,
    /// Bytes of it that the process maps.
    pub mapped: u64,
}

/// Returns the files that `pid` maps, in no order: regular files with a path, of which at least
/// 2 MiB are mapped. Leaves out shared memory, deleted files, and files that lie elsewhere for the
/// caller (another mount namespace). Also leaves out files on FUSE: their server might never
/// answer.
pub fn mapped_files(root: &KernelRoot, pid: Pid) -> Result<Vec<MappedFile>, KernelError> {
    let devices = MemoryDevices::seen_by(root, pid);
    let mounts = mounts::mounts(root)?;
    let mut found: BTreeMap<Identity, MappedFile> = BTreeMap::new();
    for mapping in maps::read_maps(root, pid)? {
        let is_file = mapping.inode != 0
            && mapping.name.starts_with('/')
            && !mapping.name.ends_with(" (deleted)")
            && !devices.holds(mapping.device, &mapping.name);
        if is_file {
            let identity = (mapping.device, mapping.inode);
            let path = PathBuf::from(&mapping.name);
            let file = found.entry(identity).or_insert(MappedFile { path, mapped: 0 });
            file.mapped = file.mapped.saturating_add(mapping.range.len().0);
        }
    }
    let files = found
        .into_iter()
        .filter(|(_, file)| file.mapped >= HUGE_2M as u64 && !is_fuse(&mounts, &file.path))
        .filter(|(wanted, file)| {
            let opened = open_regular(&file.path).ok();
            opened.and_then(|file| identity(root, &file).ok().flatten()).is_some_and(|found| found == *wanted)
        })
        .map(|(_, file)| file);
    Ok(files.collect())
}

/// Returns the processes that have `file` mapped, as far as the caller may look at them, without
/// the calling one.
pub(crate) fn users(root: &KernelRoot, file: &File) -> Result<Vec<User>, KernelError> {
    let Some(identity) = identity(root, file)? else { return Ok(Vec::new()) };
    let own = Pid(std::process::id() as i32);
    let mut users = Vec::new();
    for pid in process::list_processes(root)? {
        if pid == own {
            continue;
        }
        // A process that ends meanwhile, or may not be looked at, is skipped.
        let Ok(mappings) = maps::read_maps(root, pid) else { continue };
        let of_file: Vec<_> = mappings.iter().filter(|m| (m.device, m.inode) == identity).collect();
        if of_file.is_empty() {
            continue;
        }
        let Ok(detailed) = smaps::read_smaps(root, pid) else { continue };
        let Ok(status) = process::read_stat(root, pid) else { continue };
        let mut user = User {
            pid: pid.0,
            command: status.name,
            mapped_bytes: 0,
            huge_bytes: 0,
            private_writable_bytes: 0,
            misplaced_bytes: 0,
        };
        for mapping in detailed.iter().filter(|d| of_file.iter().any(|m| m.range == d.range)) {
            let length = mapping.range.len().0;
            if mapping.permissions.starts_with("rw") && mapping.permissions.ends_with('p') {
                user.private_writable_bytes += length;
            } else if length >= HUGE_2M as u64 && !mapping.agrees() {
                user.misplaced_bytes += length;
            }
            user.mapped_bytes += mapping.rss.saturating_sub(mapping.anonymous).0;
            user.huge_bytes += (mapping.file_pmd + mapping.shmem_pmd).0;
        }
        users.push(user);
    }
    Ok(users)
}

/// Returns true if `path` lies on a FUSE file system. The deepest mount on the way decides; of
/// those at one place, the last.
fn is_fuse(mounts: &[Mount], path: &Path) -> bool {
    let on_the_way = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    let deepest = on_the_way.max_by_key(|mount| mount.point.as_os_str().len());
    deepest.is_some_and(|mount| mount.fs_type.starts_with("fuse"))
}

/// Device, and inode.
type Identity = ((u32, u32), u64);

/// Returns device and inode of `file` as maps shows them, from a mapping of our own. On some file
/// systems (btrfs, overlayfs) they are not those of stat(2).
fn identity(root: &KernelRoot, file: &File) -> Result<Option<Identity>, KernelError> {
    let Ok(view) = megapage_kernel::file_cache::FileView::map(file, 0, 1) else { return Ok(None) };
    let own = maps::read_maps(root, Pid(std::process::id() as i32))?;
    let mapping = own.iter().find(|m| m.range.start() == view.range().start());
    Ok(mapping.map(|m| (m.device, m.inode)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_fuse_are_identified_by_the_deepest_mount() {
        let mount = |point: &str, fs_type: &str| Mount {
            device: (0, 1),
            directory: "/".into(),
            point: point.into(),
            fs_type: fs_type.into(),
            options: Vec::new(),
            super_options: Vec::new(),
        };
        let mounts =
            [mount("/", "ext4"), mount("/home/a/fuse", "fuse.sshfs"), mount("/home/a/fuse/in", "xfs")];
        for (path, fuse) in
            [("/home/a/fuse/x", true), ("/home/a/fuse/in/x", false), ("/home/a/fuses", false), ("/x", false)]
        {
            assert_eq!(is_fuse(&mounts, Path::new(path)), fuse, "{path}");
        }
    }

    #[test]
    fn what_keeps_a_mapping_on_base_pages_is_named() {
        let user = |private_writable_bytes, misplaced_bytes| User {
            pid: 7,
            command: "searchd".into(),
            mapped_bytes: 0,
            huge_bytes: 0,
            private_writable_bytes,
            misplaced_bytes,
        };
        assert_eq!(user(0, 0).barred(), None);
        assert_eq!(user(1 << 20, 0).barred().unwrap(), "searchd 7 maps 1 MiB private and writable");
        assert!(user(0, 2 << 20).barred().unwrap().contains("2 MiB at an address that disagrees"));
        assert_eq!(
            user(1 << 20, 2 << 20).barred().unwrap(),
            "searchd 7 maps 1 MiB private and writable, 2 MiB misplaced"
        );
    }
}
