//! Pseudo-random numbers that are the same on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014): one multiplication chain, which passes the usual tests.
/// Equal seeds give equal sequences.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Returns the sequence that belongs to `seed`.
    pub const fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Returns a number from 0 to `bound` - 1; 0 if `bound` is 0. The bias is below `bound` / 2^64.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// Shuffles `items`; each order is equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// Returns true with the probability `share`, 0 to 1.
    pub fn chance(&mut self, share: f64) -> bool {
        ((self.bits() >> 11) as f64) < share * (1u64 << 53) as f64
    }
}

/// Applies SplitMix64's finaliser: a bijection on 64 bits. Every input bit changes half of the
/// output bits.
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_splitmix64() {
        // The first values for seed 0 of the published reference code.
        let mut random = Random::new(0);
        assert_eq!(random.bits(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.bits(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_cover_it() {
        let mut random = Random::new(1);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[random.below(10)] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
        let heads = (0..10_000).filter(|_| random.chance(0.25)).count();
        assert!((2300..2700).contains(&heads), "{heads}");
    }
}
