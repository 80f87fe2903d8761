//! Number of huge pages that a host needs at the same time.

use crate::fleet::Host;
use crate::plan::QUANTILE;
use crate::recording::Service;
use crate::statistics::quantile;

/// Returns the [`QUANTILE`] over time of `count`, summed over all services of a host. The weight of
/// a moment is the time that it spans.
pub(crate) fn simultaneous(host: &Host, count: impl Fn(&Service) -> u64) -> u64 {
    let sums: Vec<(f64, f64)> = host
        .moments
        .iter()
        .map(|(_, moment)| (moment.services.iter().map(&count).sum::<u64>() as f64, moment.span))
        .collect();
    quantile(&sums, QUANTILE) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Fleet;
    use crate::synthetic::{KnownNeed, known_need};

    /// The need is known at each second, and recorded once a minute with noise. The planned need is
    /// that of the seconds.
    #[test]
    fn the_need_at_p99_is_within_5_percent_of_what_is_known() {
        for seed in 1..=20 {
            let KnownNeed { recordings, exact } = known_need(seed);
            let fleet = Fleet::merge(recordings);
            let host = fleet.hosts.values().next().unwrap();
            let planned = simultaneous(host, |service| service.need.into()) as f64;
            let known = crate::plain_quantile(&exact, 0.99);
            assert!((planned / known - 1.0).abs() <= 0.05, "seed {seed}: {planned}, known {known}");
            // Peaks of several services do not coincide: the sum of the peaks would be too much.
            let apart: f64 = host
                .services()
                .iter()
                .map(|name| simultaneous(host, |it| if it.id == *name { it.need.into() } else { 0 }))
                .sum::<u64>() as f64;
            assert!(apart >= planned, "seed {seed}: {apart} {planned}");
        }
    }
}
