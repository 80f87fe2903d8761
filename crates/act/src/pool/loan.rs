//! Pages that a process has added to the pool, noted in a file. If the process is killed, the next
//! one takes them over, so that they do not stay in the pool.

use super::{Addition, AdditionError};
use megapage_kernel::hugetlb::{PoolScope, counts};
use megapage_kernel::trusted::{Replace, read_regular, replace_file};
use megapage_kernel::{KernelRoot, boot_id, effective_uid};
use megapage_units::PageSize;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Longest note that is read, in bytes.
const LONGEST: u64 = 4096;

/// Pages that were added, and their note. They stay in the pool when it is dropped.
#[derive(Debug)]
pub struct Loan {
    addition: Addition,
    root: KernelRoot,
    size: PageSize,
    note: PathBuf,
    boot: String,
}

impl Loan {
    /// Takes over the pages that a former owner of this name has noted, of the same page size and
    /// since the machine was booted. The note is `NAME.added`; it counts if the caller owns it.
    pub fn take_over(root: &KernelRoot, name: &Path, size: PageSize) -> Loan {
        let mut note = name.as_os_str().to_os_string();
        note.push(".added");
        let note = PathBuf::from(note);
        let boot = boot_id(root).unwrap_or_default();
        let own = |found: fs::Metadata| found.is_file() && found.uid() == effective_uid();
        let text = match fs::symlink_metadata(&note).is_ok_and(own) {
            true => read_regular(&note, LONGEST).ok().and_then(|bytes| String::from_utf8(bytes).ok()),
            false => None,
        };
        let text = text.unwrap_or_default();
        let present = counts(root, size, PoolScope::Machine).map_or(0, |counts| counts.persistent());
        let added = read(&text, &boot, size).map_or(0, |(added, total)| owed(added, total, present));
        Loan { addition: Addition::of(root, size, added), root: root.clone(), size, note, boot }
    }

    /// Returns the pages added.
    pub fn pages(&self) -> u64 {
        self.addition.added()
    }

    /// Sets the addition to `pages`, and notes it. Errors and `force`: see [`Addition::set`].
    pub fn set(&mut self, pages: u64, force: bool) -> Result<(), AdditionError> {
        let done = self.addition.set(pages, force);
        // The note is written afterwards: a note of pages that were never added would take pages
        // from others. Without a note, a killed process leaves them in the pool, and does no other
        // harm.
        let _ = self.write();
        done
    }

    /// Returns the shell lines for `pages`.
    pub fn commands(&self, pages: u64) -> Result<Vec<String>, AdditionError> {
        self.addition.commands(pages)
    }

    fn write(&self) -> io::Result<()> {
        if self.pages() == 0 {
            return fs::remove_file(&self.note);
        }
        let total = counts(&self.root, self.size, PoolScope::Machine).map_err(io::Error::other)?.persistent();
        let text = format!("{} {} {} {total}\n", self.boot, self.size.bytes().0, self.pages());
        let note = std::path::absolute(&self.note)?;
        replace_file(&note, text.as_bytes(), Replace { mode: 0o600, durable: false })
    }
}

/// Returns the pages added, and the pool's total at that time.
fn read(text: &str, boot: &str, size: PageSize) -> Option<(u64, u64)> {
    let mut fields = text.split_whitespace();
    let same = fields.next()? == boot && fields.next()?.parse() == Ok(size.bytes().0);
    let (added, total) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    (same && !boot.is_empty()).then_some((added, total))
}

/// Returns the part of the added pages that is still in the pool, which has `present` pages:
/// another process may have made it smaller.
fn owed(added: u64, total: u64, present: u64) -> u64 {
    added.min(present.saturating_sub(total.saturating_sub(added)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_counts_for_its_boot_and_size() {
        let read = |text: &str| read(text, "b", PageSize::HUGE_2M);
        assert_eq!(read("b 2097152 12 20\n"), Some((12, 20)));
        for other in ["", "b", "a 2097152 12 20", "b 1073741824 12 20", "b 2097152 x 20", "b 2097152 12"] {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(super::read(" 2097152 12 20", "", PageSize::HUGE_2M), None);
    }

    #[test]
    fn no_more_is_owed_than_is_there() {
        assert_eq!(owed(12, 20, 20), 12);
        assert_eq!(owed(12, 20, 30), 12, "others have added");
        assert_eq!(owed(12, 20, 15), 7);
        assert_eq!(owed(12, 20, 8), 0, "another process has taken them out");
        assert_eq!(owed(12, 5, 0), 0);
    }
}
