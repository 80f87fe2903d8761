//! State of pools before a test changed them, in a file, for the test after a killed one.

use megapage_kernel::hugetlb::{self, PoolCounts, PoolFile, PoolScope};
use megapage_kernel::{KernelRoot, boot_id};
use megapage_units::PageSize;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};

/// The file. Only root writes there, and only root changes pools. A line is
/// `BOOT PID SIZE PERSISTENT OVERCOMMIT`, with the size in bytes, and with `-` for the overcommit
/// if the pool has none. The latest line is the innermost guard's. It is read and written under the
/// machine lock.
const FILE: &str = "/run/megapage-test-pools";

/// One guard's line.
#[derive(Debug)]
pub(super) struct Record {
    line: String,
}

impl Record {
    /// Writes the line, before the pool is changed.
    pub(super) fn of(root: &KernelRoot, size: PageSize, former: PoolCounts) -> io::Result<Record> {
        let overcommit = former.overcommit.map_or("-".to_string(), |pages| pages.to_string());
        let (boot, pid) = (boot(root)?, std::process::id());
        let line = format!("{boot} {pid} {} {} {overcommit}\n", size.bytes().0, former.persistent());
        OpenOptions::new().append(true).create(true).open(FILE)?.write_all(line.as_bytes())?;
        Ok(Record { line })
    }

    /// Removes the line, once the pool is restored.
    pub(super) fn remove(&self) {
        let text = fs::read_to_string(FILE).unwrap_or_default();
        let Some(at) = text.rfind(&self.line) else { return };
        let left = [&text[..at], &text[at + self.line.len()..]].concat();
        let written = if left.is_empty() { fs::remove_file(FILE) } else { fs::write(FILE, left) };
        if let Err(error) = written {
            eprintln!("{FILE}: {error}");
        }
    }
}

/// Restores the pools of killed tests, innermost guard first. With the machine lock held, a line of
/// another process is a dead one's; one of this process is an outer guard's.
pub(crate) fn recover(root: &KernelRoot) -> io::Result<()> {
    let text = match fs::read_to_string(FILE) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let (boot, own) = (boot(root)?, std::process::id());
    let mut kept = Vec::new();
    for line in text.lines().rev() {
        let mut words = line.split(' ');
        let of_this_boot = words.next() == Some(boot.as_str());
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        let (pid, size, persistent, overcommit) = (number(), number(), number(), number());
        if !of_this_boot {
            continue;
        }
        if pid == Some(own.into()) {
            kept.push(line);
        } else if let (Some(size), Some(persistent)) = (size.and_then(PageSize::new), persistent) {
            restore(root, size, persistent, overcommit);
        }
    }
    kept.reverse();
    if kept.is_empty() { fs::remove_file(FILE) } else { fs::write(FILE, kept.join("\n") + "\n") }
}

fn boot(root: &KernelRoot) -> io::Result<String> {
    boot_id(root).map_err(io::Error::other)
}

/// Sets a pool to `persistent` pages and its overcommit, as far as it differs.
pub(super) fn restore(root: &KernelRoot, size: PageSize, persistent: u64, overcommit: Option<u64>) {
    let write = |file, pages| {
        if let Err(error) = hugetlb::write(root, size, PoolScope::Machine, file, pages) {
            // A panic in a drop would hide the test's own.
            eprintln!("the pool of {size} was not restored: {error}");
        }
    };
    let now = hugetlb::counts(root, size, PoolScope::Machine).unwrap_or_default();
    if let Some(pages) = overcommit
        && now.overcommit != overcommit
    {
        write(PoolFile::Overcommit, pages);
    }
    if now.persistent() != persistent {
        write(PoolFile::Pages, persistent);
    }
}
