//! The integration tests of this crate, as one program: it is linked once.

mod built;
mod command;
mod constants;
mod fault;
mod fork;
mod interference;
mod live;
mod observe;
mod persistent;
mod runner;
mod simulate;
mod trial;
