//! `/proc/vmstat`: the kernel's counters of memory management.

use crate::{KernelError, KernelRoot};
use std::collections::BTreeMap;

const VMSTAT: &str = "proc/vmstat";

/// Returns the counters whose names `wanted` accepts, by the kernel's names. Events are counted
/// since boot; `nr_*` are values of this moment, in pages.
pub fn vmstat(
    root: &KernelRoot,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, u64>, KernelError> {
    let text = root.read(VMSTAT)?;
    let mut counters = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let counter = line.split_once(' ').and_then(|(name, value)| Some((name, value.parse().ok()?)));
        let Some((name, value)) = counter else {
            return Err(KernelError::Parse {
                path: root.path(VMSTAT),
                line: index + 1,
                what: format!("expected a counter, found '{line}'"),
            });
        };
        if wanted(name) {
            counters.insert(name.to_string(), value);
        }
    }
    Ok(counters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    #[test]
    fn wanted_counters_are_read() {
        let text = "nr_free_pages 5936402\nthp_fault_alloc 12\nthp_split_page 3\n";
        let (_keep, root) = captured_tree(&[(VMSTAT, text)]);
        let found = vmstat(&root, |name| name.starts_with("thp_")).unwrap();
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [("thp_fault_alloc".to_string(), 12), ("thp_split_page".to_string(), 3)]
        );
        let (_keep, root) = captured_tree(&[(VMSTAT, "nr_free_pages 1\npgfault\n")]);
        let error = vmstat(&root, |_| false).unwrap_err().to_string();
        assert!(error.contains("vmstat: line 2: expected a counter, found 'pgfault'"), "{error}");
        assert!(vmstat(&KernelRoot::live(), |_| true).unwrap().contains_key("pgfault"));
    }
}
