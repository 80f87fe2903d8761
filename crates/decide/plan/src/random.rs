//! Random values from a seed: two runs draw the same.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

/// A stream of random values by PCG XSL RR 128/64. Its definition (O'Neill 2014) fixes the output,
/// not the version of a library.
#[derive(Clone, Debug)]
pub struct Random(Pcg64Mcg);

impl Random {
    /// Returns the stream of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(Pcg64Mcg::new(u128::from(seed) << 64 | 0xcafe_f00d_d15e_a5e5))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a value below `end`, which is at least 1.
    pub fn below(&mut self, end: u32) -> u32 {
        // Uses Lemire's method without the rejection: the bias is under 2^-32.
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u32
    }

    /// Returns a value in [0, 1).
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
