//! Moves the caller's own segments onto huge pages.

use crate::failure::{Failure, errno};
use crate::types::{
    MEGAPAGE_REMAP_1G, MEGAPAGE_REMAP_2M, MEGAPAGE_REMAP_REQUIRE, MEGAPAGE_REMAP_THP, megapage_remapped,
};
use megapage_kernel::KernelRoot;
use megapage_kernel::cgroup::Cgroups;
use megapage_kernel::own_segments::{Refused, own_sanitizer, try_replacing};
use megapage_remap::ledger::{Entry, LEDGER_WORDS, Step, TextLedger};
use megapage_remap::own::{PROGRAM, Pages, copied_bytes, first_absent, huge_bytes, move_segments};
use megapage_units::Bytes;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Words of the process's only ledger. A forked child has its own copy.
static WORDS: [AtomicU64; LEDGER_WORDS] = [const { AtomicU64::new(0) }; LEDGER_WORDS];
/// The process in which a thread is moving segments; 0: none. No lock of the C library or of Rust
/// serves here. A child that is forked meanwhile finds its parent's number, and does not wait for a
/// thread that it does not have.
static MOVING: AtomicU32 = AtomicU32::new(0);

/// The right to move segments, until it is dropped.
struct Turn;

impl Turn {
    fn wait() -> Turn {
        let own = std::process::id();
        loop {
            let now = MOVING.load(Acquire);
            if now != own && MOVING.compare_exchange(now, own, AcqRel, Acquire).is_ok() {
                return Turn;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        MOVING.store(0, Release);
    }
}

/// Result of a call.
pub(crate) struct Done {
    pub remapped: megapage_remapped,
    /// The failure to report if something required is missing.
    pub missing: Option<Failure>,
}

/// Moves the program's segments, and those of `libraries` (names, separated by colons).
pub fn remap_self(pages: u32, libraries: Option<&str>, flags: u32) -> Result<Done, Failure> {
    let pages = match pages {
        MEGAPAGE_REMAP_THP => Pages::Thp,
        MEGAPAGE_REMAP_2M => Pages::Huge2M,
        MEGAPAGE_REMAP_1G => Pages::Huge1G,
        other => return Err(Failure::invalid(format!("{other} is no MEGAPAGE_REMAP_... of pages"))),
    };
    if flags & !MEGAPAGE_REMAP_REQUIRE != 0 {
        return Err(Failure::invalid(format!("{flags:#x} has flags that are unknown")));
    }
    let program = String::from_utf8_lossy(PROGRAM).into_owned();
    let mut list = vec![program.as_str()];
    for name in libraries.into_iter().flat_map(|names| names.split(':')) {
        if name.is_empty() || name == program {
            return Err(Failure::invalid("an item of the libraries is no name"));
        }
        list.push(name);
    }
    let joined = list.join(":").into_bytes();
    if let Some(absent) = first_absent(&joined) {
        return Err(Failure::new(errno::ENOENT, format!("no library '{}' is loaded", list[absent])));
    }
    let list = joined;
    if let Some(sanitizer) = own_sanitizer() {
        let what =
            format!("the program was built with a sanitizer ({sanitizer}), which lays out its memory itself");
        return Err(Failure::new(errno::EOPNOTSUPP, what));
    }
    try_replacing().map_err(|refused| {
        let number = match refused {
            Refused::Execute(_) => errno::EACCES,
            Refused::Move(error) => error.0,
        };
        Failure::new(number, refused.to_string())
    })?;
    let _turn = Turn::wait();
    let ledger = &TextLedger::own(&WORDS);
    ledger.clear();
    has_room(copied_bytes(&list))?;
    move_segments(pages, &list, ledger);
    let entries = ledger.entries();
    let sum = |value: fn(&Entry) -> u64| entries.iter().map(value).sum::<u64>();
    let (nanoseconds, threads) = ledger.took().unwrap_or_default();
    let remapped = megapage_remapped {
        possible: sum(|entry| entry.possible),
        huge: huge_bytes(&entries)
            .map_err(|errno| Failure::system("the list of own mappings", &errno.into()))?,
        advised: sum(|entry| entry.advised),
        nanoseconds,
        pages_nanoseconds: ledger.pages_ns(),
        threads: u32::try_from(threads).unwrap_or(u32::MAX),
        reserved: 0,
    };
    let missing = (flags & MEGAPAGE_REMAP_REQUIRE != 0).then(|| missing(ledger, &entries)).flatten();
    Ok(Done { remapped, missing })
}

/// Fails if control groups leave less room than `copied` bytes and a quarter of them more.
fn has_room(copied: u64) -> Result<(), Failure> {
    let room = Cgroups::read(&KernelRoot::live(), None)
        .map_err(|error| Failure::new(errno::EIO, error.to_string()))?
        .memory_room();
    match room {
        Some(room) if room.0 < copied + copied / 4 => {
            let copied = Bytes(copied);
            let what =
                format!("the memory limit of a control group leaves {room}, and the copy takes {copied}");
            Err(Failure::new(errno::ENOMEM, what))
        }
        _ => Ok(()),
    }
}

/// Returns the failure to report if not everything was moved.
fn missing(ledger: &TextLedger, entries: &[Entry]) -> Option<Failure> {
    if let Some((entry, why)) = entries.iter().find_map(|entry| Some((entry, entry.short()?))) {
        let pages = matches!(entry.step, Step::Pages | Step::Unconfirmed | Step::Off | Step::Smaller);
        return Some(Failure::new(if pages { errno::ENOMEM } else { errno::EBUSY }, why));
    }
    let busy = |what: &str| Some(Failure::new(errno::EBUSY, what));
    match (ledger.were_too_many(), entries.iter().any(|entry| entry.possible > 0)) {
        (true, _) => busy("the program has more parts of segments than are looked at"),
        (_, false) => busy("no segment holds a whole block of 2 MiB"),
        _ => None,
    }
}
