//! Memory that a JVM takes from the pools under `-XX:+UseLargePages`.

use crate::jvm::Java;
use crate::jvm::options::{Collector, Options};
use megapage_units::{Bytes, PageSize};

/// Default size of the code cache (globals.hpp): with tiered compilation, and without.
const CODE_CACHE_TIERED: Bytes = Bytes::mib(240);
const CODE_CACHE_PLAIN: Bytes = Bytes::mib(48);
/// Default size of the class space (Java 8 and later).
const CLASS_SPACE: Bytes = Bytes::gib(1);
/// Default of `-XX:MaxRAM`.
const MAX_RAM: Bytes = Bytes::gib(128);
/// Bytes for alignment: segments of the code cache, and each table, begin on a new page.
const ALIGNMENT: Bytes = Bytes::mib(8);

/// Memory that a JVM maps from the pools, in bytes, before the rounding to pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The largest heap, which is reserved whole at the start.
    pub heap: Bytes,
    /// True if an option gives the heap; otherwise the JVM chooses it, a quarter of the memory.
    pub heap_is_given: bool,
    /// The code cache, which is reserved whole.
    pub code_cache: Bytes,
    /// The class space, if an option puts it onto large pages too (Java 8 to 16). Metaspace is
    /// otherwise on base pages.
    pub class_space: Bytes,
    /// Upper bound of the collector's tables, with their alignment.
    pub tables: Bytes,
}

impl Need {
    /// Returns the need with these options. `memory` is the memory of the machine as the JVM sees
    /// it: at most the limit of its control group.
    pub fn of(options: &Options, java: &Java, memory: Bytes) -> Need {
        let ram = memory.min(options.max_ram.unwrap_or(MAX_RAM));
        let quarter = Bytes((ram.0 as f64 * options.max_ram_percent.unwrap_or(25.0) / 100.0) as u64);
        let heap = options.max_heap.unwrap_or(quarter);
        let code_cache =
            options.code_cache.unwrap_or(if options.untiered { CODE_CACHE_PLAIN } else { CODE_CACHE_TIERED });
        let class_space = match options.class_space_large && java.version.is_some_and(|it| it < 17) {
            true => options.class_space.unwrap_or(CLASS_SPACE),
            false => Bytes::ZERO,
        };
        Need {
            heap,
            heap_is_given: options.max_heap.is_some(),
            code_cache,
            class_space,
            tables: tables(options, heap),
        }
    }

    /// Returns the pages from the pool of `page`. The pool of 2 MiB gives all of the need, the pool
    /// of 1 GiB only the heap.
    pub fn pages(&self, page: PageSize) -> u64 {
        let size = page.bytes().0;
        if page == PageSize::HUGE_1G {
            return self.heap.0.div_ceil(size);
        }
        [self.heap, self.code_cache, self.class_space, self.tables].iter().map(|it| it.0.div_ceil(size)).sum()
    }

    /// Returns the pages from the pool of 2 MiB if the heap lies on pages of 1 GiB.
    pub fn beside_heap_pages(&self) -> u64 {
        self.pages(PageSize::HUGE_2M) - self.heap.0.div_ceil(PageSize::HUGE_2M.bytes().0)
    }

    /// Returns the sum of all parts.
    pub fn total(&self) -> Bytes {
        self.heap + self.code_cache + self.class_space + self.tables
    }

    /// Describes the need: `heap 1 GiB, code cache 240 MiB, tables 46 MiB`.
    pub fn describe(&self) -> String {
        let mut parts = vec![format!("heap {}", self.heap), format!("code cache {}", self.code_cache)];
        if self.class_space > Bytes::ZERO {
            parts.push(format!("class space {}", self.class_space));
        }
        parts.push(format!("tables {}", Bytes(self.tables.0.next_multiple_of(1 << 20))));
        parts.join(", ")
    }
}

/// Returns an upper bound of the collector's tables, from measurements of Java 17 and 25 with heaps
/// of 256 MiB to 1 GiB. Marks take a bit for each eight bytes, once or twice; cards and offsets
/// take a byte for each 512 bytes.
fn tables(options: &Options, heap: Bytes) -> Bytes {
    let marks = heap.0.div_ceil(64);
    let cards = heap.0.div_ceil(512);
    Bytes(match options.collector {
        Some(Collector::Serial) => cards,
        Some(Collector::Z) => 0,
        Some(Collector::Shenandoah) => 4 * marks + 2 * cards,
        Some(Collector::Parallel) => 2 * marks + 2 * cards,
        Some(Collector::G1) | None => 2 * marks + 3 * cards,
    }) + ALIGNMENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn java(version: u32) -> Java {
        Java { version: Some(version), ..Java::default() }
    }

    /// (collector, heap in MiB, measured pages of JVMs of Java 17 and 25)
    const MEASURED: [(Collector, u64, u64); 8] = [
        (Collector::Serial, 256, 249),
        (Collector::Serial, 1024, 633),
        (Collector::Parallel, 256, 248),
        (Collector::Parallel, 1024, 648),
        (Collector::G1, 256, 252),
        (Collector::G1, 1024, 651),
        (Collector::Shenandoah, 1024, 666),
        (Collector::Z, 256, 249),
    ];

    #[test]
    fn it_is_enough_and_not_much_more_than_what_a_jvm_took() {
        for (collector, heap, taken) in MEASURED {
            let options = Options {
                max_heap: Some(Bytes::mib(heap)),
                collector: Some(collector),
                ..Options::default()
            };
            let pages = Need::of(&options, &java(17), Bytes::gib(8)).pages(PageSize::HUGE_2M);
            assert!((taken..=taken + 16).contains(&pages), "{collector:?} {heap}: {pages}, not {taken}");
        }
    }

    #[test]
    fn what_no_option_says_is_the_jvms_default() {
        let need = Need::of(&Options::default(), &java(17), Bytes::gib(8));
        assert_eq!((need.heap, need.heap_is_given, need.code_cache), (Bytes::gib(2), false, Bytes::mib(240)));
        let plain = Options { untiered: true, max_ram: Some(Bytes::gib(4)), ..Options::default() };
        let need = Need::of(&plain, &java(17), Bytes::gib(8));
        assert_eq!((need.heap, need.code_cache), (Bytes::gib(1), Bytes::mib(48)));
        let large = Need::of(&Options::default(), &java(17), Bytes(u64::MAX / 2));
        assert_eq!(large.heap, Bytes::gib(32), "a quarter of MaxRAM");
    }

    #[test]
    fn the_class_space_counts_where_it_is_on_large_pages() {
        let options = Options { class_space_large: true, ..Options::default() };
        assert_eq!(Need::of(&options, &java(11), Bytes::gib(8)).class_space, Bytes::gib(1));
        assert_eq!(Need::of(&options, &java(17), Bytes::gib(8)).class_space, Bytes::ZERO);
        let words = Need::of(&options, &java(11), Bytes::gib(8)).describe();
        assert!(words.contains("class space 1 GiB") && words.contains("heap 2 GiB"), "{words}");
    }

    #[test]
    fn of_the_largest_pages_the_heap_alone() {
        let options = Options { max_heap: Some(Bytes::mib(1500)), ..Options::default() };
        let need = Need::of(&options, &java(17), Bytes::gib(8));
        assert_eq!(need.pages(PageSize::HUGE_1G), 2);
        assert_eq!(need.beside_heap_pages(), need.pages(PageSize::HUGE_2M) - 750);
    }
}
