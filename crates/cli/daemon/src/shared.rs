//! What the loop and the thread that answers both hold.

use crate::telemetry::Telemetry;
use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_own_status;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The statuses that requests are answered with.
pub(crate) const CODES: [u16; 8] = [200, 400, 403, 404, 405, 408, 431, 505];

/// Noted passes, and what answering counts.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) root: KernelRoot,
    telemetry: Mutex<Telemetry>,
    responses: [AtomicU64; CODES.len()],
    /// Connections that were closed unanswered.
    pub(crate) dropped: AtomicU64,
    /// Scrapes without what the kernel counts.
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

    /// The notes. Their holder neither waits nor makes a system call.
    pub(crate) fn telemetry(&self) -> MutexGuard<'_, Telemetry> {
        // Sums stay sums if the thread that added to them panicked.
        self.telemetry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, code: u16) {
        if let Some(at) = CODES.iter().position(|known| *known == code) {
            self.responses[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Answers so far by status, without those that there were none of.
    pub(crate) fn responses(&self) -> Vec<(u16, u64)> {
        let counts = self.responses.iter().map(|count| count.load(Ordering::Relaxed));
        CODES.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    /// The daemon's own resident memory, in bytes.
    pub(crate) fn resident(&self) -> Option<u64> {
        // Our own, whichever machine the remainder is read from.
        read_own_status(&KernelRoot::live()).ok().map(|status| status.rss.0)
    }
}
