//! Options of a broker, and its errors.

use megapage_act::pool::AdditionError;
use megapage_kernel::KernelError;
use megapage_kernel::service::SocketError;
use megapage_units::{Bytes, PageSize};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Options of a broker.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of its socket.
    pub socket: PathBuf,
    /// The size of its pages.
    pub size: PageSize,
    /// Pages that are held ready, a multiple of `extent`.
    pub stock: u64,
    /// Pages of an extent.
    pub extent: u64,
    /// Pages by which the machine's pool is grown while it runs.
    pub grow: u64,
    /// True if added pages are kept while tasks wait for memory. Otherwise half of the stock goes
    /// back each time.
    pub keep: bool,
    /// True if it neither pauses nor releases while tasks wait for memory.
    pub ignore_pressure: bool,
    /// Pages of the pool that are left to others.
    pub leave: u64,
    /// Bytes that one user may have; `None`: as much as there is.
    pub quota: Option<Bytes>,
    /// Bytes that are cleared in a second, at most.
    pub rate: Bytes,
    /// Users that are served besides root and the broker's own user. If `uids` and `gids` are both
    /// empty, it serves all clients that the socket's mode lets in.
    pub uids: Vec<u32>,
    /// Groups that are served; see `uids`.
    pub gids: Vec<u32>,
    /// The socket's mode.
    pub mode: u32,
}

/// Reason for which the broker does not run, in one line.
#[derive(Debug, Error)]
pub enum BrokerError {
    /// Options that make no sense.
    #[error("{0}")]
    Options(String),
    /// The socket could not be made.
    #[error("the socket {path}: {source}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The reason.
        source: SocketError,
    },
    /// The pool cannot be grown.
    #[error("the pool cannot be grown: {0}")]
    Grow(#[from] AdditionError),
    /// A file of the kernel's could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Another system call failed.
    #[error("{what}: {source}")]
    System {
        /// The action.
        what: &'static str,
        /// The system's answer.
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
