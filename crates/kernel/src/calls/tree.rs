//! Files of a system: of the running one, or of an image, out of which no path leads.

use crate::directory::{Directory, is_link_in_the_way};
use crate::no_links::{self, Reach};
use crate::trusted::{Replace, read_bounded};
use rustix::fs::{Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files of a system. Paths given to it are those that the caller would use: `root` and the part
/// after it.
#[derive(Debug)]
pub struct Tree {
    file: File,
    root: PathBuf,
}

impl Tree {
    /// Opens the system below `root`. `/` is the running system, whose own links are followed. In
    /// any other system no link is followed, not even one within a path, and no path leads above
    /// `root` (`no_links`). An absolute link, or one with `..`, would lead into the running system.
    pub fn open(root: &Path) -> io::Result<Tree> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = rustix::fs::open(root, flags, Mode::empty())?.into();
        Ok(Tree { file, root: root.to_path_buf() })
    }

    /// Returns the path by which it was opened.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the text of the regular file at `path`, of at most `most` bytes; `None` if there is
    /// no file. ELOOP if the file is a symbolic link, in any tree, or if one is on the way to it.
    pub fn read(&self, path: &Path, most: u64) -> io::Result<Option<String>> {
        let Some((directory, name)) = self.find(path)? else { return Ok(None) };
        let file = match directory.open_file_to_read(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let bytes = read_bounded(file, most)?;
        String::from_utf8(bytes).map(Some).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    }

    /// Returns the names in the directory at `path`, sorted, `most` at most; none if there is no
    /// such directory.
    pub fn names(&self, path: &Path, most: usize) -> io::Result<Vec<OsString>> {
        match self.directory(path) {
            Ok(directory) => Ok(directory.names(most)?.0),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns true if there is a directory at `path`.
    pub fn is_directory(&self, path: &Path) -> bool {
        self.directory(path).is_ok()
    }

    /// Replaces the file at `path` by one that holds `text`, with the mode of the former or 0644.
    /// Makes missing directories. A crash leaves the one file or the other.
    pub fn replace(&self, path: &Path, text: &str) -> io::Result<()> {
        let (directory, name) = self.split(path)?;
        let directory = self.make(directory)?;
        let mode = match directory.open_file_to_read(name) {
            Ok(file) => file.metadata()?.mode() & 0o7777,
            // Any other kind of file is replaced, and not opened.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => 0o644,
            Err(error) => return Err(error),
        };
        directory.replace_file(name.as_ref(), text.as_bytes(), Replace { mode, durable: true })
    }

    /// Removes the file at `path`.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        match self.find(path)? {
            Some((directory, name)) => directory.remove_file(name.as_ref()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    /// Removes the directory at `path`. Returns false, and keeps it, if it is not empty.
    pub fn remove_empty(&self, path: &Path) -> io::Result<bool> {
        let (parent, name) = self.split(path)?;
        match self.directory(parent)?.remove_child(name) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(false),
            removed => removed.map(|()| true),
        }
    }

    fn find<'a>(&self, path: &'a Path) -> io::Result<Option<(Directory, &'a str)>> {
        let (directory, name) = self.split(path)?;
        match self.directory(directory) {
            Ok(directory) => Ok(Some((directory, name))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn split<'a>(&self, path: &'a Path) -> io::Result<(&'a Path, &'a str)> {
        let name = path.file_name().and_then(OsStr::to_str);
        path.parent().zip(name).ok_or_else(|| ErrorKind::InvalidInput.into())
    }

    fn directory(&self, path: &Path) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let relative = match path.strip_prefix(&self.root) {
            Ok(relative) if relative.as_os_str().is_empty() => Path::new("."),
            Ok(relative) => relative,
            Err(_) => return Err(ErrorKind::InvalidInput.into()),
        };
        let file = match self.root == Path::new("/") {
            true => rustix::fs::openat(&self.file, relative, flags, Mode::empty())?,
            false => no_links::open(Some(self.file.as_fd()), relative, flags, Mode::empty(), Reach::Beneath)?,
        };
        Ok(Directory::of(file.into(), path))
    }

    /// Returns the directory at `path`. Makes it, and those above it, if they are missing.
    fn make(&self, path: &Path) -> io::Result<Directory> {
        match self.directory(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (parent, name) = self.split(path)?;
                match self.make(parent)?.make_child(name, 0o755) {
                    // Another process has made it meanwhile.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => self.directory(path),
                    made => made,
                }
            }
            found => found,
        }
    }
}

/// Returns true if a symbolic link is on the way to `path`, and not at `path` itself.
pub fn is_link_on_the_way(error: &io::Error, path: &Path) -> bool {
    is_link_in_the_way(error) && !path.is_symlink()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn no_path_leads_out() {
        let top = tempfile::tempdir().unwrap();
        let (image, outside) = (top.path().join("image"), top.path().join("outside"));
        fs::create_dir_all(image.join("etc")).unwrap();
        fs::create_dir_all(outside.join("conf.d")).unwrap();
        fs::write(outside.join("conf.d/file"), "outside").unwrap();
        symlink(outside.join("conf.d"), image.join("etc/absolute.d")).unwrap();
        symlink("../../outside", image.join("etc/up")).unwrap();
        let tree = Tree::open(&image).unwrap();
        for path in ["etc/absolute.d/file", "etc/up/conf.d/file", "etc/up/made/file"] {
            let path = image.join(path);
            let loops = |error: io::Error| is_link_on_the_way(&error, &path);
            assert!(loops(tree.read(&path, 99).unwrap_err()));
            assert!(loops(tree.replace(&path, "x").unwrap_err()));
            assert!(loops(tree.remove(&path).unwrap_err()));
            assert!(loops(tree.names(path.parent().unwrap(), 9).unwrap_err()));
            assert!(!tree.is_directory(path.parent().unwrap()));
        }
        assert!(tree.replace(&image.join("../outside/new"), "x").is_err());
        assert!(tree.replace(&outside.join("new"), "x").is_err());
        symlink(outside.join("conf.d/file"), image.join("etc/link")).unwrap();
        let error = tree.read(&image.join("etc/link"), 99).unwrap_err();
        assert!(is_link_in_the_way(&error) && !is_link_on_the_way(&error, &image.join("etc/link")));
        assert!(tree.replace(&image.join("etc/link"), "x").is_err());
        assert_eq!(fs::read_to_string(outside.join("conf.d/file")).unwrap(), "outside");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    }

    #[test]
    fn files_are_made_kept_and_removed() {
        let top = tempfile::tempdir().unwrap();
        let tree = Tree::open(top.path()).unwrap();
        let path = top.path().join("a/b/file");
        assert_eq!(tree.read(&path, 99).unwrap(), None);
        tree.replace(&path, "1").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        tree.replace(&path, "22").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "as it was");
        assert_eq!(tree.read(&path, 2).unwrap().as_deref(), Some("22"));
        assert_eq!(tree.read(&path, 1).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(tree.names(path.parent().unwrap(), 9).unwrap(), ["file"], "no draft is left");
        assert!(tree.read(path.parent().unwrap(), 9).is_err());
        // A FIFO is replaced, and its other end is not waited for.
        let pipe = top.path().join("a/b/pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(tree.read(&pipe, 9).unwrap_err().to_string(), "not a regular file");
        tree.replace(&pipe, "text").unwrap();
        assert_eq!(tree.read(&pipe, 9).unwrap().as_deref(), Some("text"));
        tree.remove(&pipe).unwrap();
        tree.remove(&path).unwrap();
        assert_eq!(tree.remove(&path).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(tree.names(&top.path().join("none"), 9).unwrap().is_empty());
        assert!(!tree.remove_empty(&top.path().join("a")).unwrap(), "b is in it");
        assert!(tree.remove_empty(&top.path().join("a/b")).unwrap() && !top.path().join("a/b").exists());
    }
}
