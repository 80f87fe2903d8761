use super::*;
use std::fs;

fn tree(unit: bool, processor: &str) -> (tempfile::TempDir, KernelRoot) {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir_all(tree.path().join("proc")).unwrap();
    fs::write(tree.path().join("proc/cpuinfo"), processor).unwrap();
    if unit {
        let directory = tree.path().join("sys/bus/event_source/devices/cpu");
        fs::create_dir_all(&directory).unwrap();
        // No unit has this number on any machine.
        fs::write(directory.join("type"), "2147483632\n").unwrap();
    }
    let root = KernelRoot::captured(tree.path());
    (tree, root)
}

const HASWELL: &str = "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 63\n";

#[test]
fn a_machine_without_counters_is_distinguished_from_an_unknown_one() {
    let said = |unit: bool, processor: &str| {
        let (_tree, root) = tree(unit, processor);
        Pmu::open(&root).unwrap_err().to_string()
    };
    assert!(said(false, HASWELL).contains("no counting unit 'cpu'"), "{}", said(false, HASWELL));
    let strange = said(true, "vendor_id : CentaurHauls\ncpu family : 7\nmodel : 59\n");
    assert!(strange.contains("CentaurHauls family 7 model 59"), "{strange}");
    // The kernel knows no such unit, or refuses (in a container).
    let error = {
        let (_tree, root) = tree(true, HASWELL);
        Pmu::open(&root).unwrap_err()
    };
    assert!(matches!(error, PmuError::Absent(_) | PmuError::Denied { .. }), "{error}");
}

#[test]
fn the_running_machine_has_a_unit_or_a_reason() {
    match Pmu::open(&KernelRoot::live()) {
        Ok(mut pmu) => {
            let gone = ProcessId { pid: Pid(1), start_ticks: 0, start_stack: 0 };
            assert!(pmu.read(gone).unwrap().is_none());
            pmu.retain(&[]);
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
}
