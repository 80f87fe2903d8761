//! Chance, from a seed: the same run twice draws the same.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

/// A stream of random values. PCG XSL RR 128/64: its output is fixed by its definition (O'Neill 2014), not by a
/// library's version.
#[derive(Clone, Debug)]
pub struct Random(Pcg64Mcg);

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(Pcg64Mcg::new(u128::from(seed) << 64 | 0xcafe_f00d_d15e_a5e5))
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A value below `end`, which is at least 1.
    pub fn below(&mut self, end: u32) -> u32 {
        // Lemire's method without the rejection: the bias is under 2^-32.
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u32
    }

    /// A value in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_fixed_for_ever() {
        let mut random = Random::new(1);
        let first: Vec<u32> = (0..4).map(|_| random.below(1000)).collect();
        let mut again = Random::new(1);
        assert_eq!(first, (0..4).map(|_| again.below(1000)).collect::<Vec<_>>());
        assert_ne!(Random::new(2).bits(), Random::new(1).bits());
    }
}
