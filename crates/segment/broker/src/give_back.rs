//! Thread that releases the pages of extents. A process can map an extent so often that the kernel
//! takes seconds to find all its mappings. No client is to wait for that.

use megapage_kernel::extent;
use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

/// Extents that wait to be released; each takes a descriptor. If there are more, the caller
/// releases the next one. A user needs 25 GB of mappings to make as many slow.
pub(crate) const MOST_WAITING: usize = 64;
/// Longest wait at the end for releases under way.
const AT_THE_END: Duration = Duration::from_secs(5);

/// Thread that releases the pages of extents (see the module).
#[derive(Debug)]
pub(crate) struct GiveBack {
    queue: Option<SyncSender<File>>,
    done: Receiver<()>,
    empty: fn(File),
}

impl GiveBack {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<GiveBack> {
        GiveBack::with(empty)
    }

    fn with(empty: fn(File)) -> io::Result<GiveBack> {
        let (queue, waiting) = sync_channel::<File>(MOST_WAITING);
        let (end, done) = channel();
        Builder::new().name("give-back".into()).spawn(move || {
            waiting.into_iter().for_each(empty);
            // Ignored if the broker no longer waits for it.
            let _ = end.send(());
        })?;
        Ok(GiveBack { queue: Some(queue), done, empty })
    }

    /// Lets the thread release the pages of an extent.
    pub(crate) fn give(&self, extent: File) {
        let sent = self.queue.as_ref().map(|queue| queue.try_send(extent));
        if let Some(Err(TrySendError::Full(extent) | TrySendError::Disconnected(extent))) = sent {
            (self.empty)(extent);
        }
    }
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        self.queue.take();
        // The kernel releases the others with their last descriptor and mapping.
        let _ = self.done.recv_timeout(AT_THE_END);
    }
}

/// Returns the pages of an extent to the pool, even if another process still has a mapping: the
/// process that they were for has ended. A touch then takes a new page, as of any mapping on
/// hugetlb pages.
fn empty(extent: File) {
    let length = extent.metadata().map_or(0, |metadata| metadata.len());
    if length > 0 {
        // No seal forbids it. If it fails, the last descriptor and mapping release the pages.
        let _ = extent::empty(&extent, 0, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static GATE: Mutex<()> = Mutex::new(());
    static EMPTIED: AtomicUsize = AtomicUsize::new(0);

    fn slowly(_: File) {
        let _open = GATE.lock().unwrap();
        EMPTIED.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn who_gives_back_does_not_wait_and_nothing_is_left_undone() {
        let give_back = GiveBack::with(slowly).unwrap();
        let closed = GATE.lock().unwrap();
        (0..5).for_each(|_| give_back.give(tempfile::tempfile().unwrap()));
        assert_eq!(EMPTIED.load(Ordering::Relaxed), 0);
        drop(closed);
        drop(give_back);
        assert_eq!(EMPTIED.load(Ordering::Relaxed), 5);
    }
}
