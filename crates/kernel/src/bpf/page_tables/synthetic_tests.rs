//! Tests of the walk and of the decoding on synthetic memory. It holds cases that this machine's
//! page tables lack, such as five levels, and tables that change while they are read. For this,
//! `bpf/walk.h` is compiled natively (`bpf/synthetic.c`).

use super::*;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const MASK: u64 = ((1 << 46) - 1) & !0xfff;
const DIRECT_MAP: u64 = 0xffff_9280_0000_0000;
const TABLE: u64 = 0x67;
const PRESENT: u64 = 0x001;
const ACCESSED: u64 = 0x020;
const LEAF: u64 = 0x080;
const PROT_NONE: u64 = 0x100;
pub(super) const ZERO: u64 = 0x3b3_4000;
pub(super) const HUGE_ZERO: u64 = 0x1_abc0_0000;
pub(super) const HUGE: u64 = HugePage::SIZE;

/// Differences between the architectures.
pub(super) struct Machine {
    /// Option of the compiler.
    option: &'static str,
    layout: Layout,
    mask: u64,
    /// Bits of an entry that points to a table.
    table: u64,
}

const X86_64: Machine =
    Machine { option: "-DMEGAPAGE_X86_64", layout: Layout::X86_64, mask: MASK, table: TABLE };
pub(super) const ARM64: Machine =
    Machine { option: "-DMEGAPAGE_ARM64", layout: Layout::ARM64, mask: (1 << 50) - (1 << 12), table: 3 };

/// Page tables of a machine, under construction.
pub(super) struct Synthetic {
    machine: &'static Machine,
    levels: u32,
    script: String,
    next_frame: u64,
    /// Tables: level, first address that they map, and frame.
    pub(super) tables: Vec<(u32, u64, u64)>,
    ranges: Vec<VirtRange>,
}

impl Synthetic {
    fn new(levels: u32) -> Synthetic {
        Synthetic::of(&X86_64, levels)
    }

    pub(super) fn of(machine: &'static Machine, levels: u32) -> Synthetic {
        let mut synthetic = Synthetic {
            machine,
            levels,
            script: String::new(),
            next_frame: 0x10_0000,
            tables: Vec::new(),
            ranges: Vec::new(),
        };
        let top = synthetic.frame();
        synthetic.tables.push((levels, 0, top));
        let mask = machine.mask;
        writeln!(synthetic.script, "walk {levels:x} {DIRECT_MAP:x} {mask:x} {top:x}").unwrap();
        // A page exists once a word of it is written.
        synthetic.word(top, 0);
        synthetic
    }

    pub(super) fn frame(&mut self) -> u64 {
        self.next_frame += 0x1000;
        self.next_frame
    }

    pub(super) fn word(&mut self, physical: u64, value: u64) {
        writeln!(self.script, "word {physical:x} {value:x}").unwrap();
    }

    /// Returns the place of the entry of `level` for `address`. Makes the tables above it.
    pub(super) fn place(&mut self, address: u64, level: u32) -> u64 {
        let mut table = self.tables[0].2;
        for above in (level + 1..=self.levels).rev() {
            let start = address >> shift(above) << shift(above);
            let known = self.tables.iter().find(|known| (known.0, known.1) == (above - 1, start)).copied();
            let next = known.map_or_else(|| self.frame(), |known| known.2);
            if known.is_none() {
                self.tables.push((above - 1, start, next));
                self.word(next, 0);
                self.word(index(table, address, above), next | self.machine.table);
            }
            table = next;
        }
        index(table, address, level)
    }

    /// Writes the entry of `level` for `address`; level 1 is that of base pages.
    pub(super) fn map(&mut self, address: u64, level: u32, entry: u64) {
        let place = self.place(address, level);
        self.word(place, entry);
    }

    /// Sets the word at `physical` to `value` after `reads` reads.
    pub(super) fn change(&mut self, reads: u64, physical: u64, value: u64) {
        writeln!(self.script, "change {reads:x} {physical:x} {value:x}").unwrap();
    }

    pub(super) fn range(&mut self, start: u64, end: u64) {
        self.ranges.push(VirtRange::new(start, end).unwrap());
        writeln!(self.script, "range {start:x} {end:x}").unwrap();
    }

    /// Lets the native program carry out the script.
    pub(super) fn run(&self, order: &str) -> String {
        let mut child =
            Command::new(program(self.machine)).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let script = format!("{}{order}\n", self.script);
        let mut input = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || input.write_all(script.as_bytes()).unwrap());
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the regions, the number of runs that they took, and the number of regions given up.
    pub(super) fn walk(&self) -> (Vec<RegionBits>, u64, u64) {
        let Machine { layout, mask, .. } = *self.machine;
        let frames = Frames { layout, mask, zero: ZERO, huge_zero: Some(HUGE_ZERO) };
        let (mut found, mut tables) = (Vec::new(), Vec::new());
        let (mut regions, mut end) = (Vec::new(), (0, 0));
        for line in self.run("go").lines() {
            let mut words = line.split(' ');
            let what = words.next().unwrap();
            let numbers: Vec<u64> = words.map(|word| u64::from_str_radix(word, 16).unwrap()).collect();
            match what {
                "found" => found.push(Found {
                    start: numbers[0],
                    entry: numbers[1],
                    level: numbers[2] as u32,
                    table: u32::MAX,
                }),
                "table" => {
                    found.last_mut().unwrap().table = tables.len() as u32;
                    tables.push([0; PAGES as usize]);
                }
                "word" => tables.last_mut().unwrap()[numbers[0] as usize] = numbers[1],
                _ => end = (numbers[0], numbers[1]),
            }
        }
        for found in frames.with_contiguous(&found).iter() {
            frames.regions(found, &tables, &self.ranges, &mut |region| regions.push(region));
        }
        (regions, end.0, end.1)
    }
}

pub(super) const fn shift(level: u32) -> u32 {
    12 + 9 * (level - 1)
}

fn index(table: u64, address: u64, level: u32) -> u64 {
    table + ((address >> shift(level)) & 511) * 8
}

/// Returns the native program, compiled once for all tests of an architecture.
fn program(machine: &Machine) -> PathBuf {
    static PROGRAMS: [OnceLock<(tempfile::TempDir, PathBuf)>; 2] = [OnceLock::new(), OnceLock::new()];
    let (_, path) = PROGRAMS[usize::from(machine.option == ARM64.option)].get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("synthetic");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/synthetic.c");
        let options = ["-O1", "-Wall", "-Werror", "-Wno-unknown-pragmas", machine.option, "-o"];
        let compiled = Command::new("cc").args(options).arg(&path).arg(source).status().expect("cc");
        assert!(compiled.success());
        (directory, path)
    });
    path.clone()
}

/// Returns the regions as (start, kind of entries, present, zero pages, swapped, accessed).
pub(super) fn summary(regions: &[RegionBits]) -> Vec<(u64, Leaf, u16, u16, u16, u16)> {
    let shown = |region: &RegionBits| {
        let counts = (region.present, region.zero_page, region.swapped);
        (region.page.start(), region.leaf, counts.0, counts.1, counts.2, region.accessed.unwrap())
    };
    regions.iter().map(shown).collect()
}

#[test]
fn every_kind_of_entry_is_read_at_four_and_five_levels() {
    for levels in [4, 5] {
        let mut synthetic = Synthetic::new(levels);
        // With five levels, an address beyond the reach of four.
        let base = if levels == 5 { 0x33_0000_0000_0000 } else { 0x7f00_0000_0000 };
        let swap = 5 << 59 | 0xff_ffff << 9 & !0x1ff;
        let marker = 31 << 59 | 0xff_ffff_fe00;
        let mut at = |n: u64, level, entry| synthetic.map(base + n * HUGE, level, entry);
        at(1, 1, 0x7000 | PRESENT | ACCESSED);
        // Huge entries: two present ones, an inaccessible one, one that is being split, the page of
        // zeros, a swapped one and a marker. Then a table that holds nothing.
        at(2, 2, 0x20_0000 | PRESENT | LEAF | ACCESSED);
        at(3, 2, 0x40_0000 | PRESENT | LEAF);
        at(4, 2, (!0x60_0000 & MASK) | PROT_NONE | LEAF | ACCESSED);
        at(5, 2, (!0x80_0000 & MASK) | LEAF);
        at(6, 2, HUGE_ZERO | PRESENT | LEAF | ACCESSED);
        at(7, 2, swap);
        at(8, 2, marker);
        at(9, 1, 0);
        // A 1 GiB page 2 GiB above `base`, and one that is migrating, 3 GiB above it.
        at(1024, 3, 0x4000_0000 | PRESENT | LEAF | ACCESSED);
        at(1536, 3, swap);
        synthetic.map(base + 10 * HUGE + 0x1000, 1, (!0x7000 & MASK) | PROT_NONE | ACCESSED);
        synthetic.map(base + 10 * HUGE + 0x2000, 1, ZERO | PRESENT | ACCESSED);
        synthetic.map(base + 10 * HUGE + 0x3000, 1, swap);
        synthetic.map(base + 10 * HUGE + 0x4000, 1, marker);
        synthetic.map(base + 10 * HUGE + 0x1f_f000, 1, 0x9000 | PRESENT);
        // Far away, under another entry of the top table.
        let far = base + (if levels == 5 { 3 << 48 } else { 1 << 39 });
        synthetic.map(far, 1, 0x8000 | PRESENT | ACCESSED);
        synthetic.range(0, base + 1026 * HUGE);
        synthetic.range(base + 1537 * HUGE, base + 1538 * HUGE);
        synthetic.range(far, far + HUGE);
        let (regions, runs, given_up) = synthetic.walk();
        use Leaf::{Base, Huge2m, Hugetlb1g as Huge1g};
        let expected = [
            (base + HUGE, Base, 1, 0, 0, 1),
            (base + 2 * HUGE, Huge2m, 512, 0, 0, 512),
            (base + 3 * HUGE, Huge2m, 512, 0, 0, 0),
            (base + 4 * HUGE, Huge2m, 512, 0, 0, 512),
            (base + 5 * HUGE, Huge2m, 512, 0, 0, 0),
            (base + 6 * HUGE, Huge2m, 0, 512, 0, 0),
            (base + 7 * HUGE, Huge2m, 0, 0, 512, 0),
            (base + 10 * HUGE, Base, 2, 1, 1, 1),
            (base + 1024 * HUGE, Huge1g, 512, 0, 0, 512),
            (base + 1025 * HUGE, Huge1g, 512, 0, 0, 512),
            (base + 1537 * HUGE, Huge1g, 0, 0, 512, 0),
            (far, Base, 1, 0, 0, 1),
        ];
        assert_eq!(summary(&regions), expected, "{levels} levels");
        assert_eq!((runs, given_up), (1, 0));
    }
}

#[test]
fn addresses_are_translated_at_each_level() {
    for levels in [4, 5] {
        let mut synthetic = Synthetic::new(levels);
        synthetic.map(0x1000, 1, 0x7000 | PRESENT | 1 << 63);
        synthetic.map(HUGE, 2, 0x4020_0000 | PRESENT | LEAF | 1 << 12);
        synthetic.map(GIB, 3, 0x1_0000_0000 | PRESENT | LEAF);
        let cases = [
            (0x1234, "7234"),
            (HUGE + 0x12345, "40212345"),
            (GIB + 0x1234_5678, "112345678"),
            (0x2000, "none"),
            (2 * HUGE, "none"),
            (2 * GIB, "none"),
            (1 << 46, "none"),
        ];
        for (address, physical) in cases {
            assert_eq!(synthetic.run(&format!("translate {address:x}")).trim(), physical, "{address:x}");
        }
    }
}

#[test]
fn a_long_walk_takes_several_runs() {
    let mut synthetic = Synthetic::new(4);
    for n in 0..600 {
        synthetic.map(n * HUGE, 1, 0x7000 | PRESENT);
    }
    for n in 1024..1024 + 2100 {
        synthetic.map(n * HUGE, 2, 0x20_0000 | PRESENT | LEAF);
    }
    synthetic.range(0, 1 << 40);
    let (regions, runs, given_up) = synthetic.walk();
    assert_eq!((regions.len(), given_up), (2700, 0));
    assert!(regions.is_sorted_by_key(|region| region.page));
    // 512 tables, then the other 88 with 1960 huge entries, then 140 more.
    assert_eq!(runs, 3);
}

/// Reads of one region on base pages at four levels: three on the way down, the table, three again.
const READS: u64 = 7;

#[test]
fn a_table_that_is_replaced_under_the_copy_is_read_again() {
    let mut synthetic = Synthetic::new(4);
    synthetic.map(0, 1, 0x7000 | PRESENT | ACCESSED);
    let entry = synthetic.place(0, 2);
    let other = synthetic.frame();
    synthetic.word(other, 0x9000 | PRESENT);
    synthetic.word(other + 8, 0xa000 | PRESENT);
    // The old table is freed, then filled with words that look like accessed pages.
    let old = synthetic.tables.last().unwrap().2;
    synthetic.change(3, old, u64::MAX);
    synthetic.change(4, entry, other | TABLE);
    synthetic.range(0, HUGE);
    let (regions, _, given_up) = synthetic.walk();
    assert_eq!(summary(&regions), [(0, Leaf::Base, 2, 0, 0, 0)]);
    assert_eq!(given_up, 0);
}

#[test]
fn a_table_that_is_collapsed_under_the_copy_is_a_huge_page() {
    let mut synthetic = Synthetic::new(4);
    synthetic.map(0, 1, 0x7000 | PRESENT | ACCESSED);
    let entry = synthetic.place(0, 2);
    synthetic.change(4, entry, 0x20_0000 | PRESENT | LEAF);
    synthetic.range(0, HUGE);
    assert_eq!(summary(&synthetic.walk().0), [(0, Leaf::Huge2m, 512, 0, 0, 0)]);
}

#[test]
fn what_changes_without_end_is_left_out() {
    let mut synthetic = Synthetic::new(4);
    synthetic.map(0, 1, 0x7000 | PRESENT | ACCESSED);
    synthetic.map(HUGE, 1, 0x8000 | PRESENT | ACCESSED);
    let upper = synthetic.place(0, 3);
    let table = synthetic.tables.iter().find(|table| table.0 == 2).unwrap().2;
    // The upper entry changes after each copy of the first region. A try ends with the read that
    // shows the change, the last read but one.
    for change in 0..4 {
        synthetic.change(change * (READS - 1) + 4, upper, table | TABLE | 1 << (52 + change));
    }
    synthetic.range(0, 2 * HUGE);
    let (regions, _, given_up) = synthetic.walk();
    assert_eq!(summary(&regions), [(HUGE, Leaf::Base, 1, 0, 0, 1)]);
    assert_eq!(given_up, 1);
}

#[test]
fn an_accessed_bit_above_is_no_change() {
    let mut synthetic = Synthetic::new(4);
    synthetic.map(0, 1, 0x7000 | PRESENT | ACCESSED);
    let upper = synthetic.place(0, 2);
    let table = synthetic.tables.last().unwrap().2;
    synthetic.word(upper, table | TABLE & !ACCESSED);
    synthetic.change(4, upper, table | TABLE);
    // A second try would see this.
    synthetic.change(READS, upper, 0);
    synthetic.range(0, HUGE);
    assert_eq!(summary(&synthetic.walk().0), [(0, Leaf::Base, 1, 0, 0, 1)]);
}

#[test]
fn tables_that_lead_nowhere_are_left_out() {
    let mut synthetic = Synthetic::new(5);
    synthetic.map(0, 2, 0x3f00_0000_0000 | TABLE);
    synthetic.map(GIB, 3, 0x3f00_0000_0000 | TABLE);
    synthetic.map(GIB + GIB, 1, 0x7000 | PRESENT);
    synthetic.range(0, HUGE);
    synthetic.range(GIB, GIB + HUGE);
    synthetic.range(2 * GIB, 2 * GIB + HUGE);
    let (regions, _, given_up) = synthetic.walk();
    assert_eq!(summary(&regions), [(2 * GIB, Leaf::Base, 1, 0, 0, 0)]);
    assert_eq!(given_up, 2);
}
