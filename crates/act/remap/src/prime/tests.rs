use super::*;

#[test]
fn a_refusal_names_the_file_system_and_what_helps() {
    let tree = tempfile::tempdir().unwrap();
    let file = tree.path().join("proc/sys/kernel/osrelease");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let on = |release: &str, fs_type| {
        std::fs::write(&file, release).unwrap();
        no_large_folios(&KernelRoot::captured(tree.path()), fs_type)
    };
    let ext4 = on("6.12.0", Some("ext4"));
    assert!(
        ext4.starts_with("ext4 has no large folios on this kernel (XFS has them since Linux 5.18"),
        "{ext4}"
    );
    assert!(on("7.3.0", Some("ext4")).contains("data=journal"));
    assert!(on("5.15.0", Some("xfs")).starts_with("xfs has no large folios on this kernel"));
    assert!(on("7.3.0", Some("tmpfs")).contains("huge=always"));
    assert!(on("7.3.0", Some("overlay")).contains("below the overlay"));
    assert!(on("7.3.0", Some("btrfs")).starts_with("btrfs took none"));
    for fs_type in [Some("ext4"), Some("tmpfs"), Some("overlay"), Some("nfs"), None] {
        let text = on("6.1.0", fs_type);
        assert!(text.contains("megapage run --text thp") && !text.contains('\n'), "{text}");
    }
    assert!(no_populate().contains("MADV_POPULATE_READ (Linux 5.14)"));
}

#[test]
fn what_is_huge_already_is_left_out() {
    let states = |huge: &[u64]| -> Vec<(u64, State)> {
        let blocks = [0, 1, 2, 3, 8].map(|block| block * HUGE);
        let state = |at| if huge.contains(&at) { State::Huge } else { State::Small };
        blocks.into_iter().map(|at| (at, state(at))).collect()
    };
    assert_eq!(
        not_huge(&states(&[HUGE])),
        [
            FileRange { offset: 0, length: HUGE },
            FileRange { offset: 2 * HUGE, length: 2 * HUGE },
            FileRange { offset: 8 * HUGE, length: HUGE },
        ]
    );
    assert!(not_huge(&states(&[0, HUGE, 2 * HUGE, 3 * HUGE, 8 * HUGE])).is_empty());
}

#[test]
fn folios_that_no_mapping_gets_are_told() {
    let text = misaligned(Bytes(16 << 20), Some("overlay"));
    assert!(text.starts_with("16 MiB lie in huge folios, but overlay gives mappings addresses"), "{text}");
    assert!(!text.contains('\n'));
}
