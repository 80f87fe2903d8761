//! Processor time that helper processes have taken for this one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Processor time of all helpers, in nanoseconds.
static CPU: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Processor time of the helpers that this thread has used.
    static THREAD_CPU: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns the processor time that helpers have taken for this process so far.
pub(crate) fn cpu_time() -> Duration {
    Duration::from_nanos(CPU.load(Ordering::Relaxed))
}

/// Returns the same for the calling thread.
pub(crate) fn thread_cpu_time() -> Duration {
    THREAD_CPU.get()
}

/// Adds processor time of a helper, for the calling thread.
pub(crate) fn add(took: Duration) {
    CPU.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    THREAD_CPU.set(THREAD_CPU.get() + took);
}
