//! Tests of the published policies, on synthetic snapshots.

mod freebsd;
mod hawkeye;
mod ingens;
mod linux;
