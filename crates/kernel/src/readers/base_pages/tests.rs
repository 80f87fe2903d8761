use super::*;

fn tree(auxv: &[u64]) -> (tempfile::TempDir, KernelRoot) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(directory.path().join("proc/self")).unwrap();
    let bytes: Vec<u8> = auxv.iter().flat_map(|word| word.to_ne_bytes()).collect();
    std::fs::write(directory.path().join("proc/self/auxv"), bytes).unwrap();
    let root = KernelRoot::captured(directory.path());
    (directory, root)
}

#[test]
fn other_base_pages_are_refused_in_one_line() {
    for (size, word) in [(16 << 10, "16 KiB"), (64 << 10, "64 KiB")] {
        let (_tree, root) = tree(&[33, 0x7000, AT_PAGESZ, size, 0, 0]);
        let refused = require_base_pages(&root).unwrap_err();
        assert_eq!(refused, OtherBasePages { kind: "base", size: Bytes(size) });
        let said = refused.to_string();
        assert!(said.starts_with(&format!("this kernel's base pages are {word}; ")), "{said}");
        assert!(!said.contains('\n') && said.contains("4 KiB"), "{said}");
    }
}

#[test]
fn other_huge_pages_are_refused_in_one_line() {
    let (tree, root) = tree(&[AT_PAGESZ, 4096, 0, 0]);
    let directory = tree.path().join("sys/kernel/mm/transparent_hugepage");
    std::fs::create_dir_all(&directory).unwrap();
    for (size, passes) in [(HugePage::SIZE, true), (HugePage::SIZE * 16, false)] {
        std::fs::write(directory.join("hpage_pmd_size"), format!("{size}\n")).unwrap();
        let refused = require_base_pages(&root);
        assert_eq!(refused.is_ok(), passes, "{size}");
        let said = refused.err().map(|refused| refused.to_string()).unwrap_or_default();
        assert_eq!(said.starts_with("this kernel's huge pages are 32 MiB; "), !passes, "{said}");
        assert!(!said.contains('\n'), "{said}");
    }
}

#[test]
fn base_pages_of_4_kib_pass() {
    for auxv in [&[AT_PAGESZ, 4096, 0, 0][..], &[33, AT_PAGESZ, AT_PAGESZ, 4096], &[], &[AT_PAGESZ]] {
        let (_tree, root) = tree(auxv);
        assert_eq!(require_base_pages(&root), Ok(()), "{auxv:?}");
    }
    assert_eq!(require_base_pages(&KernelRoot::captured("none")), Ok(()));
}

#[test]
fn this_process_knows_its_own() {
    let in_auxv = captured(&KernelRoot::live()).expect("/proc is mounted");
    assert_eq!(base_page_size() as u64, in_auxv);
}
