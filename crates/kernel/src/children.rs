//! Processes that megapage starts: to make calls with a deadline, to try out the kernel, to undo
//! changes, and to run a program.

pub mod background;
pub mod canary;
mod child;
pub mod guard;
pub mod helper;
pub(crate) mod helper_time;
pub mod probe;
pub mod spawn;
