//! The broker of pre-zeroed pages that a run uses, in its state before the start.

use megapage_broker::ask;
use megapage_kernel::KernelRoot;
use megapage_kernel::ability::{HUGETLB_MREMAP, POPULATE_WRITE};
use megapage_units::{Bytes, PageSize};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The state of a broker, from its own answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Its socket.
    pub socket: PathBuf,
    /// Bytes that it had ready, or the reason why it can give none at present.
    pub ready: Result<Bytes, String>,
    /// An ability that the kernel lacks for a heap on the broker's pages, now and later.
    pub kernel_lacks: Option<String>,
}

impl Broker {
    /// Asks the broker, for half a second at most.
    pub fn look(root: &KernelRoot, socket: &Path) -> Broker {
        let ready = match ask(socket) {
            Ok(status) if status.page_bytes != PageSize::HUGE_2M.bytes().0 => {
                Err(format!("it has pages of {}, and the heap wants 2 MiB", Bytes(status.page_bytes)))
            }
            Ok(status) => Ok(Bytes(status.page_bytes * status.ready_pages)),
            Err(error) => Err(error.to_string()),
        };
        let lacking = [&HUGETLB_MREMAP, &POPULATE_WRITE].into_iter().find(|ability| !ability.is_there(root));
        Broker { socket: socket.into(), ready, kernel_lacks: lacking.map(|ability| ability.title()) }
    }
}

/// The result of `--pool`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolPlan {
    /// The broker's socket.
    pub socket: String,
    /// True if the program's heap takes pages from the broker.
    pub used: bool,
    /// The reason for that.
    pub reason: String,
    /// Bytes that the broker had ready before the start; `None` if it could give none.
    pub ready_bytes: Option<u64>,
}
