//! Directories in which files are opened without following a symbolic link.

use crate::no_links::{self, Reach};
use crate::trusted::open_looked_at;
pub use megapage_inside::memory_file::{huge_page_size_of, memory_file};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Open directory. Everything in it is reached by the descriptor: a directory that another process
/// puts in its place under the same name is a different one.
#[derive(Debug)]
pub struct Directory {
    file: File,
    path: PathBuf,
}

impl Directory {
    /// Opens the absolute `path`. ELOOP if any part of it is a symbolic link, ENOTDIR if it is no
    /// directory.
    pub fn open(path: &Path) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = no_links::open(None, path, flags, Mode::empty(), Reach::All)?;
        Ok(Directory { file: file.into(), path: path.to_path_buf() })
    }

    /// Takes a directory that another process has opened, with its lock (flock(2)), and the path to
    /// name it by. ENOTDIR if it is none.
    pub fn received(file: File, path: &Path) -> io::Result<Directory> {
        if !file.metadata()?.is_dir() {
            return Err(rustix::io::Errno::NOTDIR.into());
        }
        Ok(Directory { file, path: path.to_path_buf() })
    }

    /// Takes an open directory, and the path to name it by.
    pub(crate) fn of(file: File, path: &Path) -> Directory {
        Directory { file, path: path.to_path_buf() }
    }

    /// Duplicates the open directory, with the same lock.
    pub fn try_clone(&self) -> io::Result<Directory> {
        Ok(Directory { file: self.file.try_clone()?, path: self.path.clone() })
    }

    /// Returns the path by which it was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open directory itself, for fstat(2) and flock(2).
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns its owner, mode and identity.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Opens the directory `name` in this one.
    pub fn child(&self, name: &str) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = self.open_beneath(name, flags, Mode::empty())?.into();
        Ok(Directory { file, path: self.path.join(name) })
    }

    /// Makes the directory `name` with exactly these permission bits, independent of the umask.
    pub fn make_child(&self, name: &str, mode: u32) -> io::Result<Directory> {
        rustix::fs::mkdirat(&self.file, name, Mode::from_raw_mode(mode & 0o700))?;
        let child = self.child(name)?;
        rustix::fs::fchmod(&child.file, Mode::from_raw_mode(mode))?;
        Ok(child)
    }

    /// Opens the regular file `name` for reading and writing. Refuses any other kind of file
    /// (`InvalidInput`) without opening it.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        open_looked_at(OFlags::RDWR, |flags| self.open_beneath(name, flags, Mode::empty()))
    }

    /// Opens the regular file `name` in the same way, but only for reading.
    pub fn open_file_to_read(&self, name: &str) -> io::Result<File> {
        open_looked_at(OFlags::RDONLY, |flags| self.open_beneath(name, flags, Mode::empty()))
    }

    /// Makes the file `name` with exactly these permission bits. EEXIST if the name is taken.
    pub fn create_file(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file: File = self.open_beneath(name.as_ref(), flags, Mode::from_raw_mode(mode & 0o600))?.into();
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(file)
    }

    fn open_beneath(&self, name: impl AsRef<OsStr>, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        no_links::open(Some(self.file.as_fd()), name.as_ref().as_ref(), flags, mode, Reach::SameFileSystem)
    }

    /// Renames the file `from` to `to`, and replaces a file that has that name.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.file, from, &self.file, to)?)
    }

    /// Removes the file `name` (a symbolic link itself, not its target).
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.file, name, AtFlags::empty())?)
    }

    /// Removes the empty directory `name`.
    pub fn remove_child(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.file, name, AtFlags::REMOVEDIR)?)
    }

    /// Returns the names in it, sorted; `most` names at most, and true if there are more.
    pub fn names(&self, most: usize) -> io::Result<(Vec<OsString>, bool)> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.file)? {
            let name = CString::from(entry?.file_name());
            if name.as_bytes() == b"." || name.as_bytes() == b".." {
                continue;
            }
            if names.len() == most {
                return Ok((names, true));
            }
            names.push(OsStr::from_bytes(name.as_bytes()).to_os_string());
        }
        names.sort();
        Ok((names, false))
    }

    /// Returns true if both are the same directory.
    pub fn is_same_as(&self, other: &Directory) -> io::Result<bool> {
        let (a, b) = (self.metadata()?, other.metadata()?);
        Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
    }
}

/// Returns true if an open was refused because a symbolic link is in the way (ELOOP).
pub fn is_link_in_the_way(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP)
}

/// Returns true if the file can become shorter beneath a process that maps it, whose next access
/// would raise SIGBUS. Only a memory file with F_SEAL_SHRINK (fcntl(2)) cannot.
pub fn can_shrink(file: impl AsFd) -> bool {
    use rustix::fs::{SealFlags, fcntl_get_seals};
    fcntl_get_seals(file).map_or(true, |seals| !seals.contains(SealFlags::SHRINK))
}

/// Opens `file` a second time, with a separate position and separate locks (through
/// proc_pid_fd(5)).
pub fn reopen(file: &File) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    let path = crate::KernelRoot::own_descriptor_path(file.as_raw_fd());
    File::options().read(true).write(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn links_are_never_followed() {
        let tree = tempfile::tempdir().unwrap();
        let base = std::fs::canonicalize(tree.path()).unwrap();
        std::fs::create_dir(base.join("real")).unwrap();
        std::fs::write(base.join("real/file"), "x").unwrap();
        symlink(base.join("real"), base.join("link")).unwrap();
        symlink("file", base.join("real/alias")).unwrap();
        let loops = |error: io::Error| is_link_in_the_way(&error);
        assert!(loops(Directory::open(&base.join("link")).unwrap_err()));
        assert!(loops(Directory::open(&base.join("link/..")).unwrap_err()));
        let directory = Directory::open(&base).unwrap();
        assert!(loops(directory.child("link").unwrap_err()));
        let real = directory.child("real").unwrap();
        assert!(loops(real.open_file("alias").unwrap_err()));
        assert!(loops(real.open_file_to_read("alias").unwrap_err()));
        assert_eq!(real.create_file("alias", 0o600).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        assert_eq!(real.open_file("../real/file").unwrap_err().raw_os_error(), Some(libc::EXDEV));
        assert_eq!(real.open_file("/etc/passwd").unwrap_err().raw_os_error(), Some(libc::EXDEV));
        assert!(real.open_file("file").is_ok());
        real.remove_file(OsStr::new("alias")).unwrap();
        assert_eq!(real.names(9).unwrap(), (vec![OsString::from("file")], false));
        assert_eq!(real.names(0).unwrap(), (vec![], true));
    }

    #[test]
    fn modes_are_as_asked() {
        let tree = tempfile::tempdir().unwrap();
        let base = Directory::open(&std::fs::canonicalize(tree.path()).unwrap()).unwrap();
        let child = base.make_child("one", 0o750).unwrap();
        assert_eq!(child.metadata().unwrap().permissions().mode() & 0o7777, 0o750);
        let file = child.create_file("file", 0o666).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o666);
        assert!(child.is_same_as(&base.child("one").unwrap()).unwrap());
        assert!(!child.is_same_as(&base).unwrap());
        assert_eq!(huge_page_size_of(&file).unwrap(), None);
    }

    #[test]
    fn memory_files_do_not_shrink() {
        let file = memory_file("test", None).unwrap();
        assert!(!can_shrink(&file) && can_shrink(tempfile::tempfile().unwrap()));
        file.set_len(8192).unwrap();
        assert_eq!(file.set_len(4096).unwrap_err().raw_os_error(), Some(libc::EPERM));
        let again = reopen(&file).unwrap();
        assert_eq!(again.metadata().unwrap().len(), 8192);
        file.try_lock().unwrap();
        assert!(again.try_lock().is_err(), "the locks are its own");
    }
}
