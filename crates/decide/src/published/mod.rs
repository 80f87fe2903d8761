//! Policies of published systems, rebuilt for comparison and for live use.

mod access_map;
pub mod freebsd;
pub mod hawkeye;
pub mod hawkeye_g;
pub mod hawkeye_pmu;
pub mod ingens;
pub mod linux;

#[cfg(test)]
mod tests;
