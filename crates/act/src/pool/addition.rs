//! Pages that a process adds to a pool while it runs, and takes out again.

use super::{Amount, PoolError, Quantity, Request, SizeName, Spec, plan};
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_units::PageSize;
use std::time::Duration;
use thiserror::Error;

/// Time for which a shortfall of pages is worked on.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reason that the addition stays as it is.
#[derive(Debug, Error)]
pub enum AdditionError {
    /// The plan, or a write, was refused.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The pool cannot be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel did not find the pages.
    #[error("{pages} pages of {size} are missing: {because}")]
    Missing {
        /// Number of pages.
        pages: u64,
        /// The page size.
        size: PageSize,
        /// The reason.
        because: String,
    },
}

/// Pages in the machine's pool of one size that this process has added. They stay until
/// [`Addition::set`] changes them.
#[derive(Debug)]
pub struct Addition {
    root: KernelRoot,
    size: PageSize,
    added: u64,
}

impl Addition {
    /// Returns an addition of `added` pages that are in the pool already: 0 in the beginning.
    pub fn of(root: &KernelRoot, size: PageSize, added: u64) -> Addition {
        Addition { root: root.clone(), size, added }
    }

    /// Returns the size of the pages.
    pub fn page_size(&self) -> PageSize {
        self.size
    }

    /// Returns the pages added.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// Sets the addition to `wanted` pages, relative to the pool as it is. Changes that others made
    /// in the meantime stay. A shortfall is an error, after which the pool is as it was before the
    /// call. Going below the safe floor of available memory is an error, too. With `force` the
    /// floor does not count. Pages that are in use then turn into surplus, and go back to the
    /// kernel when they are freed.
    pub fn set(&mut self, wanted: u64, force: bool) -> Result<(), AdditionError> {
        if wanted == self.added {
            return Ok(());
        }
        let outcome = plan(&self.root, &self.request(wanted, force)?)?.apply(&self.root)?;
        if let Some(missing) = outcome.shortfall.iter().flat_map(|shortfall| &shortfall.missing).next() {
            let (pages, because) = (missing.pages, missing.because.clone());
            return Err(AdditionError::Missing { pages, size: self.size, because });
        }
        self.added = wanted;
        Ok(())
    }

    /// Returns the shell lines that [`Addition::set`] stands for.
    pub fn commands(&self, wanted: u64) -> Result<Vec<String>, AdditionError> {
        Ok(plan(&self.root, &self.request(wanted, false)?)?.commands())
    }

    fn request(&self, wanted: u64, force: bool) -> Result<Request, AdditionError> {
        let present = hugetlb::counts(&self.root, self.size, PoolScope::Machine)?.persistent();
        let pages = present.saturating_sub(self.added).saturating_add(wanted);
        let amounts = vec![(PoolScope::Machine, Amount::Exactly(Quantity::Pages(pages)))];
        let text = format!("{}={pages}", self.size);
        Ok(Request {
            pools: vec![Spec { text, size: SizeName::Size(self.size), amounts }],
            overcommit: Vec::new(),
            node: None,
            force,
            timeout: TIMEOUT,
            roll_back: true,
        })
    }
}
