//! From the program's start to its end: the constructor, fork, and the handshake at exit.
//!
//! File-level obligation: what is registered with the loader or the C library is a function of this library,
//! which is never unloaded, and has the signature that the registration wants.

#![allow(unsafe_code)]

use crate::next::Next;
use crate::{HEAP, MAPPED, SHARED, collapser, interpose, mappings, returner, threads};
use megapage_inside::{
    MAX_VALUE, NoCancel, SharedWords, environment_is_ready, environment_list_item, environment_variable,
    is_secure, remove_environment_variable, remove_from_environment_list, set_errno,
};
use megapage_memory::shared::{SHM_VARIABLE, Shm};
use megapage_memory::stock::{POOL_PATIENCE_VARIABLE, POOL_VARIABLE, set_patience};
use megapage_memory::{
    CHILDREN_VARIABLE, Config, FORK_VARIABLE, Fork, HEAP_VARIABLE, Heap, LEDGER_VARIABLE, POPULATE_VARIABLE,
    RETURN_AFTER_VARIABLE, SHORT_BELOW_VARIABLE,
};
use std::ffi::CStr;
use std::mem::transmute;
use std::os::raw::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Where ld.so(8) finds the library.
const PRELOAD: &str = "LD_PRELOAD";
/// The file name under which the library finds itself in LD_PRELOAD.
const LIBRARY: &[u8] = b"libmegapage.so";
/// The purge delay until something else is asked, in milliseconds.
const RETURN_AFTER_MS: c_long = 1000;

unsafe extern "C" {
    fn megapage_lock_for_fork();
    fn megapage_unlock_after_fork();
    fn megapage_set_return_after(milliseconds: c_long);
}

/// Reads the environment and configures the heap. Runs at the first allocation, which may come before the
/// C library has an environment; the constructor then runs it again.
pub fn configure() {
    register_fork_handlers();
    let mut buffer = [0; MAX_VALUE];
    let mut config = Config::DEFAULT;
    let mut return_after = RETURN_AFTER_MS;
    if environment_is_ready() {
        if let Some(heap) =
            environment_variable(HEAP_VARIABLE, &mut buffer).and_then(|v| Heap::parse(v.to_bytes()))
        {
            config.heap = heap;
        }
        if let Some(value) = environment_variable(POPULATE_VARIABLE, &mut buffer) {
            config.populate = value != c"0";
        }
        if let Some(bytes) = environment_variable(SHORT_BELOW_VARIABLE, &mut buffer).and_then(number) {
            config.short_below = bytes;
        }
        if let Some(fork) =
            environment_variable(FORK_VARIABLE, &mut buffer).and_then(|v| Fork::parse(v.to_bytes()))
        {
            config.fork = fork;
        }
        if let Some(value) = environment_variable(RETURN_AFTER_VARIABLE, &mut buffer) {
            return_after = match number(value) {
                Some(milliseconds) => c_long::try_from(milliseconds).unwrap_or(c_long::MAX),
                None if value == c"never" => -1,
                None => RETURN_AFTER_MS,
            };
        }
    }
    if is_secure() {
        // It runs as without the library: nothing that its caller sets is read, and all its memory
        // is on base pages.
        config.heap = Heap::None;
    }
    if environment_is_ready() {
        let shm = environment_variable(SHM_VARIABLE, &mut buffer).and_then(|v| Shm::parse(v.to_bytes()));
        let unasked = if config.heap == Heap::None { Shm::None } else { Shm::Auto };
        SHARED.configure(shm.unwrap_or(unasked), config.populate);
    }
    HEAP.configure(config);
    if environment_is_ready()
        && let Some(socket) = environment_variable(POOL_VARIABLE, &mut buffer)
    {
        HEAP.use_broker(socket.to_bytes(), std::process::id());
        if let Some(value) = environment_variable(POOL_PATIENCE_VARIABLE, &mut buffer) {
            // The launcher has refused one that is no number.
            set_patience(value.to_bytes());
        }
    }
    returner::configure(u64::try_from(return_after).ok(), config.fork);
    // SAFETY: any value is allowed.
    unsafe { megapage_set_return_after(return_after) };
}

/// Registered at the first allocation, so before most others': the handlers that run before a fork do so in
/// the reverse order, and those of other libraries may allocate, which ours forbid until after the fork.
fn register_fork_handlers() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Relaxed) {
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(fork_prepare), Some(fork_parent), Some(fork_child)) };
    }
}

fn number(value: &CStr) -> Option<u64> {
    value.to_str().ok()?.parse().ok()
}

/// Before the program's own constructors and `main`, with one thread.
extern "C" fn start() {
    configure();
    interpose::find_real();
    for function in [&NEXT_FORK, &NEXT_DAEMON, &NEXT_FORKPTY] {
        function.find();
    }
    mappings::begin();
    let mut buffer = [0; MAX_VALUE];
    if let Some(path) = environment_variable(LEDGER_VARIABLE, &mut buffer)
        && let Ok(words) = SharedWords::open(path)
    {
        MAPPED.learn(HEAP.attach_ledger(words, std::process::id()));
    }
    leave_environment();
}

/// Takes what brought the library here out of the environment, and keeps it for this process's own exec.
fn leave_environment() {
    let mut buffer = [0; MAX_VALUE];
    let for_children = environment_variable(CHILDREN_VARIABLE, &mut buffer) == Some(c"1");
    let variables: &[&str] = if for_children {
        &[LEDGER_VARIABLE]
    } else {
        &[
            LEDGER_VARIABLE,
            HEAP_VARIABLE,
            RETURN_AFTER_VARIABLE,
            POPULATE_VARIABLE,
            SHORT_BELOW_VARIABLE,
            POOL_VARIABLE,
            FORK_VARIABLE,
            SHM_VARIABLE,
            CHILDREN_VARIABLE,
        ]
    };
    for name in variables {
        if let Some(value) = environment_variable(name, &mut buffer) {
            interpose::remember(name, value);
            remove_environment_variable(name);
        }
    }
    if !for_children {
        let is_library = |item: &[u8]| item.rsplit(|&byte| byte == b'/').next() == Some(LIBRARY);
        if let Some(own) = environment_list_item(PRELOAD, is_library, &mut buffer) {
            interpose::remember(PRELOAD, own);
        }
        remove_from_environment_list(PRELOAD, is_library);
    }
}

/// At exit(3), after the program's own handlers: what the run has found out goes to the launcher, and it reads the kernel's
/// last values.
extern "C" fn end() {
    let ledger = HEAP.ledger();
    if ledger.pid() != std::process::id() {
        return;
    }
    HEAP.judge_blocks();
    MAPPED.tell(ledger);
    ledger.exit_handshake().announce_and_wait();
}

/// _exit(2): ends the process at once, without the handlers of exit(3), so that [`end`] comes first. Callable from a
/// signal's handler, and by a child of vfork(2), as the C library's is.
#[unsafe(no_mangle)]
extern "C" fn _exit(status: c_int) -> ! {
    end();
    // SAFETY: exit_group(2) takes a number and does not return.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    std::process::abort()
}

/// _Exit(3), another name for _exit(2).
#[unsafe(no_mangle)]
extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// The thread that is inside [`checked`], which has made the fork safe; 0 for none. Other forks of the C library's own go
/// without it.
static CHECKED: AtomicUsize = AtomicUsize::new(0);

/// Names the calling thread; the same in a forked child.
fn this_thread() -> usize {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::pthread_self() as usize }
}

fn is_checked() -> bool {
    CHECKED.load(Relaxed) == this_thread()
}

unsafe extern "C" fn fork_prepare() {
    if !is_checked() {
        // It cannot be refused here, but the heap can still be moved. What `fork` holds, this holds too.
        let _ = HEAP.before_fork(returner::lock_for_fork());
    }
    // SAFETY: mimalloc is initialised: it called `configure`, which registered this.
    unsafe { megapage_lock_for_fork() };
    MAPPED.lock_for_fork();
    HEAP.lock_for_fork();
}

unsafe extern "C" fn fork_parent() {
    HEAP.unlock_after_fork(false);
    MAPPED.unlock_after_fork();
    // SAFETY: taken by `fork_prepare`.
    unsafe { megapage_unlock_after_fork() };
    if !is_checked() {
        returner::unlock_after_fork();
    }
}

unsafe extern "C" fn fork_child() {
    HEAP.unlock_after_fork(true);
    MAPPED.unlock_after_fork();
    // SAFETY: taken by `fork_prepare` in the parent, by the thread that this one is a copy of.
    unsafe { megapage_unlock_after_fork() };
    threads::forget_in_child();
    returner::forget_in_child();
    collapser::forget_in_child();
    if !is_checked() {
        returner::unlock_after_fork();
    }
}

type RealFork = unsafe extern "C" fn() -> c_int;
type Daemon = unsafe extern "C" fn(c_int, c_int) -> c_int;
type Forkpty = unsafe extern "C" fn(*mut c_int, *mut c_char, *const c_void, *const c_void) -> c_int;

// The C library's functions, looked up before any thread exists.
static NEXT_FORK: Next = Next::new(c"fork");
static NEXT_DAEMON: Next = Next::new(c"daemon");
static NEXT_FORKPTY: Next = Next::new(c"forkpty");

fn real_fork() -> Option<RealFork> {
    // SAFETY: the C library's `fork` has this type.
    NEXT_FORK.find().map(|address| unsafe { transmute::<usize, RealFork>(address) })
}

fn real_daemon() -> Option<Daemon> {
    // SAFETY: the C library's `daemon` has this type.
    NEXT_DAEMON.find().map(|address| unsafe { transmute::<usize, Daemon>(address) })
}

fn real_forkpty() -> Option<Forkpty> {
    // SAFETY: the C library's `forkpty` has this type.
    NEXT_FORKPTY.find().map(|address| unsafe { transmute::<usize, Forkpty>(address) })
}

/// Runs what forks, refused with ENOMEM where a huge page written after it could not be copied and the child would
/// be killed (see [`megapage_memory::HugeHeap::before_fork`]).
fn checked(forks: Option<impl FnOnce() -> c_int>) -> c_int {
    let Some(forks) = forks else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // daemon(3) and forkpty(3) have cancellation points in which a lock would be held for ever.
    let _no_cancel = NoCancel::begin();
    let safe = HEAP.before_fork(returner::lock_for_fork());
    let answer = safe.map(|()| {
        CHECKED.store(this_thread(), Relaxed);
        let answer = forks();
        CHECKED.store(0, Relaxed);
        if answer == -1 {
            // It may have failed before it came to the fork, and so to the handlers.
            HEAP.fork_failed();
        }
        answer
    });
    returner::unlock_after_fork();
    answer.unwrap_or_else(|errno| {
        set_errno(errno.0);
        -1
    })
}

/// fork(2).
#[unsafe(no_mangle)]
extern "C" fn fork() -> c_int {
    // SAFETY: the C library's own function, called as the program would have.
    checked(real_fork().map(|real| move || unsafe { real() }))
}

/// fork(2) by the C library's other name for it.
#[unsafe(no_mangle)]
extern "C" fn __fork() -> c_int {
    fork()
}

/// daemon(3), whose fork could not be refused from within.
#[unsafe(no_mangle)]
extern "C" fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
    // SAFETY: as for `fork`.
    checked(real_daemon().map(|real| move || unsafe { real(no_chdir, no_close) }))
}

/// forkpty(3), whose fork could not be refused from within.
///
/// # Safety
/// As for the C library's: the pointers are passed on unread.
#[unsafe(no_mangle)]
unsafe extern "C" fn forkpty(
    master: *mut c_int,
    name: *mut c_char,
    terminal: *const c_void,
    window: *const c_void,
) -> c_int {
    // SAFETY: as for `fork`; the caller's promise.
    checked(real_forkpty().map(|real| move || unsafe { real(master, name, terminal, window) }))
}
