//! Child process with known accesses to memory, on which trackers of accessed pages are tried.
//!
//! File-level obligation: between fork and its end the child only makes system calls and touches
//! memory that was mapped before the fork. It allocates nothing, takes no lock, and ends by
//! _exit(2) or a signal. Other threads of the caller may have held any lock at the fork. All memory
//! that the child touches is accessed as atomic words.

#![allow(unsafe_code)]

use super::child::Child;
use crate::KernelRoot;
use crate::mapped::{Mapped, Shareable};
use crate::own_advice::Advice;
use crate::raw_syscall::thread_time;
use crate::spare::Spare;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, Pid, VirtRange};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{Timespec, futex};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

const PAGES: usize = HUGE_2M / BASE_PAGE;
/// Words of a page.
const WORDS: usize = BASE_PAGE / size_of::<u64>();
/// Longest wait for a command. No command takes as long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(30);

/// Prime near 2^32 divided by the golden ratio: its multiples visit every page once, each far from
/// the last.
const SCATTER: usize = 2_654_435_761;

const IDLE: u32 = 0;
const FILL: u32 = 1;
const TOUCH: u32 = 2;
const ZERO: u32 = 3;
const FLUSH: u32 = 4;

/// Memory that both processes share. The bitmap of pages, one bit each, follows.
#[repr(C)]
struct Shared {
    /// [`IDLE`], or the command for the child. Both sides wait for it by futex(2).
    command: AtomicU32,
    /// Pages whose first word was not the word written there.
    wrong: AtomicU64,
    /// Processor time of the last command.
    nanoseconds: AtomicU64,
}

// SAFETY: three atomics, of which any bytes are valid.
unsafe impl Shareable for Shared {}

/// Child that only carries out commands, and holds no lock. It is killed when this value is
/// dropped, or when the thread that started it ends.
#[derive(Debug)]
pub struct Canary {
    child: Child,
    base: VirtRange,
    huge: VirtRange,
    shared: Mapped,
}

/// Result of touching pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Processor time taken.
    pub cpu: Duration,
    /// Pages that did not hold the word written there: bytes were lost.
    pub wrong: u64,
}

impl Canary {
    /// Starts a child that has written to every page of `base_regions` regions of 2 MiB on base
    /// pages, followed by `huge_regions` on transparent huge pages. The latter are on base pages if
    /// the kernel has no huge page to give: the caller must check. An error of kind OutOfMemory if
    /// so much memory may not be taken ([`Spare::allows`]). Without `advise`, and if the kernel
    /// gives huge pages only on advice, the second regions are also on base pages. khugepaged does
    /// not touch them then.
    pub fn start(base_regions: usize, huge_regions: usize, advise: bool) -> io::Result<Canary> {
        let length = (base_regions + huge_regions) * HUGE_2M;
        let spare = Spare::read(&KernelRoot::live()).map_err(io::Error::other)?;
        spare.allows(Bytes(length as u64))?;
        let shared_bytes =
            (BASE_PAGE + (base_regions + huge_regions) * PAGES / 8).next_multiple_of(BASE_PAGE);
        let shared = Mapped::anonymous(shared_bytes, BASE_PAGE, libc::MAP_SHARED)?;
        // The memory is mapped before the fork, and only the child touches it: no other process
        // maps its pages. The parent needs it only until the fork.
        let memory = Mapped::anonymous(length, HUGE_2M, libc::MAP_PRIVATE | libc::MAP_NORESERVE)?;
        let (base, huge) = (base_regions * HUGE_2M, huge_regions * HUGE_2M);
        let _ = memory.advise(0, base, Advice::NoHuge);
        if advise {
            let _ = memory.advise(base, huge, Advice::Huge);
        }
        let parent = std::process::id() as i32;
        // SAFETY: the child runs `child` alone, which keeps the file-level obligation, and uses no
        // descriptor.
        let child =
            unsafe { Child::fork(Some(&[]), || child(&shared, &memory, length / BASE_PAGE, parent)) }?;
        let mut known = Canary { child, base: memory.part(0, base), huge: memory.part(base, huge), shared };
        drop(memory);
        known.order(FILL)?;
        Ok(known)
    }

    /// Returns the child's number.
    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Returns its memory on base pages.
    pub fn base(&self) -> VirtRange {
        self.base
    }

    /// Returns its memory on huge pages; it lies right behind [`Canary::base`].
    pub fn huge(&self) -> VirtRange {
        self.huge
    }

    /// Makes the child read one word of each of these base pages, counted from the start of its
    /// memory. The child compares it with the word written there. Waits until it is done.
    ///
    /// # Panics
    /// If a page lies outside.
    pub fn touch(&mut self, pages: impl IntoIterator<Item = usize>) -> io::Result<Touched> {
        self.order_pages(TOUCH, pages)?;
        let words = self.words();
        Ok(Touched {
            cpu: Duration::from_nanos(words.nanoseconds.load(Ordering::Relaxed)),
            wrong: words.wrong.load(Ordering::Relaxed),
        })
    }

    /// Makes the child overwrite its words in these base pages with zeros, so that they hold
    /// nothing else. They are like memory that a program has freed and its allocator cached. Waits
    /// until it is done. [`Canary::touch`] finds them wrong from then on.
    ///
    /// # Panics
    /// If a page lies outside.
    pub fn zero(&mut self, pages: impl IntoIterator<Item = usize>) -> io::Result<()> {
        self.order_pages(ZERO, pages)
    }

    /// Makes the child flush its TLB entries of the memory. Without a flush, a page whose accessed
    /// bit was cleared gets it set only once its translation has left the TLB. The few accesses of
    /// a child may leave it there. Waits until it is done.
    pub fn flush_tlb(&mut self) -> io::Result<()> {
        self.order(FLUSH)
    }

    /// Writes pages to the bitmap, counted from the start of the memory, and gives a command for
    /// them.
    fn order_pages(&mut self, command: u32, pages: impl IntoIterator<Item = usize>) -> io::Result<()> {
        let count = ((self.huge.end() - self.base.start()) / BASE_PAGE as u64) as usize;
        let bitmap: &[AtomicU64] = self.shared.slice(BASE_PAGE, count / 64);
        bitmap.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        for page in pages {
            assert!(page < count, "page {page} of {count}");
            bitmap[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
        self.order(command)
    }

    fn words(&self) -> &Shared {
        &self.shared.slice(0, 1)[0]
    }

    /// Returns the error for a child that has ended, with its status.
    fn over(&self) -> io::Error {
        let status = self.child.status().map(|status| format!(": {:#x}", status.as_raw()));
        let what = "the child that accesses are tried on has ended";
        io::Error::other(format!("{what}{}", status.unwrap_or_default()))
    }

    /// Gives a command and waits until it is done.
    fn order(&mut self, command: u32) -> io::Result<()> {
        if self.child.has_ended() {
            return Err(self.over());
        }
        let started = std::time::Instant::now();
        self.words().command.store(command, Ordering::Release);
        wake(&self.words().command);
        while self.words().command.load(Ordering::Acquire) == command {
            wait(&self.words().command, command, Some(Duration::from_millis(100)));
            if self.child.has_ended() {
                return Err(self.over());
            }
            if started.elapsed() > PATIENCE {
                return Err(io::Error::other("the child that accesses are tried on does not answer"));
            }
        }
        Ok(())
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.child.end();
    }
}

/// Runs the child's commands until it is killed. From its second page on, `shared` holds a bit for
/// each of `count` pages of `memory`.
fn child(shared: &Mapped, memory: &Mapped, count: usize, parent: i32) {
    // The parent may have ended before the signal was requested.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().get() != parent) {
        return;
    }
    // If memory still runs out, the kernel ends this process, which no user misses, and no other.
    let score = c"/proc/self/oom_score_adj";
    if let Ok(score) = rustix::fs::open(score, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::io::write(score, b"1000");
    }
    let words = &shared.slice::<Shared>(0, 1)[0];
    let bitmap: &[AtomicU64] = shared.slice(BASE_PAGE, count / 64);
    let pages: &[AtomicU64] = memory.slice(0, count * WORDS);
    // A page's first word is different in each page, and zero in none.
    let content = |page: usize| 0x5eed_0000_0000_0001 ^ (page as u64) << 8;
    loop {
        let command = words.command.load(Ordering::Acquire);
        if command == IDLE {
            wait(&words.command, IDLE, None);
            continue;
        }
        let started = thread_time();
        let mut wrong = 0;
        if command == FILL {
            for page in 0..count {
                pages[page * WORDS].store(content(page), Ordering::Relaxed);
            }
        } else if command == FLUSH {
            // The kernel flushes when it takes a right away; accessed bits stay as they are.
            for rights in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
                // SAFETY: the memory is the child's alone, and nothing writes to it between the two
                // calls.
                let _ = unsafe { memory.protect(count * BASE_PAGE, rights) };
            }
        } else {
            // The next page lies far from the last one, as in a program that gains from huge pages.
            // In the order of addresses, eight entries share a cache line, and a first access seems
            // cheaper than it is to such a program.
            for page in (0..count).map(|index| index * SCATTER % count) {
                if bitmap[page / 64].load(Ordering::Relaxed) >> (page % 64) & 1 == 0 {
                    continue;
                }
                if command == ZERO {
                    pages[page * WORDS].store(0, Ordering::Relaxed);
                } else {
                    wrong += u64::from(pages[page * WORDS].load(Ordering::Relaxed) != content(page));
                }
            }
        }
        words.nanoseconds.store(thread_time().saturating_sub(started), Ordering::Relaxed);
        words.wrong.store(wrong, Ordering::Relaxed);
        words.command.store(IDLE, Ordering::Release);
        wake(&words.command);
    }
}

/// Waits while the word is `value`, for at most `timeout`, perhaps for less.
fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let _ = futex::wait(word, futex::Flags::empty(), value, timeout.as_ref());
}

fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap::Pagemap;

    #[test]
    fn it_touches_the_given_pages_and_keeps_its_bytes() {
        let mut child = Canary::start(2, 1, true).unwrap();
        let range = VirtRange::new(child.base().start(), child.huge().end()).unwrap();
        assert_eq!(range.len().0, 3 * HUGE_2M as u64);
        let mut pagemap = Pagemap::open(&KernelRoot::live(), child.pid()).unwrap();
        let present: Vec<u16> = pagemap.regions(range).unwrap().iter().map(|region| region.present).collect();
        assert_eq!(present, [512; 3]);
        assert_eq!(child.touch(0..3 * PAGES).unwrap().wrong, 0);
        assert_eq!(child.touch([]).unwrap().wrong, 0);
        child.flush_tlb().unwrap();
        child.zero([1]).unwrap();
        assert_eq!(child.touch(0..3 * PAGES).unwrap().wrong, 1, "it can write as before");
    }

    #[test]
    fn pages_that_were_zeroed_hold_nothing_else() {
        let mut child = Canary::start(1, 0, true).unwrap();
        child.zero((0..PAGES).filter(|page| page % 3 == 0)).unwrap();
        assert_eq!(child.touch((0..PAGES).filter(|page| page % 3 != 0)).unwrap().wrong, 0);
        assert_eq!(child.touch(0..PAGES).unwrap().wrong, PAGES.div_ceil(3) as u64);
        let mut bytes = vec![1u8; BASE_PAGE];
        let memory = crate::remote_read::RemoteMemory::open(&KernelRoot::live(), child.pid()).unwrap();
        assert_eq!(memory.read(child.base().start(), &mut bytes).unwrap(), BASE_PAGE);
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn it_keeps_none_of_its_owners_descriptors() {
        use std::os::fd::AsFd;
        let (reader, writer) = io::pipe().unwrap();
        // Other tests also start processes, which hold the pipe until they execute their program.
        let mut child = Canary::start(1, 0, true).unwrap();
        drop(writer);
        assert!(crate::spawn::wait_readable(reader.as_fd(), Duration::from_secs(60)).unwrap());
        assert_eq!(child.touch([1]).unwrap().wrong, 0);
    }

    #[test]
    fn the_kernel_ends_it_before_any_other_process() {
        let child = Canary::start(1, 0, true).unwrap();
        let score = KernelRoot::live().read(format!("proc/{}/oom_score_adj", child.pid())).unwrap();
        assert_eq!(score, "1000\n");
    }

    #[test]
    fn it_does_not_outlive_its_owner() {
        let child = Canary::start(1, 0, true).unwrap();
        let pid = child.pid();
        drop(child);
        assert!(crate::process::read_status(&KernelRoot::live(), pid).unwrap_err().is_gone());
    }

    #[test]
    fn one_that_was_killed_is_an_error() {
        use std::os::fd::AsFd;
        let mut child = Canary::start(1, 0, true).unwrap();
        let pidfd = crate::spawn::open_pidfd(child.pid()).unwrap();
        crate::spawn::send_signal(child.pid(), libc::SIGKILL).unwrap();
        // The child may carry out commands until the signal has reached it.
        assert!(crate::spawn::wait_readable(pidfd.as_fd(), Duration::from_secs(60)).unwrap());
        assert!(child.touch([1]).unwrap_err().to_string().contains("ended"));
        assert!(child.touch([1]).is_err(), "and stays one");
    }
}
