//! The broker of pre-zeroed pages that a run was given, as it is before the start.

use megapage_broker::ask;
use megapage_kernel::KernelRoot;
use megapage_kernel::ability::{HUGETLB_MREMAP, POPULATE_WRITE};
use megapage_units::{Bytes, PageSize};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A broker that was asked how it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Its socket.
    pub socket: PathBuf,
    /// Bytes that it had ready, or why nothing can be had of it at present.
    pub ready: Result<Bytes, String>,
    /// What the kernel lacks for a heap on its pages, which it will not have later either.
    pub kernel_lacks: Option<String>,
}

impl Broker {
    /// Asks, for half a second at most.
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

/// What became of `--pool`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolPlan {
    /// The broker's socket.
    pub socket: String,
    /// Whether the program's heap asks there.
    pub used: bool,
    /// Why, or why not.
    pub reason: String,
    /// Bytes that the broker had ready before the start; `None` where nothing could be had.
    pub ready_bytes: Option<u64>,
}
