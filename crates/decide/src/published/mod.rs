//! The policies of published systems, rebuilt to compare with and to run live.

mod access_map;
pub mod freebsd;
pub mod hawkeye;
pub mod hawkeye_g;
pub mod hawkeye_pmu;
pub mod ingens;
pub mod linux;

#[cfg(test)]
mod tests;
