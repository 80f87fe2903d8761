//! Counters of the processor and of the kernel: perf_event_open(2).
//!
//! File-level obligation: the attribute block is initialised and states its own size, and every
//! descriptor that the kernel returns has one owner.

#![allow(unsafe_code)]

use crate::{KernelError, KernelRoot, optional};
use perf_event_open_sys as sys;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Event to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Unit that counts: `PERF_TYPE_*`, or the `type` of a directory under
    /// `/sys/bus/event_source/devices`.
    pub unit: u32,
    /// Event in that unit's encoding.
    pub config: u64,
}

impl Event {
    /// Nanoseconds on a processor, counted by the kernel.
    pub const TASK_CLOCK: Event = Event::software(sys::bindings::PERF_COUNT_SW_TASK_CLOCK);
    /// Page faults, counted by the kernel.
    pub const PAGE_FAULTS: Event = Event::software(sys::bindings::PERF_COUNT_SW_PAGE_FAULTS);

    const fn software(config: u32) -> Event {
        Event { unit: sys::bindings::PERF_TYPE_SOFTWARE, config: config as u64 }
    }
}

/// Part of a thread's work that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// True to leave out work inside the kernel. With `perf_event_paranoid` = 2, users may count
    /// only in this way.
    pub user_only: bool,
    /// True to count also the threads that the thread starts from now on, and theirs, but no new
    /// process (`inherit_thread`, since Linux 5.13; EINVAL before).
    pub new_threads: bool,
}

/// Counts of a group since it was opened, inherited counts included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Time of the thread on a processor, in nanoseconds.
    pub enabled_ns: u64,
    /// Part of that time in which the events were really counted. It is shorter if there are fewer
    /// counters than events.
    pub running_ns: u64,
    /// Counts, in the order of the events.
    pub counts: Vec<u64>,
}

/// Events of one thread that are counted at the same times, so that they may be divided by each
/// other.
#[derive(Debug)]
pub struct Group {
    leader: File,
    /// Descriptors kept open: the kernel counts an event while its descriptor is open.
    _others: Vec<OwnedFd>,
    events: usize,
}

impl Group {
    /// Starts to count `events` (1 to 16) of `thread`, or of the calling thread for 0.
    ///
    /// ENOENT, ENODEV, EOPNOTSUPP: there is no such counter, as in most virtual machines. EACCES,
    /// EPERM: refused by `perf_event_paranoid` or the right to trace. EINVAL: the kernel does not
    /// know `new_threads`. ESRCH: the thread has ended. EMFILE: too many descriptors; each event
    /// takes one.
    pub fn open(thread: i32, events: &[Event], scope: Scope) -> io::Result<Group> {
        if !(1..=16).contains(&events.len()) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut opened: Vec<OwnedFd> = Vec::with_capacity(events.len());
        for event in events {
            let leader = opened.first().map_or(-1, AsRawFd::as_raw_fd);
            opened.push(open(thread, *event, scope, leader)?);
        }
        let leader = File::from(opened.remove(0));
        // SAFETY: the descriptor is the group's; the argument is a plain number.
        if unsafe { sys::ioctls::ENABLE(leader.as_raw_fd(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Group { leader, _others: opened, events: events.len() })
    }

    /// Returns the counts so far. Works also after the thread has ended.
    pub fn read(&self) -> io::Result<Reading> {
        // The format is PERF_FORMAT_GROUP with both times: the number of events, the times, the
        // counts.
        let mut bytes = vec![0u8; 8 * (3 + self.events)];
        let length = (&self.leader).read(&mut bytes)?;
        if length != bytes.len() {
            return Err(io::Error::other(format!("{length} bytes of counters where {} belong", bytes.len())));
        }
        let mut words = bytes
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)));
        let mut next = || words.next().unwrap_or_default();
        let (_, enabled_ns, running_ns) = (next(), next(), next());
        Ok(Reading { enabled_ns, running_ns, counts: words.collect() })
    }
}

fn open(thread: i32, event: Event, scope: Scope, leader: i32) -> io::Result<OwnedFd> {
    let mut attributes = sys::bindings::perf_event_attr {
        type_: event.unit,
        size: size_of::<sys::bindings::perf_event_attr>() as u32,
        config: event.config,
        read_format: u64::from(
            sys::bindings::PERF_FORMAT_GROUP
                | sys::bindings::PERF_FORMAT_TOTAL_TIME_ENABLED
                | sys::bindings::PERF_FORMAT_TOTAL_TIME_RUNNING,
        ),
        ..Default::default()
    };
    // The leader starts all events, so that none counts earlier than another.
    attributes.set_disabled(u64::from(leader < 0));
    attributes.set_exclude_kernel(u64::from(scope.user_only));
    attributes.set_exclude_hv(1);
    attributes.set_inherit(u64::from(scope.new_threads));
    attributes.set_inherit_thread(u64::from(scope.new_threads));
    let flags = sys::bindings::PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: the block is initialised and states its size; the kernel writes at most its `size`
    // field.
    let descriptor = unsafe { sys::perf_event_open(&mut attributes, thread, -1, leader, flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Returns the number by which perf_event_open(2) knows the counting unit `name`, such as `cpu`, or
/// `cpu_core` if the cores differ. Returns `None` if the kernel has no unit of that name. Source:
/// `/sys/bus/event_source/devices/NAME/type`.
pub fn unit(root: &KernelRoot, name: &str) -> Result<Option<u32>, KernelError> {
    let number = optional(root.read_u64(format!("sys/bus/event_source/devices/{name}/type")))?;
    Ok(number.and_then(|number| u32::try_from(number).ok()))
}

/// Returns how much the kernel refuses to users without CAP_PERFMON: `kernel.perf_event_paranoid`,
/// -1 (nothing) to 4 (everything; Debian). Returns `None` if the kernel has no performance events.
pub fn paranoia(root: &KernelRoot) -> Option<i64> {
    root.read("proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;
    use std::hint::black_box;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    const SOFTWARE: [Event; 2] = [Event::TASK_CLOCK, Event::PAGE_FAULTS];
    const PAGES: usize = 400;

    /// Touches 400 base pages for the first time. malloc always makes a new mapping for 32 MiB or
    /// more (mallopt(3)); less may come from memory that is resident already.
    fn touch() {
        let mut memory = black_box(vec![0u8; 33 << 20]);
        for page in 0..PAGES {
            memory[page * 4096] = 1;
        }
        black_box(&memory);
    }

    /// Opens a group on the calling thread. Skips the test with the reason if that fails: a
    /// container may forbid the call.
    fn own(new_threads: bool) -> Option<Group> {
        match Group::open(0, &SOFTWARE, Scope { user_only: true, new_threads }) {
            Ok(group) => Some(group),
            Err(error) => {
                megapage_testing::skip(&format!("perf_event_open: {error}"));
                None
            }
        }
    }

    #[test]
    fn faults_and_time_are_counted_together() {
        let Some(group) = own(false) else { return };
        let before = group.read().unwrap();
        touch();
        let after = group.read().unwrap();
        assert!(after.counts[0] > before.counts[0], "{before:?} {after:?}");
        // The number depends on the size of the transparent huge pages in use.
        assert!(after.counts[1] - before.counts[1] >= 1, "{before:?} {after:?}");
        assert!(after.running_ns > before.running_ns && after.running_ns <= after.enabled_ns);
        assert_eq!(after.counts.len(), 2);
    }

    #[test]
    fn a_thread_that_starts_later_is_counted_where_that_is_asked() {
        let (Some(alone), Some(together)) = (own(false), own(true)) else { return };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                touch();
            }
        });
        // Both groups use the same clock, so the difference between them is the new thread's.
        // `together` is read first: the work of this thread between the two reads makes the
        // difference smaller, not larger. The thread runs until enough is seen, however late it is
        // scheduled.
        let (start, mut seen) = (Instant::now(), (0, 0));
        while (seen.0 < 20_000_000 || seen.1 < 2) && start.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(5));
            let (together, alone) = (together.read().unwrap(), alone.read().unwrap());
            let more = |event: usize| together.counts[event].saturating_sub(alone.counts[event]);
            seen = (more(0), more(1));
        }
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        assert!(seen.0 >= 20_000_000 && seen.1 >= 2, "{seen:?}");
    }

    #[test]
    fn what_is_not_there_is_an_errno() {
        let errno = |thread, events: &[Event]| {
            Group::open(thread, events, Scope { user_only: true, new_threads: false })
                .unwrap_err()
                .raw_os_error()
        };
        assert_eq!(errno(0, &[]), Some(libc::EINVAL));
        if own(false).is_some() {
            // No thread has this number: the kernel's limit is 2^22.
            assert_eq!(errno(i32::MAX, &SOFTWARE), Some(libc::ESRCH));
            assert_eq!(errno(0, &[Event { unit: 0x7fff_fff0, config: 0 }]), Some(libc::ENOENT));
        }
    }

    #[test]
    fn units_and_restrictions_are_read() {
        let (_tree, root) = captured_tree(&[
            ("sys/bus/event_source/devices/cpu_core/type", "4\n"),
            ("proc/sys/kernel/perf_event_paranoid", "-1\n"),
        ]);
        assert_eq!(unit(&root, "cpu_core").unwrap(), Some(4));
        assert_eq!(unit(&root, "cpu").unwrap(), None);
        assert_eq!(paranoia(&root), Some(-1));
        let (_tree, none) = captured_tree(&[]);
        assert_eq!(paranoia(&none), None);
    }
}
