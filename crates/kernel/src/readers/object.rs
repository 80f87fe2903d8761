//! Which object of the kernel a mapping maps.

/// What distinguishes an object from others: device and inode.
pub type ObjectId = ((u32, u32), u64);

/// The object of a line of maps or smaps. `None` of anonymous memory. Of a SysV segment
/// the kernel shows its identifier as the inode (newseg() in ipc/shm.c), which may be 0, and may be that of a file, too: those
/// are set apart by the highest bit. Identifiers of two IPC namespaces may be equal.
pub fn object_of(device: (u32, u32), inode: u64, name: &str) -> Option<ObjectId> {
    match (name.starts_with("/SYSV"), inode) {
        (true, id) => Some((device, id | 1 << 63)),
        (false, 0) => None,
        (false, inode) => Some((device, inode)),
    }
}
