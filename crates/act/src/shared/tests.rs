use super::*;
use megapage_units::VirtRange;
use std::fs;

const MIB: u64 = 1 << 20;

/// Returns a process 9 whose pages from 4 MiB on are present as given, on Linux 6.1. Looking into
/// objects is not allowed there.
fn tree(shmem: &str, present: &[bool]) -> (tempfile::TempDir, KernelRoot) {
    let tree = tempfile::tempdir().unwrap();
    let put = |path: &str, bytes: &[u8]| {
        let path = tree.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let thp = "sys/kernel/mm/transparent_hugepage";
    put(&format!("{thp}/enabled"), b"always [madvise] never\n");
    put(&format!("{thp}/defrag"), b"always defer defer+madvise [madvise] never\n");
    put(&format!("{thp}/shmem_enabled"), shmem.as_bytes());
    put("proc/sys/kernel/osrelease", b"6.1.0\n");
    put("proc/9/status", b"Name:\tx\nState:\tS (sleeping)\nTgid:\t9\nPPid:\t1\nUid:\t0\t0\t0\t0\n");
    let mut pagemap = vec![0u64; 1024];
    pagemap.extend(present.iter().map(|page| u64::from(*page) << 63));
    let bytes: Vec<u8> = pagemap.iter().flat_map(|entry| entry.to_ne_bytes()).collect();
    put("proc/9/pagemap", &bytes);
    let root = KernelRoot::captured(tree.path());
    (tree, root)
}

/// Returns a mapping of 4 MiB of a memfd.
fn mapping(start: u64, inode: u64, offset: u64, rss: u64) -> Mapping {
    Mapping {
        inode,
        offset,
        device: (0, 1),
        rss: Bytes(rss * MIB),
        ..Mapping::untouched(VirtRange::new(start, start + 4 * MIB).unwrap(), "rw-s", "/memfd:x (deleted)")
    }
}

fn found(root: &KernelRoot, mappings: &[Mapping]) -> Found {
    let mut tables = PageTables::open(root, Pid(9)).unwrap();
    find(root, Pid(9), mappings, &mut tables, 256, 100).unwrap()
}

#[test]
fn an_object_that_is_mapped_twice_counts_once_and_is_promoted_once() {
    let (_keep, root) = tree("[never] deny\n", &[true; 2048]);
    let twice = [mapping(4 * MIB, 7, 0, 4), mapping(8 * MIB, 7, 0, 4)];
    let one = found(&root, &twice);
    assert_eq!((one.memory.resident_bytes, one.memory.promotable_bytes), (4 * MIB, 4 * MIB));
    let starts: Vec<u64> = one.regions.iter().map(|region| region.start() / MIB).collect();
    assert_eq!(starts, [4, 6]);
    let two = found(&root, &[mapping(4 * MIB, 7, 0, 4), mapping(8 * MIB, 8, 0, 4)]);
    assert_eq!((two.memory.resident_bytes, two.regions.len()), (8 * MIB, 4), "of two objects each");
    let huge = Mapping { shmem_pmd: Bytes(4 * MIB), ..mapping(4 * MIB, 7, 0, 4) };
    let huge = found(&root, &[huge]);
    assert_eq!((huge.memory.huge_bytes, huge.memory.base_bytes(), huge.regions.len()), (4 * MIB, 0, 0));
    // The object could not be looked into: that is reported.
    assert!(one.memory.reasons[0].contains("CAP_CHECKPOINT_RESTORE"), "{:?}", one.memory.reasons);
}

#[test]
fn what_is_sparse_misplaced_or_ruled_out_is_not_promoted() {
    let pages: Vec<bool> = (0..2048).map(|page| page < 255 || (512..768).contains(&page)).collect();
    let (_keep, root) = tree("[never] deny\n", &pages);
    let sparse = found(&root, &[mapping(4 * MIB, 7, 0, 2)]);
    assert_eq!((sparse.memory.sparse_bytes, sparse.memory.promotable_bytes), (255 << 12, MIB));
    assert_eq!(sparse.regions.len(), 1, "half of the second is there");
    let misplaced = found(&root, &[mapping(4 * MIB, 7, 4096, 3)]);
    assert_eq!((misplaced.memory.misplaced_bytes, misplaced.regions.len()), (3 * MIB, 0));
    assert!(
        misplaced.memory.reasons[0].contains("its address is 0 B beyond"),
        "{:?}",
        misplaced.memory.reasons
    );
    let against = Mapping { vm_flags: "rd wr sh nh".into(), ..mapping(4 * MIB, 7, 0, 2) };
    let against = found(&root, &[against]);
    assert_eq!((against.memory.refused_bytes, against.regions.len()), (MIB + (255 << 12), 0));
    let (_keep, denied) = tree("never [deny]\n", &pages);
    let denied = found(&denied, &[mapping(4 * MIB, 7, 0, 2)]).memory;
    assert!(denied.refused_bytes > 0 && denied.reasons[0].contains("is 'deny'"), "{:?}", denied.reasons);
    // Neither a private mapping nor a file of a disk is shared memory.
    let private = Mapping { permissions: "rw-p".into(), ..mapping(4 * MIB, 7, 0, 2) };
    let of_disk = Mapping { device: (8, 1), name: "/var/a".into(), ..mapping(8 * MIB, 9, 0, 2) };
    assert_eq!(found(&root, &[private, of_disk]).memory, SharedMemory::default());
}
