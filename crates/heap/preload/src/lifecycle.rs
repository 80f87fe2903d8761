//! From the program's start to its end: the constructor, fork, and the handshake at exit.
//!
//! File-level obligation: each function that is registered with the loader or the C library is a
//! function of this library, which is never unloaded. It has the signature that the registration
//! wants.

#![allow(unsafe_code)]

use crate::next::Next;
use crate::{HEAP, MAPPED, SHARED, collapser, interpose, mappings, returner, threads};
use megapage_inside::{
    Errno, FILTERS_VARIABLE, MAX_VALUE, NoCancel, SharedWords, environment_is_ready, environment_list_item,
    environment_variable, exit_process, fork_state, holds_locks, is_secure, off::is_off, own_pid,
    program_memory::grow_break, remove_environment_variable, remove_from_environment_list, set_errno,
    set_fork_state,
};
use megapage_memory::shared::{SHM_VARIABLE, Shm};
use megapage_memory::stock::{POOL_PATIENCE_VARIABLE, POOL_VARIABLE, set_patience};
use megapage_memory::{
    CHILDREN_VARIABLE, Config, FORK_VARIABLE, Fork, HEAP_VARIABLE, Heap, LEDGER_VARIABLE, POPULATE_VARIABLE,
    RETURN_AFTER_VARIABLE, SHORT_BELOW_VARIABLE, SPARES_VARIABLE,
};
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Variable in which ld.so(8) finds the library.
const PRELOAD: &str = "LD_PRELOAD";
/// File name under which the library finds itself in LD_PRELOAD.
const LIBRARY: &[u8] = b"libmegapage.so";
/// Bytes below the break that programs may touch: glibc's first malloc(3) leaves 132 KiB there.
const FIRST_BREAK: usize = 4 << 10;
/// Purge delay until another is requested, in milliseconds.
const RETURN_AFTER_MS: c_long = 1000;

// Calls that the standard library, mimalloc and this one make by the C library's names go to the
// kernel directly.
megapage_inside::usual_own_names! {}
megapage_inside::own_names! {
    pthread_mutex_destroy => pthread_mutex_destroy, pthread_mutex_lock => pthread_mutex_lock,
    pthread_mutex_trylock => pthread_mutex_trylock, pthread_mutex_unlock => pthread_mutex_unlock,
}

unsafe extern "C" {
    fn megapage_lock_for_fork();
    fn megapage_unlock_after_fork();
    fn megapage_free_locks_in_child();
    safe fn megapage_set_return_after(milliseconds: c_long);
}

/// Reads the environment and configures the heap. Runs at the first allocation, which may come
/// before the C library has an environment; the constructor then runs it again.
pub fn configure() {
    register_fork_handlers();
    let mut buffer = [0; MAX_VALUE];
    let mut config = Config::DEFAULT;
    let mut return_after = RETURN_AFTER_MS;
    // In a set-user-ID program the library also reads nothing that the caller sets.
    let off = is_secure() || (environment_is_ready() && is_off());
    let reads = environment_is_ready() && !off;
    if off {
        config.heap = Heap::None;
        SHARED.configure(Shm::None, config.populate);
    }
    if reads {
        if let Some(heap) =
            environment_variable(HEAP_VARIABLE, &mut buffer).and_then(|v| Heap::parse(v.to_bytes()))
        {
            config.heap = heap;
        }
        if let Some(value) = environment_variable(POPULATE_VARIABLE, &mut buffer) {
            config.populate = value != c"0";
        }
        config.spares = environment_variable(SPARES_VARIABLE, &mut buffer) == Some(c"1");
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
    if reads {
        let shm = environment_variable(SHM_VARIABLE, &mut buffer).and_then(|v| Shm::parse(v.to_bytes()));
        let unasked = if config.heap == Heap::None { Shm::None } else { Shm::Auto };
        SHARED.configure(shm.unwrap_or(unasked), config.populate);
    }
    HEAP.configure(config);
    if reads && let Some(socket) = environment_variable(POOL_VARIABLE, &mut buffer) {
        HEAP.use_broker(socket.to_bytes(), own_pid());
        if let Some(value) = environment_variable(POOL_PATIENCE_VARIABLE, &mut buffer) {
            // The launcher has refused a value that is no number.
            set_patience(value.to_bytes());
        }
    }
    returner::configure(u64::try_from(return_after).ok(), config.fork);
    megapage_set_return_after(return_after);
}

/// Registers the fork handlers at the first allocation, and so before most other libraries. The
/// handlers that run before a fork run in the reverse order. Those of other libraries may allocate,
/// which ours forbid until after the fork.
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

/// Starts the library before the program's own constructors and `main`, with one thread.
extern "C" fn start() {
    grow_break(FIRST_BREAK);
    configure();
    interpose::find_real();
    NEXT_FORK.find();
    NEXT_DAEMON.find();
    NEXT_FORKPTY.find();
    mappings::begin();
    let mut buffer = [0; MAX_VALUE];
    if let Some(path) = environment_variable(LEDGER_VARIABLE, &mut buffer)
        && let Ok(words) = SharedWords::open(path)
    {
        HEAP.attach_ledger(words, own_pid());
    }
    leave_environment();
}

/// Removes the variables that brought the library here from the environment, and keeps them for
/// this process's own exec.
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
            SPARES_VARIABLE,
            POOL_VARIABLE,
            FORK_VARIABLE,
            SHM_VARIABLE,
            CHILDREN_VARIABLE,
            FILTERS_VARIABLE,
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

/// Runs at exit(3), after the program's own handlers: the launcher reads the kernel's last values.
extern "C" fn end() {
    let ledger = HEAP.ledger();
    if ledger.pid() != own_pid() {
        return;
    }
    ledger.exit_handshake().announce_and_wait();
}

/// Stands in for _exit(2), which ends the process at once, without the handlers of exit(3): so it
/// calls [`end`] first. A signal handler and a child of vfork(2) may call it, as they may call the
/// C library's.
#[unsafe(no_mangle)]
extern "C" fn _exit(status: c_int) -> ! {
    end();
    exit_process(status)
}

/// Stands in for _Exit(3), another name for _exit(2).
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

// The state of a fork in the thread that forks (`fork_state`), of which its child has a copy.

/// The thread is inside [`checked`], which has made the fork safe. The C library's other forks do
/// without it.
const CHECKED: u32 = 1;
/// The handlers hold every lock, or are about to take them.
const LOCKED: u32 = 2;
/// Added for each fork that took no lock: it came from a signal handler that had interrupted code
/// which holds locks. There may be several such forks, one within the other.
const WITHIN: u32 = 4;

/// Returns true if the code that the fork comes from may hold locks, because a signal handler has
/// interrupted it. Waiting for a lock would then never end. The locks that [`checked`] takes for
/// this fork do not count.
fn is_within(state: u32) -> bool {
    state & LOCKED != 0 || (state & CHECKED == 0 && holds_locks())
}

unsafe extern "C" fn fork_prepare() {
    let state = fork_state();
    if is_within(state) {
        return set_fork_state(state + WITHIN);
    }
    set_fork_state(state | LOCKED);
    if state & CHECKED == 0 {
        // The fork cannot be refused here, but the heap can still be moved. This handler holds the
        // same lock as `fork`.
        let _ = HEAP.before_fork(returner::lock_for_fork());
    }
    // SAFETY: mimalloc is initialised: it called `configure`, which registered this.
    unsafe { megapage_lock_for_fork() };
    MAPPED.lock_for_fork();
    HEAP.lock_for_fork();
}

/// Releases the locks of [`fork_prepare`], in the parent and in the child.
fn unlock(child: bool) {
    HEAP.unlock_after_fork(child);
    MAPPED.unlock_after_fork();
    // SAFETY: taken by `fork_prepare`, in the parent by the thread that a child's is a copy of.
    unsafe { megapage_unlock_after_fork() };
}

/// Ends a fork whose handlers hold every lock.
fn locked_is_over() {
    let state = fork_state();
    if state & CHECKED == 0 {
        returner::unlock_after_fork();
    }
    set_fork_state(state & !LOCKED);
}

unsafe extern "C" fn fork_parent() {
    let state = fork_state();
    if state >= WITHIN {
        return set_fork_state(state - WITHIN);
    }
    unlock(false);
    locked_is_over();
}

unsafe extern "C" fn fork_child() {
    let state = fork_state();
    if state >= WITHIN {
        set_fork_state(state - WITHIN);
        // No other thread exists here. A lock is held by the interrupted code, which goes on later,
        // or by no thread at all.
        HEAP.free_locks_in_child();
        MAPPED.free_locks_in_child();
        // SAFETY: as in `fork_prepare`, and this is a child.
        unsafe { megapage_free_locks_in_child() };
        threads::WORKING.reset();
    } else {
        unlock(true);
    }
    threads::forget_in_child();
    returner::forget_in_child();
    collapser::forget_in_child();
    if state < WITHIN {
        locked_is_over();
    }
}

type RealFork = extern "C" fn() -> c_int;
type Daemon = extern "C" fn(c_int, c_int) -> c_int;
type Forkpty = unsafe extern "C" fn(*mut c_int, *mut c_char, *const c_void, *const c_void) -> c_int;

// The C library's functions, looked up before any thread exists.
static NEXT_FORK: Next<RealFork> = Next::new(c"fork");
static NEXT_DAEMON: Next<Daemon> = Next::new(c"daemon");
static NEXT_FORKPTY: Next<Forkpty> = Next::new(c"forkpty");

/// Runs a function that forks. Refuses with ENOMEM if a huge page written after the fork could not
/// be copied and the child would be killed (see [`megapage_memory::HugeHeap::before_fork`]).
fn checked(forks: Option<impl FnOnce() -> c_int>) -> c_int {
    let Some(forks) = forks else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // daemon(3) and forkpty(3) have cancellation points: a thread cancelled there would never
    // release a lock.
    let _no_cancel = NoCancel::begin();
    let is_first = fork_state() == 0 && !holds_locks();
    let answer = if is_first { forks_checked(forks) } else { forks_within(forks) };
    answer.unwrap_or_else(|errno| {
        set_errno(errno.0);
        -1
    })
}

fn forks_checked(forks: impl FnOnce() -> c_int) -> Result<c_int, Errno> {
    let safe = HEAP.before_fork(returner::lock_for_fork());
    let answer = safe.map(|()| {
        set_fork_state(CHECKED);
        let answer = forks();
        set_fork_state(0);
        if answer == -1 {
            // It may have failed before it forked, and so before the handlers ran.
            HEAP.fork_failed();
        }
        answer
    });
    returner::unlock_after_fork();
    answer
}

/// Runs the fork of a signal handler that has interrupted code which holds locks: it waits for no
/// lock.
fn forks_within(forks: impl FnOnce() -> c_int) -> Result<c_int, Errno> {
    HEAP.before_fork_within()?;
    let paused = fork_state() == 0 && threads::pause_briefly();
    let answer = forks();
    if paused {
        returner::unlock_after_fork();
    }
    Ok(answer)
}

/// Stands in for fork(2).
#[unsafe(no_mangle)]
extern "C" fn fork() -> c_int {
    checked(NEXT_FORK.find().map(|real| move || real()))
}

/// Stands in for fork(2) by the C library's other name for it.
#[unsafe(no_mangle)]
extern "C" fn __fork() -> c_int {
    fork()
}

/// Stands in for daemon(3), whose fork could not be refused from within.
#[unsafe(no_mangle)]
extern "C" fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
    checked(NEXT_DAEMON.find().map(|real| move || real(no_chdir, no_close)))
}

/// Stands in for forkpty(3), whose fork could not be refused from within.
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
    // SAFETY: the C library's own function; the caller's promise.
    checked(NEXT_FORKPTY.find().map(|real| move || unsafe { real(master, name, terminal, window) }))
}
