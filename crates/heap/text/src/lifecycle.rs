//! The constructor, and the handshake at exit.
//!
//! File-level obligation: each function that is registered with the loader is a function of this
//! library, which is never unloaded, and takes and answers nothing.

#![allow(unsafe_code)]

use megapage_kernel::off::is_off;
use megapage_kernel::own_segments::exit_at_once;
use megapage_kernel::{
    ErrnoGuard, MAX_VALUE, SharedWords, environment_is_ready, environment_variable, find_clock,
    has_supported_base_pages, remove_environment_variable, remove_from_environment_list,
};
use megapage_remap::ledger::{
    LEDGER_VARIABLE, OBJECTS_VARIABLE, PAGES_VARIABLE, REQUIRE_VARIABLE, TextLedger,
};
use megapage_remap::own::{Pages, move_segments, objects};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Variable in which ld.so(8) finds the library.
const PRELOAD: &str = "LD_PRELOAD";
/// File name under which the library finds itself in LD_PRELOAD.
const LIBRARY: &[u8] = b"libmegapage_text.so";
/// Exit status if a required mapping cannot be obtained; the launcher says why.
const NOT_OBTAINED: i32 = 125;

static LEDGER: OnceLock<TextLedger> = OnceLock::new();
/// True if this process is a child of the one that the library was loaded into.
static FORKED: AtomicBool = AtomicBool::new(false);

// Calls that the standard library and this one make by the C library's names go to the kernel
// directly.
megapage_kernel::usual_own_names! {}
megapage_kernel::own_names! {
    _exit => _exit, mmap => mmap, mmap64 => mmap, mprotect => mprotect, mremap => mremap, munmap => munmap,
    prctl => prctl,
}

unsafe extern "C" fn in_child() {
    FORKED.store(true, Relaxed);
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> i32;
}

/// Runs before the program's own constructors and `main`. Moves nothing without a launcher's
/// ledger.
extern "C" fn start() {
    if !environment_is_ready() {
        return;
    }
    let _errno = ErrnoGuard::save();
    find_clock();
    // SAFETY: the handler is a function of this library, which is never unloaded.
    unsafe { pthread_atfork(None, None, Some(in_child)) };
    let mut buffer = [0; MAX_VALUE];
    // On other base pages than 4 KiB every segment stays in its place.
    let pages = environment_variable(PAGES_VARIABLE, &mut buffer)
        .and_then(|it| Pages::parse(it.to_bytes()))
        .filter(|_| has_supported_base_pages() && !is_off());
    let required = environment_variable(REQUIRE_VARIABLE, &mut buffer) == Some(c"1");
    let ledger = environment_variable(LEDGER_VARIABLE, &mut buffer)
        .and_then(|path| SharedWords::open(path).ok())
        .and_then(|words| TextLedger::claim(words, std::process::id()));
    let list = environment_variable(OBJECTS_VARIABLE, &mut buffer).unwrap_or(c"").to_bytes();
    match (pages, ledger) {
        (Some(pages), Some(ledger)) => {
            move_segments(pages, list, &ledger);
            if required && !ledger.is_complete(objects(list)) {
                exit_at_once(NOT_OBTAINED);
            }
            let _ = LEDGER.set(ledger);
        }
        // Nothing was moved, and no caller could be notified.
        _ if required => exit_at_once(NOT_OBTAINED),
        // Nothing is to be moved: the launcher wants to see the program's end.
        (None, Some(ledger)) => {
            let _ = LEDGER.set(ledger);
        }
        _ => {}
    }
    for name in [PAGES_VARIABLE, OBJECTS_VARIABLE, LEDGER_VARIABLE, REQUIRE_VARIABLE] {
        remove_environment_variable(name);
    }
    let is_library = |item: &[u8]| item.rsplit(|&byte| byte == b'/').next() == Some(LIBRARY);
    remove_from_environment_list(PRELOAD, is_library);
}

/// Runs at exit(3), after the program's own handlers: lets the launcher read the kernel's last
/// values. Makes no call but futex(2): the program may have forbidden itself all others.
extern "C" fn end() {
    let Some(ledger) = LEDGER.get().filter(|_| !FORKED.load(Relaxed)) else { return };
    ledger.exit_handshake().announce_and_wait();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
