//! What execve(2) looks at in a file besides its bytes.

use rustix::fs::{Access, access, getxattr};
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// Whether the calling user may execute the file: access(2) with `X_OK`. EACCES where not.
pub fn check_executable(path: &Path) -> io::Result<()> {
    Ok(access(path, Access::EXEC_OK)?)
}

/// Whether the file carries capabilities (the extended attribute `security.capability`, capabilities(7)).
/// A file system without such attributes answers no.
pub fn has_file_capabilities(path: &Path) -> io::Result<bool> {
    // The attribute is at most 24 bytes (struct vfs_ns_cap_data); a longer one is still there.
    let mut value = [0u8; 64];
    match getxattr(path, "security.capability", &mut value) {
        Ok(length) => Ok(length > 0),
        Err(Errno::RANGE) => Ok(true),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_plain_file_is_neither_executable_nor_capable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "").unwrap();
        let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        mode(0o644);
        assert_eq!(check_executable(&path).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        mode(0o755);
        check_executable(&path).unwrap();
        assert!(!has_file_capabilities(&path).unwrap());
    }
}
