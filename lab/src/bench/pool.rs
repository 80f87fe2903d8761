//! Pools of 2 MiB and 1 GiB pages: set for each run to the size for its peer, and restored at the
//! end.

use anyhow::{Context, Result, bail};
use megapage_act::pool::Loan;
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_kernel::process::read_status;
use megapage_kernel::runtime_directory::{LockFile, runtime_directory};
use megapage_kernel::{KernelRoot, effective_uid};
use megapage_units::{Bytes, PageSize, Pid};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The pools, and the prefixes of the notes on added pages; the number of the process that added
/// them follows.
const NAMES: [(PageSize, &str); 2] =
    [(PageSize::HUGE_2M, "bench-pool-"), (PageSize::HUGE_1G, "bench-pool-1g-")];

/// Pages of one size that this process has added to the machine's pool. Dropping it takes them out
/// again. If this process is killed, the next owner of the pool does.
#[derive(Debug)]
pub struct Pool {
    loan: Loan,
    size: PageSize,
    directory: PathBuf,
}

impl Pool {
    /// Takes the pool of 2 MiB pages as it is, without the leftovers of a killed bench. The error
    /// says why it cannot be changed.
    pub fn take() -> Result<Pool> {
        Pool::take_of(PageSize::HUGE_2M)
    }

    /// Does the same as [`Pool::take`] for pages of `size`: 2 MiB or 1 GiB.
    pub(super) fn take_of(size: PageSize) -> Result<Pool> {
        let root = KernelRoot::live();
        let pages = hugetlb::counts(&root, size, PoolScope::Machine)?.persistent();
        if effective_uid() != 0 {
            bail!("only root may size the pool of {size} pages; {pages} are there");
        }
        let directory = runtime_directory(&root);
        give_back_left_over(&root, &directory)?;
        let name = NAMES.iter().find(|(of, _)| *of == size).map(|(_, name)| name);
        let name = name.with_context(|| format!("a bench has no pool of {size} pages"))?;
        let name = directory.join(format!("{name}{}", std::process::id()));
        let loan = alone(&directory, || Loan::take_over(&root, &name, size))?;
        Ok(Pool { loan, size, directory })
    }

    /// Makes room for `bytes` beyond the pages of others in the pool. A shortfall is an error,
    /// after which the pool is as before the call.
    pub fn set(&mut self, bytes: Bytes) -> Result<()> {
        let pages = bytes.0.div_ceil(self.size.bytes().0);
        Ok(alone(&self.directory, || self.loan.set(pages, false))??)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Forced: pages that a program still holds turn into surplus, and go back when it ends.
        let (loan, size) = (&mut self.loan, self.size);
        if let Err(error) = alone(&self.directory, || loan.set(0, true)).and_then(|set| Ok(set?)) {
            let added = loan.pages();
            eprintln!("megapage: {added} pages of {size} were not taken out of the pool: {error:#}");
        }
    }
}

/// Longest wait for another bench that changes the pool: it asks the kernel for pages then, which
/// may take a while.
const PATIENCE: Duration = Duration::from_secs(120);
/// Name of the lock file, in the same directory.
const LOCK: &str = "bench-pool.lock";

/// Runs `change` while no other bench changes the pool or takes over leftovers: both read the pool,
/// and then write it. An error names the obstacle.
fn alone<T>(directory: &Path, change: impl FnOnce() -> T) -> Result<T> {
    let lock = LockFile::take(&KernelRoot::live(), &directory.join(LOCK), PATIENCE)?;
    let done = change();
    lock.release();
    Ok(done)
}

/// Takes out of the pool the pages that killed processes added.
fn give_back_left_over(root: &KernelRoot, directory: &Path) -> Result<()> {
    alone(directory, || give_back_alone(root, directory))
}

fn give_back_alone(root: &KernelRoot, directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((name, size, owner)) = owner(&name) else { continue };
        if !read_status(root, owner).is_err_and(|error| error.is_gone()) {
            continue;
        }
        let mut loan = Loan::take_over(root, &directory.join(name), size);
        let pages = loan.pages();
        match loan.set(0, true) {
            Ok(()) if pages > 0 => {
                eprintln!(
                    "megapage: {pages} pages of {size} left the pool that a bench had added which was killed"
                );
            }
            Ok(()) => {}
            Err(error) => eprintln!(
                "megapage: {pages} pages of {size} of a bench that was killed were not taken out of the pool: {error:#}"
            ),
        }
    }
}

/// Parses the file name of a note: the loan's name, the size of the pages that were added, and the
/// process that added them.
fn owner(note: &str) -> Option<(&str, PageSize, Pid)> {
    let name = note.strip_suffix(".added")?;
    let pid = |of: &str| name.strip_prefix(of)?.parse().ok();
    NAMES.iter().find_map(|(size, of)| Some((name, *size, Pid(pid(of)?))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::hugetlb::PoolFile;
    use megapage_testing::{PoolGuard, skip};

    const SIZE: PageSize = PageSize::HUGE_2M;
    const NAME: &str = NAMES[0].1;

    #[test]
    fn a_note_names_the_size_of_its_pages() {
        assert_eq!(owner("bench-pool-17.added"), Some(("bench-pool-17", PageSize::HUGE_2M, Pid(17))));
        assert_eq!(owner("bench-pool-1g-17.added"), Some(("bench-pool-1g-17", PageSize::HUGE_1G, Pid(17))));
        for other in ["bench-pool.lock", "bench-pool-17", "bench-pool-1g-.added", "pool-17.added"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }

    #[test]
    fn what_one_left_that_was_killed_goes_out_of_the_pool() {
        // Restores the pool, also after a failure.
        let Some(guard) = PoolGuard::reserve(SIZE, 9) else { return };
        let root = KernelRoot::live();
        let directory = tempfile::tempdir().unwrap();
        // Pages that were just released are available again.
        let before = guard.counts().persistent() - 3;
        hugetlb::write(&root, SIZE, PoolScope::Machine, PoolFile::Pages, before).unwrap();
        // No process has the highest number of all; ours lives.
        let name = |pid: u32| directory.path().join(format!("{NAME}{pid}"));
        let mut killed = Loan::take_over(&root, &name(i32::MAX as u32), SIZE);
        let mut ours = Loan::take_over(&root, &name(std::process::id()), SIZE);
        if let Err(error) = killed.set(2, false).and_then(|()| ours.set(1, false)) {
            return skip(&format!("needs 3 pages of {SIZE} a moment after they were given back: {error}"));
        }
        assert_eq!(guard.counts().persistent(), before + 3);
        drop(killed);
        // Two processes at once take them out once.
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| give_back_left_over(&root, directory.path()).unwrap());
            }
        });
        assert_eq!(guard.counts().persistent(), before + 1);
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            2,
            "the lock, and the note of one who lives"
        );
        ours.set(0, true).unwrap();
        give_back_left_over(&root, directory.path()).unwrap();
        assert_eq!(guard.counts().persistent(), before);
    }
}
