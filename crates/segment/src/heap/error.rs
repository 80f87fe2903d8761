//! Errors of heaps. Each message is one line.

use super::{Handle, Tag};
use crate::error::SegmentError;
use megapage_units::Bytes;
use thiserror::Error;

/// Failure of an action on a heap.
#[derive(Debug, Error)]
pub enum HeapError {
    /// The segment could not grow.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The segment holds no heap.
    #[error("segment {0} holds no heap; make one in it")]
    None(String),
    /// The contents of the segment are no sound heap.
    #[error("the heap is damaged at offset {offset:#x}: {what}; create it again in fresh memory")]
    Damaged {
        /// The byte of the segment.
        offset: u64,
        /// The fault.
        what: &'static str,
    },
    /// The handle leads to nothing: its block was freed, or it is of another heap.
    #[error("nothing is allocated at offset {:#x} under number {}: it was freed, or is of another heap", .0.offset, .0.serial)]
    Stale(Handle),
    /// The handle leads to something of another type.
    #[error("what is at offset {:#x} is of type {found}, not {wanted}", .handle.offset)]
    Type {
        /// The handle.
        handle: Handle,
        /// The type that it has.
        found: Tag,
        /// The type that was wanted.
        wanted: Tag,
    },
    /// There is no free memory of that size in one piece, and the segment cannot grow that far.
    #[error(
        "{asked} are not to be had in one piece: {free} are free in a heap of {size}, which may not grow by as much"
    )]
    Full {
        /// Bytes that were asked for.
        asked: Bytes,
        /// Bytes that are free in all.
        free: Bytes,
        /// The size of the heap.
        size: Bytes,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Request(String),
    /// Only the segment's owner allocates and frees.
    #[error(
        "segment {0} is another process's: it can be read and written to here, but nothing allocated or freed"
    )]
    NotOwner(String),
    /// The root cannot be freed.
    #[error("what is at offset {:#x} is the root of the heap; give it another root before this is freed", .0.offset)]
    Root(Handle),
}
