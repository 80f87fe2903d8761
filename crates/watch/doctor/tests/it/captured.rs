//! Tests of the whole way from a captured tree to the diagnosis.

use megapage_doctor::finding::{Basis, Outcome};
use megapage_doctor::{Diagnosis, GatherError, Request, SCHEMA, diagnosis};
use megapage_kernel::KernelRoot;
use std::path::Path;

fn container() -> KernelRoot {
    KernelRoot::captured(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/container-by-hand"))
}

fn of_container(request: &Request) -> Diagnosis {
    diagnosis(&container(), request).unwrap()
}

#[test]
fn a_container_where_everything_is_wrong() {
    let diagnosis = of_container(&Request::default());
    assert_eq!(diagnosis.uid, 54_321);
    assert_eq!(diagnosis.untried.as_deref(), Some("this is not the running machine"));
    let ids: Vec<&str> = diagnosis.findings.iter().map(|finding| finding.id).collect();
    for id in [
        "thp-never",
        "thp-disabled-for-process",
        "thp-defrag-never",
        "khugepaged-off",
        "shmem-thp-off",
        "memory-fragmented",
        "pool-taken",
        "shm-not-permitted",
        "shmmax-small",
        "memlock-limited",
        "address-space-limited",
        "overcommit-strict",
        "hugetlbfs-not-mounted",
        "cgroup-hugetlb-sigbus",
        "cgroup-hugetlb-hidden",
        "cgroup-memory-tight",
        "container",
        "seccomp-filter",
        "outside-not-permitted",
    ] {
        assert!(ids.contains(&id), "{id} is not in {ids:?}");
    }
    assert!(diagnosis.findings.is_sorted_by(|a, b| a.severity >= b.severity));

    assert!(diagnosis.verdicts.iter().all(|verdict| verdict.basis == Basis::Reasoned));
    let errno = |way: &str| {
        let verdict = diagnosis.verdicts.iter().find(|verdict| verdict.way.contains(way)).unwrap();
        (verdict.outcome, verdict.errno)
    };
    assert_eq!(errno("MAP_HUGETLB"), (Outcome::Fails, Some(12)));
    assert_eq!(errno("SHM_HUGETLB"), (Outcome::Fails, Some(1)));
    assert_eq!(errno("MADV_HUGEPAGE"), (Outcome::BasePages, None));
    // The explanations of a verdict are among the findings.
    let because = diagnosis.verdicts.iter().flat_map(|verdict| &verdict.because);
    because.for_each(|id| assert!(ids.contains(id), "{id} is not in {ids:?}"));
}

/// Returns a copy of the container's tree, without the settings of transparent huge pages.
fn without_settings(sys: bool) -> (tempfile::TempDir, KernelRoot) {
    let tree = tempfile::tempdir().unwrap();
    let source = container().path("");
    let copied = std::process::Command::new("cp").arg("-a").arg(source.join(".")).arg(tree.path()).status();
    assert!(copied.unwrap().success());
    let settings = tree.path().join("sys/kernel/mm/transparent_hugepage");
    std::fs::remove_dir_all(if sys { settings } else { tree.path().join("sys") }).unwrap();
    let root = KernelRoot::captured(tree.path());
    (tree, root)
}

fn ids(root: &KernelRoot) -> Vec<&'static str> {
    let found = diagnosis(root, &Request::default()).unwrap().findings;
    found.iter().map(|finding| finding.id).filter(|id| id.starts_with("thp-")).collect()
}

#[test]
fn a_kernel_built_without_transparent_huge_pages_has_not_switched_them_off() {
    let (tree, root) = without_settings(true);
    let status = std::fs::read_to_string(tree.path().join("proc/self/status")).unwrap();
    assert!(status.contains("THP_enabled:\t0"), "as such a kernel shows it for every process");
    assert_eq!(ids(&root), ["thp-absent"]);
}

#[test]
fn a_chroot_without_sysfs_does_not_hide_what_the_kernel_can_do() {
    let (tree, root) = without_settings(false);
    let meminfo = tree.path().join("proc/meminfo");
    let text = std::fs::read_to_string(&meminfo).unwrap();
    std::fs::write(&meminfo, text + "AnonHugePages:         0 kB\n").unwrap();
    assert_eq!(ids(&root), ["thp-disabled-for-process", "thp-unseen"]);
}

#[test]
fn another_user_has_other_rights() {
    let diagnosis = of_container(&Request { user: Some("root".into()), ..Request::default() });
    assert_eq!((diagnosis.user.as_str(), diagnosis.uid), ("root", 0));
    let segment = diagnosis.verdicts.iter().find(|verdict| verdict.way.contains("SHM_HUGETLB")).unwrap();
    // Root's main group is 0, and so is vm.hugetlb_shm_group.
    assert_eq!(segment.errno, Some(12), "{}", segment.sentence);
}

#[test]
fn what_is_not_there_is_said() {
    let user = Request { user: Some("no-such-user-here".into()), ..Request::default() };
    let error = diagnosis(&container(), &user).unwrap_err();
    assert!(matches!(error, GatherError::NoSuchUser(_)), "{error}");
    let program = Request { program: Some("no-such-program-here".into()), ..Request::default() };
    let error = diagnosis(&container(), &program).unwrap_err();
    assert!(error.to_string().starts_with("--for no-such-program-here: not found"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = diagnosis(&KernelRoot::captured(empty.path()), &Request::default()).unwrap_err();
    assert!(matches!(error, GatherError::Kernel(_)), "{error}");
}

#[test]
fn the_json_form_keeps_its_names() {
    let json = serde_json::to_value(of_container(&Request::default())).unwrap();
    assert_eq!(SCHEMA, "megapage.doctor/1");
    let finding = &json["findings"][0];
    assert_eq!(finding["severity"], "blocker");
    assert!(finding["id"].is_string() && finding["title"].is_string() && finding["explanation"].is_string());
    assert!(finding["evidence"][0]["source"].is_string() && finding["evidence"][0]["value"].is_string());
    assert!(finding["remedy"].is_array());
    let verdict = &json["verdicts"][0];
    assert_eq!((&verdict["outcome"], &verdict["errno"]), (&"fails".into(), &12.into()));
    assert_eq!(verdict["basis"], "reasoned");
    assert_eq!(verdict["because"][0], "pool-taken");
}

#[test]
fn of_other_base_pages_nothing_else_is_said() {
    let tree = tempfile::tempdir().unwrap();
    for (path, bytes) in [
        ("proc/self/status", b"Name:\ta\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n".as_slice()),
        ("proc/sys/kernel/osrelease", b"7.3.4+deb13-arm64-16k\n"),
        ("proc/cpuinfo", b"processor\t: 0\n"),
        // An entry AT_PAGESZ of 16 KiB, and the end.
        ("proc/self/auxv", &[6u64, 16 << 10, 0, 0].map(u64::to_ne_bytes).concat()),
    ] {
        let path = tree.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let told = diagnosis(&KernelRoot::captured(tree.path()), &Request::default()).unwrap();
    assert_eq!(told.findings.len(), 1);
    assert_eq!(
        (told.findings[0].id, told.findings[0].evidence[0].value.as_str()),
        ("base-pages-other", "16 KiB")
    );
    assert!(told.has_findings() && told.verdicts.is_empty() && told.abilities.is_empty());
    assert_eq!(told.kernel, "7.3.4+deb13-arm64-16k");
}
