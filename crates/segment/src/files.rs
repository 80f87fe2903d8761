//! Files of a segment: listing, checking, making and removing them.

use crate::error::{SegmentError, during};
use crate::header::{self, Found, HEADER_BYTES, Header, Layout, MOST_PAGES};
use megapage_kernel::directory::{Directory, is_link_in_the_way};
use megapage_kernel::file_locks::flock_holders;
use megapage_kernel::{KernelRoot, process};
use megapage_units::Bytes;
use std::ffi::OsStr;
use std::fs::{File, Metadata, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

/// The file of a segment in one file.
const SINGLE: &str = "pages";
/// Prefix of the names of files of one page each.
const PER_PAGE: &str = "page.";
/// The unit of `st_blocks`, on any file system.
pub const STAT_BLOCK: u64 = 512;

/// Returns the name of the file that holds page `page`.
pub fn file_name(layout: Layout, page: u64) -> String {
    match layout {
        Layout::SingleFile => SINGLE.into(),
        Layout::FilePerPage => format!("{PER_PAGE}{page}"),
    }
}

/// Returns the layout that a file belongs to and its first page, by its name; `None` for a name
/// that is not ours.
fn page_of(name: &OsStr) -> Option<(Layout, u64)> {
    let name = name.to_str()?;
    if name == SINGLE {
        return Some((Layout::SingleFile, 0));
    }
    let page: u64 = name.strip_prefix(PER_PAGE)?.parse().ok()?;
    (page < MOST_PAGES && file_name(Layout::FilePerPage, page) == name).then_some((Layout::FilePerPage, page))
}

/// Contents of a segment's directory.
#[derive(Debug)]
pub(crate) enum Content {
    /// No segment: no first page, or the remains of an interrupted opening or removal.
    Nothing,
    /// A whole segment.
    Whole(Whole),
}

/// A segment that was found whole.
#[derive(Debug)]
pub(crate) struct Whole {
    /// Its header.
    pub header: Header,
    /// The slot that holds its header.
    pub slot: usize,
    /// The file that holds its first page, open for reading only.
    pub first: File,
}

/// Returns the files of a directory by layout and first page, in order.
fn listed(directory: &Directory) -> Result<Vec<(Layout, u64)>, SegmentError> {
    let (names, more) = directory
        .names(MOST_PAGES as usize + 1)
        .map_err(during(directory.path(), "reading the directory"))?;
    let mut files = Vec::with_capacity(names.len());
    for name in &names {
        let Some(file) = page_of(name) else {
            let path = directory.path().join(name);
            return Err(SegmentError::Foreign { path, what: "it is no file of a segment".into() });
        };
        files.push(file);
    }
    if more {
        let path = directory.path().to_path_buf();
        return Err(SegmentError::Foreign { path, what: "it holds more files than a segment has".into() });
    }
    files.sort_by_key(|(layout, page)| (*page, *layout == Layout::FilePerPage));
    Ok(files)
}

/// Opens a file for reading, and checks that it is a regular file of `owner`, with one name.
fn open(directory: &Directory, name: &str, owner: u32) -> Result<(File, Metadata), SegmentError> {
    let path = directory.path().join(name);
    let file = match directory.open_file_to_read(name) {
        Ok(file) => file,
        Err(error) if is_link_in_the_way(&error) => {
            return Err(SegmentError::Foreign { path, what: "it is a symbolic link".into() });
        }
        Err(error) => return Err(during(path, "opening")(error)),
    };
    let metadata = file.metadata().map_err(during(&path, "looking at the file"))?;
    let what = match &metadata {
        file if !file.is_file() => "it is no regular file".to_string(),
        file if file.uid() != owner => format!("it belongs to user {}", file.uid()),
        file if file.nlink() != 1 => format!("it has {} names", file.nlink()),
        _ => return Ok((file, metadata)),
    };
    Err(SegmentError::Foreign { path, what })
}

/// Reads the contents of a directory, and changes nothing. `owner` is the user who must own the
/// files.
pub fn inspect(directory: &Directory, owner: u32) -> Result<Content, SegmentError> {
    let files = listed(directory)?;
    let Some((layout, 0)) = files.first().copied() else { return Ok(Content::Nothing) };
    let name = file_name(layout, 0);
    let (first, metadata) = open(directory, &name, owner)?;
    let damaged = |what: String| SegmentError::Damaged { path: directory.path().join(&name), what };
    let mut bytes = vec![0; HEADER_BYTES];
    if metadata.len() == 0 {
        return Ok(Content::Nothing);
    }
    if metadata.len() < HEADER_BYTES as u64 {
        return Err(damaged(format!("it is truncated to {} bytes", metadata.len())));
    }
    // read(2), not through a mapping: a hole reads as zeros and takes no page.
    first.read_exact_at(&mut bytes, 0).map_err(during(directory.path().join(&name), "reading the header"))?;
    let (header, slot) = match header::read(&bytes) {
        Found::Nothing => return Ok(Content::Nothing),
        Found::Broken(why) => return Err(damaged(why)),
        Found::Header(header, slot) => (*header, slot),
    };
    if header.layout != layout {
        return Err(damaged("its header tells of another layout".into()));
    }
    if header.uid != owner {
        let path = directory.path().join(&name);
        return Err(SegmentError::Foreign { path, what: format!("it was made by user {}", header.uid) });
    }
    let page = header.page_size.bytes().0;
    let expected = if layout == Layout::SingleFile { header.size().0 } else { page };
    if metadata.len() < expected {
        let what = format!("it is truncated to {} of {expected} bytes", metadata.len());
        return Err(damaged(what));
    }
    if layout == Layout::FilePerPage {
        for number in 1..header.pages {
            let name = file_name(layout, number);
            let damaged = |what: String| SegmentError::Damaged { path: directory.path().join(&name), what };
            if files.binary_search_by_key(&number, |(_, page)| *page).is_err() {
                return Err(damaged("this page of the segment is missing".into()));
            }
            let (_, metadata) = open(directory, &name, owner)?;
            if metadata.len() != page {
                return Err(damaged(format!("it has {} of {page} bytes", metadata.len())));
            }
        }
    }
    Ok(Content::Whole(Whole { header, slot, first }))
}

/// Opens the file of a segment in one file for reading and writing; `None` for another layout.
pub fn single_file(directory: &Directory, header: &Header) -> Result<Option<File>, SegmentError> {
    if header.layout != Layout::SingleFile {
        return Ok(None);
    }
    let file = directory.open_file(SINGLE);
    file.map(Some).map_err(during(directory.path().join(SINGLE), "opening"))
}

/// Returns the memory that all our files of a directory hold, whatever they contain. Other files do
/// not count.
pub fn held(directory: &Directory) -> Bytes {
    let Ok((names, _)) = directory.names(MOST_PAGES as usize) else { return Bytes::ZERO };
    let ours = names.iter().filter(|name| page_of(name).is_some());
    let blocks = |name: &std::ffi::OsString| {
        directory.open_file_to_read(name.to_str()?).and_then(|file| file.metadata()).ok().map(|m| m.blocks())
    };
    Bytes(ours.filter_map(blocks).sum::<u64>() * STAT_BLOCK)
}

/// Removes the memory that an interrupted growth has left behind the pages that the header lists.
pub fn trim(directory: &Directory, header: &Header) -> Result<(), SegmentError> {
    if header.layout == Layout::FilePerPage {
        for (layout, page) in listed(directory)? {
            if layout == Layout::FilePerPage && page >= header.pages {
                let name = file_name(layout, page);
                directory
                    .remove_file(OsStr::new(&name))
                    .map_err(during(directory.path().join(name), "removing"))?;
            }
        }
        return Ok(());
    }
    let path = directory.path().join(SINGLE);
    let file = directory.open_file(SINGLE).map_err(during(&path, "opening"))?;
    if file.metadata().map_err(during(&path, "looking at the file"))?.len() > header.size().0 {
        file.set_len(header.size().0).map_err(during(&path, "cutting off what a growth has left"))?;
    }
    Ok(())
}

/// Removes every file of a segment, the first page before the others: without it the others are no
/// segment. Returns the memory that they held. Fails if one of them is foreign, or if another
/// process has the segment mapped.
pub fn clear(directory: &Directory, owner: u32) -> Result<Bytes, SegmentError> {
    let (doomed, held, _lock) = removable(directory, owner)?;
    for name in &doomed {
        directory.remove_file(OsStr::new(name)).map_err(during(directory.path().join(name), "removing"))?;
    }
    Ok(held)
}

/// Checks that [`clear`] would succeed.
pub fn check_removable(directory: &Directory, owner: u32) -> Result<(), SegmentError> {
    removable(directory, owner).map(|_| ())
}

/// Returns the files to remove, in order; the memory that they hold; and the first file, locked
/// against being mapped.
fn removable(directory: &Directory, owner: u32) -> Result<(Vec<String>, Bytes, Vec<File>), SegmentError> {
    let (mut doomed, mut held, mut locked) = (Vec::new(), 0, Vec::new());
    for (layout, page) in listed(directory)? {
        let name = file_name(layout, page);
        let (file, metadata) = open(directory, &name, owner)?;
        held += metadata.blocks() * STAT_BLOCK;
        if page == 0 {
            lock(&file, &directory.path().join(&name))?;
            locked.push(file);
        }
        doomed.push(name);
    }
    Ok((doomed, Bytes(held), locked))
}

/// Attempts to take a lock that is held, and the pause between them. A process that the former
/// holder has just started has the lock, too, until it executes its program.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// Takes the exclusive lock on `file`. It is flock(2)'s: it ends with the processes that have the
/// file open.
pub fn lock(file: &File, path: &Path) -> Result<(), SegmentError> {
    answer(|| file.try_lock(), file, path)
}

/// Takes the lock on `file` shared with others.
pub fn lock_shared(file: &File, path: &Path) -> Result<(), SegmentError> {
    answer(|| file.try_lock_shared(), file, path)
}

fn answer(
    attempt: impl Fn() -> Result<(), TryLockError>,
    file: &File,
    path: &Path,
) -> Result<(), SegmentError> {
    let mut result = attempt();
    for _ in 1..TRIES {
        if !matches!(result, Err(TryLockError::WouldBlock)) {
            break;
        }
        std::thread::sleep(PAUSE);
        result = attempt();
    }
    match result {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            let holder =
                holders(file).unwrap_or_else(|| "a process that the kernel does not name here".into());
            Err(SegmentError::InUse { path: path.to_path_buf(), holder })
        }
        Err(TryLockError::Error(error)) => Err(during(path, "locking")(error)),
    }
}

/// Returns the processes that hold a lock on `file`, as `process 812 (redis-server)`; `None` if the
/// kernel names none.
pub fn holders(file: &File) -> Option<String> {
    let root = KernelRoot::live();
    let metadata = file.metadata().ok()?;
    let pids = flock_holders(&root, metadata.dev(), metadata.ino()).ok()?;
    let named = pids.iter().map(|pid| match process::read_status(&root, *pid) {
        Ok(status) => format!("process {pid} ({})", status.name),
        Err(_) => format!("process {pid}, which has ended and left it to another"),
    });
    let named: Vec<String> = named.collect();
    (!named.is_empty()).then(|| named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_are_files_of_a_segment() {
        let page = |name: &str| page_of(OsStr::new(name));
        assert_eq!(page("pages"), Some((Layout::SingleFile, 0)));
        assert_eq!(page("page.17"), Some((Layout::FilePerPage, 17)));
        for strange in ["page.", "page.017", "page.-1", "page.+1", "page.1048576", "map_0", "Pages"] {
            assert_eq!(page(strange), None, "{strange}");
        }
    }
}
