//! Child process with known accesses to memory, on which trackers of accessed pages are tried.
//!
//! File-level obligation: between fork and its end the child only makes system calls and touches
//! memory that was mapped before the fork. It allocates nothing, takes no lock, and ends by
//! _exit(2) or a signal. Other threads of the caller may have held any lock at the fork. The parent
//! never touches the child's memory. In the memory that both share, it touches only the words
//! declared here.

#![allow(unsafe_code)]

use super::child::Child;
use crate::KernelRoot;
use crate::spare::Spare;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, Pid, VirtRange};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

const PAGES: usize = HUGE_2M / BASE_PAGE;
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

/// Child that only carries out commands, and holds no lock. It is killed when this value is
/// dropped, or when the thread that started it ends.
#[derive(Debug)]
pub struct Canary {
    child: Child,
    base: VirtRange,
    huge: VirtRange,
    shared: NonNull<Shared>,
    shared_bytes: usize,
}

// SAFETY: the shared memory is reached by `&mut self` alone on our side, and the words in it are
// atomic.
unsafe impl Send for Canary {}

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
        let shared = Mapping::new(shared_bytes, libc::MAP_SHARED)?;
        // The memory is mapped before the fork, and only the child touches it: no other process
        // maps its pages. One region more serves to align it.
        let memory = Mapping::new(length + HUGE_2M, libc::MAP_PRIVATE | libc::MAP_NORESERVE)?;
        let start = memory.start.as_ptr().map_addr(|address| address.next_multiple_of(HUGE_2M));
        let middle = start.wrapping_add(base_regions * HUGE_2M);
        // SAFETY: both ranges lie inside the mapping, which is ours and not in use.
        unsafe {
            libc::madvise(start.cast(), base_regions * HUGE_2M, libc::MADV_NOHUGEPAGE);
            if advise {
                libc::madvise(middle.cast(), huge_regions * HUGE_2M, libc::MADV_HUGEPAGE);
            }
        }
        let words = shared.start.cast::<Shared>();
        let parent = std::process::id() as i32;
        let count = (base_regions + huge_regions) * PAGES;
        // SAFETY: the child runs `child` alone, which keeps the file-level obligation; both ranges
        // are mapped and of the lengths stated.
        let child = unsafe { Child::fork(|| child(words.as_ptr(), start, count, parent)) }?;
        let at = |address: *mut u8, regions: usize| {
            let start = address.addr() as u64;
            VirtRange::new(start, start + (regions * HUGE_2M) as u64).expect("a mapping")
        };
        let mut known = Canary {
            child,
            base: at(start, base_regions),
            huge: at(middle, huge_regions),
            shared: words,
            shared_bytes,
        };
        // From here on `known` removes the shared mapping; the other one is not needed on this
        // side.
        std::mem::forget(shared);
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
        // SAFETY: the bitmap lies inside the shared mapping; the child does not read it before the
        // command.
        let bitmap = unsafe {
            std::slice::from_raw_parts_mut(
                self.shared.as_ptr().cast::<u8>().add(BASE_PAGE).cast::<u64>(),
                count / 64,
            )
        };
        bitmap.fill(0);
        for page in pages {
            assert!(page < count, "page {page} of {count}");
            bitmap[page / 64] |= 1 << (page % 64);
        }
        self.order(command)
    }

    fn words(&self) -> &Shared {
        // SAFETY: the mapping lives as long as `self`, and the words are atomic.
        unsafe { self.shared.as_ref() }
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
        // SAFETY: the mapping is ours alone.
        unsafe { libc::munmap(self.shared.as_ptr().cast(), self.shared_bytes) };
    }
}

/// Runs the child's commands until it is killed.
///
/// # Safety
/// `shared` is mapped and followed, a page later, by a bit for each of `count` pages; `memory` has
/// `count` pages.
unsafe fn child(shared: *mut Shared, memory: *mut u8, count: usize, parent: i32) -> ! {
    // SAFETY: system calls that read constants, or no memory. The parent may have ended before the
    // first one took effect.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(0);
        }
        // If memory still runs out, the kernel ends this process, which no user misses, and no
        // other.
        let score = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        libc::write(score, c"1000".as_ptr().cast(), 4);
        // If they stayed open, the owner's pipes, locks and sockets would outlive the owner.
        // Refused before Linux 5.9: then they stay open.
        libc::syscall(libc::SYS_close_range, 0, i32::MAX, 0);
    }
    // SAFETY: as the caller promises.
    let (words, bitmap) = unsafe {
        (&*shared, std::slice::from_raw_parts(shared.cast::<u8>().add(BASE_PAGE).cast::<u64>(), count / 64))
    };
    // A page's first word is different in each page, and zero in none.
    let content = |page: usize| 0x5eed_0000_0000_0001 ^ (page as u64) << 8;
    // SAFETY: the page lies inside the memory, which is readable and writable.
    let place = |page: usize| unsafe { memory.add(page * BASE_PAGE).cast::<u64>() };
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
                // SAFETY: see `place`.
                unsafe { place(page).write_volatile(content(page)) };
            }
        } else if command == FLUSH {
            // The kernel flushes when it takes a right away; accessed bits stay as they are.
            for rights in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
                // SAFETY: the memory is the child's alone, and nothing writes to it between the two
                // calls.
                unsafe { libc::mprotect(memory.cast(), count * BASE_PAGE, rights) };
            }
        } else {
            // The next page lies far from the last one, as in a program that gains from huge pages.
            // In the order of addresses, eight entries share a cache line, and a first access seems
            // cheaper than it is to such a program.
            for page in (0..count).map(|index| index * SCATTER % count) {
                if bitmap[page / 64] >> (page % 64) & 1 != 0 {
                    // SAFETY: see `place`.
                    unsafe {
                        if command == ZERO {
                            place(page).write_volatile(0);
                        } else {
                            wrong += u64::from(place(page).read_volatile() != content(page));
                        }
                    }
                }
            }
        }
        words.nanoseconds.store(thread_time().saturating_sub(started), Ordering::Relaxed);
        words.wrong.store(wrong, Ordering::Relaxed);
        words.command.store(IDLE, Ordering::Release);
        wake(&words.command);
    }
}

/// Returns the processor time of the calling thread, in nanoseconds.
fn thread_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Waits while the word is `value`, for at most `timeout`, perhaps for less.
fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), |timeout| timeout as *const libc::timespec);
    // SAFETY: the word and the timeout live through the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, timeout) };
}

fn wake(word: &AtomicU32) {
    // SAFETY: the word lives through the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// Anonymous memory, removed when dropped.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    fn new(length: usize, flags: i32) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                flags | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("mmap never maps address 0 unasked");
        Ok(Mapping { start, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
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
