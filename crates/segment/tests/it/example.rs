//! The Rust example: each run finds the data that the one before has built.

#[allow(dead_code)]
#[path = "../../../../examples/restart.rs"]
mod restart;

#[test]
fn a_second_run_finds_what_the_first_has_built() {
    let tree = tempfile::tempdir().unwrap();
    let directory = std::fs::canonicalize(tree.path()).unwrap();
    let says = || restart::run(Some(&directory)).unwrap();
    assert_eq!(says(), "built 4000000 bytes: 27 comes to 1 after 111 steps");
    assert_eq!(says(), "found 4000000 bytes: 27 comes to 1 after 111 steps");
    assert_eq!(says(), "found 4000000 bytes: 27 comes to 1 after 111 steps");
}
