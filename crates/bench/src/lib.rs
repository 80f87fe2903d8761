//! Workloads and the peers that they are run against.

#![forbid(unsafe_code)]
