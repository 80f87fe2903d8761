//! Processes that hold a lock on a file, from `/proc/locks` (proc_locks(5)).

use crate::{KernelError, KernelRoot};
use megapage_units::Pid;

const LOCKS: &str = "proc/locks";

/// Returns the processes that hold an flock(2) lock on the file with this device and inode. A lock
/// belongs to its opener and to those that inherited the descriptor. The kernel names the process
/// that took it, which may have ended. Processes of other PID namespaces are left out.
pub fn flock_holders(root: &KernelRoot, device: u64, inode: u64) -> Result<Vec<Pid>, KernelError> {
    let text = root.read(LOCKS)?;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mut holders: Vec<Pid> = text.lines().filter_map(|line| holder(line, (major, minor, inode))).collect();
    holders.dedup();
    Ok(holders)
}

/// Returns the holder in `1: FLOCK  ADVISORY  WRITE 812 00:2a:31415 0 EOF`, if the line is of
/// `file`. The line of a process that waits has `->` behind the number.
fn holder(line: &str, file: (u32, u32, u64)) -> Option<Pid> {
    let mut fields = line.split_whitespace().skip(1);
    if fields.next()? != "FLOCK" {
        return None;
    }
    let pid: i32 = fields.nth(2)?.parse().ok()?;
    let mut place = fields.next()?.split(':');
    let major = u32::from_str_radix(place.next()?, 16).ok()?;
    let minor = u32::from_str_radix(place.next()?, 16).ok()?;
    let inode: u64 = place.next()?.parse().ok()?;
    ((major, minor, inode) == file && pid > 0).then_some(Pid(pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn holders_are_read() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("proc")).unwrap();
        let text = "1: FLOCK  ADVISORY  WRITE 812 00:2a:31415 0 EOF\n\
                    1: -> FLOCK  ADVISORY  WRITE 813 00:2a:31415 0 EOF\n\
                    2: POSIX  ADVISORY  WRITE 814 00:2a:31415 0 EOF\n\
                    3: FLOCK  ADVISORY  READ 815 00:2a:31416 0 EOF\n\
                    4: FLOCK  ADVISORY  READ 0 00:2a:31415 0 EOF\n\
                    5: FLOCK\n";
        std::fs::write(tree.path().join(LOCKS), text).unwrap();
        let root = KernelRoot::captured(tree.path());
        let device = rustix::fs::makedev(0, 0x2a);
        assert_eq!(flock_holders(&root, device, 31415).unwrap(), [Pid(812)]);
        assert!(flock_holders(&root, device, 1).unwrap().is_empty());
    }

    #[test]
    fn the_running_kernel_names_us() {
        // On tmpfs the numbers of stat(2) and of the kernel's list agree; some file systems have
        // different ones.
        let file = crate::directory::memory_file("locks", None).unwrap();
        file.try_lock().unwrap();
        let metadata = file.metadata().unwrap();
        let holders = flock_holders(&KernelRoot::live(), metadata.dev(), metadata.ino()).unwrap();
        assert_eq!(holders, [Pid(std::process::id() as i32)]);
    }
}
