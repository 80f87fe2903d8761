//! Actions of experiments on their own memory and processes for which there is no safe interface:
//! timed forks, timed first writes.

mod first_touch;
mod merging;
mod timed_launch;
mod touched_heap;

pub use first_touch::{Clearing, FirstTouch};
pub use merging::set_mergeable;
pub use timed_launch::{HeldChild, Launch, launch};
pub use touched_heap::{HeapPages, TouchedHeap};
