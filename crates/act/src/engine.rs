//! Advice about single regions of another process, in batches, and the look at its page tables before and after: what
//! promotion, demotion and the executor rest on.

use crate::remote::{RemoteError, joined, refusal};
use crate::sharing::Sharing;
use megapage_kernel::ability::{Ability, COLLAPSE, PROCESS_MADVISE};
use megapage_kernel::pagemap::Region;
use megapage_kernel::process::own_thread_time;
use megapage_kernel::{KernelRoot, process_madvise, spawn};
use megapage_observe::PageTables;
use megapage_units::{BASE_PAGE, Pid, VirtRange};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// What the kernel is asked for, region by region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// MADV_COLLAPSE on the region.
    Collapse,
    /// MADV_COLD on the first base page of the region: splits a huge page whole.
    ColdSplit,
    /// MADV_PAGEOUT on the region: splits a huge page, and swaps out where there is swap.
    PageOut,
}

impl Advice {
    /// What the kernel must have for it, for other processes.
    pub(crate) fn ability(self) -> &'static Ability {
        match self {
            Advice::Collapse => &COLLAPSE,
            Advice::ColdSplit | Advice::PageOut => &PROCESS_MADVISE,
        }
    }

    /// The part of a region that is named to the kernel.
    fn part(self, region: VirtRange) -> VirtRange {
        match self {
            Advice::Collapse | Advice::PageOut => region,
            Advice::ColdSplit => {
                VirtRange::new(region.start(), region.start() + BASE_PAGE as u64).unwrap_or(region)
            }
        }
    }
}

/// The kernel's refusal of one region, in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// EAGAIN: pinned, locked or off the LRU lists for now. EINTR counts, too.
    Busy,
    /// EBUSY: no room in its control group.
    GroupFull,
    /// EINVAL: not for this mapping.
    Invalid,
    /// ENOMEM: no huge page to be had; or the region is not mapped.
    NoMemory,
    /// Not asked: another process shares pages of it since a fork, and the collapse would copy them.
    Shared,
    /// EPERM, EACCES: not for this caller.
    Denied,
    /// ESRCH: the process has gone.
    Gone,
    /// ENOSYS, EOPNOTSUPP: not with this kernel.
    Unsupported,
    /// The process does not answer: its memory map is locked ([`megapage_kernel::helper::Locked`]).
    Locked,
    /// Another error number.
    Other(i32),
}

impl Refusal {
    pub(crate) fn of(error: &io::Error) -> Refusal {
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted, _) => Refusal::Busy,
            (io::ErrorKind::ResourceBusy, _) => Refusal::GroupFull,
            (io::ErrorKind::InvalidInput, _) => Refusal::Invalid,
            (io::ErrorKind::OutOfMemory, _) => Refusal::NoMemory,
            (io::ErrorKind::PermissionDenied, _) => Refusal::Denied,
            (io::ErrorKind::Unsupported, _) => Refusal::Unsupported,
            (io::ErrorKind::TimedOut, _) => Refusal::Locked,
            // ESRCH has no kind of its own.
            (_, Some(3)) => Refusal::Gone,
            (_, number) => Refusal::Other(number.unwrap_or(0)),
        }
    }

    /// Whether it is about the process or the kernel, so that no other region of the process will fare better.
    pub(crate) fn is_final(self) -> bool {
        matches!(
            self,
            Refusal::Denied | Refusal::Gone | Refusal::Unsupported | Refusal::Locked | Refusal::Other(_)
        )
    }

    /// The error that the kernel gave.
    pub(crate) fn to_error(self) -> io::Error {
        match self {
            Refusal::Busy => io::ErrorKind::WouldBlock.into(),
            Refusal::GroupFull | Refusal::Shared => io::ErrorKind::ResourceBusy.into(),
            Refusal::Invalid => io::ErrorKind::InvalidInput.into(),
            Refusal::NoMemory => io::ErrorKind::OutOfMemory.into(),
            Refusal::Denied => io::ErrorKind::PermissionDenied.into(),
            Refusal::Gone => io::Error::from_raw_os_error(3),
            Refusal::Unsupported => io::ErrorKind::Unsupported.into(),
            Refusal::Locked => io::ErrorKind::TimedOut.into(),
            Refusal::Other(number) => io::Error::from_raw_os_error(number),
        }
    }
}

/// What the kernel said to one region. It proves nothing: the page tables do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// No error.
    Accepted,
    /// An error.
    Refused(Refusal),
    /// The region was not reached.
    NotTried,
}

impl Answer {
    /// The refusal, where it was one.
    pub(crate) fn refusal(self) -> Option<Refusal> {
        match self {
            Answer::Refused(refusal) => Some(refusal),
            Answer::Accepted | Answer::NotTried => None,
        }
    }
}

/// One region's part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tried {
    pub answer: Answer,
    /// Its part of the time of the call that it was in.
    pub took: Duration,
}

/// One call, as it came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Regions that it dealt with: those advised, and the one that it failed at.
    pub regions: usize,
    pub took: Duration,
    /// Processor time of it: the rest was spent waiting, for a processor mostly.
    pub busy: Duration,
    /// How long the process's mmap lock was held at a stretch, at most: a collapse gives it up between two regions, the
    /// other calls keep it to their end.
    pub held: Duration,
    pub refused: Option<Refusal>,
    /// Whether any region of it was refused; with `refused` empty the next calls tell which.
    pub failed: bool,
    /// The place of the region that was refused.
    pub at: Option<usize>,
}

/// Gives `advice` to each of `regions`, at most `batch` in a call. After each call `next` says how many the next one may
/// name; with `None` the rest is not tried. It is asked, without a call, also where a look has left nothing to call for:
/// looks take time, too.
///
/// Adjacent regions are collapsed by one call as one range: at the start of each range the kernel has every processor
/// empty its LRU queues (lru_add_drain_all), so that one range disturbs a large machine once, not once for each region.
/// (With two processors that makes no difference to be measured: 0.02 ms of 1.5 ms.) Of a range that failed the kernel
/// tells one error, and goes on after some: those of its regions that are not huge then get a call each.
///
/// Whether another process shares a region is looked up right before the call that would collapse it: a fork that came
/// after the decision is seen, unless it comes in the microseconds between, and then at most one call copies memory.
pub(crate) fn advise(
    target: &mut impl Advisable,
    advice: Advice,
    regions: &[VirtRange],
    batch: usize,
    mut next: impl FnMut(Option<Call>) -> Option<usize>,
) -> Vec<Tried> {
    let mut tried = vec![Tried { answer: Answer::NotTried, took: Duration::ZERO }; regions.len()];
    // Places in `regions`; those behind `alone` from the front on get a call each.
    let mut queue: VecDeque<usize> = (0..regions.len()).collect();
    let mut alone = 0usize;
    let mut batch = Some(batch);
    while let Some(size) = batch.filter(|_| !queue.is_empty()) {
        let most = if alone > 0 { 1 } else { size.clamp(1, process_madvise::MOST_RANGES) };
        let mut places = take(&mut queue, regions, most, advice == Advice::Collapse);
        alone = alone.saturating_sub(1);
        if advice == Advice::Collapse {
            let shared = target.shared(&places.iter().map(|&place| regions[place]).collect::<Vec<_>>());
            // A call names adjacent regions: what lies behind a gap waits for another, and is looked at anew then.
            let (mut free, mut behind, mut is_behind) = (Vec::new(), Vec::new(), false);
            for (&place, shared) in places.iter().zip(shared) {
                if shared {
                    tried[place].answer = Answer::Refused(Refusal::Shared);
                    is_behind = !free.is_empty();
                } else if is_behind {
                    behind.push(place);
                } else {
                    free.push(place);
                }
            }
            behind.iter().rev().for_each(|&place| queue.push_front(place));
            if free.is_empty() {
                batch = next(None);
                continue;
            }
            places = free;
        }
        let parts: Vec<VirtRange> = match (advice, &places[..]) {
            (Advice::Collapse, [first, .., last]) => {
                VirtRange::new(regions[*first].start(), regions[*last].end()).into_iter().collect()
            }
            _ => places.iter().map(|&place| advice.part(regions[place])).collect(),
        };
        let (started, busy) = (Instant::now(), own_thread_time());
        let answer = target.call(advice, &parts);
        let (took, busy) = (started.elapsed(), own_thread_time().saturating_sub(busy));
        let (accepted, refused) = match answer {
            Ok(_) if parts.len() < places.len() => (places.len(), None),
            // Where less than all was advised, the next call begins at the region that failed, and so learns why. A
            // call that advised nothing without an error would keep us here.
            Ok(advised) => match ((advised / parts[0].len().0.max(1)) as usize).min(parts.len()) {
                0 => (0, Some(Refusal::Busy)),
                accepted => (accepted, None),
            },
            Err(error) => (0, Some(Refusal::of(&error))),
        };
        let is_range = parts.len() < places.len();
        let dealt = if is_range { places.len() } else { accepted + usize::from(refused.is_some()) };
        let part = took / dealt as u32;
        match refused {
            Some(refusal) if is_range && !refusal.is_final() => {
                // Time is told of all of them; the answer of each that is not huge comes from its own call.
                let huge = target.huge(&places.iter().map(|&place| regions[place]).collect::<Vec<_>>());
                for (&place, _) in places.iter().zip(&huge).rev().filter(|(_, huge)| !**huge) {
                    queue.push_front(place);
                    alone += 1;
                }
                for (&place, _) in places.iter().zip(&huge).filter(|(_, huge)| **huge) {
                    tried[place].answer = Answer::Accepted;
                }
                places.iter().for_each(|&place| tried[place].took += part);
            }
            _ => {
                for (index, &place) in places.iter().enumerate() {
                    match refused {
                        _ if index < accepted => tried[place].answer = Answer::Accepted,
                        Some(refusal) if index == accepted => {
                            tried[place].answer = Answer::Refused(refusal);
                        }
                        _ => continue,
                    }
                    tried[place].took += part;
                }
                if !is_range {
                    places[dealt..].iter().rev().for_each(|&place| queue.push_front(place));
                }
            }
        }
        let held = if advice == Advice::Collapse { part } else { took };
        // A range that failed as a whole has told nothing yet about any region.
        let told = refused.filter(|refusal| !is_range || refusal.is_final());
        let at = told.and_then(|_| places.get(accepted).copied());
        batch = next(Some(Call {
            regions: dealt,
            took,
            busy,
            held,
            refused: told,
            failed: refused.is_some(),
            at,
        }));
    }
    tried
}

/// Takes up to `most` places from the front of the queue; with `adjacent` only as far as their regions are, ascending.
fn take(queue: &mut VecDeque<usize>, regions: &[VirtRange], most: usize, adjacent: bool) -> Vec<usize> {
    let mut taken: Vec<usize> = Vec::new();
    while taken.len() < most
        && let Some(&place) = queue.front()
        && (!adjacent || taken.last().is_none_or(|&last| regions[last].end() == regions[place].start()))
    {
        taken.push(place);
        queue.pop_front();
    }
    taken
}

/// Something that takes advice: a process, or a test's model of one.
pub(crate) trait Advisable {
    /// One process_madvise(2).
    fn call(&self, advice: Advice, parts: &[VirtRange]) -> io::Result<u64>;

    /// Which of the regions are huge, by the page tables. Where nobody can tell, none.
    fn huge(&mut self, regions: &[VirtRange]) -> Vec<bool>;

    /// Which of the regions are shared by more than [`Sharing::FewPages`] allows. Where nobody can tell, none.
    fn shared(&mut self, regions: &[VirtRange]) -> Vec<bool>;
}

/// A process that is acted on: by a descriptor, so that it cannot become another one meanwhile.
#[derive(Debug)]
pub(crate) struct Target {
    pid: Pid,
    pidfd: OwnedFd,
    tables: PageTables,
}

impl Advisable for Target {
    fn call(&self, advice: Advice, parts: &[VirtRange]) -> io::Result<u64> {
        let call = match advice {
            Advice::Collapse => process_madvise::collapse,
            Advice::ColdSplit => process_madvise::cold,
            Advice::PageOut => process_madvise::page_out,
        };
        call(self.pidfd.as_fd(), parts)
    }

    fn huge(&mut self, regions: &[VirtRange]) -> Vec<bool> {
        let seen = self.tables.regions(regions).unwrap_or_default();
        // A region that is not a whole one would shift the others.
        match seen.len() == regions.len() {
            true => seen.iter().map(|region| region.huge == Some(true)).collect(),
            false => vec![false; regions.len()],
        }
    }

    fn shared(&mut self, regions: &[VirtRange]) -> Vec<bool> {
        let mut shared = |region: &VirtRange| Sharing::FewPages.is_exceeded(&mut self.tables, *region);
        regions.iter().map(|region| shared(region).unwrap_or(false)).collect()
    }
}

impl Target {
    /// Opens a process and its page tables.
    pub(crate) fn open(root: &KernelRoot, pid: Pid) -> Result<Target, RemoteError> {
        if !root.is_live() {
            return Err(RemoteError::NotLive);
        }
        let pidfd = spawn::open_pidfd(pid).map_err(|_| RemoteError::Gone(pid))?;
        let tables = PageTables::open(root, pid).map_err(|error| refusal(root, pid, error))?;
        Ok(Target { pid, pidfd, tables })
    }

    /// The descriptor that stands for the process.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// That huge entries can be told from others.
    pub(crate) fn require_leaves(&mut self, root: &KernelRoot) -> Result<(), RemoteError> {
        match self.tables.tells_leaves() {
            Ok(true) => Ok(()),
            Ok(false) => Err(RemoteError::Unseen),
            Err(error) => Err(refusal(root, self.pid, error)),
        }
    }

    /// The regions as the page tables show them, by their start.
    pub(crate) fn look(
        &mut self,
        root: &KernelRoot,
        regions: &[VirtRange],
    ) -> Result<BTreeMap<u64, Region>, RemoteError> {
        let mut ascending = regions.to_vec();
        ascending.sort_unstable();
        ascending.dedup();
        let seen = self.tables.regions(&joined(&ascending));
        let seen = seen.map_err(|error| refusal(root, self.pid, error))?;
        Ok(seen.into_iter().map(|region| (region.range.start(), region)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::HUGE_2M;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    /// A process whose regions answer as they are told to; it keeps the bytes of the calls' ranges.
    struct Model {
        errno: BTreeMap<u64, i32>,
        huge: RefCell<BTreeSet<u64>>,
        shared: BTreeSet<u64>,
        looks: usize,
        calls: RefCell<Vec<Vec<u64>>>,
    }

    impl Advisable for Model {
        fn call(&self, advice: Advice, parts: &[VirtRange]) -> io::Result<u64> {
            self.calls.borrow_mut().push(parts.iter().map(|part| part.len().0).collect());
            let mut advised = 0;
            for part in parts {
                let mut last = None;
                for start in (part.start()..part.end()).step_by(HUGE_2M) {
                    match self.errno.get(&start) {
                        Some(&errno) => last = Some(errno),
                        None => {
                            self.huge.borrow_mut().insert(start);
                        }
                    }
                    // The kernel goes on after EAGAIN and EINVAL.
                    if matches!(last, Some(12 | 16)) {
                        break;
                    }
                }
                match last {
                    Some(errno) if advised == 0 => return Err(io::Error::from_raw_os_error(errno)),
                    Some(_) => break,
                    None => advised += part.len().0,
                }
            }
            assert!(advice == Advice::Collapse || parts.iter().all(|part| part.len().0 <= HUGE_2M as u64));
            Ok(advised)
        }

        fn huge(&mut self, regions: &[VirtRange]) -> Vec<bool> {
            regions.iter().map(|region| self.huge.borrow().contains(&region.start())).collect()
        }

        fn shared(&mut self, regions: &[VirtRange]) -> Vec<bool> {
            self.looks += regions.len();
            regions.iter().map(|region| self.shared.contains(&region.start())).collect()
        }
    }

    fn region(number: u64) -> VirtRange {
        VirtRange::new(number * HUGE_2M as u64, (number + 1) * HUGE_2M as u64).unwrap()
    }

    fn model(refused: &[(u64, i32)]) -> Model {
        let errno = refused.iter().map(|&(number, errno)| (region(number).start(), errno)).collect();
        Model {
            errno,
            huge: RefCell::default(),
            shared: BTreeSet::new(),
            looks: 0,
            calls: RefCell::default(),
        }
    }

    fn answers(tried: &[Tried]) -> Vec<Answer> {
        tried.iter().map(|tried| tried.answer).collect()
    }

    #[test]
    fn each_region_gets_its_own_answer_wherever_a_call_breaks_off() {
        let regions: Vec<VirtRange> = (0..10).map(region).collect();
        // EAGAIN, EINVAL, ENOMEM, EBUSY.
        for advice in [Advice::Collapse, Advice::ColdSplit, Advice::PageOut] {
            let mut model = model(&[(2, 11), (3, 22), (7, 12), (9, 16)]);
            let tried = advise(&mut model, advice, &regions, 4, |_| Some(4));
            let refused = |number: usize, refusal| {
                assert_eq!(tried[number].answer, Answer::Refused(refusal), "{advice:?} {number}");
            };
            refused(2, Refusal::Busy);
            refused(3, Refusal::Invalid);
            refused(7, Refusal::NoMemory);
            refused(9, Refusal::GroupFull);
            let accepted = tried.iter().filter(|tried| tried.answer == Answer::Accepted).count();
            assert_eq!(accepted, 6, "{advice:?}");
        }
    }

    #[test]
    fn whoever_paces_sets_the_size_of_each_call_and_its_end() {
        let regions: Vec<VirtRange> = (0..10).map(region).collect();
        let mut model = model(&[]);
        let mut sizes = [1, 2].into_iter();
        let tried = advise(&mut model, Advice::ColdSplit, &regions, 3, |_| sizes.next());
        assert_eq!(*model.calls.borrow(), [vec![4096; 3], vec![4096], vec![4096; 2]]);
        assert_eq!(answers(&tried)[..6], [Answer::Accepted; 6]);
        assert_eq!(answers(&tried)[6..], [Answer::NotTried; 4]);
        assert!(advise(&mut model, Advice::Collapse, &[], 3, |_| Some(1)).is_empty());
        assert_eq!(model.calls.borrow().len(), 3);
    }

    #[test]
    fn adjacent_regions_are_collapsed_as_one_range() {
        let regions: Vec<VirtRange> = [0, 1, 2, 3, 7, 8, 5, 4].map(region).to_vec();
        let mut model = model(&[]);
        let tried = advise(&mut model, Advice::Collapse, &regions, 3, |call| {
            let call = call.unwrap();
            assert!(call.held <= call.took && call.refused.is_none() && !call.failed);
            Some(3)
        });
        let sizes: Vec<u64> = model.calls.borrow().iter().map(|parts| parts[0] / HUGE_2M as u64).collect();
        assert_eq!(sizes, [3, 1, 2, 1, 1]);
        assert_eq!(answers(&tried), [Answer::Accepted; 8]);
    }

    #[test]
    fn of_a_range_that_failed_each_region_tells_its_own_reason() {
        let regions: Vec<VirtRange> = (0..8).map(region).collect();
        let mut model = model(&[(1, 11), (3, 22), (5, 12)]);
        let mut seen = Vec::new();
        let mut failed = 0;
        let tried = advise(&mut model, Advice::Collapse, &regions, 8, |call| {
            let call = call.unwrap();
            failed += usize::from(call.failed);
            seen.extend(call.refused.map(|refusal| (refusal, call.at)));
            (call.refused != Some(Refusal::NoMemory)).then_some(8)
        });
        assert_eq!(failed, 4, "the range as well");
        let seen_at = [(Refusal::Busy, Some(1)), (Refusal::Invalid, Some(3)), (Refusal::NoMemory, Some(5))];
        assert_eq!(seen, seen_at);
        let (yes, refused) = (Answer::Accepted, Answer::Refused);
        assert_eq!(
            answers(&tried),
            [
                yes,
                refused(Refusal::Busy),
                yes,
                refused(Refusal::Invalid),
                yes,
                refused(Refusal::NoMemory),
                // The kernel ended at the one before, and so did whoever paces.
                Answer::NotTried,
                Answer::NotTried,
            ]
        );
    }

    #[test]
    fn what_a_fork_shares_is_not_collapsed_and_what_lies_around_it_is() {
        let regions: Vec<VirtRange> = (0..8).map(region).collect();
        let mut model = model(&[(6, 11)]);
        model.shared = [0, 3, 4, 7].map(|number| region(number).start()).into();
        let tried = advise(&mut model, Advice::Collapse, &regions, 8, |_| Some(8));
        let sizes: Vec<u64> = model.calls.borrow().iter().map(|parts| parts[0] / HUGE_2M as u64).collect();
        // Of the range of two that fails, the one that is not huge is called alone.
        assert_eq!(sizes, [2, 2, 1]);
        let (yes, shared) = (Answer::Accepted, Answer::Refused(Refusal::Shared));
        let busy = Answer::Refused(Refusal::Busy);
        assert_eq!(answers(&tried), [shared, yes, yes, shared, shared, yes, busy, shared]);
        model.calls.borrow_mut().clear();
        let tried = advise(&mut model, Advice::ColdSplit, &regions[..1], 8, |_| Some(8));
        assert_eq!(answers(&tried), [yes], "a split copies nothing");
    }

    #[test]
    fn shared_regions_are_looked_at_once_and_within_the_bounds() {
        let regions: Vec<VirtRange> = (0..64).map(region).collect();
        let shared = Answer::Refused(Refusal::Shared);
        let mut all = model(&[]);
        all.shared = regions.iter().map(|region| region.start()).collect();
        let tried = advise(&mut all, Advice::Collapse, &regions, 32, |call| {
            assert!(call.is_none(), "nothing to call for");
            Some(32)
        });
        assert_eq!((all.looks, answers(&tried)), (64, vec![shared; 64]));
        // Whoever paces ends it between two looks as well.
        all.looks = 0;
        let tried = advise(&mut all, Advice::Collapse, &regions, 32, |_| None);
        assert_eq!(all.looks, 32);
        assert_eq!(answers(&tried)[32..], [Answer::NotTried; 32]);
        assert!(all.calls.borrow().is_empty());
        // Every second one: those that are free are looked at once more, right before their calls.
        let mut half = model(&[]);
        half.shared = (0..64).step_by(2).map(|number| region(number).start()).collect();
        let tried = advise(&mut half, Advice::Collapse, &regions, 32, |_| Some(32));
        assert!(half.looks <= 64 + 32, "{}", half.looks);
        for (number, answer) in answers(&tried).into_iter().enumerate() {
            assert_eq!(answer, if number % 2 == 0 { shared } else { Answer::Accepted }, "{number}");
        }
    }

    #[test]
    fn a_page_map_that_does_not_tell_huge_entries_is_not_enough() {
        let tree = tempfile::tempdir().unwrap();
        let directory = tree.path().join("proc/9");
        std::fs::create_dir_all(&directory).unwrap();
        // A page map as before Linux 6.7: entries alone.
        std::fs::write(directory.join("pagemap"), vec![0u8; 8 * HUGE_2M / BASE_PAGE]).unwrap();
        let root = KernelRoot::captured(tree.path());
        let pidfd = spawn::open_pidfd(Pid(std::process::id().cast_signed())).unwrap();
        let mut target = Target { pid: Pid(9), pidfd, tables: PageTables::open(&root, Pid(9)).unwrap() };
        assert!(matches!(target.require_leaves(&root), Err(RemoteError::Unseen)));
        assert!(matches!(Target::open(&root, Pid(9)), Err(RemoteError::NotLive)));
    }

    #[test]
    fn what_is_about_the_process_is_told_from_what_is_about_a_region() {
        let of = |errno| Refusal::of(&io::Error::from_raw_os_error(errno));
        for (errno, refusal) in [
            (1, Refusal::Denied),
            (13, Refusal::Denied),
            (3, Refusal::Gone),
            (38, Refusal::Unsupported),
            (95, Refusal::Unsupported),
            (14, Refusal::Other(14)),
        ] {
            assert_eq!(of(errno), refusal);
            assert!(refusal.is_final());
        }
        for errno in [11, 4, 16, 22, 12] {
            assert!(!of(errno).is_final(), "{errno}");
            assert_eq!(Refusal::of(&of(errno).to_error()), of(errno));
        }
    }
}
