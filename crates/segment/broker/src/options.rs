//! A broker's options, and why it does not run.

use megapage_act::pool::AdditionError;
use megapage_kernel::KernelError;
use megapage_kernel::service::SocketError;
use megapage_units::{Bytes, PageSize};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// How a broker is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub socket: PathBuf,
    /// The size of its pages.
    pub size: PageSize,
    /// Pages that are held ready, a multiple of `extent`.
    pub stock: u64,
    /// Pages of an extent.
    pub extent: u64,
    /// Pages by which the machine's pool is grown while it runs.
    pub grow: u64,
    /// Keep what was added while tasks wait for memory; else half of the stock goes back each time.
    pub keep: bool,
    /// Neither pause nor release while tasks wait for memory.
    pub ignore_pressure: bool,
    /// Pages of the pool that are left to others.
    pub leave: u64,
    /// What one user may have; `None`: as much as there is.
    pub quota: Option<Bytes>,
    /// Bytes that are cleared in a second, at most.
    pub rate: Bytes,
    /// Users and groups that are served besides root and the broker's own user; both empty: whom the socket's mode
    /// lets in.
    pub uids: Vec<u32>,
    /// See `uids`.
    pub gids: Vec<u32>,
    /// The socket's mode.
    pub mode: u32,
}

/// Why the broker does not run, in one line.
#[derive(Debug, Error)]
pub enum BrokerError {
    /// A value.
    #[error("{0}")]
    Options(String),
    /// The socket.
    #[error("the socket {path}: {source}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: SocketError,
    },
    /// The pool cannot be grown.
    #[error("the pool cannot be grown: {0}")]
    Grow(#[from] AdditionError),
    /// A file of the kernel's.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Something else of the system's.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system answered.
        source: io::Error,
    },
}

impl Options {
    /// Refuses values that make no sense together.
    pub(crate) fn check(&self) -> Result<(), BrokerError> {
        let refuse = |what: String| Err(BrokerError::Options(what));
        if self.extent == 0 || self.extent > 512 {
            return refuse(format!("--extent {}: give 1 to 512 pages", self.extent));
        }
        if self.stock == 0 || !self.stock.is_multiple_of(self.extent) {
            let (stock, extent) = (self.stock, self.extent);
            return refuse(format!("--stock {stock}: give a multiple of the {extent} pages of an extent"));
        }
        let extent = Bytes(self.size.bytes().0 * self.extent);
        if let Some(quota) = self.quota.filter(|quota| *quota < extent) {
            return refuse(format!("--quota-per-uid {quota}: an extent is {extent}; give as much, or none"));
        }
        if self.rate < Bytes::mib(1) {
            return refuse(format!("--rate {}: give at least 1m", self.rate));
        }
        Ok(())
    }
}
