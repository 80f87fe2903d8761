//! The checksum of what stands in a segment about itself.

/// A 64-bit digest of `words`. Each step is a bijection of the digest for a given word, and of the word for a given
/// digest: one changed word always changes the result; several do with a chance of 1 in 2^64 to be missed. It guards
/// against accidents, not against a process that writes to the segment on purpose: that is its owner alone.
pub fn checksum(seed: u64, words: impl IntoIterator<Item = u64>) -> u64 {
    let mix = |digest: u64, word: u64| {
        let digest = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let digest = (digest ^ (digest >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        digest ^ (digest >> 32)
    };
    words.into_iter().fold(mix(seed, 0x6d65_6761_7061_6765), mix)
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn every_bit_counts() {
        let words = [0u64, 1, u64::MAX, 0x1234_5678];
        let whole = checksum(7, words);
        for at in 0..words.len() {
            for bit in 0..64 {
                let mut changed = words;
                changed[at] ^= 1 << bit;
                assert_ne!(checksum(7, changed), whole);
            }
        }
        assert_ne!(checksum(8, words), whole);
        assert_ne!(checksum(7, [1, 0, u64::MAX, 0x1234_5678]), whole, "the order counts");
        assert_ne!(checksum(0, [0u64; 3]), checksum(0, [0u64; 4]));
    }
}
