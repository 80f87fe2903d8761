//! The program's shared memory, in the preloaded library's own account.

use super::{FallBackCounts, explain};
use megapage_memory::{FallBack, Ledger, SharedBacking};
use serde::Serialize;
use std::collections::BTreeMap;

/// Requests of the library to the kernel for the program's shared memory, and the answers: over the
/// whole run, also of memory freed since. The kernel's values are those of the kind `shared`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedAccount {
    /// Bytes by the backing with which they were mapped. `thp`: at addresses where transparent huge
    /// pages can map them, and advised.
    pub mapped_bytes: BTreeMap<&'static str, u64>,
    /// Bytes that were collapsed once they had filled up.
    pub collapsed_bytes: u64,
    /// Requests that got less, by reason.
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

    /// Returns true if the library did nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.mapped_bytes.values().all(|bytes| *bytes == 0) && self.fall_backs.is_empty()
    }
}

/// Returns the reasons that occurred, each with its number of events and bytes.
pub(super) fn counts(counted: impl Fn(FallBack) -> (u64, u64)) -> Vec<FallBackCounts> {
    let numbers = FallBack::ALL.into_iter().map(|reason| {
        let (events, bytes) = counted(reason);
        FallBackCounts { reason: reason.name(), explanation: explain(reason), events, bytes }
    });
    numbers.filter(|it| it.events > 0).collect()
}
