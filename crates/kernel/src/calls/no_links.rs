//! Opening of paths without following a symbolic link: by openat2(2), and if that is refused,
//! component by component.
//!
//! Filters of system calls refuse openat2 as a whole, for they cannot see its arguments. systemd's
//! filter of `RestrictSUIDSGID=` answers ENOSYS, filters of older container runtimes EPERM.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// Places that a path may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All places.
    All,
    /// Only places beneath the directory that the path starts from; else EXDEV.
    Beneath,
    /// The same, and only on the same file system; else EXDEV.
    SameFileSystem,
}

/// Opens `path`; a relative one starts from `base` (`None`: the current directory). ELOOP if any
/// part of it is a symbolic link.
pub(crate) fn open(
    base: Option<BorrowedFd<'_>>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    reach: Reach,
) -> Result<OwnedFd, Errno> {
    let within = match reach {
        Reach::All => ResolveFlags::empty(),
        Reach::Beneath => ResolveFlags::BENEATH,
        Reach::SameFileSystem => ResolveFlags::BENEATH | ResolveFlags::NO_XDEV,
    };
    let resolve = within | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let from = base.unwrap_or(CWD);
    match rustix::fs::openat2(from, path, flags, mode, resolve) {
        Err(Errno::NOSYS | Errno::PERM) => walk(base, path, flags, mode, reach),
        opened => opened,
    }
}

/// Opens the path by openat(2), one component after the other. Does not distinguish a mount of the
/// same file system from a directory: only root can have made it.
fn walk(
    base: Option<BorrowedFd<'_>>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    reach: Reach,
) -> Result<OwnedFd, Errno> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::openat(base.unwrap_or(CWD), ".", directory, Mode::empty())?;
    let device = rustix::fs::fstat(&at)?.st_dev;
    let mut components = path.components().peekable();
    if components.peek().is_none() {
        return Err(Errno::NOENT);
    }
    // The components do not show a slash at the end.
    let last = if path.as_os_str().as_bytes().ends_with(b"/") { flags | OFlags::DIRECTORY } else { flags };
    while let Some(component) = components.next() {
        let is_last = components.peek().is_none();
        let name = match component {
            Component::Normal(name) => name,
            _ if component != Component::CurDir && reach != Reach::All => return Err(Errno::XDEV),
            other => other.as_os_str(),
        };
        let opened = step(&at, name, if is_last { last } else { directory }, mode)?;
        if reach == Reach::SameFileSystem && rustix::fs::fstat(&opened)?.st_dev != device {
            return Err(Errno::XDEV);
        }
        at = opened;
    }
    Ok(at)
}

/// Opens one component. With O_DIRECTORY the kernel answers ENOTDIR to a link that is not followed.
fn step(at: &OwnedFd, name: &OsStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    match rustix::fs::openat(at, name, flags | OFlags::NOFOLLOW, mode) {
        Err(Errno::NOTDIR) => {
            let found = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let is_link = FileType::from_raw_mode(found.st_mode) == FileType::Symlink;
            Err(if is_link { Errno::LOOP } else { Errno::NOTDIR })
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    /// Returns the answers of both ways: the file's inode, or the error.
    fn both(
        base: Option<BorrowedFd<'_>>,
        path: &Path,
        flags: OFlags,
        reach: Reach,
    ) -> [Result<u64, Errno>; 2] {
        let mode = if flags.contains(OFlags::CREATE) { 0o600 } else { 0 };
        [open, walk].map(|way| {
            let file = way(base, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode), reach)?;
            Ok(rustix::fs::fstat(&file)?.st_ino)
        })
    }

    #[test]
    fn the_walk_answers_as_openat2_does() {
        let tree = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(tree.path()).unwrap();
        fs::create_dir_all(base.join("real/deep")).unwrap();
        fs::write(base.join("real/file"), "x").unwrap();
        symlink(base.join("real"), base.join("link")).unwrap();
        symlink("file", base.join("real/alias")).unwrap();
        symlink("/proc/self/fd/0", base.join("magic")).unwrap();
        let opened: OwnedFd = File::open(&base).unwrap().into();
        let reaches = [Reach::All, Reach::Beneath, Reach::SameFileSystem];
        let paths = [
            "real",
            "real/",
            "real/file",
            "real/file/",
            "real/file/x",
            "real/deep",
            "real/alias",
            "link",
            "link/file",
            "link/..",
            "magic",
            "none",
            "none/file",
            ".",
            "./real",
            "real/./file",
        ];
        let mut loops = 0;
        for (path, reach) in paths.iter().flat_map(|path| reaches.map(|reach| (Path::new(path), reach))) {
            for flags in [OFlags::RDONLY, OFlags::RDONLY | OFlags::DIRECTORY, OFlags::RDWR] {
                let [kernel, walked] = both(Some(opened.as_fd()), path, flags, reach);
                assert_eq!(kernel, walked, "{path:?} {flags:?} {reach:?}");
                loops += usize::from(walked == Err(Errno::LOOP));
                let absolute = base.join(path);
                let [kernel, walked] = both(Some(opened.as_fd()), &absolute, flags, reach);
                assert_eq!(kernel, walked, "{absolute:?} {flags:?} {reach:?}");
            }
        }
        assert!(loops > 20, "{loops}");
        for reach in [Reach::Beneath, Reach::SameFileSystem] {
            for path in ["..", "../x", "/", "/etc/passwd"] {
                assert_eq!(
                    both(Some(opened.as_fd()), Path::new(path), OFlags::RDONLY, reach),
                    [Err(Errno::XDEV); 2],
                    "{path}"
                );
            }
        }
        let root: OwnedFd = File::open("/").unwrap().into();
        let proc = |reach| both(Some(root.as_fd()), Path::new("proc/self/status"), OFlags::RDONLY, reach);
        assert_eq!(proc(Reach::SameFileSystem), [Err(Errno::XDEV); 2]);
        assert_eq!(both(None, Path::new(""), OFlags::RDONLY, Reach::All), [Err(Errno::NOENT); 2]);
        // A file is made only once: a second exclusive open gets EEXIST.
        let exclusive = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let [made, again] = both(Some(opened.as_fd()), Path::new("new"), exclusive, Reach::SameFileSystem);
        assert!(made.is_ok() && again == Err(Errno::EXIST));
        fs::remove_file(base.join("new")).unwrap();
        assert!(
            walk(
                Some(opened.as_fd()),
                Path::new("new"),
                exclusive,
                Mode::from_raw_mode(0o600),
                Reach::Beneath
            )
            .is_ok()
        );
    }
}
