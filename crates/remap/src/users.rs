//! The processes that have a file mapped, and how.

use megapage_kernel::{KernelError, KernelRoot, maps, process, smaps};
use megapage_units::Pid;
use serde::Serialize;
use std::fs::File;

/// A process that has a file mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct User {
    /// The process.
    pub pid: i32,
    /// Its name, at most 15 bytes.
    pub command: String,
    /// Bytes of the file that its page tables map.
    pub mapped_bytes: u64,
    /// Of these, bytes that are mapped by 2 MiB entries.
    pub huge_bytes: u64,
}

/// The processes that have `file` mapped, as far as the caller may look at them, other than the calling one.
pub(crate) fn users(root: &KernelRoot, file: &File) -> Result<Vec<User>, KernelError> {
    let Some(identity) = identity(root, file)? else { return Ok(Vec::new()) };
    let own = Pid(std::process::id() as i32);
    let mut users = Vec::new();
    for pid in process::list_processes(root)? {
        if pid == own {
            continue;
        }
        // A process that ends meanwhile, or may not be looked at, is passed over.
        let Ok(mappings) = maps::read_maps(root, pid) else { continue };
        let of_file: Vec<_> = mappings.iter().filter(|m| (m.device, m.inode) == identity).collect();
        if of_file.is_empty() {
            continue;
        }
        let Ok(detailed) = smaps::read_smaps(root, pid) else { continue };
        let Ok(status) = process::read_stat(root, pid) else { continue };
        let mut user = User { pid: pid.0, command: status.name, mapped_bytes: 0, huge_bytes: 0 };
        for mapping in detailed.iter().filter(|d| of_file.iter().any(|m| m.range == d.range)) {
            user.mapped_bytes += mapping.rss.saturating_sub(mapping.anonymous).0;
            user.huge_bytes += (mapping.file_pmd + mapping.shmem_pmd).0;
        }
        users.push(user);
    }
    Ok(users)
}

/// Device, and inode.
type Identity = ((u32, u32), u64);

/// Device and inode of `file` as maps shows them, which on some file systems (btrfs, overlayfs) are not those of
/// stat(2): those of a mapping of our own.
fn identity(root: &KernelRoot, file: &File) -> Result<Option<Identity>, KernelError> {
    let Ok(view) = megapage_kernel::file_cache::FileView::map(file, 0, 1) else { return Ok(None) };
    let own = maps::read_maps(root, Pid(std::process::id() as i32))?;
    let mapping = own.iter().find(|m| m.range.start() == view.range().start());
    Ok(mapping.map(|m| (m.device, m.inode)))
}
