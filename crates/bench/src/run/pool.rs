//! The pool of 2 MiB pages, set for each run to what its peer is given, and put back in the end.

use anyhow::{Result, bail};
use megapage_act::pool::Addition;
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_kernel::{KernelRoot, effective_uid};
use megapage_units::{Bytes, PageSize};

const SIZE: PageSize = PageSize::HUGE_2M;

/// Pages that this process has added to the machine's pool of 2 MiB pages. Dropping it takes them out again.
#[derive(Debug)]
pub(crate) struct Pool {
    addition: Addition,
}

impl Pool {
    /// A pool as it is. `Err` says why it cannot be changed.
    pub(crate) fn take() -> Result<Pool> {
        let root = KernelRoot::live();
        let pages = hugetlb::figures(&root, SIZE, PoolScope::Machine)?.persistent();
        if effective_uid() != 0 {
            bail!("only root may size the pool of 2 MiB pages; {pages} are there");
        }
        Ok(Pool { addition: Addition::of(&root, SIZE, 0) })
    }

    /// Makes room for `bytes` beyond what others have in the pool; a shortfall is an error, after which the pool
    /// is as it was before the call.
    pub(crate) fn set(&mut self, bytes: Bytes) -> Result<()> {
        Ok(self.addition.set(bytes.0.div_ceil(SIZE.bytes().0), false)?)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Forced: what a program still holds of it turns into surplus and goes back when it ends.
        if let Err(error) = self.addition.set(0, true) {
            let added = self.addition.added();
            eprintln!("megapage: {added} pages of {SIZE} were not taken out of the pool: {error:#}");
        }
    }
}
