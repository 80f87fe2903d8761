//! Checksums of the data that a segment holds about itself.

/// Returns a 64-bit digest of `words`. Each step is a bijection of the digest for a given word, and
/// of the word for a given digest. One changed word therefore always changes the result; a change
/// of several is missed with a chance of 1 in 2^64. It guards against accidents, not against a
/// process that writes to the segment on purpose: only its owner can do that.
pub fn checksum(seed: u64, words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(mix(seed ^ START), |digest, word| mix(digest ^ word))
}

/// Returns the same for the few words of a header, in little more time than for one word: no step
/// waits for the one before. It is the sum of a bijection of the seed and one of each word, which
/// differs for each place. One changed word, or another seed, therefore always changes it.
pub fn checksum_of_header<const COUNT: usize>(seed: u64, words: [u64; COUNT]) -> u64 {
    let mut sum = mix_all(seed ^ START);
    let mut place = 0_u64;
    for word in words {
        place = place.wrapping_add(GOLDEN);
        sum = sum.wrapping_add(mix_all(word ^ place));
    }
    sum
}

const START: u64 = 0x6d65_6761_7061_6765;
/// 2^64 divided by the golden ratio: its multiples are far from each other.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Maps words to words as a bijection. Not every high bit of the word reaches every low bit of the
/// result: that is enough in a chain, where a multiplication follows.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_mul(GOLDEN);
    let word = (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word ^ (word >> 32)
}

/// Maps words to words as a bijection in which each bit of the result depends on each bit of the
/// word, as a sum needs. It is the finaliser of SplitMix64 (Steele, Lea and Flood 2014, with
/// Stafford's constants).
const fn mix_all(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::{checksum, checksum_of_header};

    #[test]
    fn every_bit_counts() {
        counts_every_bit(checksum);
        counts_every_bit(checksum_of_header);
        assert_ne!(checksum(0, [0u64; 3]), checksum(0, [0u64; 4]));
        assert_ne!(checksum_of_header(0, [0; 3]), checksum_of_header(0, [0; 4]));
    }

    /// Checks that heaps that older versions have made are found again.
    #[test]
    fn the_sums_are_as_they_were() {
        assert_eq!(checksum(7, [0, 1, u64::MAX, 0x1234_5678]), 0x946a_1aa6_1b3d_7de4);
        assert_eq!(checksum_of_header(7, [0, 1, u64::MAX, 0x1234_5678]), 0xfd6f_0dc2_929c_38b9);
    }

    fn counts_every_bit(checksum: impl Fn(u64, [u64; 4]) -> u64) {
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
    }
}
