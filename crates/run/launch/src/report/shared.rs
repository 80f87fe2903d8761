//! The program's shared memory, by the preloaded library's own account.

use super::{FallBackCounts, explain};
use megapage_memory::{FallBack, Ledger, SharedBacking};
use serde::Serialize;
use std::collections::BTreeMap;

/// What the library asked the kernel for on the program's behalf, and was answered: over all of the run, what was freed since
/// included. The kernel's values are those of the kind `shared`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedAccount {
    /// Bytes by what they were mapped as; `thp`: where transparent huge pages can map them, and advised.
    pub mapped_bytes: BTreeMap<&'static str, u64>,
    /// Bytes that were collapsed once they had filled up.
    pub collapsed_bytes: u64,
    /// What got less than was asked for, and why.
    pub fall_backs: Vec<FallBackCounts>,
}

impl SharedAccount {
    pub(super) fn of(ledger: &Ledger) -> SharedAccount {
        SharedAccount {
            mapped_bytes: SharedBacking::ALL.map(|it| (it.name(), ledger.shared(it))).into(),
            collapsed_bytes: ledger.shared_collapsed_bytes(),
            fall_backs: counts(|reason| ledger.shared_fall_backs(reason)),
        }
    }

    /// Whether the library had nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.mapped_bytes.values().all(|bytes| *bytes == 0) && self.fall_backs.is_empty()
    }
}

/// The reasons that occurred, by how often and for how many bytes each did.
pub(super) fn counts(counted: impl Fn(FallBack) -> (u64, u64)) -> Vec<FallBackCounts> {
    let numbers = FallBack::ALL.into_iter().map(|reason| {
        let (events, bytes) = counted(reason);
        FallBackCounts { reason: reason.name(), explanation: explain(reason), events, bytes }
    });
    numbers.filter(|it| it.events > 0).collect()
}
