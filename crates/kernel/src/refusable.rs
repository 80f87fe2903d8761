//! What a kernel may lack or refuse, named for tests that have it refused: system calls by their numbers, and a limit of the
//! calling process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

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

/// Runs `work` while the process may make no more than `more` further bytes writable (RLIMIT_DATA of getrlimit(2)).
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
