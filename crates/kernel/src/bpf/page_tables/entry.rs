//! Entries of page tables, as Linux writes them on x86-64 (arch/x86/include/asm/pgtable_types.h,
//! pgtable_64.h) and arm64 (arch/arm64/include/asm/pgtable-hwdef.h, pgtable-prot.h). Pure: values
//! in, values out.

use megapage_snapshot::PAGES;

/// Type of a marker (of userfaultfd, of a guard region, of poison): nothing is there, and nothing
/// is swapped. It is the last type with every configuration of the kernel (linux/swap.h). A type
/// has five bits.
const SWAP_TYPE_MARKER: u64 = 31;

/// Meaning of the bits of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bit of an entry that the processor follows.
    pub present: u64,
    /// Bit of an entry that the processor has used; on arm64 the access flag.
    pub accessed: u64,
    /// Bit of a page that may be written without a page fault, except for one that marks it as
    /// written.
    pub writable: u64,
    /// Bit of pages that the kernel does not manage (raw page frames of a device), and of the
    /// shared page of zeros.
    pub special: u64,
    /// Bits of a page that is mapped but may not be accessed: any of them, without `present`.
    /// Examples are PROT_NONE, NUMA balancing, and a huge page that is being split. Swap entries
    /// keep these bits clear.
    pub inaccessible: u64,
    /// Bit of a leaf in a table of level 2 or above, present or not. 0 if no bit shows that for an
    /// entry that is not present.
    pub leaf: u64,
    /// Bit of one of 16 aligned entries that the processor may translate by one entry of its TLB.
    /// It may mark any one of them as accessed for all.
    pub contiguous: u64,
    /// First bit of the type in a swap entry.
    pub swap_type_shift: u32,
    /// True if frames of entries that are not present are written inverted, against speculation.
    pub is_inverted: bool,
}

impl Layout {
    /// Layout of x86-64. A leaf keeps its bit while the kernel clears the present bit for a moment.
    /// For inversion see L1TF (arch/x86/include/asm/pgtable-invert.h).
    pub const X86_64: Layout = Layout {
        present: 1 << 0,
        accessed: 1 << 5,
        writable: 1 << 1,
        special: 1 << 9,
        inaccessible: 1 << 8,
        leaf: 1 << 7,
        contiguous: 0,
        swap_type_shift: 59,
        is_inverted: true,
    };

    /// Layout of arm64 since Linux 6.11: an inaccessible page keeps the bit "not global".
    pub const ARM64: Layout = Layout {
        present: 1 << 0,
        accessed: 1 << 10,
        writable: 1 << 51,
        special: 1 << 56,
        inaccessible: 1 << 11,
        leaf: 0,
        contiguous: 1 << 52,
        swap_type_shift: 6,
        is_inverted: false,
    };

    /// Layout of arm64 before 6.11: PTE_PROT_NONE, and PMD_PRESENT_INVALID while a huge page is
    /// split.
    pub const ARM64_BEFORE_6_11: Layout =
        Layout { inaccessible: 1 << 58 | 1 << 59, swap_type_shift: 3, ..Layout::ARM64 };

    /// Returns which of arm64's layouts the kernel uses, from the entry of a page that may not be
    /// accessed. Returns `None` if the entry fits neither.
    #[cfg_attr(target_arch = "x86_64", allow(dead_code))]
    pub const fn of_inaccessible(entry: u64) -> Option<Layout> {
        let old = Layout::ARM64_BEFORE_6_11.inaccessible;
        match (entry & Layout::ARM64.present, entry & old != 0, entry & Layout::ARM64.inaccessible != 0) {
            // An entry that is "not global" has the newer layout's bit in both layouts.
            (0, true, _) => Some(Layout::ARM64_BEFORE_6_11),
            (0, false, true) => Some(Layout::ARM64),
            _ => None,
        }
    }

    /// Returns the state that the entry of a page (level 1) shows.
    pub const fn state(self, entry: u64) -> State {
        if entry & (self.present | self.inaccessible) != 0 {
            State::Present
        } else if entry == 0 || entry >> self.swap_type_shift & 31 == SWAP_TYPE_MARKER {
            State::Empty
        } else {
            State::Swapped
        }
    }

    /// Returns the state that an entry of level 2 or 3 shows, if it is no table.
    pub const fn huge_state(self, entry: u64) -> State {
        if entry & self.leaf != 0 { State::Present } else { self.state(entry) }
    }

    /// Returns true if the page was accessed. Has no meaning if no page is present.
    pub const fn is_accessed(self, entry: u64) -> bool {
        entry & self.accessed != 0
    }

    /// Returns true if the page may be written.
    pub const fn is_writable(self, entry: u64) -> bool {
        entry & self.writable != 0
    }

    /// Returns true if the page that is mapped is no ordinary one. Has no meaning if none is
    /// mapped.
    const fn is_special(self, entry: u64) -> bool {
        entry & self.special != 0
    }

    /// Returns true if the page is one of 16 that are accessed together. Has no meaning if no page
    /// is present.
    pub const fn is_contiguous(self, entry: u64) -> bool {
        entry & self.contiguous != 0
    }

    /// Returns the bits of the physical address under `frame_mask`.
    pub const fn frame(self, entry: u64, frame_mask: u64) -> u64 {
        let bits = if self.is_inverted && entry & self.present == 0 { !entry } else { entry };
        bits & frame_mask
    }

    /// Counts `pages` base pages that this entry of level 2 or 3 maps. `zeros` is true if it maps
    /// the 2 MiB page of zeros.
    pub(super) fn huge_tally(self, entry: u64, pages: u16, zeros: bool) -> Tally {
        match self.huge_state(entry) {
            State::Present if zeros => Tally { zero_page: pages, ..Tally::default() },
            State::Present if self.is_special(entry) => Tally::default(),
            State::Present => Tally { present: pages, ..Tally::default() },
            State::Empty if entry == 0 => Tally::default(),
            State::Empty | State::Swapped => Tally { swapped: pages, ..Tally::default() },
        }
    }
}

/// State that an entry shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing, or a marker.
    Empty,
    /// A page is mapped.
    Present,
    /// Swapped out, migrating, or in a device's memory.
    Swapped,
}

/// Counts of entries, as the page map has them (`/proc/PID/pagemap`): a marker counts as swapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Present pages, without the shared page of zeros and without pages that the kernel does not
    /// manage.
    pub present: u16,
    /// Entries that map the shared page of zeros.
    pub zero_page: u16,
    /// All other entries that are not empty.
    pub swapped: u16,
}

/// Counts entries of level 1. `zero_frame` is the frame of the shared page of zeros, under
/// `frame_mask`.
pub(super) fn tally(layout: Layout, entries: &[u64], frame_mask: u64, zero_frame: u64) -> Tally {
    // Nearly all tables hold ordinary pages and nothing else. The loops have no branch and take
    // eight bytes at a time.
    let Layout { present, special, .. } = layout;
    let is_plain = |entry: u64| entry & (present | special) == present && entry & frame_mask != zero_frame;
    let plain: u16 = entries.iter().map(|&entry| u16::from(is_plain(entry))).sum();
    let empty: u16 = entries.iter().map(|&entry| u16::from(entry == 0)).sum();
    let mut tally = Tally { present: plain, ..Tally::default() };
    if usize::from(plain + empty) == entries.len() {
        return tally;
    }
    for &entry in entries.iter().filter(|&&entry| entry != 0 && !is_plain(entry)) {
        match layout.state(entry) {
            State::Present if layout.frame(entry, frame_mask) == zero_frame => tally.zero_page += 1,
            State::Present => tally.present += u16::from(!layout.is_special(entry)),
            State::Empty | State::Swapped => tally.swapped += 1,
        }
    }
    tally
}

/// Contents of a page table of level 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Present pages, 0 to 512, without the shared page of zeros.
    pub present: u16,
    /// Entries that map the shared page of zeros, 0 to 512.
    pub zero_page: u16,
    /// Pages swapped out or migrating, 0 to 512.
    pub swapped: u16,
    /// Bit for each present page that was accessed: bit `n % 64` of word `n / 64`. For 16
    /// contiguous pages (arm64) all bits are set, or none.
    pub accessed: [u64; PAGES as usize / 64],
}

/// Decodes a table of level 1. `zero_frame` is the frame of the shared page of zeros, under
/// `frame_mask`.
pub fn contents(layout: Layout, table: &[u64; PAGES as usize], frame_mask: u64, zero_frame: u64) -> Contents {
    let mut contents = Contents::default();
    for (entries, accessed) in table.chunks_exact(64).zip(&mut contents.accessed) {
        // Tables of sparse memory hold long runs of empty entries.
        if entries.iter().all(|&entry| entry == 0) {
            continue;
        }
        let (mut bits, mut together) = (0, 0);
        for (n, &entry) in entries.iter().enumerate() {
            match layout.state(entry) {
                State::Empty => {}
                State::Swapped => contents.swapped += 1,
                State::Present if layout.frame(entry, frame_mask) == zero_frame => contents.zero_page += 1,
                State::Present => {
                    contents.present += 1;
                    bits |= u64::from(layout.is_accessed(entry)) << n;
                    together |= u64::from(layout.is_contiguous(entry)) << n;
                }
            }
        }
        *accessed = if together == 0 { bits } else { bits | accessed_together(bits, together) };
    }
    contents
}

/// Returns the pages of `together` whose group of 16 has one in `accessed`.
fn accessed_together(accessed: u64, together: u64) -> u64 {
    let lane = |n: u32| together & (0xffff << (16 * n));
    (0..4).map(lane).filter(|lane| accessed & lane != 0).fold(0, |all, lane| all | lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: Layout = Layout::X86_64;
    const PRESENT: u64 = X86.present;
    const ACCESSED: u64 = X86.accessed;
    const SPECIAL: u64 = X86.special;
    const WRITABLE: u64 = X86.writable;
    const PROT_NONE: u64 = X86.inaccessible;
    const LEAF: u64 = X86.leaf;

    /// Mask for 46 bits of physical address.
    const MASK: u64 = ((1 << 46) - 1) & !0xfff;
    const ZERO: u64 = 0x1234_5000;
    const SOFT_DIRTY: u64 = 1 << 11;

    /// Makes a swap entry as __swp_entry writes it: the type above, the offset inverted below.
    fn swap(kind: u64, offset: u64) -> u64 {
        kind << X86.swap_type_shift | (!offset << 14 >> 5)
    }

    #[test]
    fn each_kind_of_entry_is_reported() {
        let prot_none = |frame: u64| PROT_NONE | (!frame & MASK);
        let cases = [
            (0, State::Empty),
            (0x8000_0000_0000_0000 | 0x7000 | PRESENT | ACCESSED, State::Present),
            (prot_none(0x7000), State::Present),
            (prot_none(0x7000) | ACCESSED, State::Present),
            (swap(0, 0x77), State::Swapped),
            (swap(3, 0x77) | 1 << 1, State::Swapped),
            (swap(29, 0x1234), State::Swapped),
            (swap(30, 0x1234) | 1 << 2, State::Swapped),
            (swap(SWAP_TYPE_MARKER, 1), State::Empty),
        ];
        for (entry, state) in cases {
            assert_eq!(X86.state(entry), state, "{entry:#x}");
        }
        assert_eq!(X86.frame(prot_none(0x7000), MASK), 0x7000);
        assert_eq!(X86.frame(0x7000 | PRESENT | 1 << 63, MASK), 0x7000);
    }

    #[test]
    fn each_kind_of_huge_entry_is_reported() {
        let frame = 0x4000_0000;
        let cases = [
            (frame | PRESENT | LEAF | ACCESSED, State::Present),
            // Entries that a split has made invalid for a moment.
            ((!frame & MASK) | LEAF, State::Present),
            ((!frame & MASK) | LEAF | PROT_NONE, State::Present),
            (swap(30, 0x1234), State::Swapped),
            (swap(SWAP_TYPE_MARKER, 1), State::Empty),
            (0, State::Empty),
        ];
        for (entry, state) in cases {
            assert_eq!(X86.huge_state(entry), state, "{entry:#x}");
        }
    }

    #[test]
    fn a_table_is_counted() {
        let mut table = [0; PAGES as usize];
        table[0] = 0x7000 | PRESENT | ACCESSED;
        table[1] = 0x8000 | PRESENT | SOFT_DIRTY;
        table[63] = 0x9000 | PRESENT | ACCESSED | WRITABLE;
        // The page of zeros was accessed too, but does not count: clearing does not reach it.
        table[64] = ZERO | PRESENT | ACCESSED;
        table[65] = PROT_NONE | (!ZERO & MASK);
        table[100] = swap(1, 5);
        table[101] = swap(SWAP_TYPE_MARKER, 1);
        table[102] = PROT_NONE | ACCESSED | (!0x1_0000 & MASK);
        table[511] = 0xa000 | PRESENT | ACCESSED | LEAF;
        let expected = Contents {
            present: 5,
            zero_page: 2,
            swapped: 1,
            accessed: [1 | 1 << 63, 1 << 38, 0, 0, 0, 0, 0, 1 << 63],
        };
        assert_eq!(contents(X86, &table, MASK, ZERO), expected);
        assert_eq!(contents(X86, &[0; PAGES as usize], MASK, ZERO), Contents::default());
        let full = contents(X86, &[0x7000 | PRESENT | ACCESSED; PAGES as usize], MASK, ZERO);
        assert_eq!((full.present, full.accessed), (512, [u64::MAX; 8]));
    }

    #[test]
    fn a_tally_counts_as_the_page_map_does() {
        let one = |entry: u64| {
            let tally = tally(X86, &[0x7000 | PRESENT, entry, 0], MASK, ZERO);
            (tally.present - 1, tally.zero_page, tally.swapped)
        };
        let cases = [
            (0, (0, 0, 0)),
            (0x8000 | PRESENT | ACCESSED | WRITABLE | SOFT_DIRTY, (1, 0, 0)),
            (PROT_NONE | (!0x8000 & MASK), (1, 0, 0)),
            (ZERO | PRESENT | SPECIAL, (0, 1, 0)),
            (ZERO | PRESENT, (0, 1, 0)),
            (PROT_NONE | SPECIAL | (!ZERO & MASK), (0, 1, 0)),
            (0x8000 | PRESENT | SPECIAL, (0, 0, 0)),
            (PROT_NONE | SPECIAL | (!0x8000 & MASK), (0, 0, 0)),
            (swap(0, 0x77), (0, 0, 1)),
            (swap(30, 0x77), (0, 0, 1)),
            (swap(SWAP_TYPE_MARKER, 1), (0, 0, 1)),
        ];
        for (entry, expected) in cases {
            assert_eq!(one(entry), expected, "{entry:#x}");
        }
        let full = tally(X86, &[0x7000 | PRESENT; PAGES as usize], MASK, ZERO);
        assert_eq!(full, Tally { present: 512, ..Tally::default() });
        assert_eq!(tally(X86, &[], MASK, ZERO), Tally::default());
    }
}
