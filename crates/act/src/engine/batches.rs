//! Advice about single regions, in batches.

use super::answer::{Advice, Answer, Refusal, Tried};
use megapage_decide::Call;
use megapage_kernel::process_madvise::MOST_RANGES;
use megapage_snapshot::ProcessId;
use megapage_units::{HugePage, VirtRange};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Gives `advice` to each of `regions`, at most `batch` in a call. `next` is asked after each call,
/// and after a look that led to no call. It returns the most regions that the next call may name;
/// after `None` the others are not tried. They are not tried either if a look shows a refusal of
/// the whole process ([`Refusal::is_final`]).
///
/// Adjacent regions are collapsed by one call as one range. At the start of each range the kernel
/// has every processor empty its LRU queues (lru_add_drain_all). So one range disturbs a large
/// machine once, not once for each region. (With two processors the difference cannot be measured:
/// 0.02 ms of 1.5 ms.) For a range that failed the kernel returns one error, and goes on after some
/// errors. Those of its regions that are not huge then get a call each.
///
/// Right before a collapse, [`Advisable::unfit`] looks at the regions of the call, and unfit ones
/// are left out. A fork between this look and the call is not seen: that one call may copy memory.
pub(super) fn in_batches<T: Advisable>(
    target: &mut T,
    advice: Advice,
    regions: &[HugePage],
    batch: usize,
    mut next: impl FnMut(&mut T, Option<Called>) -> Option<usize>,
) -> Vec<Tried> {
    let mut tried = vec![Tried::NOT; regions.len()];
    // Places in `regions`. The first `alone` of the queue get a call each.
    let mut queue: VecDeque<usize> = (0..regions.len()).collect();
    let mut alone = 0usize;
    let mut batch = Some(batch);
    while let Some(size) = batch.filter(|_| !queue.is_empty()) {
        let most = if alone > 0 { 1 } else { size.clamp(1, MOST_RANGES) };
        let mut places = take(&mut queue, regions, most, advice == Advice::Collapse);
        alone = alone.saturating_sub(1);
        if advice == Advice::Collapse {
            let unfit = target.unfit(&places.iter().map(|&place| regions[place]).collect::<Vec<_>>());
            let is_over = unfit.iter().flatten().any(|refusal| refusal.is_final());
            // A call names adjacent regions: those behind a gap wait for another call, and are
            // looked at again then.
            let (mut free, mut behind, mut is_behind) = (Vec::new(), Vec::new(), false);
            for (&place, unfit) in places.iter().zip(unfit) {
                if let Some(refusal) = unfit {
                    tried[place].answer = Answer::Refused(refusal);
                    is_behind = !free.is_empty();
                } else if is_behind {
                    behind.push(place);
                } else {
                    free.push(place);
                }
            }
            if is_over {
                break;
            }
            behind.iter().rev().for_each(|&place| queue.push_front(place));
            if free.is_empty() {
                batch = next(target, None);
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
        let Timed { answer, took, busy } = target.call(advice, &parts);
        let (accepted, refused) = match answer {
            Ok(_) if parts.len() < places.len() => (places.len(), None),
            // After a call that advised only some, the next call begins at the region that failed,
            // and so learns why. A call that advised nothing without an error counts as busy: the
            // loop would not end otherwise.
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
                // Time is reported for all of them. Each region that is not huge gets its answer
                // from its own call.
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
        // A range that failed as a whole says nothing yet about any single region.
        let reported = refused.filter(|refusal| !is_range || refusal.is_final());
        let at = reported.and_then(|_| places.get(accepted).copied());
        let call = Call { regions: dealt, took, busy, held };
        batch = next(target, Some(Called { call, refused: reported, failed: refused.is_some(), at }));
    }
    tried
}

/// Takes up to `most` places from the front of the queue; with `adjacent` only while their regions
/// adjoin, ascending.
fn take(queue: &mut VecDeque<usize>, regions: &[HugePage], most: usize, adjacent: bool) -> Vec<usize> {
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

/// Outcome of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Called {
    pub call: Call,
    pub refused: Option<Refusal>,
    /// True if any region of it was refused. If `refused` is empty, the next calls show which.
    pub failed: bool,
    /// The place of the region that was refused.
    pub at: Option<usize>,
}

/// Answer of one process_madvise(2), and its times.
#[derive(Debug)]
pub(crate) struct Timed {
    /// The bytes advised before the first failure, or the error of the first range.
    pub answer: io::Result<u64>,
    /// Time on the wall clock.
    pub took: Duration,
    /// Processor time.
    pub busy: Duration,
}

/// Receiver of advice: a process, or a test's model of one. No other module of this crate can name
/// this trait, as its module is private: [`super::advise`] alone makes the call.
pub(crate) trait Advisable {
    /// Returns the process.
    fn id(&self) -> ProcessId;

    /// Makes one process_madvise(2) call.
    fn call(&self, advice: Advice, parts: &[VirtRange]) -> Timed;

    /// Returns true for each region that is huge, by the page tables. Returns false if that is
    /// unknown.
    fn huge(&mut self, regions: &[HugePage]) -> Vec<bool>;

    /// Returns the reason not to collapse each region, as of now, such as more shared pages than
    /// [`crate::sharing::Sharing::FewPages`] allows. `None` if there is none or it is unknown.
    fn unfit(&mut self, regions: &[HugePage]) -> Vec<Option<Refusal>>;

    /// Returns true if one mapping holds the whole region; `None` if that cannot be read.
    fn is_mapped(&self, region: HugePage) -> Option<bool>;

    /// Returns true if the machine has less available memory than the safe floor. Returns false if
    /// that is unknown.
    fn is_below_floor(&self) -> bool;
}

#[cfg(test)]
mod tests {
    use super::super::model::{Model, answers, region};
    use super::*;
    use megapage_units::HUGE_2M;

    #[test]
    fn each_region_gets_its_own_answer_wherever_a_call_breaks_off() {
        let regions: Vec<HugePage> = (0..10).map(region).collect();
        // EAGAIN, EINVAL, ENOMEM, EBUSY.
        for advice in [Advice::Collapse, Advice::ColdSplit, Advice::PageOut] {
            let mut model = Model::refusing(&[(2, 11), (3, 22), (7, 12), (9, 16)]);
            let tried = in_batches(&mut model, advice, &regions, 4, |_, _| Some(4));
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
    fn the_pacer_sets_the_size_of_each_call_and_its_end() {
        let regions: Vec<HugePage> = (0..10).map(region).collect();
        let mut model = Model::refusing(&[]);
        let mut sizes = [1, 2].into_iter();
        let tried = in_batches(&mut model, Advice::ColdSplit, &regions, 3, |_, _| sizes.next());
        assert_eq!(*model.calls.borrow(), [vec![4096; 3], vec![4096], vec![4096; 2]]);
        assert_eq!(answers(&tried)[..6], [Answer::Accepted; 6]);
        assert_eq!(answers(&tried)[6..], [Answer::NotTried; 4]);
        assert!(in_batches(&mut model, Advice::Collapse, &[], 3, |_, _| Some(1)).is_empty());
        assert_eq!(model.calls.borrow().len(), 3);
    }

    #[test]
    fn adjacent_regions_are_collapsed_as_one_range() {
        let regions: Vec<HugePage> = [0, 1, 2, 3, 7, 8, 5, 4].map(region).to_vec();
        let mut model = Model::refusing(&[]);
        let tried = in_batches(&mut model, Advice::Collapse, &regions, 3, |_, call| {
            let call = call.unwrap();
            assert!(call.call.held <= call.call.took && call.refused.is_none() && !call.failed);
            Some(3)
        });
        let sizes: Vec<u64> = model.calls.borrow().iter().map(|parts| parts[0] / HUGE_2M as u64).collect();
        assert_eq!(sizes, [3, 1, 2, 1, 1]);
        assert_eq!(answers(&tried), [Answer::Accepted; 8]);
    }

    #[test]
    fn each_region_of_a_failed_range_reports_its_own_reason() {
        let regions: Vec<HugePage> = (0..8).map(region).collect();
        let mut model = Model::refusing(&[(1, 11), (3, 22), (5, 12)]);
        let mut seen = Vec::new();
        let mut failed = 0;
        let tried = in_batches(&mut model, Advice::Collapse, &regions, 8, |_, call| {
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
                // The kernel stopped at the region before, and so did the pacer.
                Answer::NotTried,
                Answer::NotTried,
            ]
        );
    }

    #[test]
    fn what_a_fork_shares_is_not_collapsed_and_what_lies_around_it_is() {
        let regions: Vec<HugePage> = (0..8).map(region).collect();
        let mut model = Model::refusing(&[(6, 11)]);
        model.shared = [0, 3, 4, 7].map(region).into();
        let tried = in_batches(&mut model, Advice::Collapse, &regions, 8, |_, _| Some(8));
        let sizes: Vec<u64> = model.calls.borrow().iter().map(|parts| parts[0] / HUGE_2M as u64).collect();
        // A range of two fails: its region that is not huge is then called for alone.
        assert_eq!(sizes, [2, 2, 1]);
        let (yes, shared) = (Answer::Accepted, Answer::Refused(Refusal::Shared));
        let busy = Answer::Refused(Refusal::Busy);
        assert_eq!(answers(&tried), [shared, yes, yes, shared, shared, yes, busy, shared]);
        model.calls.borrow_mut().clear();
        let tried = in_batches(&mut model, Advice::ColdSplit, &regions[..1], 8, |_, _| Some(8));
        assert_eq!(answers(&tried), [yes], "a split copies nothing");
    }

    #[test]
    fn nothing_is_called_for_once_the_process_cannot_be_looked_at() {
        let regions: Vec<HugePage> = (0..4).map(region).collect();
        let mut model = Model::refusing(&[]);
        model.unread = Some(region(1));
        let tried = in_batches(&mut model, Advice::Collapse, &regions, 2, |_, _| Some(2));
        let (untried, locked) = (Answer::NotTried, Answer::Refused(Refusal::Locked));
        assert_eq!(answers(&tried), [untried, locked, untried, untried]);
        assert!(model.calls.borrow().is_empty());
    }

    #[test]
    fn shared_regions_are_looked_at_once_and_within_the_bounds() {
        let regions: Vec<HugePage> = (0..64).map(region).collect();
        let shared = Answer::Refused(Refusal::Shared);
        let mut all = Model::refusing(&[]);
        all.shared = regions.iter().copied().collect();
        let tried = in_batches(&mut all, Advice::Collapse, &regions, 32, |_, call| {
            assert!(call.is_none(), "nothing to call for");
            Some(32)
        });
        assert_eq!((all.looks, answers(&tried)), (64, vec![shared; 64]));
        // The pacer can also end the work between two looks.
        all.looks = 0;
        let tried = in_batches(&mut all, Advice::Collapse, &regions, 32, |_, _| None);
        assert_eq!(all.looks, 32);
        assert_eq!(answers(&tried)[32..], [Answer::NotTried; 32]);
        assert!(all.calls.borrow().is_empty());
        // Every second region is shared. The free ones are looked at once more, right before their
        // calls.
        let mut half = Model::refusing(&[]);
        half.shared = (0..64).step_by(2).map(region).collect();
        let tried = in_batches(&mut half, Advice::Collapse, &regions, 32, |_, _| Some(32));
        assert!(half.looks <= 64 + 32, "{}", half.looks);
        for (number, answer) in answers(&tried).into_iter().enumerate() {
            assert_eq!(answer, if number % 2 == 0 { shared } else { Answer::Accepted }, "{number}");
        }
    }
}
