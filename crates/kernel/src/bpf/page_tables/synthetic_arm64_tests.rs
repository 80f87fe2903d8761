//! Tests of the walk and of the decoding on synthetic memory in the form of arm64: three to five
//! levels, blocks, and contiguous entries. Memory that may not be accessed has the form of kernels
//! before and since 6.11.

use super::synthetic::{ARM64, HUGE, HUGE_ZERO, Synthetic, ZERO, summary};
use super::*;

/// Attributes of a page and of a block: normal memory, for users, inner shareable, not global, no
/// execution.
const ATTRIBUTES: u64 = 3 << 53 | 1 << 11 | 3 << 8 | 1 << 6;
const PAGE: u64 = ATTRIBUTES | 3;
const BLOCK: u64 = ATTRIBUTES | 1;
const ACCESSED: u64 = 1 << 10;
const READ_ONLY: u64 = 1 << 7;
const WRITABLE: u64 = 1 << 51;
const CONTIGUOUS: u64 = 1 << 52;
const SPECIAL: u64 = 1 << 56;

/// Makes a swap entry as Linux 6.11 writes it: the type from bit 6 on, the offset from bit 12.
fn swap(kind: u64, offset: u64) -> u64 {
    kind << 6 | offset << 12
}

/// Returns the entry of a page or block after mprotect(PROT_NONE).
fn inaccessible(entry: u64) -> u64 {
    entry & !1 | READ_ONLY
}

#[test]
fn every_kind_of_entry_is_read_at_three_to_five_levels() {
    for levels in [3, 4, 5] {
        let mut synthetic = Synthetic::of(&ARM64, levels);
        // An address beyond the reach of one level less.
        let base = [1 << 37, 0xffff_0000_0000, 0xf_ffff_0000_0000][levels as usize - 3];
        let mut at = |n: u64, level, entry| synthetic.map(base + n * HUGE, level, entry);
        at(1, 1, 0x7000 | PAGE | ACCESSED);
        at(2, 2, 0x20_0000 | BLOCK | ACCESSED | WRITABLE);
        at(3, 2, 0x40_0000 | BLOCK | WRITABLE);
        at(4, 2, inaccessible(0x60_0000 | BLOCK | ACCESSED));
        at(5, 2, HUGE_ZERO | BLOCK | ACCESSED | READ_ONLY | SPECIAL);
        at(6, 2, swap(30, 0x1234));
        at(7, 2, swap(31, 1));
        at(8, 1, 0);
        // A frame above 256 TiB, which a processor with LPA2 can have.
        at(9, 2, 1 << 49 | BLOCK | ACCESSED);
        at(1024, 3, 0x4000_0000 | BLOCK | ACCESSED);
        at(1536, 3, swap(30, 5));
        synthetic.map(base + 10 * HUGE, 1, 0x8000 | PAGE | WRITABLE);
        synthetic.map(base + 10 * HUGE + 0x1000, 1, inaccessible(0x7000 | PAGE | ACCESSED));
        synthetic.map(base + 10 * HUGE + 0x2000, 1, ZERO | PAGE | ACCESSED | SPECIAL);
        synthetic.map(base + 10 * HUGE + 0x3000, 1, swap(0, 1));
        synthetic.map(base + 10 * HUGE + 0x4000, 1, swap(31, 1));
        synthetic.range(0, base + 1026 * HUGE);
        synthetic.range(base + 1537 * HUGE, base + 1538 * HUGE);
        let (regions, runs, given_up) = synthetic.walk();
        use Leaf::{Base, Huge2m, Hugetlb1g as Huge1g};
        let expected = [
            (base + HUGE, Base, 1, 0, 0, 1),
            (base + 2 * HUGE, Huge2m, 512, 0, 0, 512),
            (base + 3 * HUGE, Huge2m, 512, 0, 0, 0),
            (base + 4 * HUGE, Huge2m, 512, 0, 0, 512),
            (base + 5 * HUGE, Huge2m, 0, 512, 0, 0),
            (base + 6 * HUGE, Huge2m, 0, 0, 512, 0),
            (base + 9 * HUGE, Huge2m, 512, 0, 0, 512),
            (base + 10 * HUGE, Base, 2, 1, 1, 1),
            (base + 1024 * HUGE, Huge1g, 512, 0, 0, 512),
            (base + 1025 * HUGE, Huge1g, 512, 0, 0, 512),
            (base + 1537 * HUGE, Huge1g, 0, 0, 512, 0),
        ];
        assert_eq!(summary(&regions), expected, "{levels} levels");
        assert_eq!((runs, given_up), (1, 0));
    }
}

#[test]
fn contiguous_pages_are_accessed_together() {
    let mut synthetic = Synthetic::of(&ARM64, 4);
    // Contiguous pages 16 to 31, of which one is accessed, and 32 to 47, of which none is. Page 48
    // is not contiguous.
    for n in 16..48 {
        let noted = if n == 21 { ACCESSED } else { 0 };
        synthetic.map(n << 12, 1, (0x10_0000 + (n << 12)) | PAGE | CONTIGUOUS | noted);
    }
    synthetic.map(48 << 12, 1, 0x50_0000 | PAGE | ACCESSED);
    synthetic.range(0, HUGE);
    let (regions, ..) = synthetic.walk();
    assert_eq!(summary(&regions), [(0, Leaf::Base, 33, 0, 0, 17)]);
    assert_eq!(regions[0].bits.unwrap()[0], 0xffff_0000 | 1 << 48);
}

#[test]
fn contiguous_blocks_are_accessed_together() {
    let mut synthetic = Synthetic::of(&ARM64, 4);
    // Two hugetlb pages of 32 MiB, between two blocks that are not contiguous.
    for n in 16..48 {
        let noted = if n == 47 { ACCESSED } else { 0 };
        synthetic.map(n * HUGE, 2, (n * HUGE) | BLOCK | CONTIGUOUS | noted);
    }
    synthetic.map(15 * HUGE, 2, BLOCK);
    synthetic.map(48 * HUGE, 2, BLOCK | ACCESSED);
    synthetic.range(0, 64 * HUGE);
    let (regions, ..) = synthetic.walk();
    let accessed: Vec<u64> =
        regions.iter().filter(|one| one.bits == Some([u64::MAX; 8])).map(|one| one.page.number()).collect();
    assert_eq!(accessed, (32..49).collect::<Vec<_>>());
    assert_eq!(regions.len(), 34);
}

#[test]
fn addresses_are_translated_at_each_level() {
    for levels in [3, 4, 5] {
        let mut synthetic = Synthetic::of(&ARM64, levels);
        synthetic.map(0x1000, 1, 0x7000 | PAGE);
        synthetic.map(0x2000, 1, inaccessible(0x8000 | PAGE));
        synthetic.map(HUGE, 2, 0x4020_0000 | BLOCK);
        synthetic.map(GIB, 3, 0x1_0000_0000 | BLOCK);
        let cases = [
            (0x1234, "7234"),
            (HUGE + 0x12345, "40212345"),
            (GIB + 0x1234_5678, "112345678"),
            (0x2000, "none"),
            (0x3000, "none"),
            (2 * HUGE, "none"),
            (2 * GIB, "none"),
        ];
        for (address, physical) in cases {
            assert_eq!(synthetic.run(&format!("translate {address:x}")).trim(), physical, "{address:x}");
        }
    }
}

#[test]
fn no_entry_leads_past_the_end_of_memory() {
    let mut synthetic = Synthetic::of(&ARM64, 4);
    synthetic.map(0, 1, 0x7000 | PAGE);
    synthetic.map(HUGE, 1, 0x7000 | PAGE);
    synthetic.map(2 * HUGE, 2, 0x4000_0000 | BLOCK);
    // The last table, of the second address, begins at `last`: memory that ends there does not hold
    // it.
    let last = synthetic.tables.last().unwrap().2;
    let at = |address: u64, end: u64| synthetic.run(&format!("end {end:x}\ntranslate {address:x}"));
    assert_eq!(at(HUGE, last + 1).trim(), "7000");
    assert_eq!(at(HUGE, last).trim(), "none");
    assert_eq!(at(0, last).trim(), "7000");
    assert_eq!(at(2 * HUGE, 0x4000_0000).trim(), "none");
    assert_eq!(at(2 * HUGE, 0x4000_0001).trim(), "40000000");
}

#[test]
fn a_block_whose_access_is_noted_under_the_copy_is_no_change() {
    let mut synthetic = Synthetic::of(&ARM64, 4);
    synthetic.map(0, 2, 0x20_0000 | BLOCK);
    let place = synthetic.place(0, 2);
    synthetic.change(3, place, 0x20_0000 | BLOCK | ACCESSED);
    // A second try would see this.
    synthetic.change(6, place, 0);
    synthetic.range(0, HUGE);
    assert_eq!(summary(&synthetic.walk().0), [(0, Leaf::Huge2m, 512, 0, 0, 0)]);
}

#[test]
fn a_table_that_is_collapsed_under_the_copy_is_a_block() {
    let mut synthetic = Synthetic::of(&ARM64, 4);
    synthetic.map(0, 1, 0x7000 | PAGE | ACCESSED);
    let entry = synthetic.place(0, 2);
    synthetic.change(4, entry, 0x20_0000 | BLOCK);
    synthetic.range(0, HUGE);
    assert_eq!(summary(&synthetic.walk().0), [(0, Leaf::Huge2m, 512, 0, 0, 0)]);
}

#[test]
fn an_entry_shows_how_inaccessible_pages_are_noted() {
    let page = inaccessible(0x7000 | PAGE | ACCESSED | WRITABLE);
    assert_eq!(Layout::of_inaccessible(page), Some(Layout::ARM64));
    let old = Layout::ARM64_BEFORE_6_11;
    assert_eq!(Layout::of_inaccessible(page | 1 << 58), Some(old));
    for unknown in [0, 0x7000 | PAGE, swap(1, 5), page & !(1 << 11)] {
        assert_eq!(Layout::of_inaccessible(unknown), None, "{unknown:#x}");
    }
    // The same words have another meaning in the other layout.
    assert_eq!(old.state(page | 1 << 58), State::Present);
    assert_eq!(
        (old.state(31 << 3 | 1 << 8), Layout::ARM64.state(31 << 3 | 1 << 8)),
        (State::Empty, State::Swapped)
    );
    assert_eq!((old.state(swap(31, 1)), Layout::ARM64.state(swap(31, 1))), (State::Swapped, State::Empty));
    let split = (0x20_0000 | BLOCK) & !1;
    assert_eq!(old.huge_state(split | 1 << 59), State::Present);
    assert_eq!(Layout::ARM64.huge_state(split), State::Present);
}

#[test]
fn a_tally_counts_as_the_page_map_does() {
    let one = |entry: u64| {
        let counted = entry::tally(Layout::ARM64, &[0x7000 | PAGE, entry, 0], (1 << 50) - 4096, ZERO);
        (counted.present - 1, counted.zero_page, counted.swapped)
    };
    let cases = [
        (0x8000 | PAGE | ACCESSED | WRITABLE | CONTIGUOUS, (1, 0, 0)),
        (inaccessible(0x8000 | PAGE), (1, 0, 0)),
        (ZERO | PAGE | SPECIAL, (0, 1, 0)),
        (inaccessible(ZERO | PAGE | SPECIAL), (0, 1, 0)),
        (0x8000 | PAGE | SPECIAL, (0, 0, 0)),
        (swap(0, 0x77), (0, 0, 1)),
        (swap(31, 1), (0, 0, 1)),
    ];
    for (entry, expected) in cases {
        assert_eq!(one(entry), expected, "{entry:#x}");
    }
}
