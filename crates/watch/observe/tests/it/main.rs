//! The integration tests of this crate, as one program: it is linked once.

mod bpf;
mod observer;
mod observer_live;
mod pmu;
mod pools;
mod rest;
mod sampling;
mod synthetic;
mod trackers;
