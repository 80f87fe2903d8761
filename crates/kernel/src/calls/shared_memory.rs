//! Shared memory of other processes: files in memory (tmpfs, memfd), SysV segments, shared
//! anonymous memory. The kernel keeps each as a file of a tmpfs, an *object*, which any number of
//! processes map.

use crate::file_cache::FileView;
use crate::helper::{self, Session, Wait};
use crate::smaps::Mapping;
use crate::{KernelError, KernelRoot, effective_uid, mounts};
use megapage_units::Pid;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;

/// Device of the kernel's own tmpfs (memfd, SysV segments, shared anonymous memory). It is the
/// first of the devices without a disk, mounted at boot (`shm_mnt` in mm/shmem.c).
const KERNEL_TMPFS: (u32, u32) = (0, 1);
/// Bytes of the object that one mincore(2) covers. It takes a byte of our memory for each page.
const MOST_ASKED: u64 = 1 << 30;

/// File systems that keep their files in memory, by device. Files on them are shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryDevices(BTreeSet<(u32, u32)>);

impl Default for MemoryDevices {
    /// Holds only the kernel's own tmpfs.
    fn default() -> MemoryDevices {
        MemoryDevices::of_mounts([])
    }
}

impl MemoryDevices {
    /// Reads them as this process sees them. If mounts cannot be read, holds only the kernel's own
    /// tmpfs.
    pub fn read(root: &KernelRoot) -> MemoryDevices {
        MemoryDevices::of_mounts(mounts::mounts(root).unwrap_or_default())
    }

    /// Reads them as `pid` and as this process see them.
    pub fn seen_by(root: &KernelRoot, pid: Pid) -> MemoryDevices {
        let own = mounts::mounts(root).unwrap_or_default();
        let others = mounts::read(root, &format!("proc/{pid}/mountinfo")).unwrap_or_default();
        MemoryDevices::of_mounts(own.into_iter().chain(others))
    }

    fn of_mounts(mounts: impl IntoIterator<Item = mounts::Mount>) -> MemoryDevices {
        let tmpfs = mounts.into_iter().filter(|mount| mount.fs_type == "tmpfs").map(|mount| mount.device);
        MemoryDevices(tmpfs.chain([KERNEL_TMPFS]).collect())
    }

    /// Returns true if files on `device` are memory, or if a file is that the kernel calls `name`.
    pub fn holds(&self, device: (u32, u32), name: &str) -> bool {
        let starts = ["/memfd:", "/SYSV", "/dev/zero (", "[anon_shmem:"];
        self.0.contains(&device) || name == "/dev/zero" || starts.iter().any(|start| name.starts_with(start))
    }
}

/// Shared-memory object that another process has mapped, opened for reading. It is never written to
/// or read from. It only serves to find out which of its pages are in memory.
#[derive(Debug)]
pub struct SharedObject {
    file: File,
}

impl SharedObject {
    /// Opens the object that `pid` has mapped as `mapping` (`/proc/PID/map_files`,
    /// proc_pid_map_files(5)). Needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. The caller must be
    /// root or the object's owner: others get wrong answers from mincore(2). ESTALE: another file
    /// is mapped there by now, or one that is not on `devices`. Opens only a regular file of a
    /// tmpfs, and makes no request to any other file system: a FUSE server might never answer.
    pub fn open(
        root: &KernelRoot,
        pid: Pid,
        mapping: &Mapping,
        devices: &MemoryDevices,
    ) -> Result<SharedObject, KernelError> {
        let range = mapping.range;
        let path = root.path(format!("proc/{pid}/map_files/{:x}-{:x}", range.start(), range.end()));
        let failed = |source: io::Error| KernelError::Io { path: path.clone(), source };
        if !root.is_live() {
            return Err(failed(ErrorKind::Unsupported.into()));
        }
        // Opened only as a path first: opening a device could have effects, and one may be mapped
        // there by now.
        let place = match helper::is_foreign(root, pid) {
            false => rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                .map_err(io::Error::from),
            true => Session::begin(pid, Wait::Killable)
                .and_then(|mut session| session.open(&path, OFlags::PATH.bits().cast_signed())),
        };
        let place = place.map_err(failed)?;
        // Asks only for attributes that the kernel holds already. None is wanted and none is
        // refreshed, so no file server is asked.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&place, "", flags, StatxFlags::empty())
            .map_err(|error| failed(error.into()))?;
        let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
        let device = (found.stx_dev_major, found.stx_dev_minor);
        let is_memory = devices.0.contains(&device);
        if !is_file || !is_memory || device != mapping.device || found.stx_ino != mapping.inode {
            // ESTALE.
            return Err(failed(io::Error::from_raw_os_error(116)));
        }
        if effective_uid() != 0 && effective_uid() != found.stx_uid {
            return Err(failed(ErrorKind::PermissionDenied.into()));
        }
        let own = format!("/proc/self/fd/{}", place.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(own, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        Ok(SharedObject { file: file.into() })
    }

    /// Returns for each base page of `length` bytes from `offset` if it is in memory; both are
    /// multiples of the base page. Pages beyond the object's end, and pages swapped out, are not.
    pub fn resident(&self, offset: u64, length: u64) -> io::Result<Vec<bool>> {
        let mut pages = Vec::new();
        let mut at = 0;
        while at < length {
            let part = (length - at).min(MOST_ASKED);
            pages.extend(FileView::map(&self.file, offset + at, part)?.resident()?);
            at += part;
        }
        Ok(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::read_maps;
    use crate::object::object_of;
    use crate::root::captured_tree;
    use crate::smaps::read_own_smaps;
    use std::io::Write;

    const PAGE: usize = megapage_units::BASE_PAGE;

    #[test]
    fn a_segment_is_no_file_of_the_same_number() {
        let (device, segment) = ((0, 1), "/SYSV00000000 (deleted)");
        assert!(object_of(device, 0, segment).is_some(), "the first segment of all");
        assert_ne!(object_of(device, 7, segment), object_of(device, 7, "/memfd:x (deleted)"));
        assert_ne!(object_of(device, 7, segment), object_of(device, 8, segment));
        assert_eq!(object_of(device, 0, ""), None);
    }

    #[test]
    fn a_tmpfs_of_another_mount_namespace_is_memory_too() {
        let line = |device: &str, fs: &str| format!("20 1 {device} / /dev/shm rw - {fs} {fs} rw\n");
        let (_keep, root) = captured_tree(&[
            ("proc/self/mountinfo", &(line("0:25", "tmpfs") + &line("8:1", "ext4"))),
            ("proc/9/mountinfo", &line("0:77", "tmpfs")),
        ]);
        let (own, seen) = (MemoryDevices::read(&root), MemoryDevices::seen_by(&root, Pid(9)));
        for (device, by_own, by_both) in
            [((0, 1), true, true), ((0, 25), true, true), ((0, 77), false, true), ((8, 1), false, false)]
        {
            assert_eq!((own.holds(device, "/a"), seen.holds(device, "/a")), (by_own, by_both), "{device:?}");
        }
        assert!(own.holds((9, 9), "/memfd:x (deleted)") && !own.holds((9, 9), "/dev/zeroes/memfd:x"));
    }

    #[test]
    fn what_another_process_has_mapped_is_opened_and_nothing_else() {
        let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.write_all(&[7; 3 * PAGE]).unwrap();
        file.set_len(5 * PAGE as u64).unwrap();
        let view = FileView::map(&file, 0, 5 * PAGE as u64).unwrap();
        let root = KernelRoot::live();
        let own = Pid(std::process::id().cast_signed());
        let mappings = read_own_smaps(&root).unwrap();
        let mapping = mappings.into_iter().find(|it| it.range == view.range()).unwrap();
        let devices = MemoryDevices::read(&root);
        let object = match SharedObject::open(&root, own, &mapping, &devices) {
            Ok(object) => object,
            Err(error) if effective_uid() != 0 => {
                assert!(matches!(error.raw_os_error(), Some(1 | 13)), "{error}");
                return megapage_testing::skip("needs CAP_CHECKPOINT_RESTORE");
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(object.resident(0, 6 * PAGE as u64).unwrap(), [true, true, true, false, false, false]);
        assert_eq!(object.resident(PAGE as u64, 4 * PAGE as u64).unwrap(), [true, true, false, false]);
        let other = Mapping { inode: mapping.inode + 1, ..mapping.clone() };
        assert_eq!(SharedObject::open(&root, own, &other, &devices).unwrap_err().raw_os_error(), Some(116));
        let gone = Mapping { range: read_maps(&root, own).unwrap()[0].range, ..mapping.clone() };
        assert!(SharedObject::open(&root, own, &gone, &devices).is_err());
        let elsewhere = MemoryDevices(BTreeSet::new());
        let error = SharedObject::open(&root, own, &mapping, &elsewhere).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(116), "no tmpfs: it is not even asked how large it is");
    }
}
