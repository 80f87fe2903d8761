//! Simulation of kernels that lack a feature: system calls that a filter refuses (seccomp(2)), and
//! a limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::Command;

/// Environment variable: the test for which [`in_child`] has started the calling process.
pub(crate) const CHILD_VARIABLE: &str = "MEGAPAGE_TEST_CHILD";

/// A system call of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: i64,
    /// The argument that makes it one of this kind, counted from 0, and its value.
    pub argument: Option<(u8, u64)>,
}

impl Call {
    /// mremap(2).
    pub const MOVE: Call = Call { number: libc::SYS_mremap, argument: None };
    /// memfd_create(2).
    pub const MEMORY_FILE: Call = Call { number: libc::SYS_memfd_create, argument: None };
    /// signalfd(2).
    pub const SIGNALS: Call = Call { number: libc::SYS_signalfd4, argument: None };
    /// madvise(2) with MADV_POPULATE_WRITE.
    pub const POPULATE: Call = Call::advice(libc::MADV_POPULATE_WRITE);
    /// madvise(2) with MADV_HUGEPAGE.
    pub const ADVISE_THP: Call = Call::advice(libc::MADV_HUGEPAGE);
    /// madvise(2) with MADV_COLLAPSE.
    pub const COLLAPSE: Call = Call::advice(libc::MADV_COLLAPSE);
    /// madvise(2) with MADV_DONTNEED.
    pub const DISCARD: Call = Call::advice(libc::MADV_DONTNEED);

    const fn advice(advice: libc::c_int) -> Call {
        Call { number: libc::SYS_madvise, argument: Some((2, advice as u64)) }
    }
}

/// Runs `work` while the process may make no more than `more` further bytes writable (RLIMIT_DATA
/// of getrlimit(2)).
pub fn with_data_limited<R>(more: u64, work: impl FnOnce() -> R) -> io::Result<R> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:")?.trim().strip_suffix(" kB"));
    let kib: u64 = data.and_then(|data| data.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    let former = getrlimit(Resource::Data);
    setrlimit(Resource::Data, Rlimit { current: Some((kib << 10).saturating_add(more)), ..former })?;
    let result = work();
    setrlimit(Resource::Data, former)?;
    Ok(result)
}

/// Lets the kernel refuse these calls of all threads of this process with `errno`, for its whole
/// life, like a kernel that does not know them. Use it only in a separate process: see
/// [`in_child`].
///
/// # Panics
/// If the kernel has no such filters.
pub fn refuse(call: Call, errno: i32) {
    let conditions = call.argument.map(|(argument, value)| {
        let is = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value);
        SeccompRule::new(vec![is.expect("an argument")]).expect("a condition")
    });
    let filter = SeccompFilter::new(
        BTreeMap::from([(call.number, conditions.into_iter().collect())]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno.unsigned_abs()),
        std::env::consts::ARCH.try_into().expect("an architecture"),
    );
    let program: BpfProgram = filter.expect("a filter").try_into().expect("a program");
    apply_filter_all_threads(&program).expect("seccomp(2)");
}

/// Runs the test `name` (its path in the crate) of this executable again, alone in a separate
/// process, and runs `work` there. Changes of that process do not affect other tests. Returns
/// `false` in that process.
///
/// # Panics
/// If the test fails there.
pub fn in_child(name: &str, work: impl FnOnce()) -> bool {
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        work();
        return false;
    }
    let executable = std::env::current_exe().expect("own executable");
    let output = Command::new(executable)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD_VARIABLE, name)
        .output()
        .expect("the test's own executable");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // A skip must be visible. Not by `eprintln`, which the harness captures.
    for line in errors.lines().filter(|line| line.starts_with("SKIPPED: ")) {
        let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
    }
    assert!(output.status.success(), "{name} in a separate process: {}\n{said}\n{errors}", output.status);
    assert!(said.contains("1 passed"), "there is no test of that name: {said}");
    true
}
