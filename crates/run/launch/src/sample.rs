//! Samples of the pages that back a process's memory, taken when they are worth it, within a
//! budget.

use crate::jvm::heap::java_heap;
use crate::kinds::{Clues, HeapRuntime, Kinds, is_preloaded_heap, kinds};
use crate::machine::LIBRARY_NAME;
pub use crate::memory::Memory;
use crate::regions::look_at_regions;
use crate::why::{Promoters, Setting, ThpRead, Unread};
use megapage_kernel::ability::{PAGEMAP_SCAN, THP};
use megapage_kernel::hugetlb::nodes;
use megapage_kernel::numa::{OnNode, memory_by_node, nodes_run_on};
use megapage_kernel::process::{Status, own_thread_time, read_status};
use megapage_kernel::shared_memory::MemoryDevices;
use megapage_kernel::smaps::{Mapping, read_smaps};
use megapage_kernel::{KernelError, KernelRoot, thp};
use megapage_units::{Bytes, PageSize, Pid, VirtRange};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Least ratio of the time since the first sample to the cost of all samples. The cost includes the
/// next one, estimated by the last. So sampling takes less than 1 % of the program's time.
const COST_SPACING: u32 = 100;
/// Divisor for growth: a sample is due if the memory has grown by a twentieth since the last one.
const GROWTH: u64 = 20;
/// Divisor of the program's time for samples without growth, within the limits below: the last
/// sample is never old.
const AGE_SHARE: u32 = 10;
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The pages that back a process's memory at one moment, by the kernel's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time of the sample.
    pub at: Instant,
    /// All of its memory.
    pub whole: Memory,
    /// Private, writable, anonymous memory without stacks.
    pub anonymous: Memory,
    /// Shared memory (tmpfs, memfd, SysV, shared anonymous) that it has touched. Each part of an
    /// object counts once.
    pub shared: Memory,
    /// Memory of the preloaded heap (with a broker's pages), or of the Java heap; zero without
    /// either.
    pub heap: Memory,
    /// The rest of the anonymous memory, which the program has mapped itself; zero without the
    /// preloaded heap.
    pub own: Memory,
    /// The requested text; zero if none was requested.
    pub text: Memory,
    /// All memory by its purpose.
    pub kinds: Kinds,
    /// The largest resident memory so far (`VmHWM`), without hugetlb pages.
    pub peak_rss: Bytes,
    /// True if the preloaded library is mapped.
    pub preloaded: bool,
    /// True if the library that moves text is mapped: it disappears with the program that loaded
    /// it.
    pub text_preloaded: bool,
}

/// Places of the heap and the text in a process's memory.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The preloaded heap's address ranges.
    pub heap: Vec<VirtRange>,
    /// The largest possible size of the Java heap, if the program is a JVM.
    pub java_heap: Option<Bytes>,
    /// Files whose mappings are the requested text.
    pub text_files: Vec<String>,
    /// Address ranges of such text, with any mapping.
    pub text_ranges: Vec<VirtRange>,
    /// The file name of the library that moved the text. The ranges count only if it is mapped.
    pub text_library: Option<String>,
    /// The runtime that manages its own heap, from the program's file.
    pub runtime: Option<HeapRuntime>,
    /// The program's file.
    pub executable: Option<String>,
    /// The promoters of the program's memory.
    pub promoters: Promoters,
    /// The smallest mapping of shared memory, in bytes, that the preloaded library promotes.
    pub least_shared: u64,
    /// True if the sample is the last, or for a report. Then it reads page tables for the reasons
    /// of base pages, even if that takes long. If that is cheap (Linux 6.7), it always reads them.
    pub thorough: bool,
}

impl Sample {
    /// Takes a sample under the machine's settings. The heap's ranges count only if the library is
    /// mapped now: after an exec, `places` may still hold the ranges of the former program's heap.
    /// Also returns the bytes on huge pages for each range of text.
    pub fn take(
        root: &KernelRoot,
        pid: Pid,
        places: &Places,
        thp: &ThpRead,
    ) -> Result<(Sample, Vec<u64>), KernelError> {
        let mappings = read_smaps(root, pid)?;
        let status: Status = read_status(root, pid)?;
        let preloaded = mappings.iter().any(|mapping| mapping.name.ends_with(LIBRARY_NAME));
        let heap = if preloaded { &places.heap[..] } else { &[] };
        let of_heap = |mapping: &&Mapping| {
            (mapping.is_heap_like() || mapping.is_extent()) && is_preloaded_heap(mapping, heap)
        };
        // "(deleted)" may follow.
        let is_library = |mapping: &Mapping, library: &str| {
            mapping.name.rsplit('/').next().is_some_and(|name| name.starts_with(library))
        };
        let text_library = places.text_library.as_deref();
        let text_preloaded =
            text_library.is_some_and(|library| mappings.iter().any(|mapping| is_library(mapping, library)));
        let ranges = if text_preloaded { &places.text_ranges[..] } else { &[] };
        let is_text = |mapping: &&Mapping| {
            let inside = |range: &VirtRange| range.intersection(mapping.range).is_some();
            places.text_files.contains(&mapping.name) || ranges.iter().any(inside)
        };
        let huge_in = |range: &VirtRange| -> u64 {
            let within = |mapping: &Mapping| {
                let huge = (mapping.anon_huge + mapping.hugetlb).0;
                range.intersection(mapping.range).map_or(0, |both| huge.min(both.len().0))
            };
            mappings.iter().map(within).sum()
        };
        let text_huge = ranges.iter().map(huge_in).collect();
        let devices = devices(root, pid, &mappings);
        let java = places.java_heap.and_then(|largest| java_heap(&mappings, largest));
        let clues = Clues {
            // The library may serve a process that another process started: the place of its heap
            // is then unknown.
            heap: (preloaded && !heap.is_empty()).then_some(heap),
            runtime: places.runtime,
            java_heap: java,
            executable: places.executable.as_deref(),
            text: ranges,
        };
        let kinds = kinds(&mappings, &clues, &devices);
        let setting = Setting {
            thp: thp.clone(),
            disabled: thp::is_switched_off(root, &status),
            promoters: Promoters {
                outside: places.promoters.outside,
                library: places.promoters.library && preloaded,
                library_shared: places.promoters.library_shared
                    && preloaded
                    && mappings
                        .iter()
                        .any(|it| may_be_shared(&it) && it.range.len().0 >= places.least_shared),
            },
            preloaded_heap: clues.heap.is_some(),
        };
        let mut sums = Kinds::of(&mappings, &kinds, &setting);
        if places.thorough || PAGEMAP_SCAN.is_there(root) {
            look_at_regions(root, pid, &mappings, &kinds, &setting, &mut sums);
        }
        let sample = Sample {
            at: Instant::now(),
            whole: sums.total(),
            anonymous: Memory::of(mappings.iter().filter(|mapping| mapping.is_heap_like())),
            shared: shared(&mappings, &devices),
            heap: match places.java_heap {
                Some(_) => java.map_or_else(Memory::default, |heap| heap.memory(&mappings)),
                None => Memory::of(mappings.iter().filter(of_heap)),
            },
            own: match preloaded && places.java_heap.is_none() {
                true => Memory::of(mappings.iter().filter(|it| it.is_heap_like() && !of_heap(it))),
                false => Memory::default(),
            },
            text: Memory::of(mappings.iter().filter(is_text)),
            kinds: sums,
            peak_rss: status.peak_rss,
            preloaded,
            text_preloaded,
        };
        Ok((sample, text_huge))
    }
}

/// Returns true if a mapping may be of a memory object, and holds some of its memory.
fn may_be_shared(mapping: &&Mapping) -> bool {
    mapping.permissions.ends_with('s')
        && mapping.object().is_some()
        && mapping.rss + mapping.swap > Bytes::ZERO
        && mapping.kernel_page_size == PageSize::BASE
}

/// Returns the file systems in memory from which `pid` may have mapped files. Reads the mounts only
/// if it may have.
fn devices(root: &KernelRoot, pid: Pid, mappings: &[Mapping]) -> MemoryDevices {
    match mappings.iter().any(|mapping| may_be_shared(&mapping)) {
        true => MemoryDevices::seen_by(root, pid),
        false => MemoryDevices::default(),
    }
}

/// Returns the shared memory of a process with these mappings. If several map the same part of an
/// object, the one with most of it counts.
fn shared(mappings: &[Mapping], devices: &MemoryDevices) -> Memory {
    // A broker's pages belong to the heap.
    let is_shared = |mapping: &&Mapping| {
        may_be_shared(mapping) && !mapping.is_extent() && devices.holds(mapping.device, &mapping.name)
    };
    let mut shared: Vec<&Mapping> = mappings.iter().filter(is_shared).collect();
    shared.sort_by_key(|mapping| (mapping.object(), mapping.offset));
    let mut once: Vec<&Mapping> = Vec::new();
    for mapping in shared {
        match once.last_mut() {
            Some(last) if overlap(last, mapping) => {
                if mapping.rss > last.rss {
                    *last = mapping;
                }
            }
            _ => once.push(mapping),
        }
    }
    Memory::of(once)
}

/// Returns true if two mappings share a part of the same object.
fn overlap(one: &Mapping, other: &Mapping) -> bool {
    let end = |mapping: &Mapping| mapping.offset.saturating_add(mapping.range.len().0);
    one.object() == other.object() && one.offset < end(other) && other.offset < end(one)
}

/// The samples of one process, reduced to the needs of a report.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// The sample with the most memory present.
    pub peak: Option<Sample>,
    /// The latest sample.
    pub last: Option<Sample>,
    /// The latest sample with at least half as much anonymous memory as any other: programs free
    /// memory before they end.
    pub last_full: Option<Sample>,
    /// The most hugetlb memory that was seen, in a sample or in the process's status.
    pub hugetlb_peak: Bytes,
    /// The largest `VmHWM` that was seen: it starts again if a process executes another program.
    pub peak_rss: Bytes,
    /// For each range of text, its bytes on huge pages in the latest sample.
    pub text_huge: Vec<u64>,
    /// True if `last` was taken while the program waited to exit.
    pub last_is_final: bool,
    /// Memory by node at the last look, on a machine of several nodes; otherwise empty.
    pub by_node: BTreeMap<u32, OnNode>,
    /// The nodes on which the process was seen to run.
    pub ran_on: BTreeSet<u32>,
    /// Number of samples.
    pub count: u64,
    /// Processor time of the launcher for all samples. The program waits for its mmap lock during a
    /// part of it at most.
    pub cost: Duration,
    first: Option<Instant>,
    last_cost: Duration,
    growth_seen: u64,
    most_anonymous: Bytes,
    /// The machine's settings at the time of the first sample.
    thp: Option<ThpRead>,
}

impl Samples {
    /// Returns true if a sample is due at `now`; `size` is any value that grows with the program's
    /// memory.
    pub fn is_due(&self, now: Instant, size: u64) -> bool {
        let Some(last) = &self.last else { return true };
        let pause = now.saturating_duration_since(last.at);
        let watched = now.saturating_duration_since(self.first.unwrap_or(now));
        let paid = watched >= (self.cost + self.last_cost) * COST_SPACING;
        let longest = (watched / AGE_SHARE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        paid && (size > self.growth_seen.saturating_add(self.growth_seen / GROWTH) || pause >= longest)
    }

    /// Returns the cost of the latest sample.
    pub fn last_cost(&self) -> Duration {
        self.last_cost
    }

    /// Records the values of the process's status between samples.
    pub fn note_status(&mut self, status: &Status) {
        self.peak_rss = self.peak_rss.max(status.peak_rss);
        self.hugetlb_peak = self.hugetlb_peak.max(status.hugetlb);
    }

    /// Takes a sample; returns false if it cannot. A process that has ended, or that executes a
    /// program right now, leaves the samples unchanged.
    pub fn take(&mut self, root: &KernelRoot, pid: Pid, places: &Places, size: u64) -> bool {
        let start = own_thread_time();
        let thp = self.thp.get_or_insert_with(|| match thp::settings(root) {
            Ok(None) if THP.is_there(root) => Err(Unread),
            read => read.map_err(|_| Unread),
        });
        let sample = Sample::take(root, pid, places, thp);
        let nodes = sample.is_ok().then(|| self.nodes(root, pid));
        self.last_cost = own_thread_time().saturating_sub(start);
        self.cost += self.last_cost;
        // An empty sample is of a process that has freed its memory already.
        let Ok((sample, text_huge)) = sample else { return false };
        if sample.whole.present.total() == Bytes::ZERO {
            return false;
        }
        self.add(sample, size);
        self.text_huge = text_huge;
        if let Some((by_node, ran_on)) = nodes {
            self.by_node = by_node;
            self.ran_on.extend(ran_on);
        }
        true
    }

    /// Returns the memory by node and the nodes of the process, on a machine of several nodes.
    /// Unreadable values are missing.
    fn nodes(&self, root: &KernelRoot, pid: Pid) -> (BTreeMap<u32, OnNode>, BTreeSet<u32>) {
        match nodes(root) {
            Ok(nodes) if nodes.len() > 1 => {
                (memory_by_node(root, pid).unwrap_or_default(), nodes_run_on(root, pid).unwrap_or_default())
            }
            _ => Default::default(),
        }
    }

    fn add(&mut self, sample: Sample, size: u64) {
        self.count += 1;
        self.first.get_or_insert(sample.at);
        self.growth_seen = size;
        self.hugetlb_peak = self.hugetlb_peak.max(sample.whole.present.hugetlb());
        self.peak_rss = self.peak_rss.max(sample.peak_rss);
        if self.peak.is_none_or(|peak| sample.whole.present.total() >= peak.whole.present.total()) {
            self.peak = Some(sample);
        }
        self.most_anonymous = self.most_anonymous.max(sample.anonymous.total());
        if sample.anonymous.total().0 >= self.most_anonymous.0 / 2 {
            self.last_full = Some(sample);
        }
        self.last = Some(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::smaps::BackingBytes;

    fn sample(at: Instant, base: u64) -> Sample {
        let present = BackingBytes { base: Bytes(base), ..BackingBytes::default() };
        let whole = Memory { present, swapped: Bytes::ZERO };
        Sample {
            at,
            whole,
            anonymous: whole,
            shared: Memory::default(),
            heap: Memory::default(),
            own: Memory::default(),
            text: Memory::default(),
            kinds: Kinds::default(),
            peak_rss: Bytes::ZERO,
            preloaded: false,
            text_preloaded: false,
        }
    }

    #[test]
    fn samples_are_due_on_growth_and_within_the_budget() {
        let start = Instant::now();
        let mut samples = Samples::default();
        assert!(samples.is_due(start, 0), "the first");
        samples.add(sample(start, 100), 1000);
        let later = |ms| start + Duration::from_millis(ms);
        assert!(!samples.is_due(later(10), 1050), "grown by a twentieth, no more");
        assert!(samples.is_due(later(10), 1051));
        assert!(
            !samples.is_due(later(19), 1000) && samples.is_due(later(20), 1000),
            "a tenth of the time, and 20 ms"
        );
        let mut second = sample(later(30_000), 100);
        samples.add(second, 1000);
        assert!(!samples.is_due(later(30_999), 1000), "no more often than once a second");
        assert!(samples.is_due(later(31_000), 1000));
        second.at = later(0);
        samples.last = Some(second);
        samples.last_cost = Duration::from_millis(15);
        samples.cost = Duration::from_millis(5);
        assert!(!samples.is_due(later(1999), 5000), "not paid for yet");
        assert!(samples.is_due(later(2000), 5000));
    }

    #[test]
    fn the_peak_is_stored() {
        let start = Instant::now();
        let mut samples = Samples::default();
        for base in [100, 300, 200] {
            samples.add(sample(start, base), base);
        }
        samples.add(sample(start, 149), 149);
        assert_eq!(
            samples.last_full.unwrap().whole.present.base,
            Bytes(200),
            "the next is of a program that ends"
        );
        samples.last = samples.last_full;
        samples.count -= 1;
        assert_eq!(samples.peak.unwrap().whole.present.base, Bytes(300));
        assert_eq!(samples.last.unwrap().whole.present.base, Bytes(200));
        assert_eq!(samples.count, 3);
    }

    #[test]
    fn what_is_mapped_twice_is_counted_once() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("proc/9")).unwrap();
        let root = KernelRoot::captured(tree.path());
        let mapping = |start: u64, offset: u64, inode: u64, mib: u64, huge: u64| Mapping {
            offset,
            inode,
            device: (0, 1),
            rss: Bytes::mib(mib),
            shmem_pmd: Bytes::mib(huge),
            ..Mapping::untouched(
                VirtRange::new(start << 20, (start + 8) << 20).unwrap(),
                "rw-s",
                "/memfd:x (deleted)",
            )
        };
        let of = |mappings: &[Mapping]| {
            let memory = shared(mappings, &devices(&root, Pid(9), mappings));
            (memory.present.shmem_pmd.0 >> 20, memory.total().0 >> 20)
        };
        assert_eq!(of(&[mapping(0, 0, 7, 8, 6)]), (6, 8));
        assert_eq!(of(&[mapping(0, 0, 7, 4, 2), mapping(8, 0, 7, 8, 6)]), (6, 8), "the same");
        assert_eq!(of(&[mapping(8, 8 << 20, 7, 8, 6), mapping(0, 0, 7, 4, 2)]), (8, 12), "another part");
        assert_eq!(of(&[mapping(0, 0, 7, 4, 2), mapping(8, 0, 8, 8, 6)]), (8, 12), "another object");
        let private = Mapping { permissions: "rw-p".into(), ..mapping(0, 0, 7, 8, 6) };
        let of_disk = Mapping { device: (8, 1), name: "/var/a".into(), ..mapping(16, 0, 7, 8, 6) };
        assert_eq!(of(&[private, of_disk]), (0, 0));
    }

    #[test]
    fn our_own_memory_is_sampled() {
        let mut samples = Samples::default();
        let own = Pid(std::process::id() as i32);
        assert!(samples.take(&KernelRoot::live(), own, &Places::default(), 0));
        assert!(samples.last.unwrap().anonymous.total() > Bytes::ZERO);
        assert!(!samples.take(&KernelRoot::captured("/none"), own, &Places::default(), 0));
        assert_eq!(samples.count, 1);
    }
}
