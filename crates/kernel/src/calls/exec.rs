//! Properties of a file that execve(2) checks besides its bytes.

use rustix::fs::{Access, access, getxattr};
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// Checks that the calling user may execute the file: access(2) with `X_OK`. EACCES if not.
pub fn check_executable(path: &Path) -> io::Result<()> {
    Ok(access(path, Access::EXEC_OK)?)
}

/// Returns true if the file carries capabilities (the extended attribute `security.capability`,
/// capabilities(7)). On a file system without such attributes it returns false.
pub fn has_file_capabilities(path: &Path) -> io::Result<bool> {
    // The attribute is at most 24 bytes (struct vfs_ns_cap_data); a longer one also counts.
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
