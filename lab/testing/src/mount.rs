//! Mounts of tests and experiments.

use rustix::mount::UnmountFlags;
use std::io;
use std::path::Path;

/// Unmounts the mount at `point` (umount2(2)), following no link. Fails with EBUSY while a file in
/// it is in use.
pub fn unmount(point: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(point, UnmountFlags::NOFOLLOW)?)
}
