//! Upgrades of a program without a second pool: a successor takes over the segments of the running
//! process, by descriptor.
//!
//! The predecessor keeps a [`Listener`]. Its successor calls [`take_over`], gets the descriptors
//! (SCM_RIGHTS of unix(7)) and maps the same pages. The lock that names a segment's owner
//! (flock(2)) belongs to the open file description, and so moves along: no third process can come
//! in between. Segments without a name, in memory files or unlinked ones, are handed over like all
//! others.
//!
//! | step | message | owner |
//! |---|---|---|
//! | 1 | successor: its version | predecessor |
//! | 2 | predecessor, which no longer uses them: segments, descriptors, extras, end | predecessor |
//! | 3 | successor: all are mapped, nothing was written | predecessor |
//! | 4 | predecessor: they are yours | successor |
//! | 5 | successor: taken | successor; the predecessor unmaps them |
//!
//! After a kill of either process at any step the other one is the owner. The predecessor gets its
//! segments back from [`Listener::hand_over`], or the successor has them from [`take_over`]. If the
//! predecessor ends before step 2 is complete, the successor starts as usual: it finds all segments
//! that have a name. A successor takes the end of the predecessor from its pidfd, not from a closed
//! connection alone. A process that is stopped longer than the patience of the other learns the
//! decision when it goes on; it never becomes a second owner.
//!
//! ```no_run
//! use megapage_segment::heap::Heap;
//! use megapage_segment::upgrade::{Extras, Listener, take_over};
//! use megapage_segment::{Options, Pool};
//! use megapage_units::{Bytes, PageSize};
//! use std::path::Path;
//! use std::time::Duration;
//!
//! let path = Path::new("/run/search/upgrade");
//! let patience = Duration::from_secs(10);
//! let segment = match take_over(path, patience)? {
//!     Some(mut taken) => taken.segments.remove(0),
//!     None => {
//!         let pool = Pool::open(&"search".parse()?, PageSize::HUGE_2M)?;
//!         pool.open_segment(&Options::new("index".parse()?, Bytes::gib(4)).reuse())?
//!     }
//! };
//! let (mut heap, _) = Heap::open_or_format(segment)?;
//! let mut listener = Listener::bind(path)?;
//! loop {
//!     // Serve, from the heap; and now and then, or when the listener becomes readable:
//!     let Some(successor) = listener.wait(Duration::ZERO)? else { continue };
//!     let segments = vec![heap.into_segment()];
//!     match listener.hand_over(successor, segments, &Extras::default(), patience) {
//!         Ok(_) => break,
//!         Err(kept) => {
//!             eprintln!("{}", kept.error);
//!             let Some(segment) = kept.segments.into_iter().next() else { break };
//!             (heap, listener) = (Heap::open(segment)?, kept.listener);
//!         }
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod predecessor;
mod successor;
#[cfg(test)]
mod tests;
mod wire;

pub use predecessor::{HandedOver, Kept, Listener, Successor};
pub use successor::{TakenOver, take_over};

use crate::error::SegmentError;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most segments that are handed over at once.
pub const MOST_SEGMENTS: usize = 64;
/// Longest wait for the end of a process whose connection was closed, or for sending it a last
/// word.
const SOON: Duration = Duration::from_secs(2);

/// Data and descriptors that the program itself passes on to its successor: its sockets, say.
#[derive(Debug, Default)]
pub struct Extras {
    /// The data, at most 64 KiB.
    pub data: Vec<u8>,
    /// The descriptors, at most 16.
    pub descriptors: Vec<OwnedFd>,
}

/// Returns the error of a message that failed.
fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> SegmentError {
    let path = path.to_path_buf();
    move |error| match error.kind() {
        io::ErrorKind::TimedOut => {
            unfinished(path, format!("{what}: the other process did not answer in time"))
        }
        _ if wire::is_closed(&error) => {
            unfinished(path, format!("{what}: the other process has ended, or closed the connection"))
        }
        _ => SegmentError::System { path, what, source: error },
    }
}

/// Returns the other process's reason, in a form that steers no terminal.
fn reason(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload).escape_debug().to_string()
}

fn unfinished(path: PathBuf, what: String) -> SegmentError {
    SegmentError::Upgrade { path, what }
}
