//! The names that choose policies.

use crate::{POLICIES, by_name};
use std::collections::BTreeSet;

#[test]
fn every_policy_answers_to_its_name_and_is_documented() {
    let documented = include_str!("../../../../docs/policies.md");
    let names: BTreeSet<&str> = POLICIES.iter().map(|known| known.name).collect();
    assert_eq!(names.len(), POLICIES.len());
    for known in POLICIES {
        assert_eq!(by_name(known.name).map(|policy| policy.name()), Some(known.name));
        assert!(
            documented.contains(&format!("`{}`", known.name)),
            "{} is not in docs/policies.md",
            known.name
        );
    }
    assert!(by_name("windows").is_none());
}
