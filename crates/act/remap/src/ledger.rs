//! Record of the moves of a program's own segments, in pages of words that the launcher shares with
//! the program.
//!
//! The ledger holds the steps, and the kernel's answers. The launcher reads from the kernel what is
//! mapped in the end.

use megapage_kernel::{Errno, ExitHandshake, SHARED_WORDS, SharedWords};
use megapage_units::Bytes;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Environment variable: the pages that are asked for, `thp`, `2m` or `1g`.
pub const PAGES_VARIABLE: &str = "MEGAPAGE_TEXT";
/// Environment variable: the objects whose segments are moved, separated by colons. `.` is the
/// program; all others are names of libraries.
pub const OBJECTS_VARIABLE: &str = "MEGAPAGE_TEXT_OBJECTS";
/// Environment variable: a path that opens the ledger's memory file, such as `/proc/PID/fd/N` of
/// the launcher.
pub const LEDGER_VARIABLE: &str = "MEGAPAGE_TEXT_LEDGER";
/// Environment variable: `1` ends the program with status 125 before its `main` if anything is not
/// obtained.
pub const REQUIRE_VARIABLE: &str = "MEGAPAGE_TEXT_REQUIRE";

/// Version of the word layout below; the two sides must agree.
const FORMAT: u64 = 5;

/// Words of a ledger with room for more parts than the kernel starts a program with: 1,170 program
/// headers.
pub const LEDGER_WORDS: usize = 64 * SHARED_WORDS;

mod word {
    pub const FORMAT: usize = 0;
    pub const PID: usize = 1;
    pub const DONE: usize = 2;
    pub const NS: usize = 3;
    pub const THREADS: usize = 4;
    pub const TOO_MANY: usize = 6;
    /// Part of the time that was spent on getting the pages.
    pub const PAGES_NS: usize = 7;
    /// See [`megapage_kernel::ExitHandshake`].
    pub const EXITING: usize = 8;
    pub const EXIT_ANSWER: usize = 9;
    pub const EXIT_PATIENCE: usize = 11;
    pub const COUNT: usize = 15;
    /// One bit for each object of the list that was found.
    pub const FOUND: usize = 16;
    pub const ENTRIES: usize = 80;
}

/// Most objects that a list may hold: more than an environment variable has room for.
pub const MOST_OBJECTS: usize = 64 * (word::ENTRIES - word::FOUND);

/// Words of one entry.
const ENTRY: usize = 8;
/// Most mappings that a segment may lie in: the part made read-only after relocation, the
/// remainder, and .bss; one is spare.
const PARTS_OF_SEGMENT: usize = 4;

/// Returns the base pages of a ledger for objects of this many segments.
pub fn pages_for(segments: usize) -> usize {
    (word::ENTRIES + ENTRY * PARTS_OF_SEGMENT * segments).div_ceil(SHARED_WORDS)
}

// The order is that of the numbers in the ledger.
megapage_units::named! {
    /// Last step that was tried on a part; on a failure, the step that failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Step {
        /// It holds no whole block of 2 MiB.
        TooSmall = "too-small",
        /// It was moved, or advised.
        Done = "done",
        /// It can be written, and other threads run already.
        Threads = "threads",
        /// Taking huge pages for the copy.
        Pages = "pages",
        /// Reading the part from its file.
        Read = "read",
        /// Copying, protecting, and putting the copy in its place.
        Replace = "replace",
        /// Some of its pages are not the file's: a uprobe, a breakpoint, or a relocation has
        /// changed them.
        Changed = "changed",
        /// All was done, but the kernel shows less on huge pages (smaps).
        Unconfirmed = "unconfirmed",
        /// The advice was taken, but transparent huge pages are off.
        Off = "off",
        /// It can be written and executed at once: code that changes itself.
        Open = "open",
        /// All was done, but there were too few pages of 1 GiB: whole GiB lie on smaller huge
        /// pages.
        Smaller = "smaller",
    }
}

/// Result of one part of a segment: all of the segment that one mapping held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The object: its place in the list, from 0.
    pub object: usize,
    /// The first address.
    pub start: u64,
    /// The first address after it, the block added behind it included.
    pub end: u64,
    /// Bytes that lie in whole blocks of 2 MiB.
    pub possible: u64,
    /// Bytes that were moved, and that the kernel shows on huge pages.
    pub moved: u64,
    /// Bytes of .bss that the kernel was asked to map by huge pages when they are touched.
    pub advised: u64,
    /// The last step.
    pub step: Step,
    /// The kernel's error at that step; 0 if it succeeded.
    pub errno: i32,
}

impl Entry {
    /// Returns the missing amount and the reason; `None` if all whole blocks were moved or advised,
    /// onto pages of the size that was asked for.
    pub fn short(&self) -> Option<String> {
        let missing = self.possible.saturating_sub(self.moved.saturating_add(self.advised));
        if missing == 0 && self.step == Step::Smaller {
            let error = std::io::Error::from_raw_os_error(self.errno);
            return Some(format!("whole GiB lie on pages of 2 MiB: the kernel gave none of 1 GiB ({error})"));
        }
        if missing == 0 {
            return None;
        }
        let error = std::io::Error::from_raw_os_error(self.errno);
        let why = match self.step {
            Step::Threads => "the program had other threads already when it could have been moved".into(),
            Step::Pages => format!("the kernel gave no huge pages for it ({error})"),
            Step::Read => format!("it could not be read from its file ({error})"),
            Step::Changed if self.errno == Errno::EBUSY.0 => {
                "pages of it are not the file's: a probe, a breakpoint or a relocation has changed them"
                    .into()
            }
            Step::Changed => format!("whether its pages are the file's could not be read ({error})"),
            Step::Unconfirmed => "the kernel gave no huge pages for it, by its values (smaps)".into(),
            Step::Off => "the kernel gave no huge pages for it: transparent huge pages are off".into(),
            Step::Open => "it can be written and executed at once: code that changes itself".into(),
            Step::Replace | Step::TooSmall | Step::Done | Step::Smaller => {
                format!("it could not be put in place ({error})")
            }
        };
        Some(format!("{} of {}: {why}", Bytes(missing), Bytes(self.possible)))
    }
}

/// Largest address of a program, and so the largest length of a segment. Four levels of page tables
/// reach it; files are mapped into the lower half.
const MOST_BYTES: u64 = 1 << 47;

/// View of the shared words.
#[derive(Debug)]
pub struct TextLedger {
    words: SharedWords,
}

impl TextLedger {
    /// Returns the launcher's side of fresh pages.
    pub fn launcher(words: SharedWords) -> TextLedger {
        words[word::FORMAT].store(FORMAT, Relaxed);
        TextLedger { words }
    }

    /// Returns the program's side, which claims the pages for process `pid`. Returns `None` if the
    /// layout is another version's, or it was claimed before.
    pub fn claim(words: SharedWords, pid: u32) -> Option<TextLedger> {
        let fits = words[word::FORMAT].load(Relaxed) == FORMAT;
        let claimed = fits && words[word::PID].compare_exchange(0, u64::from(pid), Relaxed, Relaxed).is_ok();
        claimed.then_some(TextLedger { words })
    }

    /// Returns a ledger of this process's own: for a program that moves its own segments.
    pub fn own(words: &'static [AtomicU64; LEDGER_WORDS]) -> TextLedger {
        TextLedger::launcher(SharedWords::own(words))
    }

    /// Forgets everything that was noted.
    pub fn clear(&self) {
        let used = word::ENTRIES + ENTRY * self.count();
        self.words[word::PID..used].iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Returns the number of entries so far.
    fn count(&self) -> usize {
        (self.words[word::COUNT].load(Relaxed) as usize).min(self.room())
    }

    /// Returns the number of entries that there is room for.
    pub fn room(&self) -> usize {
        (self.words.len() - word::ENTRIES) / ENTRY
    }

    /// Returns the process that claimed the ledger; 0 if none has yet.
    pub fn pid(&self) -> u32 {
        self.words[word::PID].load(Relaxed) as u32
    }

    /// Notes that an object was found. Ignores an object beyond those that there is room for.
    pub fn found(&self, object: usize) {
        if object < MOST_OBJECTS {
            self.words[word::FOUND + object / 64].fetch_or(1 << (object % 64), Relaxed);
        }
    }

    /// Returns true if an object was found.
    pub fn is_found(&self, object: usize) -> bool {
        let bits = |word: usize| self.words[word].load(Relaxed);
        object < MOST_OBJECTS && bits(word::FOUND + object / 64) & (1 << (object % 64)) != 0
    }

    /// Notes that there were more parts than there is room for.
    pub fn too_many(&self) {
        self.words[word::TOO_MANY].store(1, Relaxed);
    }

    /// Returns true if there were more parts than there is room for; those were not moved.
    pub fn were_too_many(&self) -> bool {
        self.words[word::TOO_MANY].load(Relaxed) != 0
    }

    /// Adds an entry. If there is no room, drops it and notes that.
    pub fn add(&self, entry: Entry) {
        let number = self.count();
        if number >= self.room() {
            return self.too_many();
        }
        let values = [
            entry.object as u64,
            entry.start,
            entry.end,
            entry.possible,
            entry.moved,
            entry.advised,
            entry.step as u64,
            entry.errno as u64,
        ];
        for (offset, value) in values.into_iter().enumerate() {
            self.words[word::ENTRIES + number * ENTRY + offset].store(value, Relaxed);
        }
        self.words[word::COUNT].store(number as u64 + 1, Relaxed);
    }

    /// Returns the entries so far.
    pub fn entries(&self) -> Vec<Entry> {
        (0..self.count())
            .map(|number| {
                let word = |offset: usize| self.words[word::ENTRIES + number * ENTRY + offset].load(Relaxed);
                // The program may write anything here: values are cut so that they can be added up.
                let address = |offset: usize| word(offset).min(MOST_BYTES);
                let (start, possible) = (address(1), address(3));
                let moved = address(4).min(possible);
                Entry {
                    object: word(0) as usize,
                    start,
                    end: address(2).max(start),
                    possible,
                    moved,
                    advised: address(5).min(possible - moved),
                    step: *Step::ALL.get(word(6) as usize).unwrap_or(&Step::TooSmall),
                    errno: word(7) as i32,
                }
            })
            .collect()
    }

    /// Notes that getting pages, and so zeroing them, took `ns` nanoseconds more.
    pub fn got_pages(&self, ns: u64) {
        self.words[word::PAGES_NS].fetch_add(ns, Relaxed);
    }

    /// Returns the nanoseconds that it took to get pages.
    pub fn pages_ns(&self) -> u64 {
        self.words[word::PAGES_NS].load(Relaxed)
    }

    /// Notes that all is done, after `ns` nanoseconds, in a process of `threads` threads.
    pub fn done(&self, ns: u64, threads: u64) {
        self.words[word::NS].store(ns, Relaxed);
        self.words[word::THREADS].store(threads, Relaxed);
        self.words[word::DONE].store(1, Relaxed);
    }

    /// Returns the nanoseconds that it took, and the threads that the process had by then; `None`
    /// until it is done.
    pub fn took(&self) -> Option<(u64, u64)> {
        let is_done = self.words[word::DONE].load(Relaxed) != 0;
        is_done.then(|| (self.words[word::NS].load(Relaxed), self.words[word::THREADS].load(Relaxed)))
    }

    /// Returns true if the list has objects, and each was found with at least one whole block. All
    /// whole blocks must have been moved or advised, onto pages of the size that was asked for.
    pub fn is_complete(&self, objects: usize) -> bool {
        let count = self.count();
        let word =
            |number: usize, offset: usize| self.words[word::ENTRIES + number * ENTRY + offset].load(Relaxed);
        let possible =
            |object: usize| (0..count).any(|number| word(number, 0) == object as u64 && word(number, 3) > 0);
        objects > 0
            && (0..objects).all(|object| self.is_found(object) && possible(object))
            && !self.were_too_many()
            && (0..count).all(|number| Some(word(number, 3)) == word(number, 4).checked_add(word(number, 5)))
            && (0..count).all(|number| word(number, 6) != Step::Smaller as u64)
    }

    /// Returns the handshake at exit.
    pub fn exit_handshake(&self) -> ExitHandshake<'_> {
        ExitHandshake {
            exiting: &self.words[word::EXITING],
            answer: &self.words[word::EXIT_ANSWER],
            patience: &self.words[word::EXIT_PATIENCE],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same() {
        let (file, words) = SharedWords::create(c"text", 2).unwrap();
        let launcher = TextLedger::launcher(words);
        let program = TextLedger::claim(SharedWords::map(&file).unwrap(), 7).unwrap();
        assert!(TextLedger::claim(SharedWords::map(&file).unwrap(), 7).is_none(), "once only");
        assert_eq!(launcher.pid(), 7);
        assert!(!launcher.is_complete(1), "nothing is found");
        program.found(0);
        let entry = Entry {
            object: 0,
            start: 0x1000,
            end: 0x60_0000,
            possible: 4 << 20,
            moved: 4 << 20,
            advised: 0,
            step: Step::Done,
            errno: 0,
        };
        assert!(!launcher.is_complete(1), "of nothing, all is moved: that is not what was asked for");
        program.add(Entry { possible: 0, moved: 0, step: Step::TooSmall, ..entry });
        assert!(!launcher.is_complete(1), "found, and no whole block in it");
        program.add(entry);
        assert!(!launcher.is_complete(0), "a list that could not be read");
        assert!(launcher.is_complete(1) && !launcher.is_complete(2));
        assert_eq!(entry.short(), None);
        // A program may write anything there.
        let absurd = Entry { moved: u64::MAX, advised: entry.possible + 1, ..entry };
        assert_eq!(absurd.short(), None);
        let smaller = Entry { step: Step::Smaller, errno: Errno::ENOMEM.0, ..entry };
        assert!(smaller.short().unwrap().starts_with("whole GiB lie on pages of 2 MiB"));
        let refused = Entry { moved: 2 << 20, step: Step::Replace, errno: -13, ..entry };
        program.add(refused);
        assert!(!launcher.is_complete(1));
        assert_eq!(launcher.entries()[1..], [entry, refused]);
        assert_eq!(launcher.took(), None);
        program.done(5, 1);
        assert_eq!(launcher.took(), Some((5, 1)));
        for object in [63, 64, MOST_OBJECTS - 1] {
            assert!(!launcher.is_found(object));
            program.found(object);
            assert!(launcher.is_found(object) && !launcher.is_found(object - 2));
        }
        let room = launcher.room();
        assert_eq!(room, (2 * SHARED_WORDS - 80) / 8);
        for _ in 0..room {
            program.add(entry);
        }
        assert_eq!(launcher.entries().len(), room);
        // Few programs take more than one page.
        assert_eq!((pages_for(5), pages_for(13), pages_for(14)), (1, 1, 2));
        assert!(launcher.were_too_many());
        program.clear();
        assert!(!launcher.were_too_many() && launcher.entries().is_empty());
        assert!(launcher.took().is_none() && !launcher.is_found(0) && !launcher.is_found(64));
        program.found(0);
        program.add(entry);
        assert!(launcher.is_complete(1));
        program.add(smaller);
        assert!(!launcher.is_complete(1), "pages of 1 GiB were asked for");
    }

    #[test]
    fn whatever_a_program_writes_can_be_added_up() {
        let (file, words) = SharedWords::create(c"text", 2).unwrap();
        let launcher = TextLedger::launcher(words);
        let hostile = SharedWords::map(&file).unwrap();
        for fill in [u64::MAX, 1 << 63, u64::MAX / 2, (1 << 47) + 1] {
            hostile.iter().for_each(|word| word.store(fill, Relaxed));
            let entries = launcher.entries();
            assert_eq!(entries.len(), launcher.room());
            let sum = |value: fn(&Entry) -> u64| -> u64 { entries.iter().map(value).sum() };
            assert!(sum(|it| it.moved) + sum(|it| it.advised) <= sum(|it| it.possible));
            for entry in &entries {
                assert!(entry.start <= entry.end && entry.end <= MOST_BYTES);
                let _ = entry.short();
            }
            let _ = (launcher.is_complete(3), launcher.took(), launcher.pid(), launcher.pages_ns());
        }
    }

    #[test]
    fn pages_of_another_layout_are_refused() {
        let (file, _) = SharedWords::create(c"text", 1).unwrap();
        assert!(TextLedger::claim(SharedWords::map(&file).unwrap(), 7).is_none());
    }
}
