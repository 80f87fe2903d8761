use super::*;

#[test]
fn a_small_remainder_is_a_warning_and_too_small_a_one_is_not_to_be_had() {
    let of = |pools| PersistMemory::of_installed(Bytes::gib(128), Bytes::gib(pools));
    assert_eq!(of(119).warning(), None);
    assert_eq!((of(123).left, of(123).cannot_boot()), (Bytes::gib(3), false));
    let warning = of(123).warning().unwrap();
    assert!(
            warning.starts_with(
                "123 GiB in pools leave 3 GiB of 128 GiB (less 2 GiB of page descriptors) for everything else: 2.3 %, \
                 below the safe floor of 6.40 GiB."
            ),
            "{warning}"
        );
    assert!(of(126).cannot_boot() && of(500).cannot_boot());
    // MemTotal does not include descriptors.
    assert_eq!(PersistMemory::of_running(Bytes::gib(128), Bytes::gib(123)).left, Bytes::gib(5));
}
