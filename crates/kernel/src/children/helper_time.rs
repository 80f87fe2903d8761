//! The processor time that helper processes have taken for this one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Processor time of all helpers, in nanoseconds.
static CPU: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The same, of what this thread has asked for.
    static THREAD_CPU: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The processor time that helpers have taken for this process so far.
pub(crate) fn cpu_time() -> Duration {
    Duration::from_nanos(CPU.load(Ordering::Relaxed))
}

/// The same, for the calling thread.
pub(crate) fn thread_cpu_time() -> Duration {
    THREAD_CPU.get()
}

/// Counts what a helper has taken, for the calling thread.
pub(crate) fn add(took: Duration) {
    CPU.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    THREAD_CPU.set(THREAD_CPU.get() + took);
}
