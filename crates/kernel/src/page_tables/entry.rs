//! Entries of x86-64 page tables, as Linux writes them (arch/x86/include/asm/pgtable_types.h, pgtable_64.h).
//! Pure: values in, values out.

use megapage_snapshot::PAGES;

const PRESENT: u64 = 1 << 0;
const ACCESSED: u64 = 1 << 5;
/// In a table of level 2 or above: a leaf. The kernel keeps it while it clears the present bit for a moment.
const LEAF: u64 = 1 << 7;
/// Without PRESENT: mapped, but not to be accessed (PROT_NONE, NUMA balancing). Swap entries keep it clear.
const PROT_NONE: u64 = 1 << 8;
const WRITABLE: u64 = 1 << 1;
/// Set of pages that the kernel does not manage (raw page frames of a device), and of the shared page of zeros
/// (_PAGE_SPECIAL).
const SPECIAL: u64 = 1 << 9;
/// The type of a swap entry: its highest five bits.
const SWAP_TYPE_SHIFT: u32 = 59;
/// The type of a marker (userfaultfd's, of a guard region, of poison): nothing is there, nor is it swapped.
/// The last type, whatever the kernel's configuration (linux/swap.h).
const SWAP_TYPE_MARKER: u64 = 31;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub u64);

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing, or a marker.
    Empty,
    /// A page is mapped.
    Present,
    /// Swapped out, migrating, or in a device's memory.
    Swapped,
}

impl Entry {
    /// What the entry of a page (level 1) says.
    pub const fn state(self) -> State {
        if self.0 & PRESENT != 0 || self.0 & PROT_NONE != 0 {
            State::Present
        } else if self.0 == 0 || self.0 >> SWAP_TYPE_SHIFT == SWAP_TYPE_MARKER {
            State::Empty
        } else {
            State::Swapped
        }
    }

    /// What an entry of level 2 or 3 that is no table says.
    pub const fn huge_state(self) -> State {
        if self.0 & LEAF != 0 { State::Present } else { self.state() }
    }

    /// The accessed bit. Means nothing where no page is present.
    pub const fn is_accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    /// Whether the page may be written without a fault.
    pub const fn is_writable(self) -> bool {
        self.0 & WRITABLE != 0
    }

    /// Whether no ordinary page is there, though one is mapped. Means nothing where none is.
    const fn is_special(self) -> bool {
        self.0 & SPECIAL != 0
    }

    /// Whether an entry of level 2 or 3 maps memory itself.
    pub const fn is_huge_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// The bits of the physical address under `frame_mask`. Entries that are not present are written inverted
    /// against speculation (L1TF; arch/x86/include/asm/pgtable-invert.h).
    pub const fn frame(self, frame_mask: u64) -> u64 {
        let bits = if self.0 & PRESENT == 0 { !self.0 } else { self.0 };
        bits & frame_mask
    }
}

/// What entries hold, as the page map counts it (`/proc/PID/pagemap`): a marker counts as swapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Present pages, without the shared page of zeros, and without pages that the kernel does not manage.
    pub present: u16,
    /// Entries that map the shared page of zeros.
    pub zero_page: u16,
    /// All others that are not empty.
    pub swapped: u16,
}

impl Entry {
    /// What `pages` of the region count for that this entry of level 2 or 3 maps. `zeros`: it is the 2 MiB page of zeros.
    pub(super) fn huge_tally(self, pages: u16, zeros: bool) -> Tally {
        match self.huge_state() {
            State::Present if zeros => Tally { zero_page: pages, ..Tally::default() },
            State::Present if self.is_special() => Tally::default(),
            State::Present => Tally { present: pages, ..Tally::default() },
            State::Empty if self.0 == 0 => Tally::default(),
            State::Empty | State::Swapped => Tally { swapped: pages, ..Tally::default() },
        }
    }
}

/// Counts entries of level 1. `zero_frame` is the frame of the shared page of zeros, under `frame_mask`.
pub(super) fn tally(entries: &[u64], frame_mask: u64, zero_frame: u64) -> Tally {
    // Nearly all tables hold ordinary pages and nothing else: without a branch, eight bytes at a time.
    let is_plain = |entry: u64| entry & (PRESENT | SPECIAL) == PRESENT && entry & frame_mask != zero_frame;
    let plain: u16 = entries.iter().map(|&entry| u16::from(is_plain(entry))).sum();
    let empty: u16 = entries.iter().map(|&entry| u16::from(entry == 0)).sum();
    let mut tally = Tally { present: plain, ..Tally::default() };
    if usize::from(plain + empty) == entries.len() {
        return tally;
    }
    for &entry in entries.iter().filter(|&&entry| entry != 0 && !is_plain(entry)) {
        let entry = Entry(entry);
        match entry.state() {
            State::Present if entry.frame(frame_mask) == zero_frame => tally.zero_page += 1,
            State::Present => tally.present += u16::from(!entry.is_special()),
            State::Empty | State::Swapped => tally.swapped += 1,
        }
    }
    tally
}

/// What a page table of level 1 holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Present pages, 0 to 512, without the shared page of zeros.
    pub present: u16,
    /// Entries that map the shared page of zeros, 0 to 512.
    pub zero_page: u16,
    /// Pages swapped out or migrating, 0 to 512.
    pub swapped: u16,
    /// A bit for each of the present pages that was accessed: bit `n % 64` of word `n / 64`.
    pub accessed: [u64; PAGES as usize / 64],
}

/// Decodes a table of level 1. `zero_frame` is the frame of the shared page of zeros, under `frame_mask`.
pub fn contents(table: &[u64; PAGES as usize], frame_mask: u64, zero_frame: u64) -> Contents {
    let mut contents = Contents::default();
    for (entries, accessed) in table.chunks_exact(64).zip(&mut contents.accessed) {
        // Tables of sparse memory hold long runs of nothing.
        if entries.iter().all(|&entry| entry == 0) {
            continue;
        }
        let mut bits = 0;
        for (n, &entry) in entries.iter().enumerate() {
            let entry = Entry(entry);
            match entry.state() {
                State::Empty => {}
                State::Swapped => contents.swapped += 1,
                State::Present if entry.frame(frame_mask) == zero_frame => contents.zero_page += 1,
                State::Present => {
                    contents.present += 1;
                    bits |= u64::from(entry.is_accessed()) << n;
                }
            }
        }
        *accessed = bits;
    }
    contents
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 46 bits of physical address.
    const MASK: u64 = ((1 << 46) - 1) & !0xfff;
    const ZERO: u64 = 0x1234_5000;
    const SOFT_DIRTY: u64 = 1 << 11;

    /// A swap entry as __swp_entry writes it: the type above, the offset inverted below.
    fn swap(kind: u64, offset: u64) -> u64 {
        kind << SWAP_TYPE_SHIFT | (!offset << 14 >> 5)
    }

    #[test]
    fn each_kind_of_entry_is_told() {
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
            assert_eq!(Entry(entry).state(), state, "{entry:#x}");
        }
        assert_eq!(Entry(prot_none(0x7000)).frame(MASK), 0x7000);
        assert_eq!(Entry(0x7000 | PRESENT | 1 << 63).frame(MASK), 0x7000);
    }

    #[test]
    fn each_kind_of_huge_entry_is_told() {
        let frame = 0x4000_0000;
        let cases = [
            (frame | PRESENT | LEAF | ACCESSED, State::Present),
            // While a split invalidates it.
            ((!frame & MASK) | LEAF, State::Present),
            ((!frame & MASK) | LEAF | PROT_NONE, State::Present),
            (swap(30, 0x1234), State::Swapped),
            (swap(SWAP_TYPE_MARKER, 1), State::Empty),
            (0, State::Empty),
        ];
        for (entry, state) in cases {
            assert_eq!(Entry(entry).huge_state(), state, "{entry:#x}");
        }
    }

    #[test]
    fn a_table_is_counted() {
        let mut table = [0; PAGES as usize];
        table[0] = 0x7000 | PRESENT | ACCESSED;
        table[1] = 0x8000 | PRESENT | SOFT_DIRTY;
        table[63] = 0x9000 | PRESENT | ACCESSED | WRITABLE;
        // The page of zeros was accessed too, but no clearing reaches it.
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
        assert_eq!(contents(&table, MASK, ZERO), expected);
        assert_eq!(contents(&[0; PAGES as usize], MASK, ZERO), Contents::default());
        let full = contents(&[0x7000 | PRESENT | ACCESSED; PAGES as usize], MASK, ZERO);
        assert_eq!((full.present, full.accessed), (512, [u64::MAX; 8]));
    }

    #[test]
    fn a_tally_counts_as_the_page_map_does() {
        let one = |entry: u64| {
            let tally = tally(&[0x7000 | PRESENT, entry, 0], MASK, ZERO);
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
        let full = tally(&[0x7000 | PRESENT; PAGES as usize], MASK, ZERO);
        assert_eq!(full, Tally { present: 512, ..Tally::default() });
        assert_eq!(tally(&[], MASK, ZERO), Tally::default());
    }
}
