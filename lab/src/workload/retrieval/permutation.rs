//! A pseudo-random order of the numbers below a bound that can be computed in both directions.

/// A bijection on `0..len`: mixing rounds on the next power of two, repeated until the result is
/// below `len` (cycle walking, Black and Rogaway 2002; fewer than two rounds on average).
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: u64,
    mask: u64,
    shift: u32,
}

/// Odd factors, which are therefore invertible modulo any power of two; from SplitMix64.
const FACTORS: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];
const INVERSES: [u64; 2] = [inverse_of(FACTORS[0]), inverse_of(FACTORS[1])];

/// Returns the inverse of an odd number modulo 2^64, by Newton's iteration: each step doubles the
/// correct bits.
const fn inverse_of(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut step = 0;
    while step < 6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

impl Permutation {
    /// Makes an order of the numbers below `len`, which is 1 to 2^40.
    pub fn new(len: u64) -> Permutation {
        assert!((1..=1 << 40).contains(&len), "a permutation of {len} numbers");
        let bits = 64 - (len - 1).leading_zeros();
        // At least half of the bits: then x ^ (x >> shift) is its own inverse.
        Permutation { len, mask: (1u64 << bits) - 1, shift: bits.div_ceil(2).max(1) }
    }

    /// Returns the image of `number`. Both are below `len`.
    pub fn forward(&self, number: u64) -> u64 {
        let mut value = number;
        loop {
            value ^= value >> self.shift;
            for factor in FACTORS {
                value = value.wrapping_mul(factor) & self.mask;
                value ^= value >> self.shift;
            }
            if value < self.len {
                return value;
            }
        }
    }

    /// Returns the number that [`Permutation::forward`] maps to `number`.
    pub fn backward(&self, number: u64) -> u64 {
        let mut value = number;
        loop {
            for inverse in INVERSES.iter().rev() {
                value ^= value >> self.shift;
                value = value.wrapping_mul(*inverse) & self.mask;
            }
            value ^= value >> self.shift;
            if value < self.len {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_bijection_with_its_inverse() {
        for len in [1, 2, 3, 7, 64, 1000, 4097] {
            let order = Permutation::new(len);
            let mut seen = vec![false; len as usize];
            for number in 0..len {
                let image = order.forward(number);
                assert!(!std::mem::replace(&mut seen[image as usize], true), "{len}: {image} twice");
                assert_eq!(order.backward(image), number, "{len}");
            }
        }
        let large = Permutation::new((1 << 31) - 12345);
        for number in (0..(1 << 31) - 12345).step_by(1_000_003) {
            assert_eq!(large.backward(large.forward(number)), number);
        }
    }
}
