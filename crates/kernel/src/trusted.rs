//! Files at paths that an administrator names, in directories that others may control: which directories can be trusted,
//! and how a file is replaced without ever writing through what another user has put in its place.

use crate::directory::{Directory, is_link_in_the_way};
use crate::effective_uid;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How a file is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replace {
    /// The permission bits of the new file, whatever the umask.
    pub mode: u32,
    /// Whether it is on the disk before the old one goes (fsync(2)), so that a crash of the machine leaves the one or the
    /// other.
    pub durable: bool,
}

/// Replaces the file at the absolute `path`: a reader sees the old bytes or the new ones, whole. The new file is made beside
/// it, under a name at which nothing is followed or opened (O_EXCL), and renamed over whatever is at `path`: a symbolic
/// link or a FIFO there is replaced, not written to. PermissionDenied where the directory's path leads through a symbolic
/// link that another user can have put there.
pub fn replace_file(path: &Path, bytes: &[u8], how: Replace) -> io::Result<()> {
    let (directory, name) = directory_and_name(path)?;
    directory.replace_file(name, bytes, how)
}

/// Whether [`replace_file`] can replace the file at `path`: makes the draft and removes it.
pub fn try_replace_file(path: &Path) -> io::Result<()> {
    let (directory, name) = directory_and_name(path)?;
    let draft = directory.create_draft(name, 0o600)?;
    directory.remove_file(&draft.name)
}

/// Removes the file at the absolute `path`, as [`replace_file`] finds it.
pub fn remove_file(path: &Path) -> io::Result<()> {
    let (directory, name) = directory_and_name(path)?;
    directory.remove_file(name)
}

/// The bytes of the regular file at `path`, at most `most` of them. Never waits for the other end of a FIFO.
/// `FileTooLarge` where there are more, `InvalidInput` where it is no regular file.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_bounded(open_regular(path)?, most)
}

/// Opens the regular file at `path` for reading; symbolic links are followed. Never waits for the other end of a FIFO:
/// what is no regular file is refused (`InvalidInput`).
pub fn open_regular(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file: File = rustix::fs::open(path, flags, Mode::empty())?.into();
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// All that `from` gives, at most `most` bytes; `FileTooLarge` where there is more.
pub fn read_bounded(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it is longer than {most} bytes")));
    }
    Ok(bytes)
}

/// Refuses a path at which there is something else than a file of megapage's, which writing would destroy: `AlreadyExists`
/// then, and the message says that it is no `what`. Of a regular file `is_ours` judges; a link is refused: to replace it
/// destroys nothing but the link, yet is not what its owner wants.
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

/// Opens the file at `path`, which a user has named for a report, for writing, and empties it; makes it where it is missing.
/// A symbolic link is followed where it is root's or the caller's own, as `/dev/stdout` is; another user's is refused, in
/// whatever directory (the kernel, by fs.protected_symlinks, refuses it in sticky ones alone).
pub fn create_report(path: &Path) -> io::Result<File> {
    open_by(path, File::options().write(true).create(true).truncate(true))
}

/// The same, and what the file holds stays.
pub fn open_report(path: &Path) -> io::Result<File> {
    open_by(path, File::options().write(true).create(true).truncate(false))
}

/// Opens the file at `path`, which a user has named for a record, for reading and for writing at its end; makes it, for its
/// owner alone, where it is missing. Links as for [`create_report`]. `InvalidInput` where it is no regular file.
pub fn append_report(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    options.read(true).append(true).create(true).mode(0o600);
    // Never waits for the other end of a FIFO.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    open_by(path, &mut options)
}

fn open_by(path: &Path, options: &mut fs::OpenOptions) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    match options.custom_flags(libc::O_NOFOLLOW).open(path) {
        Err(error) if is_link_in_the_way(&error) => {
            let owner = fs::symlink_metadata(path)?.uid();
            if owner != 0 && owner != effective_uid() {
                let what = format!("it is a symbolic link of user {owner}: give another path");
                return Err(io::Error::new(ErrorKind::PermissionDenied, what));
            }
            options.custom_flags(0).open(path)
        }
        opened => opened,
    }
}

/// Writes `bytes` to the file at `path` as [`create_report`] opens it.
pub fn write_report(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_report(path)?.write_all(bytes)
}

/// Makes the directory of `path`, and those above it that are missing, with mode 0755 less the umask.
pub fn make_directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => {
            DirBuilder::new().recursive(true).mode(0o755).create(parent)
        }
        _ => Ok(()),
    }
}

/// Opens the directory at the absolute `path`, in which the calling user alone can put files: PermissionDenied where it is
/// another user's, or others may write to it. Links on the way as for [`replace_file`].
pub fn open_own_directory(path: &Path) -> io::Result<Directory> {
    let directory = open_by_own_links(path)?;
    require_own(&directory.metadata()?, "the directory")?;
    Ok(directory)
}

/// PermissionDenied where `what` is another user's, or others may write to it.
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

/// What an administrator has linked is followed, once, and by no other user's links.
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

/// Symbolic links that are followed on one path (path_resolution(7)).
const MOST_LINKS: u32 = 40;

/// Where the absolute `path` leads, through links that root or the caller alone can have put there. PermissionDenied where
/// another user can: in a directory of theirs, or one that others may write to, unless it is sticky and the link is not theirs.
fn resolve_own_links(path: &Path) -> io::Result<PathBuf> {
    let trusted = |owner: u32| owner == 0 || owner == effective_uid();
    let mut resolved = PathBuf::from("/");
    // The components still to go, the next one last.
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

/// A new file that is to take the place of another.
#[derive(Debug)]
pub(crate) struct Draft {
    file: File,
    name: OsString,
}

impl Directory {
    /// The bytes of the regular file `name` in this directory, at most `most`, that the calling user alone may have written:
    /// PermissionDenied where another user's or writable by others, `InvalidInput` where it is a link or no regular file,
    /// `FileTooLarge` where it is longer. Never waits.
    pub fn read_own_file(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let file = self.open_file_to_read(name).map_err(|error| match is_link_in_the_way(&error) {
            true => io::Error::new(ErrorKind::InvalidInput, "it is a symbolic link"),
            false => error,
        })?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
        }
        require_own(&found, "it")?;
        read_bounded(file, most)
    }

    /// See [`replace_file`]: the file `name` in this directory.
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
            // What failed is reported; the draft would only be in the way.
            let _ = self.remove_file(&draft.name);
        }
        written
    }

    /// A new file beside `name`, whose own name no pattern such as `*.prom` matches. One of that name, which another user
    /// may have put there, is removed, never opened.
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

/// Refuses a path at which another user could put a file: one that leads through a symbolic link, or whose
/// directory, or one above it, belongs to another user than root or the caller's, or may be written to by others (above it:
/// and is not sticky). A directory that is missing has no owner: its own parent is looked at.
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
    // A user who may write to a directory above could put another in its place; a sticky one keeps them from it.
    for above in std::path::absolute(parent)?.ancestors().skip(1) {
        // No link is on the way, as has been seen; to look is not to read.
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
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::fs::{PermissionsExt, symlink};

    const PLAIN: Replace = Replace { mode: 0o644, durable: false };

    fn tree() -> (tempfile::TempDir, PathBuf) {
        let tree = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(tree.path()).unwrap();
        (tree, base)
    }

    fn fifo(path: &Path) {
        mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    }

    #[test]
    fn what_another_user_puts_there_is_replaced_and_never_written_to() {
        let (_tree, base) = tree();
        let (victim, path) = (base.join("victim"), base.join("metrics.prom"));
        let draft = base.join(format!(".metrics.prom.{}.new", std::process::id()));
        let count = || fs::read_dir(&base).unwrap().count();
        fs::write(&victim, "precious").unwrap();
        for planted in [&path, &draft] {
            for durable in [false, true] {
                symlink(&victim, planted).unwrap();
                replace_file(&path, b"text", Replace { mode: 0o640, durable }).unwrap();
                assert_eq!(fs::read(&path).unwrap(), b"text");
                assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o170_777, 0o100_640);
                fs::remove_file(&path).unwrap();
                fifo(planted);
                replace_file(&path, b"text", PLAIN).unwrap();
                assert!(fs::symlink_metadata(&path).unwrap().is_file());
                assert_eq!(count(), 2, "no draft is left");
                remove_file(&path).unwrap();
            }
        }
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(remove_file(&path).unwrap_err().kind(), ErrorKind::NotFound);
        try_replace_file(&path).unwrap();
        assert_eq!(count(), 1);
        // What cannot be replaced leaves no draft.
        fs::create_dir(&path).unwrap();
        assert!(replace_file(&path, b"text", PLAIN).is_err());
        assert_eq!(count(), 2);
    }

    #[test]
    fn what_another_user_can_have_written_is_not_read() {
        let (_tree, base) = tree();
        let directory = open_own_directory(&base).unwrap();
        let why = |name: &str| directory.read_own_file(name, 4).unwrap_err().to_string();
        fs::write(base.join("own"), "text").unwrap();
        assert_eq!(directory.read_own_file("own", 4).unwrap(), b"text");
        fs::write(base.join("long"), "text.").unwrap();
        assert_eq!(directory.read_own_file("long", 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
        symlink("own", base.join("link")).unwrap();
        assert_eq!(why("link"), "it is a symbolic link");
        fifo(&base.join("fifo"));
        assert_eq!(why("fifo"), "it is no regular file");
        fs::set_permissions(base.join("own"), fs::Permissions::from_mode(0o620)).unwrap();
        assert_eq!(why("own"), "it may be written to by others");
        assert_eq!(directory.read_own_file("none", 4).unwrap_err().kind(), ErrorKind::NotFound);
        fs::create_dir(base.join("open")).unwrap();
        fs::set_permissions(base.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = open_own_directory(&base.join("open")).unwrap_err().to_string();
        assert_eq!(refused, "the directory may be written to by others");
        if effective_uid() != 0 {
            return megapage_testing::skip("needs root, to give a file to another user");
        }
        fs::set_permissions(base.join("own"), fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(base.join("own"), Some(12345), None).unwrap();
        assert_eq!(why("own"), "it belongs to user 12345");
        std::os::unix::fs::chown(base.join("open"), Some(12345), None).unwrap();
        let refused = open_own_directory(&base.join("open")).unwrap_err().to_string();
        assert_eq!(refused, "the directory belongs to user 12345");
    }

    #[test]
    fn links_of_others_are_not_followed() {
        let (_tree, base) = tree();
        fs::create_dir_all(base.join("open/real")).unwrap();
        fs::create_dir(base.join("links")).unwrap();
        symlink("../open/./real", base.join("links/own")).unwrap();
        symlink(base.join("links/own/.."), base.join("links/twice")).unwrap();
        symlink("self", base.join("links/self")).unwrap();
        let text = |path: &str| fs::read(base.join(path)).unwrap();
        replace_file(&base.join("links/own/a"), b"1", PLAIN).unwrap();
        replace_file(&base.join("links/twice/b"), b"2", PLAIN).unwrap();
        assert_eq!((text("open/real/a"), text("open/b")), (b"1".to_vec(), b"2".to_vec()));
        assert!(replace_file(&base.join("links/self/a"), b"x", PLAIN).is_err());
        // Others may put a link there.
        fs::set_permissions(base.join("links"), fs::Permissions::from_mode(0o777)).unwrap();
        let through = base.join("links/own/a");
        for result in [replace_file(&through, b"x", PLAIN), try_replace_file(&through), remove_file(&through)]
        {
            let what = result.unwrap_err().to_string();
            assert!(what.contains("links/own is a symbolic link that others could have put there"), "{what}");
        }
        fs::set_permissions(base.join("links"), fs::Permissions::from_mode(0o1777)).unwrap();
        replace_file(&through, b"3", PLAIN).unwrap();
        if effective_uid() == 0 {
            std::os::unix::fs::lchown(base.join("links/own"), Some(4711), None).unwrap();
            assert!(
                replace_file(&through, b"x", PLAIN).is_err(),
                "in a sticky directory, and another user's"
            );
        }
        assert_eq!(text("open/real/a"), b"3");
        for wrong in ["relative", "/", ""] {
            assert!(replace_file(Path::new(wrong), b"x", PLAIN).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_report_is_not_written_through_a_link_of_another_user() {
        let (_tree, base) = tree();
        let (victim, link) = (base.join("victim"), base.join("link"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &link).unwrap();
        write_report(&link, b"own").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"own");
        write_report(&base.join("new"), b"new").unwrap();
        write_report(Path::new("/dev/null"), b"x").unwrap();
        if effective_uid() == 0 {
            std::os::unix::fs::lchown(&link, Some(4711), None).unwrap();
            let what = write_report(&link, b"x").unwrap_err().to_string();
            assert!(what.contains("it is a symbolic link of user 4711"), "{what}");
            assert_eq!(fs::read(&victim).unwrap(), b"own");
        }
    }

    #[test]
    fn reading_is_bounded_and_does_not_wait_for_a_fifo() {
        let (_tree, base) = tree();
        let (path, pipe) = (base.join("file"), base.join("pipe"));
        fs::write(&path, "12345678").unwrap();
        fifo(&pipe);
        assert_eq!(read_regular(&path, 8).unwrap(), b"12345678");
        assert_eq!(read_regular(&path, 7).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_regular(&pipe, 8).unwrap_err().to_string(), "not a regular file");
        assert!(read_regular(&base, 8).is_err());
        symlink("file", base.join("link")).unwrap();
        assert_eq!(read_regular(&base.join("link"), 8).unwrap(), b"12345678");
    }

    #[test]
    fn a_directory_that_others_control_is_refused() {
        let (_tree, base) = tree();
        trusted_directory(&base.join("s")).unwrap();
        trusted_directory(&base.join("missing/s")).unwrap();
        fs::create_dir(base.join("open")).unwrap();
        fs::set_permissions(base.join("open"), fs::Permissions::from_mode(0o1777)).unwrap();
        symlink(&base, base.join("link")).unwrap();
        fs::create_dir_all(base.join("wide/inner")).unwrap();
        fs::set_permissions(base.join("wide"), fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(base.join("open/inner")).unwrap();
        trusted_directory(&base.join("open/inner/s")).unwrap();
        for (path, what) in [
            ("open/s", "written to by others"),
            ("link/s", "symbolic link"),
            ("wide/inner/s", "above it, may be written to"),
            ("wide/inner/missing/s", "above it, may be written to"),
        ] {
            let error = trusted_directory(&base.join(path)).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
        assert!(trusted_directory(Path::new("/")).is_err());
    }
}
