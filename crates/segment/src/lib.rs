//! Huge memory with a name, which outlives the program that made it.
//!
//! A [`Pool`] is the directory of one application on a hugetlbfs (or any other file system, on its
//! base pages). A [`Segment`] in it is memory in files: if it is opened again after a restart, its
//! contents are there at once. A [`Heap`] in a segment allocates; its metadata is consistent after
//! a kill at any moment. Its objects are found again from a root by offsets that are validated.
//!
//! ```no_run
//! use megapage_segment::heap::{Heap, Request, Tag};
//! use megapage_segment::{Options, Pool};
//! use megapage_units::{Bytes, PageSize};
//!
//! const INDEX: Tag = Tag::named("index/1");
//!
//! let pool = Pool::open(&"search".parse()?, PageSize::HUGE_2M)?;
//! let options = Options::new("index".parse()?, Bytes::gib(4)).reuse();
//! let (heap, _found) = Heap::open_or_format(pool.open_segment(&options)?)?;
//! let index = match heap.root()? {
//!     Some(root) => root,
//!     None => {
//!         let index = heap.allocate(Request::new(1 << 30, INDEX).zeroed())?;
//!         // Build it in heap.block(index, INDEX)?.words(), and only then:
//!         heap.set_root(Some(index))?;
//!         index
//!     }
//! };
//! println!("{} bytes", heap.block(index, INDEX)?.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Unlike the heap behind the preloaded allocator (crate `memory`) this one may use malloc: it is
//! called by programs, never from within malloc.
//!
//! Architecture invariant: the bytes in a segment are judged before they are used. No bytes in it,
//! from any writer, make this crate panic, or read or write outside the segment.

#![forbid(unsafe_code)]

mod checksum;
mod error;
mod files;
mod header;
pub mod heap;
pub mod inventory;
mod name;
mod pool;
mod segment;
pub mod upgrade;

#[doc(hidden)]
pub use checksum::checksum;
pub use error::SegmentError;
pub use header::{Layout, MOST_PAGES};
pub use heap::Heap;
pub use name::{LONGEST_NAME, Name};
pub use pool::{Options, Plan, Pool, Removed, Unlink};
pub use segment::{Opened, PageState, Segment};
