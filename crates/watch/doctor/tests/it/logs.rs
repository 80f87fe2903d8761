//! Messages that programs log when huge pages fail them, captured from the programs, and as
//! articles quote them: `megapage doctor --log` knows each.

use megapage_launch::messages::explain;
use std::path::Path;

/// Returns the programs and numbers of messages in a captured log, and the first one's meaning.
fn found(file: &str) -> (Vec<(&'static str, u64)>, &'static str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/logs").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let messages = explain(&text);
    (messages.iter().map(|it| (it.program, it.times)).collect(), messages.first().map_or("", |it| it.meaning))
}

#[test]
fn captured_logs_are_explained() {
    for (file, messages, meaning) in [
        ("mariadb-10.11.log", &[("MariaDB", 1)][..], "the pool was too short"),
        ("java-17.log", &[("JVM", 2)], "too few pages for one mapping"),
        ("java-17-no-pool.log", &[("JVM", 1)], "every pool was empty"),
        ("java-17-shm.log", &[("JVM", 1)], "older than Linux 2.6.30"),
        ("java-17-shm-user.log", &[("JVM", 1), ("JVM", 1)], "vm.hugetlb_shm_group"),
        ("postgresql-15.log", &[("PostgreSQL", 1)], "huge_pages=on"),
        ("dpdk-22.11-no-pool.log", &[("DPDK", 2), ("DPDK", 1)], "no page of that size is free"),
        ("dpdk-22.11-short.log", &[("DPDK", 1)], "fewer free pages"),
        ("dpdk-22.11-unlink-never.log", &[("DPDK", 1)], "old bytes"),
        ("libhugetlbfs-2.23-morecore.log", &[("libhugetlbfs", 1)], "glibc 2.34 removed the hook"),
        ("libhugetlbfs-2.23.log", &[("libhugetlbfs", 2), ("libhugetlbfs", 1)], "HUGETLB_SHM"),
        ("quoted.log", &[("JVM", 1), ("libhugetlbfs", 1)], "RLIMIT_MEMLOCK"),
    ] {
        let (programs, first) = found(file);
        assert_eq!(programs, messages, "{file}");
        assert!(first.contains(meaning), "{file}: {first}");
    }
}

#[test]
fn every_captured_log_is_tried() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/logs");
    let this = include_str!("logs.rs");
    for entry in std::fs::read_dir(directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(this.contains(&format!("\"{name}\"")), "{name} is read by no test");
    }
}
