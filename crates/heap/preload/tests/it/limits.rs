//! Limits on memory and addresses: a program that fits without the library fits with it. Each test
//! runs separate programs.

use crate::preloaded;

use megapage_inside::thp_is_possible;
use megapage_kernel::KernelRoot;
use megapage_testing::{MemoryGroup, require_root, skip};
use megapage_units::Bytes;
use preloaded::{built, passes, preloaded, program, text};
use std::path::Path;
use std::process::{Command, Output};

/// Runs the program after a shell's `set_up`. If a heap is named, the shell and the program have
/// the library.
fn run(set_up: &str, program: &Path, arguments: &[&str], heap: Option<&str>) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{set_up}; exec \"$@\""), "sh"]).arg(program).args(arguments);
    if let Some(heap) = heap {
        command.env("LD_PRELOAD", built("libmegapage.so")).env("MEGAPAGE_HEAP", heap);
    }
    command.output().expect("the shell starts")
}

/// Checks that a part of the program ends well after `set_up`, without the library and with each
/// heap.
fn fits(set_up: &str, part: &str) {
    let Some(program) = program("limits", part) else { return };
    for heap in [None, Some("thp"), Some("none"), Some("auto")] {
        let run = run(set_up, &program, &[part], heap);
        assert!(run.status.success(), "{heap:?}: {}: {}", run.status, text(&run.stderr));
    }
}

#[test]
fn a_limit_on_addresses_leaves_room_for_the_programs_own_mappings() {
    fits("ulimit -v 250000", "addresses");
}

#[test]
fn addresses_that_the_heap_does_not_use_go_back_once_the_program_needs_them() {
    passes("limits", "late");
}

#[test]
fn freed_memory_makes_room_below_a_limit_on_writable_memory() {
    passes("limits", "data");
}

#[test]
fn blocks_of_whole_slices_are_taken_until_a_limit_refuses_the_next() {
    fits("ulimit -d 120000", "tight");
}

#[test]
fn a_large_block_of_zeros_fits_below_a_limit_on_writable_memory() {
    fits("ulimit -d 120000", "zeros");
}

#[test]
fn a_user_locks_what_the_program_uses_and_not_what_the_heap_has_reserved() {
    let limit = run("true", Path::new("sh"), &["-c", "ulimit -Hl"], None);
    if text(&limit.stdout).trim().parse::<u64>().is_ok_and(|kib| kib < 8 << 10) {
        return skip("needs a limit on locked memory (ulimit -Hl) of 8 MiB");
    }
    passes("limits", "locked-now");
}

#[test]
fn a_user_who_may_lock_little_gets_and_frees_all_that_fits() {
    if !require_root() {
        return;
    }
    passes("limits", "locked-until-refused");
}

#[test]
fn what_is_mapped_after_mlockall_is_locked_and_huge() {
    if !require_root() {
        return;
    }
    let Some(program) = program("limits", "locked-later") else { return };
    let huge = if thp_is_possible() { "locked-huge" } else { "locked-later" };
    for (heap, part) in [("thp", huge), ("none", "locked-later")] {
        let run = preloaded(&program, &[part], heap);
        assert!(run.status.success(), "{heap}: {}: {}", run.status, text(&run.stderr));
    }
}

#[test]
fn a_control_group_that_holds_the_program_holds_it_with_the_library() {
    if !require_root() {
        return;
    }
    let Some(program) = program("limits", "group") else { return };
    let plain = run("true", &program, &["churn"], None);
    let peak: u64 = text(&plain.stdout).trim().parse().expect("a peak in KiB");
    let limit = Bytes::kib(peak + peak / 20 + (4 << 10));
    // With `never`, freed memory near the limit goes back, too.
    let set_ups =
        [None, Some("thp"), Some("auto"), Some("auto")].into_iter().zip(["1000", "1000", "1000", "never"]);
    for (heap, return_after) in set_ups {
        let name = format!("megapage-limits-{}", std::process::id());
        let group = match MemoryGroup::create(&KernelRoot::live(), &name, limit) {
            Ok(group) => group,
            Err(error) => return skip(&format!("no memory group can be made here: {error}")),
        };
        let group_file = group.directory().join("cgroup.procs");
        let enter =
            format!("export MEGAPAGE_RETURN_AFTER_MS={return_after}; echo $$ > {}", group_file.display());
        let run = run(&enter, &program, &["churn"], heap);
        assert!(run.status.success(), "{heap:?}, {limit:?}: {}: {}", run.status, text(&run.stderr));
        assert_eq!(group.usage().expect("usage").oom_kills, 0, "{heap:?}");
    }
}
