//! The pool of 2 MiB pages, set for each run to what its peer is given, and put back in the end.

use anyhow::{Result, bail};
use megapage_kernel::hugetlb::{self, PoolFile, PoolScope};
use megapage_kernel::{KernelRoot, effective_uid, reclaim};
use megapage_units::{Bytes, PageSize};

const SIZE: PageSize = PageSize::HUGE_2M;

/// The machine's pool of 2 MiB pages. Dropping it puts the former size back.
#[derive(Debug)]
pub(super) struct Pool {
    root: KernelRoot,
    former: u64,
    now: u64,
}

impl Pool {
    /// Notes the pool's size. `Err` says why it cannot be changed.
    pub(super) fn take() -> Result<Pool> {
        let root = KernelRoot::live();
        let former = hugetlb::figures(&root, SIZE, PoolScope::Machine)?.persistent();
        if effective_uid() != 0 {
            bail!("only root may size the pool of 2 MiB pages; {former} are there");
        }
        Ok(Pool { root, former, now: former })
    }

    /// Makes room for `bytes` beyond the former size; a shortfall is an error, after which there is no pool
    /// beyond the former one.
    pub(super) fn set(&mut self, bytes: Bytes) -> Result<()> {
        let wanted = self.former + bytes.0.div_ceil(SIZE.bytes().0);
        if wanted == self.now {
            return Ok(());
        }
        let mut obtained = self.write(wanted)?;
        if obtained < wanted {
            // Page cache of the last runs, and free memory in pieces: both can be had back.
            reclaim::drop_caches(&self.root)?;
            reclaim::compact(&self.root, PoolScope::Machine)?;
            obtained = self.write(wanted)?;
        }
        if obtained < wanted {
            self.write(self.former)?;
            bail!("asked for {wanted} pages of 2 MiB and got {obtained}");
        }
        Ok(())
    }

    fn write(&mut self, pages: u64) -> Result<u64> {
        hugetlb::write(&self.root, SIZE, PoolScope::Machine, PoolFile::Pages, pages)?;
        self.now = hugetlb::figures(&self.root, SIZE, PoolScope::Machine)?.persistent();
        Ok(self.now)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.now != self.former
            && let Err(error) = self.write(self.former)
        {
            eprintln!("megapage: the pool of 2 MiB pages was not put back to {}: {error:#}", self.former);
        }
    }
}
