//! The pool of 2 MiB pages, set for each run to what its peer is given, and put back in the end.

use anyhow::{Result, bail};
use megapage_act::pool::{Amount, Quantity, Request, SizeName, Spec, plan};
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_kernel::{KernelRoot, effective_uid};
use megapage_units::{Bytes, PageSize};
use std::time::Duration;

const SIZE: PageSize = PageSize::HUGE_2M;
/// For how long a shortfall of pages is worked on before a run.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Pages that this process has added to the machine's pool of 2 MiB pages. Dropping it takes them out again.
#[derive(Debug)]
pub(crate) struct Pool {
    root: KernelRoot,
    added: u64,
}

impl Pool {
    /// A pool as it is. `Err` says why it cannot be changed.
    pub(crate) fn take() -> Result<Pool> {
        let pool = Pool { root: KernelRoot::live(), added: 0 };
        let pages = pool.pages()?;
        if effective_uid() != 0 {
            bail!("only root may size the pool of 2 MiB pages; {pages} are there");
        }
        Ok(pool)
    }

    /// Makes room for `bytes` beyond what others have in the pool; a shortfall is an error, after which the pool
    /// is as it was before the call.
    pub(crate) fn set(&mut self, bytes: Bytes) -> Result<()> {
        self.add(bytes.0.div_ceil(SIZE.bytes().0), false)
    }

    fn pages(&self) -> Result<u64> {
        Ok(hugetlb::figures(&self.root, SIZE, PoolScope::Machine)?.persistent())
    }

    /// Makes our part of the pool `wanted` pages. Relative to the present size: others may have changed it
    /// in the meantime, and what they did stays.
    fn add(&mut self, wanted: u64, force: bool) -> Result<()> {
        if wanted == self.added {
            return Ok(());
        }
        let pages = self.pages()?.saturating_sub(self.added) + wanted;
        let amounts = vec![(PoolScope::Machine, Amount::Exactly(Quantity::Pages(pages)))];
        let spec = Spec { text: format!("{SIZE}={pages}"), size: SizeName::Size(SIZE), amounts };
        let request = Request {
            pools: vec![spec],
            overcommit: Vec::new(),
            node: None,
            force,
            timeout: TIMEOUT,
            roll_back: true,
        };
        let outcome = plan(&self.root, &request)?.apply(&self.root)?;
        if let Some(missing) = outcome.shortfall.iter().flat_map(|shortfall| &shortfall.missing).next() {
            bail!("{} pages of {SIZE} are missing: {}", missing.pages, missing.because);
        }
        self.added = wanted;
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Forced: what a program still holds of it turns into surplus and goes back when it ends.
        if let Err(error) = self.add(0, true) {
            eprintln!("megapage: {} pages of {SIZE} were not taken out of the pool: {error:#}", self.added);
        }
    }
}
