//! System calls as instructions of this library.
//!
//! A program, or a library in it, may define `open`, `syscall` or any other name of the C
//! library's. Its code may allocate, take locks or end the program. So nothing here goes by such a
//! name. Nor is errno touched.
//!
//! A filter of system calls (seccomp(2)) may end the program for a call that it does not expect.
//! Once a program forbids itself calls ([`program_confines`]), this library makes only those of a
//! malloc. In a program that is started below a filter, it also makes those that the start has made
//! before. It makes all calls if the starter vouches for the filter ([`FILTERS_VARIABLE`]).
//! [`call`] answers EPERM for others.
//!
//! File-level obligation: registers are used as syscall(2) says, and nothing else is in the
//! instructions.

#![allow(unsafe_code)]

use crate::environment::{MAX_VALUE, environment_is_ready, environment_variable};
use crate::errno::Errno;
use crate::own_values::first_number;
use libc::c_long;
use std::arch::asm;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering::Relaxed};

/// Calls that any malloc makes, and the one that ends the process.
const OF_A_MALLOC: [c_long; 7] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_futex,
    libc::SYS_exit_group,
];

/// Calls that the loader has made before, and those that service managers let every program make
/// (`@default` of systemd-analyze(1), syscall-filter).
const OF_A_START: [c_long; 11] = [
    libc::SYS_openat,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_prlimit64,
    libc::SYS_clock_gettime,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_gettid,
];

/// Environment variable: the number of filters that the process may have, since they allow what the
/// library calls; [`ANY_FILTERS`] for every number.
pub const FILTERS_VARIABLE: &str = "MEGAPAGE_FILTERS";
/// Value of [`FILTERS_VARIABLE`] that stands for every number.
pub const ANY_FILTERS: &str = "any";

/// Set of calls that are made, by the constants below; 0 until it is decided.
static CALLS: AtomicU8 = AtomicU8::new(0);
const ALL: u8 = 1;
const START: u8 = 2;
const MALLOC: u8 = 3;

fn calls() -> u8 {
    match CALLS.load(Relaxed) {
        0 => program_begins(),
        calls => calls,
    }
}
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Makes a system call for this library. Returns EPERM, and makes no call, for one that the program
/// may have forbidden itself.
///
/// # Safety
/// As for the call: pointers among the arguments are what it says they must be.
#[inline]
pub unsafe fn call<const N: usize>(number: c_long, arguments: [usize; N]) -> Result<usize, Errno> {
    let allowed = match calls() {
        ALL => true,
        MALLOC => OF_A_MALLOC.contains(&number),
        _ => OF_A_MALLOC.contains(&number) || OF_A_START.contains(&number),
    };
    if !allowed {
        return Err(Errno::EPERM);
    }
    // SAFETY: the caller's promise.
    unsafe { call_for_program(number, arguments) }
}

/// Makes a system call that the program itself has asked for, whatever it has forbidden itself.
///
/// # Safety
/// As for [`call`].
#[inline]
pub unsafe fn call_for_program<const N: usize>(
    number: c_long,
    arguments: [usize; N],
) -> Result<usize, Errno> {
    let mut six = [0; 6];
    six[..N].copy_from_slice(&arguments);
    // SAFETY: the caller's promise.
    let answer = unsafe { instruction(number, six) };
    // The last 4,095 values are errors.
    if answer >= -4095isize as usize { Err(Errno(-(answer as isize) as i32)) } else { Ok(answer) }
}

#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn instruction(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> usize {
    let answer;
    // SAFETY: the caller's promise. The kernel changes rax, rcx and r11 alone.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as usize => answer,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

#[cfg(target_arch = "aarch64")]
#[inline]
unsafe fn instruction(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> usize {
    let answer;
    // SAFETY: the caller's promise. The kernel changes x0 alone.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") a => answer,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            options(nostack),
        );
    }
    answer
}

/// Returns the calling process's id. The kernel is asked each time, for a child of vfork(2) shares
/// this memory. Where the program may have forbidden itself to ask, the answer is the last one.
pub fn own_pid() -> u32 {
    // SAFETY: getpid(2) takes nothing.
    let asked = unsafe { call(libc::SYS_getpid, []) }.map(|pid| pid as i32);
    if let Ok(pid) = asked {
        PROCESS.store(pid, Relaxed);
    }
    asked.unwrap_or(PROCESS.load(Relaxed)) as u32
}

/// Returns the calling thread's id; 0 where it may not be asked for.
pub fn own_thread() -> i32 {
    // SAFETY: gettid(2) takes nothing.
    unsafe { call(libc::SYS_gettid, []) }.map_or(0, |thread| thread as i32)
}

/// Returns true if a thread of the calling process still exists.
pub fn thread_exists(thread: i32) -> bool {
    // SAFETY: signal 0 is never sent.
    unsafe { call(libc::SYS_tgkill, [own_pid() as usize, thread as usize, 0]) }.is_ok()
}

/// Ends the process at once, as _exit(2) does.
pub fn exit_process(status: i32) -> ! {
    // SAFETY: it takes a number and does not return.
    let _ = unsafe { call(libc::SYS_exit_group, [status as usize]) };
    std::process::abort()
}

/// Names the calling thread; the kernel keeps 15 bytes (PR_SET_NAME).
pub fn set_thread_name(name: &std::ffi::CStr) {
    // SAFETY: the name is a C string.
    let _ = unsafe { call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0]) };
}

/// Decides which calls are made, by the filters that the process has at its start.
#[cold]
fn program_begins() -> u8 {
    // The loader calls this library before there is an environment.
    if !environment_is_ready() {
        return START;
    }
    let (pid, filters) = own_filters();
    PROCESS.store(pid, Relaxed);
    let mut buffer = [0; MAX_VALUE];
    let vouched = environment_variable(FILTERS_VARIABLE, &mut buffer).and_then(|value| value.to_str().ok());
    let all = filters == Some(0)
        || vouched
            .is_some_and(|value| value == ANY_FILTERS || filters.is_some() && value.parse().ok() == filters);
    // Changes nothing if the program has confined itself meanwhile.
    let _ = CALLS.compare_exchange(0, if all { ALL } else { START }, Relaxed, Relaxed);
    CALLS.load(Relaxed)
}

/// Returns the process's id, and the number of its filters. The number is `None` where the kernel
/// does not show filters, or not how many there are (before Linux 5.9).
fn own_filters() -> (i32, Option<u64>) {
    let mut text = [0u8; 4096];
    let path = c"/proc/self/status".as_ptr() as usize;
    // SAFETY: the path is a C string, and the buffer is writable and of the given length.
    let read = unsafe {
        call_for_program(libc::SYS_openat, [libc::AT_FDCWD as usize, path, libc::O_CLOEXEC as usize])
            .and_then(|file| {
                let read = call_for_program(libc::SYS_read, [file, text.as_mut_ptr() as usize, text.len()]);
                let _ = call_for_program(libc::SYS_close, [file]);
                read
            })
    };
    let text = &text[..read.unwrap_or(0)];
    let field = |name: &[u8]| {
        let at = text.windows(name.len()).position(|window| window == name)? + name.len();
        first_number(&text[at..])
    };
    let filters = match field(b"\nSeccomp:") {
        Some(0) => Some(0),
        _ => field(b"\nSeccomp_filters:"),
    };
    (field(b"\nPid:").unwrap_or(0) as i32, filters)
}

/// Notes that the program is about to forbid itself system calls. From here on [`call`] makes few.
pub fn program_confines() {
    CALLS.store(MALLOC, Relaxed);
}

/// Returns true if a filter may end the program for other calls than those of a malloc, or of its
/// start.
pub fn is_confined() -> bool {
    calls() != ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_answer_as_the_c_librarys_and_leave_errno_alone() {
        crate::set_errno(libc::EXDEV);
        // SAFETY: neither call takes a pointer that is followed.
        let (pid, refused) = unsafe { (call(libc::SYS_getpid, []), call(libc::SYS_munmap, [1, 4096])) };
        assert_eq!(pid, Ok(std::process::id() as usize));
        assert_eq!(refused, Err(Errno::EINVAL));
        assert_eq!(Errno::last(), Errno(libc::EXDEV));
        let mut six = [0u8; 4];
        // SAFETY: six arguments: the buffer is writable and of the given length.
        let read = unsafe {
            let file =
                call(libc::SYS_openat, [libc::AT_FDCWD as usize, c"/proc/self/exe".as_ptr() as usize, 0]);
            let file = file.unwrap();
            let at = [file, six.as_mut_ptr() as usize, six.len(), 0];
            (call(libc::SYS_pread64, at), call(libc::SYS_close, [file]))
        };
        assert_eq!((read, &six), ((Ok(4), Ok(0)), b"\x7fELF"));
        assert!(thread_exists(own_thread()) && !thread_exists(i32::MAX));
    }

    // In a separate process, which stays confined.
    #[test]
    fn a_confined_program_meets_the_calls_of_a_malloc_alone() {
        megapage_testing::in_child(
            "system::tests::a_confined_program_meets_the_calls_of_a_malloc_alone",
            || {
                let pid = own_pid();
                program_confines();
                // SAFETY: no pointer is followed.
                let (asked, unmapped) =
                    unsafe { (call(libc::SYS_getppid, []), call(libc::SYS_munmap, [1, 4096])) };
                assert_eq!((asked, unmapped), (Err(Errno::EPERM), Err(Errno::EINVAL)));
                assert_eq!(own_pid(), pid);
                assert!(is_confined() && crate::memory_available_and_total().is_none());
            },
        );
    }

    /// Starts this test again below one more filter than the parent has, which forbids no call.
    fn below_a_filter(name: &str, vouched: Option<u64>) {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture"]).env("BELOW_A_FILTER", "1");
        command.env_remove(FILTERS_VARIABLE).envs(vouched.map(|count| (FILTERS_VARIABLE, count.to_string())));
        let filter = || {
            let allow = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
            let program = libc::sock_fprog { len: 1, filter: (&raw const allow).cast_mut() };
            let mode = [libc::PR_SET_SECCOMP as usize, 2, (&raw const program) as usize, 0, 0];
            // SAFETY: the program is one valid instruction, which the kernel copies.
            let done = unsafe {
                call_for_program(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0])
                    .and_then(|_| call_for_program(libc::SYS_prctl, mode))
            };
            done.map(drop).map_err(|errno| std::io::Error::from_raw_os_error(errno.0))
        };
        use std::os::unix::process::CommandExt;
        // SAFETY: the closure makes two system calls, and allocates nothing.
        unsafe { command.pre_exec(filter) };
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    #[test]
    fn below_a_filter_the_calls_of_a_start_are_made_unless_the_starter_vouches_for_it() {
        let name =
            "system::tests::below_a_filter_the_calls_of_a_start_are_made_unless_the_starter_vouches_for_it";
        if std::env::var_os("BELOW_A_FILTER").is_none() {
            let own = own_filters().1.unwrap();
            for vouched in [None, Some(0), Some(own + 1)] {
                below_a_filter(name, vouched);
            }
        } else {
            // SAFETY: no pointer is followed.
            let asked = unsafe { call(libc::SYS_getppid, []) };
            let all = std::env::var_os(FILTERS_VARIABLE).is_some_and(|it| it != "0");
            assert_eq!((asked.is_ok(), is_confined()), (all, !all));
            assert!(crate::memory_available_and_total().is_some(), "files of the kernel are read");
            assert_eq!(own_pid(), std::process::id());
        }
    }
}
