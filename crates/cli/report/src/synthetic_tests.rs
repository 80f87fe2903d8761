//! Invented snapshots for the tests; and texts to compare with.

use crate::top::{Head, Key};
use megapage_snapshot::*;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugePage, PageSize, Pid, VirtRange};
use std::path::Path;
use std::time::Duration;

const REGION: u64 = HUGE_2M as u64;

/// Returns a process without memory.
pub fn process(pid: i32, name: &str) -> Process {
    let id = ProcessId { pid: Pid(pid), start_ticks: 100, start_stack: 0x7ffc_0000_0000 };
    Process {
        uid: 1000,
        cgroup: "/".into(),
        threads: 4,
        cpu: Duration::from_millis(12_340),
        page_tables: Bytes::mib(1),
        ..Process::without_memory(id, name)
    }
}

/// Adds a mapping of whole regions; `of` makes each, from its number and a template.
pub fn map(
    process: &mut Process,
    start: u64,
    regions: u64,
    kind: MappingKind,
    name: &str,
    of: impl Fn(u64, &mut Region),
) {
    let mapping = process.mappings.len() as u32;
    process.mappings.push(Mapping {
        range: VirtRange::new(start, start + regions * REGION).unwrap(),
        kind,
        name: name.into(),
        flags: MappingFlags { read: true, write: true, ..MappingFlags::default() },
        thp_eligible: Some(true),
        object: None,
    });
    for number in 0..regions {
        let mut region =
            Region { mapping, ..Region::of_base_pages(HugePage::containing(start).offset(number), PAGES) };
        of(number, &mut region);
        if region.present + region.zero_page + region.swapped > 0 {
            process.regions.push(region);
        }
    }
}

/// Returns a sample of a region.
pub fn accessed(coverage: u16) -> Option<Accessed> {
    let sampled = Duration::from_secs(4999);
    let last = (coverage > 0).then_some(sampled);
    Some(Accessed { coverage, average: coverage.into(), last, sampled })
}

/// Sets the process's sums to those of its regions.
pub fn sum_up(process: &mut Process) {
    for region in &process.regions {
        let bytes = region.present_bytes();
        let shared = process.mappings[region.mapping as usize].kind == MappingKind::Shared;
        *match region.leaf {
            Leaf::Base => &mut process.backing.base,
            Leaf::Huge2m if shared => &mut process.backing.shmem_pmd,
            Leaf::Huge2m => &mut process.backing.thp,
            Leaf::Hugetlb2m => &mut process.backing.hugetlb_2m,
            Leaf::Hugetlb1g => &mut process.backing.hugetlb_1g,
        } += bytes;
        process.swap += Bytes(u64::from(region.swapped) * BASE_PAGE as u64);
    }
    process.rss = process.backing.total().saturating_sub(process.backing.hugetlb());
    process.rss_anonymous = process.rss;
}

/// Returns a store of about a gigabyte: huge at its low addresses, hot at its high ones, as in a
/// figure of HawkEye.
pub fn store() -> Process {
    let mut process = process(4711, "redis-server");
    map(&mut process, 0x55d0_a3c0_0000, 3, MappingKind::File, "/usr/bin/redis-server", |number, region| {
        region.present = 300;
        region.accessed = accessed(40 * number as u16);
    });
    map(&mut process, 0x55d0_a540_0000, 4, MappingKind::Heap, "[heap]", |_, region| {
        region.accessed = accessed(17);
    });
    map(&mut process, 0x7f2c_4000_0000, 512, MappingKind::Anonymous, "", |number, region| {
        if number < 200 {
            region.leaf = Leaf::Huge2m;
            region.accessed = accessed(if number % 37 == 0 { PAGES } else { 0 });
            region.zeros = Some(if number > 150 { 300 } else { 0 });
        } else {
            region.present = if number > 480 { 512 - (number as u16 - 480) * 15 } else { PAGES };
            let rising = (number - 200) * 512 / 312;
            region.accessed = accessed((rising as u16).min(region.present));
            region.folios = Some(if number % 3 == 0 { [200, 0, 0, 0, 112, 0, 0, 0, 0, 0] } else { [0; 10] });
        }
        if (300..320).contains(&number) {
            (region.present, region.swapped, region.accessed) = (0, PAGES, None);
        }
    });
    map(&mut process, 0x7f2d_2000_0000, 64, MappingKind::Hugetlb, "/anon_hugepage (deleted)", |_, region| {
        region.leaf = Leaf::Hugetlb2m;
        region.accessed = accessed(PAGES);
    });
    for library in 0..9u64 {
        let start = 0x7f2d_4000_0000 + library * 4 * REGION;
        let name = format!("/usr/lib/lib{library}.so.6");
        map(&mut process, start, 1, MappingKind::File, &name, |_, region| {
            region.present = 80 + 10 * library as u16;
            region.accessed = accessed(9);
        });
    }
    map(&mut process, 0x7ffc_1220_0000, 1, MappingKind::Stack, "[stack]", |_, region| {
        region.present = 33;
    });
    sum_up(&mut process);
    process.sampling = Some(ProcessSampling {
        window: Duration::from_secs(1),
        period: Some(Duration::from_secs(40)),
        sampled: Duration::from_secs(4999),
        ranges: 3,
        bytes: Bytes::mib(1160),
        shared: Bytes::ZERO,
        cost: Duration::from_millis(123),
        slowdown: 0.0042,
        samples: 7,
    });
    process.translation =
        Some(TranslationCost { share: 0.123, low: 0.1, high: 0.151, source: CostSource::Measured });
    process
}

/// Returns a machine of one node.
pub fn machine() -> Machine {
    let counters = [("thp_fault_alloc", 1000), ("thp_split_page", 7), ("compact_stall", 3)];
    Machine {
        memory: Memory {
            total: Bytes::gib(24),
            free: Bytes::gib(3),
            available: Bytes::gib(20),
            swap_total: Bytes::ZERO,
            swap_free: Bytes::ZERO,
            anon_huge: Bytes::mib(400),
        },
        nodes: vec![Node { node: 0, free: Bytes::gib(3), huge_available: 412, fragmentation: Some(0.3125) }],
        pools: vec![
            Pool { page_size: PageSize::HUGE_2M, total: 64, free: 32, reserved: 8, surplus: 0 },
            Pool { page_size: PageSize::HUGE_1G, total: 0, free: 0, reserved: 0, surplus: 0 },
        ],
        thp: Some(thp::ThpSettings {
            enabled: thp::ThpEnabled::Madvise,
            defrag: thp::ThpDefrag::Madvise,
            shmem: Some(thp::ThpShmem::Never),
            pmd_size: Bytes::mib(2),
            sizes: Vec::new(),
            khugepaged: Some(thp::Khugepaged {
                defrag: true,
                max_ptes_none: 511,
                pages_to_scan: 4096,
                scan_sleep_ms: 10_000,
                pages_collapsed: 3,
            }),
            shrink_underused: Some(true),
        }),
        counters: counters.map(|(name, count)| (name.into(), count)).into(),
        pressure: Some(Pressure { some_10s: 1.25, some_60s: 0.5, full_10s: 0.0, some_total_us: 123_456 }),
    }
}

/// Returns a snapshot of these processes, at 5000 s.
pub fn snapshot(processes: Vec<Process>) -> Snapshot {
    Snapshot {
        taken: Duration::from_secs(5000),
        machine: machine(),
        sampling: Some(Sampling {
            tracker: TrackerKind::Bpf,
            lacks: Vec::new(),
            skipped: Vec::new(),
            first_access_ns: 470.0,
            budget: 0.01,
        }),
        processes,
        missed: Vec::new(),
    }
}

/// Compares `text` with `golden/NAME`; with `MEGAPAGE_BLESS` set, writes the file instead. Check
/// what it wrote.
#[track_caller]
pub fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/golden").join(name);
    if std::env::var_os("MEGAPAGE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        golden == text,
        "not as in {} (after looking at the change, set MEGAPAGE_BLESS=1):\n{text}",
        path.display()
    );
}

/// Returns the settings for one table of `top`, sorted by `key`, without a filter or notes.
pub(crate) fn head(key: Key) -> Head {
    Head { key, reverse: false, every: None, filter: String::new(), notes: Vec::new() }
}
