//! State that the loop and the answering thread share.

use crate::telemetry::Telemetry;
use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_own_status;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Statuses of answers.
pub(crate) const CODES: [u16; 8] = [200, 400, 403, 404, 405, 408, 431, 505];

/// Noted passes, and counts of answers.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) root: KernelRoot,
    telemetry: Mutex<Telemetry>,
    responses: [AtomicU64; CODES.len()],
    /// Connections that were closed unanswered.
    pub(crate) dropped: AtomicU64,
    /// Scrapes without the kernel's counters.
    pub(crate) read_errors: AtomicU64,
}

impl Shared {
    pub(crate) fn new(root: KernelRoot, telemetry: Telemetry) -> Shared {
        Shared {
            root,
            telemetry: Mutex::new(telemetry),
            responses: Default::default(),
            dropped: AtomicU64::new(0),
            read_errors: AtomicU64::new(0),
        }
    }

    /// Locks the notes. The holder neither waits nor makes a system call.
    pub(crate) fn telemetry(&self) -> MutexGuard<'_, Telemetry> {
        // Sums stay valid even if the thread that added to them panicked.
        self.telemetry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, code: u16) {
        if let Some(at) = CODES.iter().position(|known| *known == code) {
            self.responses[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the answers so far by status, without statuses that never occurred.
    pub(crate) fn responses(&self) -> Vec<(u16, u64)> {
        let counts = self.responses.iter().map(|count| count.load(Ordering::Relaxed));
        CODES.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the daemon's resident memory, in bytes.
    pub(crate) fn resident(&self) -> Option<u64> {
        // Read on the live machine, even if other values are read from a captured tree.
        read_own_status(&KernelRoot::live()).ok().map(|status| status.rss.0)
    }
}
