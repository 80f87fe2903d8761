//! Filling many words that other processes may read and write at the same time.
//!
//! File-level obligation: what is stored goes through `&[AtomicU64]`, which allows others to access the same words, each by
//! stores of whole, aligned words, in any order, as relaxed stores are: nobody reads half a word. On x86-64 `rep stosq` is by
//! definition one store for each word (Intel SDM volume 2, STOS). `movntdq` stores two words: manuals promise no more than that of
//! aligned 16 bytes with AVX; that processors without it store whole words is taken for granted, and what they store is zero.
//! Non-temporal stores are ordered by nothing but a fence, which follows them before the function returns.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// Words from which on the string instruction is no slower than a loop: 8 KiB.
#[cfg(target_arch = "x86_64")]
const MANY: usize = 1 << 10;
/// Words of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 8;
/// Words from which on non-temporal stores are sooner than those through the caches: 16 KiB.
#[cfg(target_arch = "x86_64")]
const MANY_LINES: usize = 2 << 10;

/// Stores `value` to each word. Large runs at the rate of memset(3), which stores one by one do not reach; what fits into the
/// caches is there afterwards.
/// Not inlined: with a value that the compiler knows its loop takes more than twice the time.
#[inline(never)]
pub fn fill_words(words: &[AtomicU64], value: u64) {
    #[cfg(target_arch = "x86_64")]
    if words.len() >= MANY {
        // SAFETY: it stores to these words alone, all of which are writable through a shared reference; the direction flag is
        // clear at the beginning of every assembler block, and stays so.
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

/// Stores zero to each word, of large runs past the caches: for memory that nobody uses soon. Up to twice the rate of
/// [`fill_words`], and what other programs have in the caches stays there.
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

/// Clears whole cache lines by non-temporal stores. Panics unless they are aligned, and whole.
#[cfg(target_arch = "x86_64")]
fn clear_lines(words: &[AtomicU64]) {
    let range = words.as_ptr_range();
    let is_whole =
        words.len().is_multiple_of(LINE) && range.start.addr().is_multiple_of(LINE * size_of::<u64>());
    assert!(is_whole, "these are no whole cache lines");
    if words.is_empty() {
        return;
    }
    // SAFETY: from the first word to the end it stores 64 bytes at a time, aligned, to these words alone, all of which are writable
    // through a shared reference: there is at least one line, and the last ends where the words do.
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
