//! Plans on a captured tree, transactions on this machine.

use megapage_act::pool::{Plan, PoolError, Request, plan};
use megapage_kernel::KernelRoot;
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_testing::PoolGuard;
use megapage_units::PageSize;
use std::path::Path;
use std::time::Duration;

fn request(pools: &[&str]) -> Request {
    Request {
        pools: pools.iter().map(|text| text.parse().unwrap()).collect(),
        overcommit: Vec::new(),
        node: None,
        force: false,
        timeout: Duration::from_secs(2),
        roll_back: false,
    }
}

fn two_nodes() -> KernelRoot {
    KernelRoot::captured(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/two-nodes-by-hand"))
}

fn planned(request: &Request) -> Plan {
    plan(&two_nodes(), request).unwrap()
}

fn refused(request: &Request) -> String {
    plan(&two_nodes(), request).unwrap_err().to_string()
}

/// Values of the tree: 2m has 1024 persistent pages, 4 surplus, 328 in use, 100 reserved; 28.6 GiB
/// are available.
#[test]
fn the_memory_impact_is_what_changes_hands() {
    let memory = |pools: &[&str]| {
        let plan = planned(&request(pools));
        plan.memory.available_after.0 as i64 - plan.memory.available.0 as i64
    };
    let page = 2 << 20;
    // Surplus pages become persistent before any are allocated.
    assert_eq!(memory(&["2m=1028"]), 0);
    assert_eq!(memory(&["2m=1030"]), -2 * page);
    assert_eq!(memory(&["2m=+4"]), 0);
    // 1028 - 500: the surplus pages go too.
    assert_eq!(memory(&["2m=500"]), 528 * page);
    assert_eq!(memory(&["2m=1024"]), 0);
    assert_eq!(memory(&["2m=500", "1g=5"]), 528 * page - (1 << 30));
}

#[test]
fn steps_shrink_before_they_grow_and_the_largest_pages_come_first() {
    let mut request = request(&["2m=2000", "1g=8"]);
    request.overcommit = vec!["2m=100".parse().unwrap()];
    let order = |plan: &Plan| {
        plan.commands().iter().map(|line| line.split(" > ").next().unwrap().to_string()).collect::<Vec<_>>()
    };
    request.timeout = Duration::ZERO;
    assert_eq!(order(&planned(&request)), ["echo 100", "echo 8", "echo 2000"]);
    let mut request = self::request(&["1g=8", "2m=500"]);
    request.timeout = Duration::ZERO;
    assert_eq!(order(&planned(&request)), ["echo 500", "echo 8"]);
}

#[test]
fn a_pool_does_not_shrink_below_what_is_in_use() {
    let error = refused(&request(&["2m=300"]));
    assert!(error.contains("124 pages would become surplus"), "{error}");
    let mut forced = request(&["2m=300"]);
    forced.force = true;
    assert_eq!(planned(&forced).steps[0].becomes_surplus, 124);
    assert_eq!(planned(&request(&["2m=428"])).steps[0].becomes_surplus, 0);
    // Pages in use on a node: 116 on node 0, of whose pages 4 are surplus.
    assert!(refused(&request(&["2m=0:100"])).contains("12 pages would become surplus"));
}

#[test]
fn what_is_unsafe_or_impossible_is_refused() {
    // The floor is 5 % of 64 GiB.
    let error = refused(&request(&["1g=30"]));
    assert!(error.starts_with("taking 26 GiB would leave 2.61 GiB"), "{error}");
    assert!(error.contains("below the safe floor of 3.20 GiB"), "{error}");
    let mut forced = request(&["1g=30"]);
    forced.force = true;
    assert_eq!(planned(&forced).steps[0].asked, 30);
    // Force does not help beyond the available memory, nor beyond all memory.
    forced.pools = vec!["1g=40".parse().unwrap()];
    assert!(matches!(plan(&two_nodes(), &forced), Err(PoolError::NotThere { .. })));
    forced.pools = vec!["1g=65".parse().unwrap()];
    assert!(refused(&forced).contains("'1g=65' comes to 65 GiB, but the machine has 64 GiB of memory"));
    forced.pools = vec!["1g=0:33".parse().unwrap()];
    assert!(refused(&forced).contains("but node 0 has 32 GiB"));
    forced.pools = vec!["2m=18446744073709551615".parse().unwrap()];
    assert!(refused(&forced).contains("more than 2^64 bytes"));
    forced.pools = vec!["2m=+18446744073709551615".parse().unwrap()];
    assert!(refused(&forced).contains("more than 2^64 bytes"));
}

#[test]
fn requests_that_contradict_themselves_are_refused() {
    assert!(refused(&request(&["2m=1", "2MB:+1"])).contains("two values"));
    assert!(refused(&request(&["2m=1024", "2m=0:1"])).contains("two values"));
    planned(&request(&["2m=0:512,1:512"]));
    assert!(refused(&request(&[])).contains("nothing is asked for"));
    assert!(refused(&request(&["2m=3m"])).contains("not a whole number of 2m pages"));
    assert!(refused(&request(&["2m=-2000"])).contains("the value is 1024"));
    assert_eq!(refused(&request(&["64k=1"])), "'64k=1': this kernel has no pool of 64k pages; it has 2m, 1g");
    assert_eq!(refused(&request(&["2m=7:1"])), "this machine has no node 7; it has 0, 1");
    let mut of_node = request(&["2m=512"]);
    of_node.node = Some(1);
    assert_eq!(planned(&of_node).steps[0].scope, PoolScope::Node(1));
    of_node.pools = vec!["2m=0:512".parse().unwrap()];
    assert!(refused(&of_node).contains("leave out --node"));
    let mut overcommit = request(&[]);
    overcommit.overcommit = vec!["2m=0:5".parse().unwrap()];
    assert!(refused(&overcommit).contains("overcommit cannot be set for a single node"));
}

#[test]
fn a_captured_tree_is_not_changed() {
    let plan = planned(&request(&["2m=1100"]));
    assert!(matches!(plan.apply(&two_nodes()), Err(PoolError::NotLive)));
    assert!(plan.dry_run().dry_run);
    assert_eq!(hugetlb::counts(&two_nodes(), PageSize::HUGE_2M, PoolScope::Machine).unwrap().total, 1028);
}

/// Returns the values that a transaction may set; free and reserved pages are other programs'
/// business.
fn sizes(guard: &PoolGuard) -> (u64, Option<u64>) {
    (guard.counts().persistent(), guard.counts().overcommit)
}

fn live(size: PageSize) -> u64 {
    hugetlb::counts(&KernelRoot::live(), size, PoolScope::Machine).unwrap().persistent()
}

#[test]
fn a_transaction_on_this_machine() {
    let Some(guard) = PoolGuard::reserve(PageSize::HUGE_2M, 0) else { return };
    let root = KernelRoot::live();
    let former = guard.former().persistent();
    let mut more = request(&["2m=+9"]);
    more.overcommit = vec!["2m=+3".parse().unwrap()];
    let outcome = plan(&root, &more).unwrap().apply(&root).unwrap();
    assert!(outcome.is_complete() && live(PageSize::HUGE_2M) == former + 9);
    assert_eq!(guard.counts().overcommit, guard.former().overcommit.map(|pages| pages + 3));
    // Once more, outright: there is nothing to do.
    let same = format!("2m={}", former + 9);
    let outcome = plan(&root, &request(&[&same])).unwrap().apply(&root).unwrap();
    assert_eq!((outcome.steps[0].attempts, outcome.commands.len()), (0, 0));
    let outcome = plan(&root, &request(&["2m=-9"])).unwrap().apply(&root).unwrap();
    assert!(outcome.is_complete() && live(PageSize::HUGE_2M) == former);
}

#[test]
fn the_shell_lines_do_the_same_on_this_machine() {
    let Some(guard) = PoolGuard::reserve(PageSize::HUGE_2M, 0) else { return };
    let dry = plan(&KernelRoot::live(), &request(&["2m=+5"])).unwrap().dry_run();
    assert_eq!(sizes(&guard), (guard.former().persistent(), guard.former().overcommit), "nothing is changed");
    let status = std::process::Command::new("sh").arg("-ec").arg(dry.commands.join("\n")).status().unwrap();
    assert!(status.success());
    assert_eq!(guard.counts().persistent(), guard.former().persistent() + 5);
}

/// Overcommit comes first in a transaction, pools later: a refusal of either leaves everything as
/// it was.
#[test]
fn a_refused_step_leaves_everything_as_it_was() {
    let Some(guard) = PoolGuard::reserve(PageSize::HUGE_2M, 0) else { return };
    let root = KernelRoot::live();
    if !hugetlb::page_sizes(&root).unwrap().contains(&PageSize::HUGE_1G) {
        megapage_testing::skip("needs a pool of 1g pages");
        return;
    }
    // Overcommit of gigantic pages is EINVAL. The plan sorts that of 2 MiB pages after it, by size.
    // A step before it would need overcommit, by which programs of other tests get pages.
    let mut request = request(&["2m=+2"]);
    request.overcommit = vec!["2m=+3".parse().unwrap(), "1g=+1".parse().unwrap()];
    let error = plan(&root, &request).unwrap().apply(&root).unwrap_err().to_string();
    assert!(error.contains("the kernel refuses overcommit for 1g pages"), "{error}");
    assert_eq!(sizes(&guard), (guard.former().persistent(), guard.former().overcommit));
}
