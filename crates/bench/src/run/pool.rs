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

    /// Makes room for `bytes` beyond the former size; a shortfall is an error, after which the pool is as it was
    /// before the call.
    pub(super) fn set(&mut self, bytes: Bytes) -> Result<()> {
        self.size(self.former + bytes.0.div_ceil(SIZE.bytes().0), false)
    }

    fn size(&mut self, pages: u64, force: bool) -> Result<()> {
        if pages == self.now {
            return Ok(());
        }
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
        self.now = pages;
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Forced: what a program still holds of it turns into surplus and goes back when it ends.
        if let Err(error) = self.size(self.former, true) {
            eprintln!("megapage: the pool of 2 MiB pages was not put back to {}: {error:#}", self.former);
        }
    }
}
