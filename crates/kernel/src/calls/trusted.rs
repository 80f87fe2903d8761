//! Files at paths that an administrator names, in directories that others may control. This module
//! checks which directories can be trusted, and replaces files without writing through a file that
//! another user has put in their place.

use crate::directory::{Directory, is_link_in_the_way};
use crate::effective_uid;
use crate::file_cache::data_in;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Options of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replace {
    /// Permission bits of the new file, independent of the umask.
    pub mode: u32,
    /// True if the new file is on the disk before the old one goes (fsync(2)). Then a crash of the
    /// machine leaves the one or the other.
    pub durable: bool,
}

/// Replaces the file at the absolute `path`: a reader sees the old bytes or the new ones, whole.
/// Makes the new file beside it, under a name at which nothing is followed or opened (O_EXCL). Then
/// renames it over any file at `path`: a symbolic link or a FIFO there is replaced, not written to.
/// PermissionDenied if the directory's path leads through a symbolic link that another user can
/// have put there.
pub fn replace_file(path: &Path, bytes: &[u8], how: Replace) -> io::Result<()> {
    let (directory, name) = directory_and_name(path)?;
    directory.replace_file(name, bytes, how)
}

/// Checks that [`replace_file`] can replace the file at `path`: makes the draft and removes it.
pub fn try_replace_file(path: &Path) -> io::Result<()> {
    let (directory, name) = directory_and_name(path)?;
    let draft = directory.create_draft(name, 0o600)?;
    directory.remove_file(&draft.name)
}

/// Removes the file at the absolute `path`, on the conditions of [`replace_file`].
pub fn remove_file(path: &Path) -> io::Result<()> {
    let (directory, name) = directory_and_name(path)?;
    directory.remove_file(name)
}

/// Returns the bytes of the regular file at `path`, at most `most` of them. Never waits for the
/// other end of a FIFO. `FileTooLarge` if there are more bytes, `InvalidInput` if it is no regular
/// file.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_bounded(open_regular(path)?, most)
}

/// Opens the regular file at `path` for reading; follows symbolic links. Refuses any other kind of
/// file (`InvalidInput`) before it opens it, so that no FIFO is waited for, and no driver of a
/// device runs.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_looked_at(OFlags::RDONLY, |flags| rustix::fs::open(path, flags, Mode::empty()))
}

/// Opens like [`open_regular`], but ELOOP if `path` itself is a symbolic link.
pub fn open_regular_no_link(path: &Path) -> io::Result<File> {
    let no_link = |flags| rustix::fs::open(path, flags | OFlags::NOFOLLOW, Mode::empty());
    open_looked_at(OFlags::RDONLY, no_link)
}

/// Returns the bytes of the file that the caller has named by `path`, at most `most`. The file is a
/// regular one, or an open descriptor of this process (`<(...)` of a shell, /dev/stdin). Only a
/// descriptor is waited for: no other user can have put it there.
pub fn read_given(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_bounded(open_given(path)?, most)
}

/// Opens the file that [`read_given`] reads.
pub fn open_given(path: &Path) -> io::Result<File> {
    let is_in = |directory| path.parent() == Some(Path::new(directory));
    let device = [Path::new("/dev/stdin"), Path::new("/dev/null")].contains(&path);
    match device || is_in("/dev/fd") || is_in("/proc/self/fd") {
        true => File::open(path),
        false => open_regular(path),
    }
}

/// Length of the longest file that may consist of holes, in bytes.
const LONGEST_HOLLOW: u64 = 256 << 20;
/// Most parts of a file in which data is counted.
const MOST_PARTS: usize = 1 << 20;

/// Opens a program or library whose tables are to be read, like [`open_regular`]. `InvalidData` if
/// it belongs to another user, is long, and consists of holes for more than a half. A table in a
/// hole costs its owner nothing, and its reader as much memory as it is long.
pub fn open_binary(path: &Path) -> io::Result<File> {
    let mut file = open_regular(path)?;
    let state = file.metadata()?;
    let (length, trusted) = (state.len(), [0, effective_uid()].contains(&state.uid()));
    if length > LONGEST_HOLLOW && !trusted {
        let parts = data_in(&file, 0, length).take(MOST_PARTS);
        let data: u64 = parts.map(|part| part.map(|part| part.end - part.start)).sum::<io::Result<u64>>()?;
        if data < length / 2 {
            return Err(io::Error::new(ErrorKind::InvalidData, "more than half of it is holes"));
        }
        file.rewind()?;
    }
    Ok(file)
}

/// Opens a regular file in two steps. First `open` gets flags with O_PATH, by which a file is found
/// and not opened. Then the file that was found is opened by its descriptor, even if another file
/// has taken its name meanwhile.
pub(crate) fn open_looked_at(
    flags: OFlags,
    open: impl Fn(OFlags) -> Result<OwnedFd, Errno>,
) -> io::Result<File> {
    let place = open(OFlags::PATH | OFlags::CLOEXEC)?;
    let found = require_regular(&place)?;
    // O_NONBLOCK: the file's owner may hold a lease on it (fcntl(2)), which an open would wait for.
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let own = crate::KernelRoot::own_descriptor_path(place.as_raw_fd());
    match rustix::fs::open(own, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            // Without /proc the file is opened by its name a second time.
            let file = open(flags)?;
            let again = require_regular(&file)?;
            if (again.st_dev, again.st_ino) != (found.st_dev, found.st_ino) {
                return Err(Errno::STALE.into());
            }
            Ok(file.into())
        }
        file => Ok(file?.into()),
    }
}

/// Returns the state of `file`. `InvalidInput` if it is no regular file, ELOOP if it is a link.
fn require_regular(file: &OwnedFd) -> io::Result<Stat> {
    let found = rustix::fs::fstat(file)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(found),
        FileType::Symlink => Err(Errno::LOOP.into()),
        _ => Err(not_regular()),
    }
}

fn not_regular() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "not a regular file")
}

/// Returns all bytes that `from` gives, at most `most`; `FileTooLarge` if there are more.
pub fn read_bounded(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it is longer than {most} bytes")));
    }
    Ok(bytes)
}

/// Refuses a path at which there is another file than one of megapage: writing would destroy that
/// file. The error is `AlreadyExists`, and its message says that the file is no `what`. `is_ours`
/// judges a regular file. A link is refused: replacing it would destroy only the link, yet its
/// owner wants something else.
pub fn require_ours(
    path: &Path,
    what: &str,
    is_ours: impl FnOnce(File) -> io::Result<bool>,
) -> io::Result<()> {
    let is_file = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?.is_file(),
    };
    if is_file && is_ours(open_regular(path)?)? {
        return Ok(());
    }
    let what = format!("it is there and no {what} of megapage: remove it, or give another path");
    Err(io::Error::new(ErrorKind::AlreadyExists, what))
}

/// Opens the file at `path`, which a user has named for a report, for writing, and empties it.
/// Makes it if it is missing. Follows a symbolic link of root or of the caller, such as
/// `/dev/stdout`. Refuses another user's link, in any directory (the kernel, by
/// fs.protected_symlinks, refuses it only in sticky ones). Also refuses another user's FIFO, which
/// would be waited for.
pub fn create_report(path: &Path) -> io::Result<File> {
    open_by(path, File::options().write(true).create(true).truncate(true))
}

/// Opens the file in the same way, but keeps its contents.
pub fn open_report(path: &Path) -> io::Result<File> {
    open_by(path, File::options().write(true).create(true).truncate(false))
}

/// Opens the file at `path`, which a user has named for a record, for reading and for writing at
/// its end. Makes it, with access for its owner alone, if it is missing. Links are treated as by
/// [`create_report`]. `InvalidInput` if it is no regular file.
pub fn append_report(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).append(true).create(true).mode(0o600);
    // This check keeps it from waiting for the other end of a FIFO.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(not_regular());
    }
    let file = open_by(path, &mut options)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

fn open_by(path: &Path, options: &mut fs::OpenOptions) -> io::Result<File> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        found => Some(found?).filter(|found| !found.is_file()),
    };
    if let Some(found) = found {
        let owner = found.uid();
        let waits = found.file_type().is_fifo();
        if (found.is_symlink() || waits) && owner != 0 && owner != effective_uid() {
            let kind = if waits { "FIFO" } else { "symbolic link" };
            let what = format!("it is a {kind} of user {owner}: give another path");
            return Err(io::Error::new(ErrorKind::PermissionDenied, what));
        }
        return options.custom_flags(0).open(path);
    }
    // A file that has taken its place meanwhile is neither followed nor waited for.
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// Writes `bytes` to the file at `path` as [`create_report`] opens it.
pub fn write_report(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_report(path)?.write_all(bytes)
}

/// Makes the directory of `path`, and missing ones above it, with mode 0755 less the umask.
pub fn make_directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => {
            DirBuilder::new().recursive(true).mode(0o755).create(parent)
        }
        _ => Ok(()),
    }
}

/// Opens the directory at the absolute `path`, in which only the calling user can put files.
/// PermissionDenied if it belongs to another user, or others may write to it. Links on the way are
/// treated as by [`replace_file`].
pub fn open_own_directory(path: &Path) -> io::Result<Directory> {
    let directory = open_by_own_links(path)?;
    require_own(&directory.metadata()?, "the directory")?;
    Ok(directory)
}

/// Returns PermissionDenied if the file `found`, called `what`, belongs to another user, or others
/// may write to it.
fn require_own(found: &fs::Metadata, what: &str) -> io::Result<()> {
    let refuse = |why: String| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    if found.uid() != effective_uid() {
        return refuse(format!("{what} belongs to user {}", found.uid()));
    }
    if found.mode() & 0o022 != 0 {
        return refuse(format!("{what} may be written to by others"));
    }
    Ok(())
}

/// Opens a directory. Follows an administrator's links, once, but no link that another user can
/// have put there.
fn open_by_own_links(path: &Path) -> io::Result<Directory> {
    match Directory::open(path) {
        Err(error) if is_link_in_the_way(&error) => Directory::open(&resolve_own_links(path)?),
        opened => opened,
    }
}

fn directory_and_name(path: &Path) -> io::Result<(Directory, &OsStr)> {
    let wrong = |what| Err(io::Error::new(ErrorKind::InvalidInput, what));
    match (path.parent(), path.file_name()) {
        (Some(directory), Some(name)) if path.is_absolute() => Ok((open_by_own_links(directory)?, name)),
        (Some(_), Some(_)) => wrong("give an absolute path"),
        _ => wrong("it is no path of a file"),
    }
}

/// Most symbolic links that are followed on one path (path_resolution(7)).
const MOST_LINKS: u32 = 40;

/// Returns the place that the absolute `path` leads to, through links that only root or the caller
/// can have put there. PermissionDenied for a link that belongs to another user or lies in another
/// user's directory. The same for a link in a directory that others may write to, unless it is
/// sticky.
fn resolve_own_links(path: &Path) -> io::Result<PathBuf> {
    let trusted = |owner: u32| owner == 0 || owner == effective_uid();
    let mut resolved = PathBuf::from("/");
    // Components still to resolve, the next one last.
    let components = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|component| component.as_os_str().to_os_string()).collect()
    };
    let (mut left, mut links) = (components(path), 0);
    while let Some(component) = left.pop() {
        match component.as_bytes() {
            b"/" => resolved = PathBuf::from("/"),
            b".." => drop(resolved.pop()),
            _ => {
                let next = resolved.join(&component);
                let found = fs::symlink_metadata(&next)?;
                if !found.is_symlink() {
                    resolved = next;
                    continue;
                }
                let directory = fs::symlink_metadata(&resolved)?;
                let (open, sticky) = (directory.mode() & 0o022 != 0, directory.mode() & 0o1000 != 0);
                if !trusted(directory.uid()) || !trusted(found.uid()) || (open && !sticky) {
                    let what = format!(
                        "{} is a symbolic link that others could have put there: give the path without it",
                        next.display()
                    );
                    return Err(io::Error::new(ErrorKind::PermissionDenied, what));
                }
                links += 1;
                if links > MOST_LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                left.extend(components(&fs::read_link(&next)?));
            }
        }
    }
    Ok(resolved)
}

/// New file that is to replace another.
#[derive(Debug)]
pub(crate) struct Draft {
    file: File,
    name: OsString,
}

impl Directory {
    /// Returns the bytes of the regular file `name` in this directory, at most `most`, that only
    /// the calling user may have written. PermissionDenied if it belongs to another user or is
    /// writable by others. `InvalidInput` if it is a link or no regular file, `FileTooLarge` if it
    /// is longer. Never waits.
    pub fn read_own_file(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let file = self.open_file_to_read(name).map_err(|error| match is_link_in_the_way(&error) {
            true => io::Error::new(ErrorKind::InvalidInput, "it is a symbolic link"),
            false => error,
        })?;
        require_own(&file.metadata()?, "it")?;
        read_bounded(file, most)
    }

    /// Replaces the file `name` in this directory, see [`replace_file`].
    pub fn replace_file(&self, name: &OsStr, bytes: &[u8], how: Replace) -> io::Result<()> {
        let mut draft = self.create_draft(name, how.mode)?;
        let written = (|| {
            draft.file.write_all(bytes)?;
            if how.durable {
                draft.file.sync_all()?;
            }
            self.rename(&draft.name, name)?;
            if how.durable { self.file().sync_all() } else { Ok(()) }
        })();
        if written.is_err() {
            // The failure is reported; the draft would only be in the way.
            let _ = self.remove_file(&draft.name);
        }
        written
    }

    /// Makes a new file beside `name`, with a name that no pattern such as `*.prom` matches.
    /// Removes, and never opens, a file of that name, which another user may have put there.
    fn create_draft(&self, name: &OsStr, mode: u32) -> io::Result<Draft> {
        let mut draft = OsString::from(".");
        draft.push(name);
        draft.push(format!(".{}.new", std::process::id()));
        match self.remove_file(&draft) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Draft { file: self.create_file(&draft, mode)?, name: draft })
    }
}

/// Refuses a path at which another user could put a file. This is a path that leads through a
/// symbolic link, or whose directory, or one above it, is not safe. A directory is not safe if it
/// belongs to another user than root or the caller, or may be written to by others. A sticky
/// directory above may be written to by others. If the directory is missing, the check is made of
/// its parent instead.
pub fn trusted_directory(path: &Path) -> io::Result<()> {
    let refuse = |what: String| Err(io::Error::new(ErrorKind::PermissionDenied, what));
    let Some(parent) = path.parent() else { return refuse("it is no path of a file".into()) };
    let directory = match Directory::open(parent) {
        Err(error) if error.kind() == ErrorKind::NotFound => match parent.parent() {
            Some(above) => Directory::open(above),
            None => Err(error),
        },
        opened => opened,
    };
    let directory = match directory {
        Err(error) if is_link_in_the_way(&error) => {
            return refuse("a symbolic link is in the way: give the path without it".into());
        }
        opened => opened?,
    };
    let found = directory.metadata()?;
    let name = directory.path().display();
    if found.uid() != 0 && found.uid() != effective_uid() {
        return refuse(format!("directory {name} belongs to user {}: use one of your own", found.uid()));
    }
    if found.mode() & 0o022 != 0 {
        return refuse(format!("directory {name} may be written to by others: use one that may not"));
    }
    // A user who may write to a directory above could put another in its place, except in a sticky
    // one.
    for above in std::path::absolute(parent)?.ancestors().skip(1) {
        // No link is on the way, as was checked; this reads only metadata.
        let found = fs::symlink_metadata(above)?;
        let name = above.display();
        if found.uid() != 0 && found.uid() != effective_uid() {
            let uid = found.uid();
            return refuse(format!("directory {name}, above it, belongs to user {uid}: use one of your own"));
        }
        if found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0 {
            return refuse(format!(
                "directory {name}, above it, may be written to by others: use one that may not"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
