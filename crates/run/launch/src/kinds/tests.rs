use super::*;
use crate::jvm::heap::java_heap;
use crate::why::{Promoters, Setting};
use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::{read_own_smaps, read_smaps};
use megapage_units::Pid;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures").join(name)
}

/// Reads the mappings of a captured process.
fn captured(name: &str) -> Vec<Mapping> {
    parsed(&std::fs::read_to_string(fixture(name)).unwrap())
}

fn parsed(text: &str) -> Vec<Mapping> {
    let tree = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(tree.path().join("proc/9")).unwrap();
    std::fs::write(tree.path().join("proc/9/smaps"), text).unwrap();
    read_smaps(&KernelRoot::captured(tree.path()), Pid(9)).unwrap()
}

/// Returns the KiB that a text of smaps counts, read only from its lines.
fn counted(text: &str) -> u64 {
    let fields = ["Rss:", "Shared_Hugetlb:", "Private_Hugetlb:"];
    let lines = text.lines().filter(|line| fields.iter().any(|field| line.starts_with(field)));
    lines.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum()
}

fn setting() -> Setting {
    Setting { thp: Ok(None), disabled: false, promoters: Promoters::default(), preloaded_heap: false }
}

/// Returns the KiB of each kind.
fn sums(mappings: &[Mapping], clues: &Clues<'_>) -> [u64; 7] {
    let kinds = kinds(mappings, clues, &MemoryDevices::default());
    let sums = Kinds::of(mappings, &kinds, &setting());
    Kind::ALL.map(|kind| sums.get(kind).memory.present.total().0 >> 10)
}

/// Returns the KiB of the mappings that `accept` takes, as smaps shows them.
fn of(mappings: &[Mapping], accept: impl Fn(&Mapping) -> bool) -> u64 {
    mappings.iter().filter(|mapping| accept(mapping)).map(|it| it.backing().total().0 >> 10).sum()
}

#[test]
fn kinds_add_up_to_what_smaps_counts() {
    let all = ["kinds", "jvm"].map(|directory| std::fs::read_dir(fixture(directory)).unwrap());
    let mut seen = 0;
    for file in all.into_iter().flatten() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let mappings = parsed(&text);
        for (runtime, largest) in [(None, None), (Some(HeapRuntime::Jvm), Some(Bytes::mib(256)))] {
            let java_heap = largest.and_then(|largest| java_heap(&mappings, largest));
            let range = VirtRange::new(0x7f00_0000_0000, 0x7fd8_0000_0000).unwrap();
            for heap in [None, Some(&[range][..])] {
                let clues = Clues { heap, runtime, java_heap, ..Clues::default() };
                assert_eq!(sums(&mappings, &clues).iter().sum::<u64>(), counted(&text));
            }
        }
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn our_own_kinds_add_up() {
    // A test can have these kinds: a heap, a file, shared memory, its text and its stack.
    let mappings = read_own_smaps(&KernelRoot::live()).unwrap();
    let whole = Memory::of(&mappings);
    let kinds = kinds(&mappings, &Clues::default(), &MemoryDevices::default());
    let sums = Kinds::of(&mappings, &kinds, &setting());
    assert_eq!(sums.total(), whole);
    for kind in [Kind::Heap, Kind::Text, Kind::Stacks] {
        assert!(sums.get(kind).memory.total() > Bytes::ZERO, "{kind:?}");
    }
    for (kind, of) in sums.present() {
        let reasons: Bytes = of.base.reasons().into_iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(reasons, of.memory.not_huge() + of.memory.swapped, "{kind:?}");
    }
}

#[test]
fn python_has_a_heap_or_own_mappings() {
    let maps = captured("kinds/python3.11.smaps");
    let plain = sums(&maps, &Clues { executable: Some("/usr/bin/python3.11"), ..Clues::default() });
    let [heap, own, runtime, shared, files, text, stacks] = plain;
    assert_eq!((own, runtime, shared), (0, 0, 0));
    assert_eq!(stacks, of(&maps, |it| it.name == "[stack]"));
    assert_eq!(files, of(&maps, |it| it.name.contains("/locale/") || it.name.contains("/gconv/")));
    let in_files = of(&maps, |it| it.name.starts_with('/') || it.is_special()) - files;
    let bss = text - in_files;
    // Behind two libraries lie arenas of Python, of 1 and 2.4 MiB.
    assert!((1..200).contains(&bss), "what is behind the data of libraries and of the program: {bss}");
    assert_eq!(
        heap,
        of(&maps, |it| it.is_heap_like())
            - bss
            - of(&maps, |it| { it.is_heap_like() && (it.name == "[stack]" || it.inode > 0) })
    );
    // If a library of ours has a heap elsewhere, all memory but brk's is the program's own.
    let range = [VirtRange::new(0x1000_0000_0000, 0x1000_4000_0000).unwrap()];
    let preloaded = sums(&maps, &Clues { heap: Some(&range), ..Clues::default() });
    assert_eq!(preloaded[0], of(&maps, |it| it.name == "[heap]"));
    assert!(preloaded[1] >= heap - preloaded[0]);
}

#[test]
fn a_jvm_has_a_heap_of_its_own_threads_and_mallocs_arenas() {
    // Threads in /proc/PID/task at the time of the capture, without the first one; and the JVM's
    // own log of its code cache.
    for (name, threads, code) in [
        ("java-17", 28, [0x7f32_a540_0000, 0x7f32_ac93_8000, 0x7f32_acec_7000]),
        ("java-25", 26, [0x7f9e_403f_f000, 0x7f9e_4793_8000, 0x7f9e_47ec_7000]),
    ] {
        let maps = captured(&format!("kinds/{name}.smaps"));
        let clues = Clues {
            java_heap: java_heap(&maps, Bytes::mib(256)),
            runtime: Some(HeapRuntime::Jvm),
            ..Clues::default()
        };
        let found = kinds(&maps, &clues, &MemoryDevices::default());
        let kind_at = |address: u64| {
            let at = maps.iter().position(|it| it.range.start() <= address && address < it.range.end());
            found[at.unwrap()]
        };
        assert_eq!(kind_at(0xf000_0000), Kind::RuntimeHeap, "the Java heap");
        for address in code {
            assert_eq!(kind_at(address), Kind::RuntimeHeap, "compiled code at {address:x}");
        }
        let stacks = || maps.iter().zip(&found).filter(|(_, kind)| **kind == Kind::Stacks);
        assert_eq!(stacks().filter(|(it, _)| it.name.is_empty()).count(), threads, "{name}");
        let arenas: Vec<&Mapping> = maps
            .iter()
            .zip(&found)
            .filter(|(it, kind)| **kind == Kind::Heap && it.name.is_empty())
            .map(|(it, _)| it)
            .collect();
        assert!(arenas.len() > 5 && arenas.iter().all(|it| it.range.start().is_multiple_of(ARENA)));
        // 2,000 buffers of 10,000 bytes from malloc.
        assert!(of(&maps, |it| arenas.contains(&it)) > 20_000);
        // The same without the command's facts: libjvm.so is mapped.
        let attached = sums(&maps, &Clues::default());
        assert!(attached[Kind::RuntimeHeap as usize] > 130 << 10, "{attached:?}");
        let heap = |sums: [u64; 7]| sums[Kind::Heap as usize];
        assert_eq!(heap(attached), heap(sums(&maps, &clues)));
    }
}

#[test]
fn v8_and_go_have_heaps_of_their_own() {
    let maps = captured("kinds/node-20.smaps");
    let clues =
        Clues { runtime: Some(HeapRuntime::V8), executable: Some("/usr/bin/node"), ..Clues::default() };
    let plain = sums(&maps, &clues);
    // 400,000 objects and strings. A buffer of 64 MiB, which glibc maps separately, cannot be
    // distinguished from them.
    assert!(plain[Kind::RuntimeHeap as usize] > 80 << 10, "{plain:?}");
    assert!(plain[Kind::Heap as usize] >= of(&maps, |it| it.name == "[heap]"));
    let maps = captured("kinds/node-20-preloaded.smaps");
    let range = [VirtRange::new(0x7fd7_4000_0000, 0x7fd7_8000_0000).unwrap()];
    let preloaded = sums(&maps, &Clues { heap: Some(&range), ..clues });
    let heap = of(&maps, |it| range[0].intersection(it.range).is_some() || it.name == "[heap]");
    assert_eq!(preloaded[Kind::Heap as usize], heap);
    assert!(heap >= 90 << 10 && preloaded[Kind::RuntimeHeap as usize] > 30 << 10, "{preloaded:?}");
    assert_eq!(preloaded[Kind::OwnMappings as usize], 0);
    let maps = captured("kinds/go-1.26.smaps");
    let clues =
        Clues { runtime: Some(HeapRuntime::Go), executable: Some("/home/user/g"), ..Clues::default() };
    let go = sums(&maps, &clues);
    assert_eq!(go[Kind::Text as usize], of(&maps, |it| it.range.end() <= 0x5b_a000 || it.is_special()));
    assert_eq!(
        go[Kind::RuntimeHeap as usize],
        of(&maps, |it| { it.is_heap_like() && it.range.start() >= 0x5b_a000 })
    );
    assert_eq!(go[Kind::Heap as usize], 0, "its pieces of 64 MiB are no arenas of glibc's");
}

#[test]
fn shared_memory_of_postgresql_is_of_its_own_kind() {
    let maps = captured("kinds/postgresql-15.smaps");
    let shared =
        |it: &Mapping| ["/dev/zero", "/SYSV", "/dev/shm/"].iter().any(|start| it.name.starts_with(start));
    let devices = MemoryDevices::default();
    let found = kinds(&maps, &Clues::default(), &devices);
    // Only its mount identifies /dev/shm: without it, its files count as files.
    for (mapping, kind) in maps.iter().zip(&found) {
        if shared(mapping) && mapping.device == (0, 1) {
            assert_eq!(*kind, Kind::Shared, "{}", mapping.name);
        }
    }
    assert!(sums(&maps, &Clues::default())[Kind::Shared as usize] > 4 << 10);
}

fn mapping(start: u64, end: u64, permissions: &str, name: &str) -> Mapping {
    let inode = u64::from(name.starts_with('/')) * 7;
    let device = if inode > 0 { (8, 1) } else { (0, 0) };
    let plain = Mapping::untouched(VirtRange::new(start, end).unwrap(), permissions, name);
    Mapping { inode, device, rss: Bytes::kib(4), ..plain }
}

#[test]
fn each_mapping_is_of_one_kind() {
    const MIB: u64 = 1 << 20;
    let hugetlb = |mut it: Mapping| {
        it.kernel_page_size = PageSize::HUGE_2M;
        it.inode = 9;
        it
    };
    let advised_against = |mut it: Mapping| {
        it.vm_flags = "rd wr mr mw me ac nh".into();
        it
    };
    let maps = [
        mapping(0x1000, 0x2000, "r-xp", "/usr/bin/a"),
        mapping(0x2000, 0x3000, "rw-p", "/usr/bin/a"),
        // 64 MiB of .bss of the program itself.
        mapping(0x3000, 0x3000 + 64 * MIB, "rw-p", ""),
        mapping(80 * MIB, 81 * MIB, "rw-p", "[heap]"),
        Mapping { inode: 8, ..mapping(90 * MIB, 91 * MIB, "r-xp", "/usr/lib/b.so") },
        Mapping { inode: 8, ..mapping(91 * MIB, 92 * MIB, "rw-p", "/usr/lib/b.so") },
        // Longer than a library's .bss: joined with the memory behind it.
        mapping(92 * MIB, 97 * MIB, "rw-p", ""),
        Mapping { inode: 10, ..mapping(100 * MIB, 101 * MIB, "r--p", "/var/data") },
        Mapping { inode: 10, ..mapping(101 * MIB, 102 * MIB, "rw-s", "/var/data") },
        Mapping { device: (0, 1), ..mapping(110 * MIB, 111 * MIB, "rw-s", "/memfd:x (deleted)") },
        hugetlb(mapping(120 * MIB, 122 * MIB, "rw-s", "/anon_hugepage (deleted)")),
        hugetlb(mapping(122 * MIB, 124 * MIB, "rw-p", "/anon_hugepage (deleted)")),
        hugetlb(mapping(124 * MIB, 126 * MIB, "rw-p", "/mnt/huge/x")),
        mapping(130 * MIB, 131 * MIB, "rwxp", ""),
        mapping(140 * MIB, 141 * MIB, "---p", ""),
        advised_against(mapping(141 * MIB, 142 * MIB, "rw-p", "")),
        // Without a guard, the program itself has advised against huge pages here.
        advised_against(mapping(150 * MIB, 151 * MIB, "rw-p", "")),
        mapping(160 * MIB, 161 * MIB, "rw-p", "[anon: glibc: pthread stack: 7]"),
        mapping(170 * MIB, 171 * MIB, "rw-p", "[anon: Go: heap]"),
        mapping(180 * MIB, 181 * MIB, "rwxp", "[anon:megapage text]"),
        mapping(190 * MIB, 191 * MIB, "rw-p", "[stack]"),
        mapping(191 * MIB, 192 * MIB, "r-xp", "[vdso]"),
    ];
    let of = |heap: Option<&[VirtRange]>| {
        let clues = Clues { heap, executable: Some("/usr/bin/a"), ..Clues::default() };
        kinds(&maps, &clues, &MemoryDevices::default())
    };
    use Kind::{Files, Heap, OwnMappings, RuntimeHeap, Shared, Stacks, Text};
    let head = [Text, Text, Text, Heap, Text, Text];
    let plain = [
        Heap,
        Files,
        Files,
        Shared,
        Shared,
        Heap,
        Heap,
        OwnMappings,
        Heap,
        Stacks,
        Heap,
        Stacks,
        RuntimeHeap,
        Text,
        Stacks,
        Text,
    ];
    assert_eq!(of(None), [&head[..], &plain].concat());
    let own = [
        OwnMappings,
        Files,
        Files,
        Shared,
        Shared,
        Heap,
        OwnMappings,
        OwnMappings,
        OwnMappings,
        Stacks,
        OwnMappings,
        Stacks,
        RuntimeHeap,
        Text,
        Stacks,
        Text,
    ];
    let range = [VirtRange::new(122 * MIB, 124 * MIB).unwrap()];
    assert_eq!(of(Some(&range)), [&head[..], &own].concat());
}
