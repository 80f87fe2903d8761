//! The C library's names, as far as the standard library and mimalloc call them, for the libraries
//! that are loaded into programs. [`crate::own_names`] gives them to one such library, for itself
//! alone: no other object sees them, and none that defines the same names is ever called.
//!
//! Each is a system call of [`crate::call`], with the C library's answer and errno. Those that the
//! standard library calls for the message of a panic alone may answer that there is nothing.
//!
//! File-level obligation: each function has the signature and the contract of the C function whose
//! name it bears. Variadic ones are called with arguments in registers, where their fixed forms
//! here expect them.

#![allow(unsafe_code)]
#![allow(missing_docs, reason = "each is as its manual page of section 2 or 3 says")]
#![allow(clippy::missing_safety_doc, reason = "as above")]

use crate::clock::monotonic;
use crate::errno::Errno;
use crate::lock::Lock;
use crate::program_memory::as_c;
use crate::system::{call, call_for_program, exit_process, own_pid, own_thread};
use libc::{c_char, c_int, c_long, c_uint, c_void, off_t, size_t, ssize_t, timespec};
use std::time::Duration;

/// Defines functions that make one system call with their arguments, in order, after those in
/// brackets.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty = $number:ident [$($first:expr)?];)*) => {$(
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $answer {
            // SAFETY: the caller's promise.
            as_c(unsafe { call(libc::$number, [$($first as usize,)? $($argument as usize),*]) }) as $answer
        }
    )*};
}

calls! {
    access(path: *const c_char, mode: c_int) -> c_int = SYS_faccessat [libc::AT_FDCWD];
    close(fd: c_int) -> c_int = SYS_close [];
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = SYS_fcntl [];
    fstat(fd: c_int, state: *mut c_void) -> c_int = SYS_fstat [];
    getrusage(who: c_int, usage: *mut c_void) -> c_int = SYS_getrusage [];
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut c_void) -> c_int = SYS_getsockopt [];
    ioctl(fd: c_int, request: libc::Ioctl, argument: usize) -> c_int = SYS_ioctl [];
    lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t = SYS_lseek [];
    madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int = SYS_madvise [];
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int = SYS_openat [libc::AT_FDCWD];
    pread(fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t) -> ssize_t = SYS_pread64 [];
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t = SYS_read [];
    readlink(path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t = SYS_readlinkat [libc::AT_FDCWD];
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: c_uint) -> c_int = SYS_setsockopt [];
    statx(directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, state: *mut c_void) -> c_int = SYS_statx [];
    sysinfo(state: *mut c_void) -> c_int = SYS_sysinfo [];
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t = SYS_write [];
    // For a library that does not export these itself.
    mmap(address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void
        = SYS_mmap [];
    mprotect(address: *mut c_void, len: size_t, protection: c_int) -> c_int = SYS_mprotect [];
    mremap(old: *mut c_void, old_len: size_t, len: size_t, flags: c_int, wanted: *mut c_void) -> *mut c_void
        = SYS_mremap [];
    munmap(address: *mut c_void, len: size_t) -> c_int = SYS_munmap [];
    prctl(option: c_int, second: usize, third: usize, fourth: usize, fifth: usize) -> c_int = SYS_prctl [];
}

pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // A filter may know the newer call alone, as the loader makes it.
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_open {
        let arguments = [libc::AT_FDCWD as usize, a, b, c];
        // SAFETY: the caller's promise.
        return as_c(unsafe { call(libc::SYS_openat, arguments) }) as c_long;
    }
    // SAFETY: the caller's promise.
    as_c(unsafe { call(number, [a, b, c, d, e, f]) }) as c_long
}

/// Makes the call for the program: the C library's malloc, too, writes by it why it ends a program.
pub unsafe extern "C" fn writev(fd: c_int, parts: *const c_void, count: c_int) -> ssize_t {
    let arguments = [fd as usize, parts as usize, count as usize];
    // SAFETY: the caller's promise.
    as_c(unsafe { call_for_program(libc::SYS_writev, arguments) }) as ssize_t
}

pub unsafe extern "C" fn stat64(path: *const c_char, state: *mut c_void) -> c_int {
    let arguments = [libc::AT_FDCWD as usize, path as usize, state as usize, 0];
    // SAFETY: the caller's promise.
    as_c(unsafe { call(libc::SYS_newfstatat, arguments) }) as c_int
}

pub extern "C" fn _exit(status: c_int) -> ! {
    exit_process(status)
}

pub extern "C" fn getpid() -> c_int {
    own_pid() as c_int
}

pub extern "C" fn gettid() -> c_int {
    own_thread()
}

pub extern "C" fn sched_yield() -> c_int {
    // SAFETY: it takes nothing. Where it is forbidden, the caller's loop goes on.
    let _ = unsafe { call(libc::SYS_sched_yield, []) };
    0
}

pub unsafe extern "C" fn clock_gettime(clock: c_int, now: *mut timespec) -> c_int {
    if clock == libc::CLOCK_MONOTONIC {
        let time = monotonic();
        // SAFETY: the caller's promise.
        unsafe { *now = timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() } };
        return 0;
    }
    // SAFETY: the caller's promise.
    as_c(unsafe { call(libc::SYS_clock_gettime, [clock as usize, now as usize]) }) as c_int
}

pub unsafe extern "C" fn clock_nanosleep(
    _: c_int,
    flags: c_int,
    wanted: *const timespec,
    _: *mut timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    let wanted = unsafe { &*wanted };
    let time = Duration::new(wanted.tv_sec.max(0) as u64, wanted.tv_nsec as u32);
    let is_absolute = flags & libc::TIMER_ABSTIME != 0;
    crate::futex::sleep(if is_absolute { time.saturating_sub(monotonic()) } else { time });
    0
}

pub unsafe extern "C" fn nanosleep(wanted: *const timespec, left: *mut timespec) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { clock_nanosleep(libc::CLOCK_MONOTONIC, 0, wanted, left) }
}

pub extern "C" fn usleep(microseconds: c_uint) -> c_int {
    crate::futex::sleep(Duration::from_micros(microseconds.into()));
    0
}

/// Sleeps; with no time to sleep it yields, for which mimalloc calls it.
pub extern "C" fn sleep(seconds: c_uint) -> c_uint {
    if seconds == 0 {
        sched_yield();
    } else {
        crate::futex::sleep(Duration::from_secs(seconds.into()));
    }
    0
}

/// Returns the monotonic clock in microseconds. mimalloc reads it where there is no
/// clock_gettime(2).
pub extern "C" fn clock() -> c_long {
    monotonic().as_micros() as c_long
}

pub extern "C" fn sysconf(name: c_int) -> c_long {
    if name == libc::_SC_PAGESIZE {
        return crate::base_pages::probed_page_size() as c_long;
    }
    as_c(Err(Errno::EINVAL)) as c_long
}

pub extern "C" fn getenv(_: *const c_char) -> *mut c_char {
    std::ptr::null_mut()
}

pub extern "C" fn getcwd(_: *mut c_char, _: size_t) -> *mut c_char {
    as_c(Err(Errno(libc::ENOSYS)));
    std::ptr::null_mut()
}

pub extern "C" fn realpath(_: *const c_char, _: *mut c_char) -> *mut c_char {
    getcwd(std::ptr::null_mut(), 0)
}

pub unsafe extern "C" fn sigfillset(set: *mut c_void) -> c_int {
    // SAFETY: the caller's promise; the kernel reads 64 bits.
    unsafe { set.cast::<libc::sigset_t>().write_bytes(0xff, 1) };
    0
}

pub unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const c_void, former: *mut c_void) -> c_int {
    // Bytes of the kernel's set. The two signals that the C library keeps for itself stay as they
    // are.
    const BYTES: usize = 8;
    const KEPT: u64 = 0b11 << 31;
    let mut wanted = 0;
    if !set.is_null() {
        // SAFETY: the caller's promise.
        wanted = unsafe { set.cast::<u64>().read() } & !KEPT;
    }
    let at = if set.is_null() { 0 } else { (&raw const wanted) as usize };
    // SAFETY: the caller's promise.
    let answer = unsafe { call(libc::SYS_rt_sigprocmask, [how as usize, at, former as usize, BYTES]) };
    answer.map_or_else(|errno| errno.0, |_| 0)
}

// mimalloc's mutexes: zero is free, and the lock is in the first bytes. They count among the locks
// that a thread holds, see `held.rs`.

pub unsafe extern "C" fn pthread_mutex_lock(mutex: *mut c_void) -> c_int {
    // SAFETY: the caller's promise; the mutex has room for the lock, and nothing else looks into
    // it.
    unsafe { (*mutex.cast::<Lock>()).lock() };
    0
}

pub unsafe extern "C" fn pthread_mutex_trylock(mutex: *mut c_void) -> c_int {
    // SAFETY: as above.
    if unsafe { (*mutex.cast::<Lock>()).try_lock() } { 0 } else { libc::EBUSY }
}

pub unsafe extern "C" fn pthread_mutex_unlock(mutex: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { (*mutex.cast::<Lock>()).unlock() };
    0
}

pub extern "C" fn pthread_mutex_destroy(_: *mut c_void) -> c_int {
    0
}

/// Defines names of the C library's in the library that uses this macro, hidden from all others:
/// `name => function` of [`crate::names`]. Names that the library exports cannot be among them.
#[macro_export]
macro_rules! own_names {
    ($($name:ident => $function:ident),* $(,)?) => {$(
        #[cfg(target_arch = "x86_64")]
        std::arch::global_asm!(
            ".pushsection .text.megapage_own_names,\"ax\",@progbits",
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ",@function"),
            concat!(stringify!($name), ":"),
            "jmp {function}",
            ".popsection",
            function = sym $crate::names::$function,
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::global_asm!(
            ".pushsection .text.megapage_own_names,\"ax\",%progbits",
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ",%function"),
            concat!(stringify!($name), ":"),
            "b {function}",
            ".popsection",
            function = sym $crate::names::$function,
        );
    )*};
}

/// Defines the names that every library needs: see [`own_names`].
#[macro_export]
macro_rules! usual_own_names {
    () => {
        $crate::own_names! {
            access => access, clock => clock, clock_gettime => clock_gettime, clock_nanosleep => clock_nanosleep,
            close => close, fcntl => fcntl, fcntl64 => fcntl, fstat => fstat, fstat64 => fstat, getcwd => getcwd,
            getenv => getenv, getpid => getpid, getrusage => getrusage, getsockopt => getsockopt, gettid => gettid,
            ioctl => ioctl, lseek64 => lseek64, madvise => madvise, nanosleep => nanosleep, open => open,
            open64 => open, pread => pread, pread64 => pread, pthread_sigmask => pthread_sigmask, read => read,
            readlink => readlink, realpath => realpath, sched_yield => sched_yield, setsockopt => setsockopt,
            sigfillset => sigfillset, sleep => sleep, stat64 => stat64, statx => statx, syscall => syscall,
            sysconf => sysconf, sysinfo => sysinfo, usleep => usleep, write => write, writev => writev,
        }
    };
}
