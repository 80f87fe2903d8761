//! From the program's start to its end: the constructor, fork, and the handshake at exit.
//!
//! File-level obligation: what is registered with the loader or the C library is a function of this library,
//! which is never unloaded, and has the signature that the registration wants.

#![allow(unsafe_code)]

use crate::{HEAP, interpose, returner};
use megapage_kernel::{
    MAX_VALUE, SharedWords, environment_is_ready, environment_list_item, environment_variable,
    remove_environment_variable, remove_from_environment_list, set_errno,
};
use megapage_memory::{
    CHILDREN_VARIABLE, Config, HEAP_VARIABLE, Heap, LEDGER_VARIABLE, POPULATE_VARIABLE,
    RETURN_AFTER_VARIABLE, SHORT_BELOW_VARIABLE,
};
use std::os::raw::{c_int, c_long, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Where ld.so(8) finds the library.
const PRELOAD: &str = "LD_PRELOAD";
/// The file name under which the library finds itself in LD_PRELOAD.
const LIBRARY: &[u8] = b"libmegapage.so";
/// How often and how many times the exit handler looks for the launcher's answer: at most 100 ms.
const EXIT_POLL: Duration = Duration::from_millis(1);
const EXIT_POLLS: usize = 100;
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
        if let Some(bytes) = environment_variable(SHORT_BELOW_VARIABLE, &mut buffer).and_then(figure) {
            config.short_below = bytes;
        }
        if let Some(value) = environment_variable(RETURN_AFTER_VARIABLE, &mut buffer) {
            return_after = match figure(value) {
                Some(milliseconds) => c_long::try_from(milliseconds).unwrap_or(c_long::MAX),
                None if value == c"never" => -1,
                None => RETURN_AFTER_MS,
            };
        }
    }
    HEAP.configure(config);
    returner::configure(u64::try_from(return_after).ok());
    // SAFETY: any figure is allowed.
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

fn figure(value: &std::ffi::CStr) -> Option<u64> {
    value.to_str().ok()?.parse().ok()
}

/// Before the program's own constructors and `main`, with one thread.
extern "C" fn start() {
    configure();
    interpose::find_real();
    real_fork();
    let mut buffer = [0; MAX_VALUE];
    if let Some(path) = environment_variable(LEDGER_VARIABLE, &mut buffer)
        && let Ok(words) = SharedWords::open(path)
    {
        HEAP.attach_ledger(words, std::process::id());
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

/// At exit(3), after the program's own handlers: lets the launcher read the kernel's last figures.
extern "C" fn end() {
    let ledger = HEAP.ledger();
    if ledger.pid() != std::process::id() {
        return;
    }
    ledger.announce_exit();
    for _ in 0..EXIT_POLLS {
        if ledger.is_exit_acknowledged() {
            return;
        }
        std::thread::sleep(EXIT_POLL);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// The thread that is inside [`fork`], which has made the fork safe; 0 for none. The C library's own forks
/// (daemon(3), forkpty(3)) go without it.
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
    HEAP.lock_for_fork();
}

unsafe extern "C" fn fork_parent() {
    HEAP.unlock_after_fork(false);
    // SAFETY: taken by `fork_prepare`.
    unsafe { megapage_unlock_after_fork() };
    if !is_checked() {
        returner::unlock_after_fork();
    }
}

unsafe extern "C" fn fork_child() {
    HEAP.unlock_after_fork(true);
    // SAFETY: taken by `fork_prepare` in the parent, by the thread that this one is a copy of.
    unsafe { megapage_unlock_after_fork() };
    returner::forget_in_child();
    if !is_checked() {
        returner::unlock_after_fork();
    }
}

type Fork = unsafe extern "C" fn() -> c_int;

/// The C library's fork(2), looked up once, before any thread exists.
fn real_fork() -> Option<Fork> {
    static REAL: OnceLock<Option<Fork>> = OnceLock::new();
    *REAL.get_or_init(|| {
        // SAFETY: the name is a C string.
        let symbol: *mut c_void = unsafe { libc::dlsym(libc::RTLD_NEXT, c"fork".as_ptr()) };
        // SAFETY: the C library's `fork` has this type; a null pointer is `None`.
        unsafe { std::mem::transmute::<*mut c_void, Option<Fork>>(symbol) }
    })
}

/// fork(2), refused with ENOMEM where a huge page written after it could not be copied and the child would
/// be killed (see [`megapage_memory::HugeHeap::before_fork`]).
#[unsafe(no_mangle)]
extern "C" fn fork() -> c_int {
    let Some(real) = real_fork() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    let safe = HEAP.before_fork(returner::lock_for_fork());
    let pid = safe.map(|()| {
        CHECKED.store(this_thread(), Relaxed);
        // SAFETY: the C library's own function, called as the program would have.
        let pid = unsafe { real() };
        CHECKED.store(0, Relaxed);
        pid
    });
    returner::unlock_after_fork();
    pid.unwrap_or_else(|errno| {
        set_errno(errno.0);
        -1
    })
}
