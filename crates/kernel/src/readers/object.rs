//! Objects of the kernel that mappings map.

/// Identity of an object: device and inode.
pub type ObjectId = ((u32, u32), u64);

/// Returns the object of a line of maps or smaps; `None` for anonymous memory. For a SysV segment
/// the kernel shows the identifier as the inode (newseg() in ipc/shm.c). The identifier may be 0,
/// and may equal a file's inode, so the highest bit sets segments apart. Identifiers of two IPC
/// namespaces may be equal.
pub fn object_of(device: (u32, u32), inode: u64, name: &str) -> Option<ObjectId> {
    match (name.starts_with("/SYSV"), inode) {
        (true, id) => Some((device, id | 1 << 63)),
        (false, 0) => None,
        (false, inode) => Some((device, inode)),
    }
}
