//! Releases the pages of extents, in a thread of its own: a process can map an extent so often that the kernel takes seconds
//! to find all its mappings, and no client is to wait for that.

use megapage_kernel::extent;
use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

/// Extents that wait for their turn. Each takes a descriptor. Where there are more, the caller does it: it takes a user 25 GB
/// of mappings to make so many slow.
pub(crate) const MOST_WAITING: usize = 64;
/// How long the end waits for what is under way.
const AT_THE_END: Duration = Duration::from_secs(5);

/// See the module.
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
            // No client may wait for it.
            let _ = end.send(());
        })?;
        Ok(GiveBack { queue: Some(queue), done, empty })
    }

    /// Has the pages of an extent released.
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
        // What is left then goes with the last descriptor and mapping.
        let _ = self.done.recv_timeout(AT_THE_END);
    }
}

/// Returns the pages of an extent to the pool, also where another process still has a mapping: the process that they were
/// for has ended. A touch then takes a new page, as of any mapping on hugetlb pages.
fn empty(extent: File) {
    let length = extent.metadata().map_or(0, |metadata| metadata.len());
    if length > 0 {
        // Nothing is sealed against it; where it fails, the last descriptor and mapping release them.
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
