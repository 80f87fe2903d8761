//! The ledger: the heap's requests to the kernel, the answers and the reasons of fall-backs. It is
//! a page of words that the launcher shares with the program.
//!
//! The ledger says what was *asked* and *answered*. The launcher reads from the kernel what is
//! mapped in the end. It shows the two side by side, and believes the kernel.

use crate::sync::{AtomicU64, SharedWords};
use std::sync::atomic::Ordering::Relaxed;

/// Environment variable: the requested backing, as `megapage run --heap` spells it.
pub const HEAP_VARIABLE: &str = "MEGAPAGE_HEAP";
/// Environment variable: milliseconds after which freed memory goes back to the kernel; `never`
/// keeps it.
pub const RETURN_AFTER_VARIABLE: &str = "MEGAPAGE_RETURN_AFTER_MS";
/// Environment variable: a path that opens the ledger's memory file, such as `/proc/PID/fd/N` of
/// the launcher.
pub const LEDGER_VARIABLE: &str = "MEGAPAGE_LEDGER";
/// Environment variable: `1` populates large hugetlb mappings at once and not at first touch. The
/// launcher sets it wherever a fault might hit a hugetlb cgroup limit.
pub const POPULATE_VARIABLE: &str = "MEGAPAGE_POPULATE";

/// Environment variable: bytes of available memory below which memory counts as short.
pub const SHORT_BELOW_VARIABLE: &str = "MEGAPAGE_SHORT_BELOW";
/// Environment variable: `1` says that the launcher has chosen the backing, and not its user. See
/// [`crate::Config::spares`].
pub const SPARES_VARIABLE: &str = "MEGAPAGE_SPARES";
/// Environment variable: `1` leaves the library in the environment of the program's children.
pub const CHILDREN_VARIABLE: &str = "MEGAPAGE_CHILDREN";

/// Environment variable: the purpose of the program's forks (`cheap`, `snapshot`), as
/// `megapage run --fork` spells it.
pub const FORK_VARIABLE: &str = "MEGAPAGE_FORK";

/// Version of the word layout below, stored with the ledger; the two sides must agree.
pub const FORMAT: u64 = 7;

/// Ranges of addresses that are listed one by one. The allocator's arenas double in size every
/// eight, so that few heaps have more.
pub const MOST_RANGES: usize = 24;
/// Reasons for which each table has room.
const MOST_REASONS: usize = 20;
/// Most bytes that a process can hold: an address space of five levels of page tables, half of
/// which is the kernel's.
const MOST_BYTES: u64 = 1 << 56;
/// Unit in which the heap holds memory, in bytes.
const CHUNK: u64 = 2 << 20;
/// MAX_ERRNO of the kernel.
const MOST_ERRNO: u64 = 4095;

megapage_units::named! {
    /// Mapping of a 2 MiB chunk of the heap. First the requests to the kernel, from the most
    /// expensive to the plainest, then a broker's pages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Backing {
        /// Part of a 1 GiB hugetlb page.
        Hugetlb1G = "hugetlb-1g",
        /// A 2 MiB hugetlb page.
        Hugetlb2M = "hugetlb-2m",
        /// Advised to be a 2 MiB transparent huge page.
        Thp = "thp",
        /// Base pages.
        Base = "base",
        /// A 2 MiB hugetlb page of a file that is mapped shared; a broker had cleared it before.
        Broker = "broker-2m",
    }
}

megapage_units::named! {
    /// Mapping of the program's shared memory (`megapage run --shm`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum SharedBacking {
        /// 2 MiB hugetlb pages.
        Hugetlb2M = "hugetlb-2m",
        /// At addresses where transparent huge pages can map it, and advised.
        Aligned = "thp",
    }
}

megapage_units::named! {
    /// Reason why a request was served by a plainer backing than the requested one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FallBack {
        /// mmap found too few unreserved 1 GiB pages in the pool (ENOMEM).
        PoolShort1G = "pool-short-1g",
        /// mmap found too few unreserved 2 MiB pages in the pool (ENOMEM).
        PoolShort2M = "pool-short-2m",
        /// A control group's limit on hugetlb pages was reached while they were mapped or
        /// populated.
        CgroupLimit = "cgroup-limit",
        /// Transparent huge pages are off, for the system or for this process.
        ThpOff = "thp-off",
        /// The heap was moved from hugetlb pages to private memory because the program forked.
        Fork = "fork",
        /// The request is smaller than a huge page, or the heap is still too small to be worth one.
        TooSmall = "too-small",
        /// mmap answered something else; the last errno is in the ledger.
        Other = "other",
        /// The broker had no page ready.
        BrokerEmpty = "broker-empty",
        /// The user has as much of the broker as one user may have, or the broker looks after as
        /// much as it can.
        BrokerQuota = "broker-quota",
        /// The broker does not serve this process, or has pages of another size.
        BrokerRefused = "broker-refused",
        /// No broker answers in time, or only one that is not to be trusted.
        BrokerGone = "broker-gone",
        /// The kernel cannot move hugetlb pages behind a heap (before Linux 5.16), or cannot
        /// populate them safely (before Linux 5.14).
        KernelTooOld = "kernel-too-old",
        /// The memory policy allows only nodes on which the pool has no free page.
        MemoryPolicy = "memory-policy",
        /// The cpuset allows only nodes on which the pool has no free page.
        Cpuset = "cpuset",
        /// The pool had pages, but the kernel refused them; the last errno is in the ledger.
        Unexplained = "refused-unexplained",
        /// Too little of the heap's transparent huge pages was in use.
        Sparse = "sparse",
        /// The user may not make SysV segments on hugetlb pages.
        ShmNotPermitted = "shm-not-permitted",
        /// A limit on memory was near: the machine's, a control group's or the process's own.
        Room = "no-room",
        /// No huge page was free: the kernel would have had to make room for it while the program
        /// waited.
        Fragmented = "fragmented",
    }
}

/// Indices of the words. The program alone writes each word, except `EXIT_ANSWER` and
/// `EXIT_PATIENCE`.
mod word {
    pub const FORMAT: usize = 0;
    pub const PID: usize = 1;
    /// Lowest and highest address of all ranges that the heap has reserved.
    pub const HEAP_START: usize = 2;
    pub const HEAP_END: usize = 3;
    /// Bytes that the heap holds from the kernel: now per backing (5 words), at the peak of their
    /// sum (5 words), and that peak.
    pub const HELD: usize = 8;
    pub const HELD_AT_PEAK: usize = 16;
    pub const PEAK: usize = 24;
    /// Sum of the held bytes. A separate word: each change then knows the sum that it leads to, and
    /// so the peak.
    pub const TOTAL: usize = 25;
    /// Events and bytes per reason (2 words each).
    pub const FALL_BACK: usize = 32;
    pub const LAST_ERRNO: usize = 72;
    pub const POPULATE_NS: usize = 73;
    pub const POPULATE_BYTES: usize = 74;
    pub const RETURNED_BYTES: usize = 75;
    pub const FORKS: usize = 76;
    pub const FORKS_REFUSED: usize = 77;
    /// Bytes that writes after forks had split, and that are huge again.
    pub const REPAIRED_BYTES: usize = 78;
    /// See [`megapage_inside::ExitHandshake`].
    pub const EXITING: usize = 80;
    pub const EXIT_ANSWER: usize = 81;
    pub const EXIT_PATIENCE: usize = 82;
    /// First address and end of each listed range of the heap (2 words each).
    pub const RANGES: usize = 84;
    /// Ranges that found no place in the list.
    pub const UNLISTED: usize = RANGES + 2 * super::MOST_RANGES;
    /// Bytes of shared memory per mapping (2 words), and bytes that were collapsed since.
    pub const SHARED: usize = UNLISTED + 1;
    pub const SHARED_COLLAPSED: usize = SHARED + 2;
    /// Events and bytes per reason: first those of shared memory that got less than requested, then
    /// those of the program's refused requests for hugetlb pages.
    pub const SHARED_FALL_BACK: usize = SHARED_COLLAPSED + 1;
    pub const OWN_REFUSED: usize = SHARED_FALL_BACK + 2 * super::MOST_REASONS;
    /// End of the words in which a ledger continues another.
    pub const CONTINUED: usize = OWN_REFUSED + 2 * super::MOST_REASONS;
    /// Number of words.
    pub const COUNT: usize = CONTINUED;
}

const _: () = assert!(word::FALL_BACK + 2 * MOST_REASONS <= word::LAST_ERRNO);
const _: () = assert!(FallBack::ALL.len() <= MOST_REASONS);
const _: () = assert!(SharedBacking::ALL.len() == word::SHARED_COLLAPSED - word::SHARED);
const _: () = assert!(word::HELD + Backing::ALL.len() <= word::HELD_AT_PEAK);
const _: () = assert!(word::HELD_AT_PEAK + Backing::ALL.len() <= word::PEAK);

/// View of the shared words, or of private ones if there is no launcher.
#[derive(Debug)]
pub struct Ledger {
    words: Words,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a ledger lives in a static; boxing would allocate")]
enum Words {
    Private([AtomicU64; word::COUNT]),
    Shared(SharedWords),
}

impl Ledger {
    /// Makes a ledger that no other process sees.
    pub const fn private() -> Ledger {
        Ledger { words: Words::Private([const { AtomicU64::new(0) }; word::COUNT]) }
    }

    /// Makes the launcher's side of a fresh page.
    pub fn launcher(words: SharedWords) -> Ledger {
        let ledger = Ledger { words: Words::Shared(words) };
        ledger.word(word::FORMAT).store(FORMAT, Relaxed);
        ledger
    }

    /// Makes the program's side: claims the page for process `pid`. Returns `None` if the layout is
    /// another version's, or if another process has claimed the page (a child that inherited the
    /// variable).
    pub fn claim(words: SharedWords, pid: u32) -> Option<Ledger> {
        let ledger = Ledger { words: Words::Shared(words) };
        if ledger.word(word::FORMAT).load(Relaxed) != FORMAT {
            return None;
        }
        let claimed = ledger.word(word::PID).compare_exchange(0, pid as u64, Relaxed, Relaxed);
        // exec keeps the process: its new program claims the page again.
        let is_ours = claimed.is_ok() || claimed == Err(pid as u64);
        is_ours.then_some(ledger)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        match &self.words {
            Words::Private(words) => &words[index],
            Words::Shared(words) => &words[index],
        }
    }

    /// Returns the process that claimed the ledger; 0 before any has.
    pub fn pid(&self) -> u32 {
        self.word(word::PID).load(Relaxed) as u32
    }

    /// Notes that the heap obtained `bytes` as `backing`.
    pub fn obtained(&self, backing: Backing, bytes: u64) {
        self.word(word::HELD + backing as usize).fetch_add(bytes, Relaxed);
        let held = self.word(word::TOTAL).fetch_add(bytes, Relaxed).wrapping_add(bytes);
        if self.word(word::PEAK).fetch_max(held, Relaxed) < held {
            for b in Backing::ALL {
                self.word(word::HELD_AT_PEAK + b as usize).store(self.held(b), Relaxed);
            }
        }
    }

    /// Notes that `bytes` held as `from` are now held as `to`.
    pub fn converted(&self, from: Backing, to: Backing, bytes: u64) {
        self.word(word::HELD + from as usize).fetch_sub(bytes, Relaxed);
        self.word(word::HELD + to as usize).fetch_add(bytes, Relaxed);
    }

    /// Takes over every value of `other` except its owner and its exit handshake.
    pub fn continue_from(&self, other: &Ledger) {
        for index in (word::HEAP_START..word::EXITING).chain(word::RANGES..word::CONTINUED) {
            self.word(index).store(other.word(index).load(Relaxed), Relaxed);
        }
    }

    /// Notes that the heap gave `bytes` of `backing` back to the kernel.
    pub fn returned(&self, backing: Backing, bytes: u64) {
        self.word(word::HELD + backing as usize).fetch_sub(bytes, Relaxed);
        self.word(word::TOTAL).fetch_sub(bytes, Relaxed);
        self.word(word::RETURNED_BYTES).fetch_add(bytes, Relaxed);
    }

    /// Notes that `bytes` came from a plainer backing than the requested one, and the errno (0 if
    /// there was none).
    pub fn fell_back(&self, reason: FallBack, bytes: u64, errno: i32) {
        self.note_fall_back(word::FALL_BACK, reason, bytes, errno);
    }

    /// Notes that `bytes` of the program's shared memory were mapped as `backing`.
    pub fn shared_obtained(&self, backing: SharedBacking, bytes: u64) {
        self.word(word::SHARED + backing as usize).fetch_add(bytes, Relaxed);
    }

    /// Notes that `bytes` of the program's shared memory were collapsed.
    pub fn shared_collapsed(&self, bytes: u64) {
        self.word(word::SHARED_COLLAPSED).fetch_add(bytes, Relaxed);
    }

    /// Notes that `bytes` of the program's shared memory were refused the pages that were asked
    /// for.
    pub fn shared_fell_back(&self, reason: FallBack, bytes: u64, errno: i32) {
        self.note_fall_back(word::SHARED_FALL_BACK, reason, bytes, errno);
    }

    fn note_fall_back(&self, first: usize, reason: FallBack, bytes: u64, errno: i32) {
        self.count(first, reason, bytes);
        if errno != 0 {
            self.word(word::LAST_ERRNO).store(errno as u64, Relaxed);
        }
    }

    /// Notes that the program's own request for `bytes` of hugetlb pages was refused.
    pub fn own_request_refused(&self, reason: FallBack, bytes: u64) {
        self.count(word::OWN_REFUSED, reason, bytes);
    }

    fn count(&self, first: usize, reason: FallBack, bytes: u64) {
        self.word(first + 2 * reason as usize).fetch_add(1, Relaxed);
        self.word(first + 2 * reason as usize + 1).fetch_add(bytes, Relaxed);
    }

    fn counted(&self, first: usize, reason: FallBack) -> (u64, u64) {
        let first = first + 2 * reason as usize;
        (self.word(first).load(Relaxed), self.word(first + 1).load(Relaxed))
    }

    /// Returns the bytes of the program's shared memory that were mapped as `backing`, over the
    /// whole run.
    pub fn shared(&self, backing: SharedBacking) -> u64 {
        self.word(word::SHARED + backing as usize).load(Relaxed)
    }

    /// Returns the bytes of the program's shared memory that were collapsed.
    pub fn shared_collapsed_bytes(&self) -> u64 {
        self.word(word::SHARED_COLLAPSED).load(Relaxed)
    }

    /// Returns the events and bytes of one reason for which shared memory got less than was asked
    /// for.
    pub fn shared_fall_backs(&self, reason: FallBack) -> (u64, u64) {
        self.counted(word::SHARED_FALL_BACK, reason)
    }

    /// Returns the events and bytes of one reason for which the program's own requests for hugetlb
    /// pages were refused.
    pub fn own_requests_refused(&self, reason: FallBack) -> (u64, u64) {
        self.counted(word::OWN_REFUSED, reason)
    }

    /// Notes that populating (and so zeroing) `bytes` took `ns` nanoseconds.
    pub fn populated(&self, bytes: u64, ns: u64) {
        self.word(word::POPULATE_BYTES).fetch_add(bytes, Relaxed);
        self.word(word::POPULATE_NS).fetch_add(ns, Relaxed);
    }

    /// Notes that the heap has reserved a range of addresses.
    pub fn spans(&self, start: u64, end: u64) {
        let free = (0..MOST_RANGES)
            .map(|at| word::RANGES + 2 * at)
            .find(|at| self.word(*at).compare_exchange(0, start, Relaxed, Relaxed).is_ok());
        match free {
            Some(at) => self.word(at + 1).store(end, Relaxed),
            None => drop(self.word(word::UNLISTED).fetch_add(1, Relaxed)),
        }
        let _ = self.word(word::HEAP_START).compare_exchange(0, start, Relaxed, Relaxed);
        self.word(word::HEAP_START).fetch_min(start, Relaxed);
        self.word(word::HEAP_END).fetch_max(end, Relaxed);
    }

    /// Notes that the heap has released a range that it had reserved.
    pub fn span_released(&self, start: u64) {
        for at in (0..MOST_RANGES).map(|at| word::RANGES + 2 * at) {
            if self.word(at).load(Relaxed) == start {
                self.word(at + 1).store(0, Relaxed);
                self.word(at).store(0, Relaxed);
                return;
            }
        }
    }

    /// Notes a fork; `refused` if the pool could not carry a second copy.
    pub fn forked(&self, refused: bool) {
        self.word(if refused { word::FORKS_REFUSED } else { word::FORKS }).fetch_add(1, Relaxed);
    }

    /// Notes that `bytes` that a fork had split are huge again.
    pub fn repaired(&self, bytes: u64) {
        self.word(word::REPAIRED_BYTES).fetch_add(bytes, Relaxed);
    }

    /// Returns the bytes that writes after forks had split, and that were made huge again.
    pub fn repaired_bytes(&self) -> u64 {
        self.word(word::REPAIRED_BYTES).load(Relaxed)
    }

    /// Returns the bytes held now as `backing`, by the heap's own account.
    pub fn held(&self, backing: Backing) -> u64 {
        self.word(word::HELD + backing as usize).load(Relaxed)
    }

    /// Returns the bytes held now on any backing, by the heap's own account.
    pub fn total_held(&self) -> u64 {
        self.word(word::TOTAL).load(Relaxed)
    }

    /// Returns true if the account can be true. The program may write to it as it likes. So the
    /// layout must be the agreed one, and bytes must be whole chunks and fit into an address space.
    pub fn is_plausible(&self) -> bool {
        let bytes = Backing::ALL.iter().flat_map(|&backing| [self.held(backing), self.held_at_peak(backing)]);
        self.word(word::FORMAT).load(Relaxed) == FORMAT
            && bytes
                .chain([self.peak(), self.total_held()])
                .all(|bytes| bytes <= MOST_BYTES && bytes.is_multiple_of(CHUNK))
            && self.word(word::LAST_ERRNO).load(Relaxed) <= MOST_ERRNO
    }

    /// Returns the bytes held as `backing` when the heap's sum was highest. The words are stored
    /// one by one: a concurrent peak may mix two neighbouring ones.
    pub fn held_at_peak(&self, backing: Backing) -> u64 {
        self.word(word::HELD_AT_PEAK + backing as usize).load(Relaxed)
    }

    /// Returns the largest number of bytes held at one time.
    pub fn peak(&self) -> u64 {
        self.word(word::PEAK).load(Relaxed)
    }

    /// Returns the events and bytes of one reason.
    pub fn fall_backs(&self, reason: FallBack) -> (u64, u64) {
        self.counted(word::FALL_BACK, reason)
    }

    /// Returns the errno of the latest fall-back that had one; 0 if none had.
    pub fn last_errno(&self) -> i32 {
        self.word(word::LAST_ERRNO).load(Relaxed) as i32
    }

    /// Returns the bytes populated by explicit request, and the nanoseconds that it took.
    pub fn populate(&self) -> (u64, u64) {
        (self.word(word::POPULATE_BYTES).load(Relaxed), self.word(word::POPULATE_NS).load(Relaxed))
    }

    /// Returns the bytes released to the kernel so far.
    pub fn returned_bytes(&self) -> u64 {
        self.word(word::RETURNED_BYTES).load(Relaxed)
    }

    /// Returns the number of forks that went ahead, and of those that were refused.
    pub fn forks(&self) -> (u64, u64) {
        (self.word(word::FORKS).load(Relaxed), self.word(word::FORKS_REFUSED).load(Relaxed))
    }

    /// Returns the span of addresses that the heap uses; `None` before it has reserved any.
    pub fn span(&self) -> Option<(u64, u64)> {
        let (start, end) =
            (self.word(word::HEAP_START).load(Relaxed), self.word(word::HEAP_END).load(Relaxed));
        (start < end).then_some((start, end))
    }

    /// Returns the ranges of addresses that the heap has reserved. If they are too many to be
    /// listed, returns one range that covers all of them and the gaps between them.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let listed = self.word(word::UNLISTED).load(Relaxed) == 0;
        let each = (0..MOST_RANGES).map(|at| word::RANGES + 2 * at);
        let each = each.map(|at| (self.word(at).load(Relaxed), self.word(at + 1).load(Relaxed)));
        let all = self.span().filter(|_| !listed);
        each.filter(move |(start, end)| listed && *start > 0 && start < end).chain(all)
    }

    /// Returns the words of the handshake at exit: the program exits, the launcher's answer, the
    /// program's patience.
    pub(crate) fn exit_words(&self) -> [&AtomicU64; 3] {
        [word::EXITING, word::EXIT_ANSWER, word::EXIT_PATIENCE].map(|index| self.word(index))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn launcher_and_program_see_the_same_values() {
        let (file, words) = SharedWords::create(c"ledger", 1).unwrap();
        let launcher = Ledger::launcher(words);
        let program = Ledger::claim(SharedWords::map(&file).unwrap(), 7).unwrap();
        assert!(Ledger::claim(SharedWords::map(&file).unwrap(), 8).is_none(), "one process only");
        assert!(Ledger::claim(SharedWords::map(&file).unwrap(), 7).is_some(), "exec keeps the process");

        program.obtained(Backing::Hugetlb2M, 4 << 20);
        program.obtained(Backing::Thp, 2 << 20);
        program.returned(Backing::Hugetlb2M, 4 << 20);
        program.fell_back(FallBack::PoolShort2M, 2 << 20, 12);
        assert_eq!(launcher.pid(), 7);
        assert_eq!(launcher.peak(), 6 << 20);
        assert_eq!(launcher.held(Backing::Hugetlb2M), 0);
        assert_eq!(launcher.held_at_peak(Backing::Hugetlb2M), 4 << 20);
        assert_eq!(launcher.fall_backs(FallBack::PoolShort2M), (1, 2 << 20));
        assert_eq!(launcher.last_errno(), 12);
    }

    #[test]
    fn no_word_is_believed_that_cannot_be_true() {
        let (file, words) = SharedWords::create(c"ledger", 1).unwrap();
        let launcher = Ledger::launcher(words);
        let hostile = SharedWords::map(&file).unwrap();
        let program = Ledger::claim(SharedWords::map(&file).unwrap(), 7).unwrap();
        program.obtained(Backing::Thp, 64 << 20);
        assert!(launcher.is_plausible());
        for (at, word) in hostile.iter().enumerate() {
            let before = word.swap(u64::MAX, Relaxed);
            // No single word makes the launcher panic, nor do its sums.
            let _ = (launcher.total_held(), launcher.span(), launcher.pid(), launcher.last_errno());
            let _ = (launcher.forks(), launcher.populate(), FallBack::ALL.map(|it| launcher.fall_backs(it)));
            let of_bytes = (word::HELD..word::HELD + Backing::ALL.len()).contains(&at)
                || (word::HELD_AT_PEAK..word::HELD_AT_PEAK + Backing::ALL.len()).contains(&at);
            let judged = of_bytes || [word::FORMAT, word::PEAK, word::TOTAL, word::LAST_ERRNO].contains(&at);
            assert_eq!(launcher.is_plausible(), !judged, "word {at}");
            word.store(before, Relaxed);
        }
        hostile.iter().for_each(|word| word.store(u64::MAX, Relaxed));
        assert_eq!(launcher.total_held(), u64::MAX);
        assert!(!launcher.is_plausible() && launcher.span().is_none());
    }

    #[test]
    fn ranges_are_listed_until_they_are_too_many() {
        let ledger = Ledger::private();
        ledger.spans(2 << 20, 4 << 20);
        ledger.spans(8 << 20, 10 << 20);
        assert!(ledger.ranges().eq([(2 << 20, 4 << 20), (8 << 20, 10 << 20)]));
        ledger.span_released(2 << 20);
        assert!(ledger.ranges().eq([(8 << 20, 10 << 20)]));
        (0..2 * MOST_RANGES as u64).for_each(|at| ledger.spans((20 + 2 * at) << 20, (21 + 2 * at) << 20));
        assert!(ledger.ranges().eq(ledger.span()), "all that lies between, too");
    }

    #[test]
    fn a_page_of_another_layout_is_refused() {
        let (file, _) = SharedWords::create(c"ledger", 1).unwrap();
        assert!(Ledger::claim(SharedWords::map(&file).unwrap(), 7).is_none());
    }
}
