use super::*;

/// Lines of Java 11, 17 and 25 as they were seen, and of Java 6.
const SAID: &str = "\
starting
OpenJDK 64-Bit Server VM warning: Failed to reserve and commit memory. req_addr: 0x00000000f0000000 bytes: 268435456 \
page size: 2097152 (errno = 12).
OpenJDK 64-Bit Server VM warning: Failed to reserve and commit memory using large pages. req_addr: 0x0 bytes: 253755392
Java HotSpot(TM) 64-Bit Server VM warning: Failed to reserve shared memory (errno = 12).
OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory(0x00007f1aebf80000, 4096, 0) failed; error='Not enough space' \
(errno=12)
ready
";

#[test]
fn each_is_reported_once_with_its_number() {
    let found = explain(SAID);
    let times: Vec<u64> = found.iter().map(|it| it.times).collect();
    assert_eq!(times, [2, 1, 1]);
    assert!(found[0].line.ends_with("(errno = 12).") && found[0].meaning.contains("too few pages"));
    assert!(found[1].remedy.contains("UseSHM") && found[2].meaning.contains("ordinary memory"));
    let shared = |errno| explain(&format!("Failed to reserve shared memory. (error = {errno})"))[0].meaning;
    assert!(shared(12).contains("RLIMIT_MEMLOCK (32 KiB)") && shared(1).contains("CAP_IPC_LOCK"));
    assert!(shared(22).contains("kernel.shmmax"));
    assert!(explain("all is well\n").is_empty());
}

/// Tests one line of each program, as the program wrote it.
#[test]
fn messages_of_servers_and_clusters_are_known() {
    for (line, program) in [
        ("LOG:  server process (PID 81) was terminated by signal 7: Bus error", "any program"),
        ("./run.sh: line 3:   912 Bus error               (core dumped) ./server", "any program"),
        ("Bus error (core dumped)", "any program"),
        ("0/3 nodes are available: 3 Insufficient hugepages-2Mi.", "Kubernetes"),
        ("** WARNING: /sys/kernel/mm/transparent_hugepage/enabled is 'always'.", "MongoDB up to 7.0"),
        ("2024-12-06T02:51:39: We suggest setting the contents of sysfsFile to 0.", "MongoDB 8.0 or later"),
        (
            "For customers running the current memory allocator, we suggest changing the contents of the following \
                 sysfsFile",
            "MongoDB 8.0 or later",
        ),
        (
            " * Linux transparent hugepages are set to \"always\". Check /sys/kernel/mm/transparent_hugepage/enabled",
            "ClickHouse",
        ),
        (
            "mariadbd: Couldn't allocate 136314880 bytes (Large/HugeTLB memory page size 2097152); errno 12; continuing \
                 to smaller size",
            "MariaDB",
        ),
        ("InnoDB: HugeTLB: Warning: Failed to allocate 138412032 bytes. errno 12", "MariaDB"),
        ("[Warning] InnoDB: Using conventional memory pool", "MySQL or MariaDB"),
        ("EAL: Not enough memory available on socket 0! Requested: 1024MB, available: 0MB", "DPDK"),
        (
            "libhugetlbfs: WARNING: New heap segment map at 0x55b7ccc00000 failed: Cannot allocate memory",
            "libhugetlbfs",
        ),
    ] {
        let found = explain(line);
        assert_eq!(found.first().map(|it| it.program), Some(program), "{line}");
    }
}

#[test]
fn none_hides_another() {
    for (index, message) in MESSAGES.iter().enumerate() {
        for form in &message.forms {
            let line = form.join(" ... ");
            assert_eq!(place(&line), Some(index), "{line}");
        }
    }
}
