use super::*;

#[test]
fn root_is_not_advised_to_become_root() {
    assert!(remedy(false).ends_with("as its user or as root"));
    assert!(!remedy(true).contains("root") && remedy(true).contains("CAP_SYS_PTRACE"));
}
