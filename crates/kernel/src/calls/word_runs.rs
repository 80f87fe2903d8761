//! Filling of many words that other processes may read and write at the same time.
//!
//! File-level obligation: values are stored through `&[AtomicU64]`, which allows others to access
//! the same words. Each store is of whole, aligned words, in any order, as relaxed stores are: no
//! reader sees half a word. On x86-64 `rep stosq` is by definition one store for each word (Intel
//! SDM volume 2, STOS). `movntdq` stores two words. Manuals promise that this is one store only
//! with AVX, for aligned 16 bytes. We assume that processors without AVX store whole words; the
//! value that they store is zero. Only a fence orders non-temporal stores, and one follows them
//! before the function returns.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of words from which on the string instruction is no slower than a loop: 8 KiB.
#[cfg(target_arch = "x86_64")]
const MANY: usize = 1 << 10;
/// Words of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 8;
/// Number of words from which on non-temporal stores are faster than those through the caches: 16
/// KiB.
#[cfg(target_arch = "x86_64")]
const MANY_LINES: usize = 2 << 10;

/// Stores `value` to each word. Large runs are stored at the rate of memset(3), which a loop of
/// single stores does not reach. Words that fit into the caches are there afterwards. Not inlined:
/// with a value that the compiler knows, the loop takes more than twice the time.
#[inline(never)]
pub fn fill_words(words: &[AtomicU64], value: u64) {
    #[cfg(target_arch = "x86_64")]
    if words.len() >= MANY {
        // SAFETY: it stores to these words alone, all of which are writable through a shared
        // reference. The direction flag is clear at the beginning of every assembler block, and
        // stays so.
        unsafe {
            std::arch::asm!(
                "rep stosq",
                inout("rcx") words.len() => _,
                inout("rdi") words.as_ptr() => _,
                in("rax") value,
                options(nostack, preserves_flags)
            );
        }
        return;
    }
    words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
}

/// Stores zero to each word; large runs bypass the caches. For memory that no program uses soon.
/// Reaches up to twice the rate of [`fill_words`], and keeps the data of other programs in the
/// caches.
pub fn clear_words(words: &[AtomicU64]) {
    #[cfg(target_arch = "x86_64")]
    if words.len() >= MANY_LINES {
        let before = words.as_ptr().align_offset(LINE * size_of::<u64>()).min(words.len());
        let (first, rest) = words.split_at(before);
        let (lines, last) = rest.split_at(rest.len() / LINE * LINE);
        fill_words(first, 0);
        clear_lines(lines);
        fill_words(last, 0);
        return;
    }
    fill_words(words, 0);
}

/// Clears whole cache lines by non-temporal stores. Panics unless they are aligned and whole.
#[cfg(target_arch = "x86_64")]
fn clear_lines(words: &[AtomicU64]) {
    let range = words.as_ptr_range();
    let is_whole =
        words.len().is_multiple_of(LINE) && range.start.addr().is_multiple_of(LINE * size_of::<u64>());
    assert!(is_whole, "these are no whole cache lines");
    if words.is_empty() {
        return;
    }
    // SAFETY: from the first word to the end it stores 64 bytes at a time, aligned, to these words
    // alone. All of them are writable through a shared reference. There is at least one line, and
    // the last one ends with the words.
    unsafe {
        std::arch::asm!(
            "pxor {zero}, {zero}",
            "2:",
            "movntdq [{at}], {zero}",
            "movntdq [{at} + 16], {zero}",
            "movntdq [{at} + 32], {zero}",
            "movntdq [{at} + 48], {zero}",
            "add {at}, 64",
            "cmp {at}, {end}",
            "jb 2b",
            "sfence",
            at = inout(reg) range.start => _,
            end = in(reg) range.end,
            zero = out(xmm_reg) _,
            options(nostack)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn these_words_and_no_others_are_filled() {
        for count in [0, 1, 7, 1023, 1024, 1025, 2048, 5000, 70_001] {
            let words: Vec<AtomicU64> = (0..count + 16).map(|_| AtomicU64::new(3)).collect();
            for first in [1, 2, 7, 8, 9] {
                fill_words(&words[first..first + count], u64::MAX - 1);
                holds(&words, first, count, u64::MAX - 1);
                clear_words(&words[first..first + count]);
                holds(&words, first, count, 0);
                fill_words(&words, 3);
            }
        }
    }

    fn holds(words: &[AtomicU64], first: usize, count: usize, value: u64) {
        for (at, word) in words.iter().enumerate() {
            let wanted = if (first..first + count).contains(&at) { value } else { 3 };
            assert_eq!(word.load(Ordering::Relaxed), wanted, "word {at} of {count} from {first} on");
        }
    }
}
