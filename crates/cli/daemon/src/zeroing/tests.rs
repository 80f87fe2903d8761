use super::*;

#[test]
fn it_is_said_once_and_where_it_is_wanted() {
    let mut zeroing = Zeroing::default();
    assert_eq!(zeroing.line("linux", false), None);
    let line = zeroing.line("hawkeye-g", true).unwrap();
    assert!(line.starts_with("policy hawkeye-g wants free huge pages zeroed ahead: Linux has no interface"));
    assert_eq!(zeroing.line("hawkeye-g", true), None);
}
