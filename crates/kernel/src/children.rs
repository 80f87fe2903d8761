//! Processes that megapage starts: to call with a deadline, to try the kernel on, to undo, to run a program.

pub mod background;
pub mod canary;
mod child;
pub mod guard;
pub mod helper;
pub(crate) mod helper_time;
pub mod probe;
pub mod spawn;
